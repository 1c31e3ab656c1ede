"""Whether a method that claims to change attention does so in every attention layer.

Each layer is compared on equal terms: the baseline runs with the candidate's input put in front of every attention module,
so masks and positions are its own, and what differs is what that layer of the candidate does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.measurement import Fact, Refusal, Threshold
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["AttentionReport", "attention_report"]

AttentionReport = tuple[tuple[Threshold, ...], tuple[Refusal, ...], tuple[Fact, ...]]

_TOKENS = 96


def attention_report(session: ModelSession, row: Tensor) -> AttentionReport:
    """Compare every attention layer of the candidate with the baseline's; empty when no change of attention is claimed.

    derived: rounding to E4M3 changes an output by about 1 %, another order of sums by 1e-6 (float32) or a quarter of an eps.
    """
    if not session.claim.attention:
        return (), (), ()
    ids = row[:, :_TOKENS]
    names = _attention_names(session.baseline.model, session.candidate.model)
    given, seen = _outputs(session.candidate, names, ids, {})
    _, base = _outputs(session.baseline, names, ids, given)
    compared = [name for name in names if name in seen and name in base and seen[name].shape == base[name].shape]
    if not compared:
        words = f"{session.claim.source}: no attention layer of the candidate can be compared with the baseline's"
        return (), (Refusal(verdict=Verdict.INVALID, reason=words),), ()
    eps = float(torch.finfo(next(iter(base.values())).dtype).eps)
    changes = {name: _relative(seen[name], base[name]) for name in compared}
    idle = [name for name in compared if not changes[name] > max(1e-4, 0.5 * eps)]
    gate = Threshold(
        name="attention_layers", value=float(len(idle)), limit=0.0, unit="layers without a change", n=len(compared),
        where=", ".join(idle[:4]) or "every layer", origin="derived: the method acts in every attention layer",
        seems="the method acts in a part of the layers only" if idle else "",
    )  # fmt: skip
    fact = Fact(
        name="attention_change", value=f"{min(changes.values()):.3g} to {max(changes.values()):.3g} of the output"
    )
    return (gate,), (), (fact,)


def _attention_names(base: Any, cand: Any) -> list[str]:
    """Return the names of modules that both models have, know their layer and are called attention."""
    there = {name for name, module in cand.named_modules() if _is_attention(module)}
    return [name for name, module in base.named_modules() if _is_attention(module) and name in there]


def _is_attention(module: Any) -> bool:
    return isinstance(getattr(module, "layer_idx", None), int) and hasattr(module, "scaling")


def _relative(found: Tensor, base: Tensor) -> float:
    return float((found.float() - base.float()).norm() / base.float().norm().clamp(min=1e-30))


def _outputs(
    side: Side, names: list[str], ids: Tensor, inputs: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run `side` once without a cache; returns input and output per attention module, with `inputs` in place of its own."""
    given: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}
    with side.running(), _watched(side.model, names, inputs, given, made), torch.no_grad():
        side.model(ids, use_cache=False)
    return given, made


@contextmanager
def _watched(
    model: Any, names: list[str], inputs: dict[str, Tensor], given: dict[str, Tensor], made: dict[str, Tensor]
) -> Iterator[None]:
    handles: list[Any] = []
    for name in names:
        module = model.get_submodule(name)

        def before(_: Any, args: Any, kwargs: Any, name: str = name) -> tuple[Any, Any] | None:
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            given[name] = hidden.detach().clone()
            if name not in inputs:
                return None
            if "hidden_states" in kwargs:
                return args, {**kwargs, "hidden_states": inputs[name]}
            return (inputs[name], *args[1:]), kwargs

        def after(_: Any, args: Any, output: Any, name: str = name) -> None:
            made[name] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
