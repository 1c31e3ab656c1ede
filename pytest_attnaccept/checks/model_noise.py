"""How much harmless changes of the baseline already differ: token by token, another attention, half precision.

A divergence below these floors is noise of the machine, not of the method; a limit far above them can fail. They are
facts of the report, measured on the texts and the model of the run.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_evidence import pattern_of
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import teacher_forced
from pytest_attnaccept.errors import AttnAcceptError
from pytest_attnaccept.measurement import Fact

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["noise_floors"]

_TOKENS = 16  # policy: a floor is an order of magnitude, not an estimate
_SMALL = 20_000_000  # parameters up to which a copy in another dtype costs nothing


def noise_floors(session: ModelSession, row: Tensor, scored: int, step: int) -> list[Fact]:
    """Return KL and top-1 of the baseline against itself under harmless changes, on the first tokens behind a context."""
    side = session.baseline
    context = row.shape[1] - scored
    row = row[:, : context + _TOKENS]
    key = ("floors", session.baseline_key, row.cpu().numpy().tobytes(), context, step)
    known = baseline_memo.get(key) if not side.changes else None
    if known is None:
        one = _log_probabilities(session, side, row, context, step)
        found = [_difference(one, _log_probabilities(session, side, row, context, 1))]
        found.append(_maybe(session, _other_attention(side), one, row, context, step))
        found.append(_maybe(session, _half_precision(side), one, row, context, step))
        known = torch.tensor(found, dtype=torch.float64)
        if not side.changes:
            baseline_memo.put(key, known)
    names = ("token by token", "other attention", "bfloat16")
    facts = [Fact(name="kl_noise_floor", value=float(known[0, 0]), unit="nats/token")]
    for name, (kl, flips) in zip(names[1:], known[1:].tolist(), strict=True):
        if kl == kl:  # NaN: this change cannot be made to this model
            facts.append(Fact(name=f"kl_noise_floor[{name}]", value=kl, unit="nats/token"))
            facts.append(Fact(name=f"top1_noise_floor[{name}]", value=flips, unit="share of tokens"))
    return facts


def _log_probabilities(session: ModelSession, side: Side, row: Tensor, context: int, step: int) -> Tensor:
    with side.running():
        logits = teacher_forced(side, row, context, pattern_of(session, side, "one-shot", step))
    return torch.log_softmax(logits.float(), dim=-1)


def _difference(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return mean KL(one || other) in nats per token and the share of tokens whose most likely token differs."""
    kl = (one.exp() * (one - other)).sum(-1).clamp(min=0).mean()
    return float(kl), float((one.argmax(-1) != other.argmax(-1)).float().mean())


def _maybe(
    session: ModelSession, side: Side | None, one: Tensor, row: Tensor, context: int, step: int
) -> tuple[float, float]:
    if side is None:
        return float("nan"), float("nan")
    try:
        return _difference(one, _log_probabilities(session, side, row, context, step))
    except (AttnAcceptError, ValueError, RuntimeError):  # a model may have one attention function only
        return float("nan"), float("nan")


def _other_attention(side: Side) -> Side | None:
    """Return the side with eager attention, or SDPA where it is eager already."""
    now = side.around.attn_implementation or getattr(side.model.config, "_attn_implementation", None)
    if now not in ("eager", "sdpa"):
        return None
    return replace(side, around=replace(side.around, attn_implementation="eager" if now == "sdpa" else "sdpa"))


def _half_precision(side: Side) -> Side | None:
    parameters = list(side.model.parameters())
    if sum(p.numel() for p in parameters) > _SMALL or parameters[0].dtype is not torch.float32 or side.changes:
        return None
    loaded = replace(side.loaded, model=copy.deepcopy(side.model).to(torch.bfloat16))
    return replace(side, loaded=loaded)
