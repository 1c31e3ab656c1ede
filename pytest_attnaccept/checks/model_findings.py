"""Why two sides cannot be compared, as far as it shows before anything runs: one model, a copy, an edited baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_attnaccept.engines.fingerprints import config_digest
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.measurement import Refusal
from pytest_attnaccept.taxonomy import Method, Verdict

__all__ = ["findings"]

Entry = tuple[Method, Mapping[str, object]]


def findings(
    first: Side, second: Side, stack: Sequence[Entry], *, edited: Sequence[str], same_weights: bool
) -> tuple[Refusal, ...]:
    """Return why two sides cannot be compared, as far as it shows before anything runs."""
    if edited:
        what = ", ".join(edited)
        reason = f"building the candidate changed the baseline's {what} in place: both sides are the changed model"
        return (_invalid(reason),)
    if second.model is first.model and not second.changes:
        return (_invalid("the candidate is the baseline: the same model object with nothing changed around it"),)
    # such a method must show in the weights, or in a context that quantizes on the fly
    on_weights = [method.name for method, _ in stack if method.acts_on_weights]
    if same_weights and on_weights and second.around.context is None and second.around.prefill_context is None:
        return (_invalid(f"{on_weights[0]} never ran: the candidate has the baseline's weights bit for bit"),)
    if same_weights and not second.changes and _build_of(first.model) == _build_of(second.model):
        return (_invalid("the candidate is a copy of the baseline: modules and weights are equal bit for bit"),)
    return ()


def _build_of(model: Any) -> object:
    """Return what decides a forward pass besides the weights: module types, hooks, replaced methods, attention."""
    parts = [
        (type(module), len(module._forward_hooks) + len(module._forward_pre_hooks), "forward" in vars(module))
        for module in model.modules()
    ]
    return parts, config_digest(model), getattr(model.config, "_attn_implementation", None)


def _invalid(reason: str) -> Refusal:
    return Refusal(verdict=Verdict.INVALID, reason=reason)
