"""Whether a transformers model gives the same logits however its state came about: chunks, reuse, padding, crops, positions.

Positions
---------
1. Each check is a list of ways to the same tokens; every way is compared with one forward over them, alone, without cache.
2. What a model does not have (sliding layers, rotary positions, a cache that can be cropped) is NOT_APPLICABLE.
3. Best tokens may differ only where their gap is below the measured shift, which the limit on the shift implies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.model_runs import (
    ORIGIN_SHIFT,
    ModelRun,
    Shift,
    allowed_share,
    rotary_limit,
)
from pytest_attnaccept.state.model_ways import WAYS, Absent
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["MODEL_STATE_CHECKS", "measure_model_state"]

MODEL_STATE_CHECKS: tuple[str, ...] = (*WAYS, "baseline")
LENGTH = 40
_SEEMS = {
    "chunked": "a mask or position is wrong when a call begins behind position 0",
    "prefix": "a warm prefix is not what a cold one gives, or copies of a cache share storage",
    "batch": "padding or a neighbour in the batch is attended, or positions count the padding",
    "right-padding": "padding passes through the state that the continuation begins with",
    "crop": "what was rolled back is still in the state, or too much was rolled back",
    "reuse": "state is left over between requests (mask, plan, cache object)",
    "window": "the sliding cache keeps one token too many or too few around its window",
    "positions": "positions are wrong after an eviction, or not relative",
    "preempt": "resuming a request, or its neighbour, differs from never having stopped",
    "baseline": "the model computes something else than its baseline",
}


def measure_model_state(
    check: str,
    model: Any,
    *,
    seed: int,
    device: str = "cpu",
    cache: Callable[[], Any] | None = None,
    baseline: Any = None,
    length: int = LENGTH,
) -> Measured:
    """Run one check of a model's state.

    Parameters
    ----------
    check
        One of `MODEL_STATE_CHECKS`.
    model
        A causal language model of transformers in evaluation mode, on `device`.
    seed
        Of the tokens.
    device
        Where the model is.
    cache
        Makes a fresh cache; None: ``DynamicCache``.
    baseline
        The model that ``baseline`` compares with.
    length
        Tokens of an ordinary request; window and trained length add their own.

    Raises
    ------
    CandidateError
        The model raised.
    """
    if check not in MODEL_STATE_CHECKS:
        raise ContractError(f"unknown check {check!r}. Known: {', '.join(MODEL_STATE_CHECKS)}.")
    run = ModelRun(model, cache, device, seed)
    digest = hashlib.sha256(f"{check}/{seed}/{length}/{run.vocab}".encode()).hexdigest()[:16]
    try:
        if check == "baseline":
            shifts = list(_baseline(run, baseline, length))
        else:
            shifts = list(WAYS[check](run, length))
    except Absent as absent:
        verdict = Verdict.INCONCLUSIVE if str(absent).startswith("needs") else Verdict.NOT_APPLICABLE
        return Measured(refusals=(Refusal(verdict=verdict, reason=str(absent)),), seed=seed, data_digest=digest)
    return Measured(
        gates=tuple(_gate(check, shift) for shift in shifts),
        facts=(
            Fact(name="positions compared", value=sum(shift.positions for shift in shifts)),
            Fact(name="best tokens that differ", value=sum(shift.flips for shift in shifts)),
        ),
        refusals=_blind(run, length),
        seems=_SEEMS[check] if any(not shift.value <= 1.0 for shift in shifts) else "",
        resolution=f"logit shifts above {allowed_share(run.dtype):.1g} of the largest logit are found",
        seed=seed,
        data_digest=digest,
    )


def _gate(check: str, shift: Shift) -> Threshold:
    return Threshold(
        name=shift.name,
        value=shift.value,
        limit=1.0,
        unit="of the allowed shift",
        n=shift.positions,
        where=shift.where,
        origin=ORIGIN_SHIFT,
        seems=_SEEMS[check],
    )


def _blind(run: ModelRun, length: int) -> tuple[Refusal, ...]:
    """Refuse a model whose logits do not depend on an earlier token: it could not show a wrong state."""
    tokens = run.tokens(length)
    other = tokens.clone()
    other[length // 2] = 1 + (other[length // 2] + 1) % (run.vocab - 1)
    change = run.shift("control", run.alone(other)[length // 2 + 1 :], run.alone(tokens)[length // 2 + 1 :])
    if change.value > 10:
        return ()
    reason = "another token in the middle moves no later logit measurably: this model cannot show a wrong state"
    return (Refusal(verdict=Verdict.INVALID, reason=reason),)


def _baseline(run: ModelRun, baseline: Any, length: int) -> Iterator[Shift]:
    if baseline is None:
        raise Absent("no baseline model was given")
    base = ModelRun(baseline, None, run.device, 0)
    if base.vocab != run.vocab:
        raise CandidateError(f"the model has {run.vocab} tokens, its baseline {base.vocab}")
    limit = rotary_limit(run.model) or length
    for count in sorted({1, 2, length, min(max(limit, length), 512)}):
        tokens = run.tokens(count)
        yield run.shift(f"{count} tokens", run.alone(tokens), base.alone(tokens))
