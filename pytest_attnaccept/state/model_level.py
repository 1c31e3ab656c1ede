"""Whether a transformers model gives the same logits however its state came about: chunks, reuse, padding, crops, positions.

Positions
---------
1. Each check is a list of ways to the same tokens; every way is compared with one forward over them, alone, without cache,
   and every such forward with the baseline's, where there is one: a model may be wrong in the same way everywhere.
2. A way in which the baseline fails too, by the same logits, is the baseline's fault and not the change's: then the two are
   compared, and the failure is reported as a fact.
3. What a model does not have (sliding layers, rotary positions, a cache that can be cropped) is NOT_APPLICABLE.
4. Best tokens may differ only where their gap is below the measured shift, which the limit on the shift implies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.model_runs import (
    ORIGIN_SHIFT,
    ModelRun,
    Shift,
    allowed_share,
    position_limit,
    rotary_limit,
)
from pytest_attnaccept.state.model_ways import WAYS, Absent
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["MODEL_STATE_CHECKS", "measure_model_state"]

Running = Callable[[], AbstractContextManager[object]]
MODEL_STATE_CHECKS: tuple[str, ...] = (*WAYS, "baseline")
LENGTH = 40
# A second, longer round of the checks that need few calls: beyond 64 and 128, where buffers and blocks end.
LONGER = 132
_TWICE = ("prefix", "batch", "right-padding", "crop", "reuse")
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
    running: Running = nullcontext,
    baseline_running: Running = nullcontext,
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
        The model whose function `model` must compute; None: only the ways are compared with each other.
    length
        Tokens of an ordinary request; window and trained length add their own.
    running, baseline_running
        What the model's (the baseline's) calls run inside.

    Raises
    ------
    CandidateError
        The model raised.
    """
    if check not in MODEL_STATE_CHECKS:
        raise ContractError(f"unknown check {check!r}. Known: {', '.join(MODEL_STATE_CHECKS)}.")
    if check == "baseline" and baseline is None:
        missing = Refusal(verdict=Verdict.NOT_APPLICABLE, reason="no baseline model was given")
        return Measured(refusals=(missing,), seed=seed)
    run = ModelRun(model, cache, device, seed)
    base = None if baseline is None else ModelRun(baseline, None, device, seed)
    digest = hashlib.sha256(f"{check}/{seed}/{length}/{run.vocab}".encode()).hexdigest()[:16]
    try:
        with running():
            shifts = _shifts(check, run, length)
            blind = _blind(run, length)
    except Absent as absent:
        verdict = Verdict.INCONCLUSIVE if str(absent).startswith("needs") else Verdict.NOT_APPLICABLE
        return Measured(refusals=(Refusal(verdict=verdict, reason=str(absent)),), seed=seed, data_digest=digest)
    inherited: list[str] = []
    if base is not None:
        with baseline_running():
            shifts, inherited = _inherited(check, run, base, length, shifts)
            shifts += _against_baseline(run, base)
    return _measured(check, run, shifts, inherited, blind, seed, digest, with_baseline=base is not None)


def _measured(
    check: str,
    run: ModelRun,
    shifts: list[Shift],
    inherited: list[str],
    blind: tuple[Refusal, ...],
    seed: int,
    digest: str,
    *,
    with_baseline: bool,
) -> Measured:
    longest = max((len(tokens) for tokens, _ in run.references()), default=0)
    against = "and against the baseline" if with_baseline else "against the model itself only"
    return Measured(
        gates=tuple(_gate(check, shift) for shift in shifts),
        facts=(
            Fact(name="certified_to", value=longest, unit="tokens"),
            Fact(name="positions compared", value=sum(shift.positions for shift in shifts)),
            Fact(name="best tokens that differ", value=sum(shift.flips for shift in shifts)),
            *(Fact(name="the baseline fails too", value=words) for words in inherited[:3]),
        ),
        refusals=blind,
        seems=_SEEMS[check] if any(not shift.value <= 1.0 for shift in shifts) else "",
        resolution=f"logit shifts above {allowed_share(run.dtype):.1g} of the largest logit are found, up to {longest} "
        f"tokens, {against}",
        seed=seed,
        data_digest=digest,
    )


def _shifts(check: str, run: ModelRun, length: int) -> list[Shift]:
    if check == "baseline":
        return list(_own_forwards(run, length))
    shifts = list(WAYS[check](run, length))
    longer = min(LONGER, (position_limit(run.model) or LONGER + 8) - 8)
    if check in _TWICE and longer >= 2 * length:
        again = WAYS[check](run, longer)
        shifts += [replace(shift, name=f"{shift.name} (request of {longer})") for shift in again]
    return shifts


def _inherited(
    check: str, run: ModelRun, base: ModelRun, length: int, shifts: list[Shift]
) -> tuple[list[Shift], list[str]]:
    """Return the shifts, those of a way in which the baseline fails by the same logits replaced, and their names."""
    if check == "baseline" or all(shift.value <= 1.0 for shift in shifts):
        return shifts, []
    try:
        theirs = {shift.name: shift for shift in _shifts(check, base, length)}
    except (Absent, CandidateError):
        return shifts, []
    kept, names = [], []
    for shift in shifts:
        other = theirs.get(shift.name)
        if shift.got is None or other is None or other.got is None or shift.got.shape != other.got.shape:
            kept.append(shift)
            continue
        same = run.against(base, f"{shift.name}, against the baseline's own", shift.got, other.got)
        kept.append(same if same.value <= 1.0 else shift)
        if same.value <= 1.0:
            names.append(shift.where)
    return kept, names


def _against_baseline(run: ModelRun, base: ModelRun) -> list[Shift]:
    """Compare every forward that was a reference with the baseline's."""
    if base.vocab != run.vocab:
        raise CandidateError(f"the model has {run.vocab} tokens, its baseline {base.vocab}")
    references = run.references()
    return [
        run.against(base, f"one forward over {len(tokens)} tokens, against the baseline", logits, base.alone(tokens))
        for tokens, logits in references
    ]


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


def _own_forwards(run: ModelRun, length: int) -> Iterator[Shift]:
    """Run one forward over lists of several lengths; what they are compared with is the baseline's."""
    limit = rotary_limit(run.model) or length
    for count in sorted({1, 2, length, min(max(limit, length), 512)}):
        run.alone(run.tokens(count))
    yield from ()
