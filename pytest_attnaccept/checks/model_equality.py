"""`equality`: an exact change gives the baseline's logits within rounding, through the cache, in every call pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from pytest_attnaccept.checks.model_data import context_tokens, documents
from pytest_attnaccept.checks.model_evidence import (
    ROUNDING_ORIGIN,
    largest_difference,
    pattern_of,
    rounding_bound,
    soundness_fact,
)
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.through_cache import teacher_forced
from pytest_attnaccept.measurement import Fact, Measured, Threshold

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "measure"]

DEFAULTS: Mapping[str, object] = {
    "documents": 4,
    "tier": 1.0,
    "max_tokens": 4096,
    "continuation": 32,
    "step": 8,
    "patterns": ("one-shot", "chunk-64", "token"),
    "text": "builtin",
}


def measure(session: ModelSession, params: Params) -> Measured:
    """Compare logits in every pattern, and report greedy tokens that differ away from a near-tie."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    length = context_tokens(session, given, tier=given.number("tier", 1.0))
    data = documents(
        session,
        given,
        count=given.integer("documents", 4),
        length=length,
        continuation=given.integer("continuation", 32),
    )
    gates: list[Threshold] = []
    for name in given.texts("patterns", ()):
        worst, bound, place, flips = 0.0, 0.0, "", 0
        for number, row in enumerate(data.rows):
            base, cand = _both(session, row, row.shape[1] - data.continuation, name, given.integer("step", 8))
            gap = largest_difference(base, cand)
            bound = max(bound, rounding_bound(base))
            flips += _real_flips(base, cand, bound)
            if worst == worst and not gap <= worst:  # NaN stays
                worst, place = (
                    gap,
                    f"document {number}, position {int((base - cand).abs().amax(-1).argmax())} after the context",
                )
        gates.append(Threshold(
            name=f"logits[{name}]", value=worst, limit=bound, unit="logit", n=len(data.rows) * data.continuation,
            where=place, origin=ROUNDING_ORIGIN,
        ))  # fmt: skip
        gates.append(Threshold(
            name=f"greedy[{name}]", value=float(flips), limit=0.0, unit="tokens", n=len(data.rows) * data.continuation,
            origin="derived: a top-1 margin above twice the bound cannot flip by rounding",
        ))  # fmt: skip
    return Measured(
        gates=tuple(gates),
        facts=(
            Fact(name="certified_to", value=min(row.shape[1] for row in data.rows), unit="tokens"),
            Fact(name="context", value=length - data.continuation, unit="tokens"),
            soundness_fact(session, session.baseline),
        ),
        data_digest=data.digest,
    )


def _both(session: ModelSession, row: Tensor, context: int, name: str, step: int) -> tuple[Tensor, Tensor]:
    results: list[Tensor] = []
    for side in (session.baseline, session.candidate):
        with side.running():
            results.append(teacher_forced(side, row, context, pattern_of(session, side, name, step)).cpu())
    return results[0], results[1]


def _real_flips(base: Tensor, cand: Tensor, bound: float) -> int:
    """Count positions whose most likely token differs although the baseline's margin is not a near-tie."""
    top = base.topk(2, dim=-1).values
    margin = top[..., 0] - top[..., 1]
    return int(((base.argmax(-1) != cand.argmax(-1)) & (margin > 2 * bound)).sum())
