"""How a candidate is built at another budget: by its registered method, or by a factory of the user's that takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pytest_attnaccept.checks.model_evidence import pattern_of
from pytest_attnaccept.checks.model_sides import build_side, with_model
from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.engines.sides import Side, side_of
from pytest_attnaccept.engines.storage import layer_storage
from pytest_attnaccept.engines.through_cache import prefill
from pytest_attnaccept.methods.claims import budget_entries
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.taxonomy import Method

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["budget_in", "budget_knobs", "budget_share", "knobs_at", "rebuilder", "stored_share"]

Entry = tuple[Method, Mapping[str, object]]
_KNOBS = ("kv_budget", "window")


def _found(stack: Sequence[Entry]) -> tuple[int, str] | None:
    """Return which member of the stack has a budget, and the name of its knob."""
    for number, (_, knobs) in enumerate(stack):
        for name in _KNOBS:
            value = knobs.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return number, name
    return None


def budget_knobs(stack: Sequence[Entry]) -> Mapping[str, object] | None:
    """Return the knobs of the member that has a budget, or None."""
    found = _found(stack)
    return None if found is None else stack[found[0]][1]


def budget_share(knobs: Mapping[str, object], tokens: int) -> float:
    """Return the budget in `knobs` as a share of `tokens`; a number of entries at or above them is everything.

    >>> budget_share({"kv_budget": 0.25}, 100), budget_share({"kv_budget": 64}, 128), budget_share({"window": 500}, 100)
    (0.25, 0.5, 1.0)
    """
    value = budget_in(knobs)
    return value if isinstance(value, float) else min(1.0, int(str(value)) / tokens)


def budget_in(knobs: Mapping[str, object]) -> object:
    """Return the budget in `knobs`, a share or a number of entries; None where they have none."""
    return next((knobs[name] for name in _KNOBS if knobs.get(name) is not None), None)


def knobs_at(stack: Sequence[Entry], share: float, tokens: int) -> Mapping[str, object]:
    """Return the knob with `share` of `tokens`, in the type that the stack gives it (a share or a number)."""
    found = _found(stack)
    if found is None:
        return {}
    number, name = found
    own = stack[number][1][name]
    return {name: share if isinstance(own, float) else budget_entries(share, tokens)}


def rebuilder(
    candidate: object,
    loaded: LoadedModel,
    model: Any,
    stack: Sequence[Entry],
    *,
    device: str,
    dtype: str,
    seed: int,
) -> Callable[[Mapping[str, object]], Side] | None:
    """Return what builds the candidate with other knobs, or None when nothing can."""
    found = _found(stack)
    if found is None:
        return None
    number, name = found
    if candidate is None:

        def applied(knobs: Mapping[str, object]) -> Side:
            other = [(m, {**k, **knobs}) if at == number else (m, k) for at, (m, k) in enumerate(stack)]
            around = apply_stack(model, other, seed=seed).candidate
            return side_of("candidate", with_model(loaded, around, device, dtype), around)

        return applied
    if not callable(candidate) or not _takes(candidate, name):
        return None
    factory: Callable[..., object] = candidate

    def asked(knobs: Mapping[str, object]) -> Side:
        given, around = build_side("candidate", partial(factory, **knobs), device, dtype, loaded)
        return side_of("candidate", given, around)

    return asked


def stored_share(session: ModelSession, side: Side, row: Tensor) -> float:
    """Return the entries that the cache holds after `row` (1, n), as a share of n, on average over the layers.

    Where entries cannot be read from shapes: its bytes as a share of the baseline's. A factory that takes a budget and
    does not follow it would make every point of a curve the same generous one.
    """
    held = []
    for each in (side, session.baseline):
        with each.running():
            cache = prefill(each, row, pattern_of(session, each, "one-shot", 1)).cache
        held.append(layer_storage(cache))
    entries = [layer.entries for layer in held[0] if layer.entries is not None]
    if entries:
        return sum(entries) / len(entries) / int(row.shape[1])
    mine, theirs = (sum(layer.storage_bytes for layer in layers) for layers in held)
    return mine / max(1, theirs)


def _takes(candidate: object, name: str) -> bool:
    """Return whether `candidate` is a factory with a keyword of that name."""
    if not (inspect.isfunction(candidate) or isinstance(candidate, partial)):
        return False
    found = inspect.signature(candidate).parameters.get(name)
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)
