"""`identity`: at its identity setting the method changes nothing, leaves nothing behind, and no token sees the future.

Without this, a quality check measures the harness and the method together. The bounds are those of rounding, not of
quality. The last gate changes a later token and looks at earlier logits: a mask built from wrong positions shows there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pytest_attnaccept.checks.model_data import context_tokens, documents
from pytest_attnaccept.checks.model_evidence import (
    ROUNDING_ORIGIN,
    drawn,
    indistinguishable,
    largest_difference,
    not_evidence,
    pattern_of,
    rounding_bound,
    soundness,
    soundness_fact,
)
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.draws import same_draws
from pytest_attnaccept.engines.fingerprints import weights_digest
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern, teacher_forced
from pytest_attnaccept.measurement import Fact, Gate, Measured, Refusal, Threshold
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "measure"]

_LAST_TOKENS = 8  # derived: with 12 shared scales in a call of 200 tokens a token holds none with probability .94
_SHORT = 32  # tokens before the long call


DEFAULTS: Mapping[str, object] = {
    "documents": 2,
    "tier": 1.0,
    "max_tokens": 1024,  # a length at which float32 differences are known (facts of the rounding bound)
    "continuation": 32,
    "step": 8,
    "patterns": ("one-shot", "chunk-64"),
    "text": "builtin",
}


def measure(session: ModelSession, params: Params) -> Measured:
    """Measure identity setting, cached path, removal and causality."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    continuation, step = given.integer("continuation", 32), given.integer("step", 8)
    length = context_tokens(session, given, tier=given.number("tier", 1.0))
    data = documents(session, given, count=given.integer("documents", 2), length=length, continuation=continuation)
    names = given.texts("patterns", ())
    row, context = data.rows[0], data.rows[0].shape[1] - continuation
    hooks = _hooks(session.baseline)
    before = {name: _logits(session, session.baseline, row, context, name, step) for name in names}
    gates: list[Gate] = [_cached_gate(session)]
    for name in names:
        gates.extend(_identity_gates(session, data.rows, continuation, name, step))
    acting = _logits(session, session.candidate, row, context, names[0], step)
    gates.append(_causality_gate(session, row, context))
    after = {name: _logits(session, session.baseline, row, context, name, step) for name in names}
    worst = max(names, key=lambda name: largest_difference(before[name], after[name]))
    gates.append(Threshold(
        name="removal", value=largest_difference(before[worst], after[worst]), limit=0.0, unit="logit", where=worst,
        origin="derived: the same code on the same input is deterministic", seems="something stayed behind",
    ))  # fmt: skip
    identical = session.identity is not None and indistinguishable(session, acting, before[names[0]])
    # Here the identity setting is what is measured: that the knobs are not reached at this length does not matter.
    hollow = [
        r for r in not_evidence(session, length, identical=identical, params=given) if r.verdict is Verdict.INVALID
    ]
    return Measured(
        gates=tuple(gates),
        facts=_facts(session, length, continuation),
        refusals=(*_left_behind(session, hooks), *hollow),
        data_digest=data.digest,
    )


def _logits(session: ModelSession, side: Side, row: Tensor, context: int, name: str, step: int) -> Tensor:
    with side.running():
        return teacher_forced(side, row, context, pattern_of(session, side, name, step))


def _cached_gate(session: ModelSession) -> Threshold:
    _, gap, bound = soundness(session, session.baseline)
    return Threshold(
        name="cached_equals_uncached",
        value=gap,
        limit=bound,
        unit="logit",
        where="baseline, untouched cache",
        origin=ROUNDING_ORIGIN,
    )


def _identity_gates(
    session: ModelSession, rows: tuple[Tensor, ...], continuation: int, name: str, step: int
) -> list[Threshold]:
    """Compare the candidate at its identity setting with the baseline on every document."""
    if session.identity is None:
        return []
    worst, bound, place = 0.0, 0.0, ""
    for number, row in enumerate(rows):
        context = row.shape[1] - continuation
        base = _logits(session, session.baseline, row, context, name, step)
        gap = largest_difference(base, _logits(session, session.identity, row, context, name, step))
        bound = max(bound, rounding_bound(base))
        if worst == worst and not gap <= worst:  # NaN stays
            worst, place = gap, f"document {number}"
    return [Threshold(
        name=f"identity_setting[{name}]", value=worst, limit=bound, unit="logit", n=len(rows) * continuation,
        where=place, origin=ROUNDING_ORIGIN, seems="the method changes something that its knobs do not control",
    )]  # fmt: skip


def _causality_gate(session: ModelSession, row: Tensor, context: int) -> Threshold:
    """Change the last token that is fed and compare the logits of all earlier positions of the same call."""
    side = session.candidate
    step = row.shape[1] - context
    other = row.clone()
    other[:, -2] = (row[:, -2] + 1) % int(side.model.get_input_embeddings().weight.shape[0])
    one, two = _all(side, [row, other], context, pattern_of(session, side, "one-shot", step))
    change, bound, where = largest_difference(one[:, :-1], two[:, :-1]), rounding_bound(one), "last token changed"
    if not change <= bound:  # a generator of its own makes equal runs differ as much, which is no view of the future
        again = _all(side, [row] * 3, context, pattern_of(session, side, "one-shot", step))
        bound = max(bound, drawn([each[:, :-1] for each in again]))
    if not change <= bound and _shares_scales(session):
        change, bound = _least_change(session, row)
        where = f"last token changed, the best pair of {_LAST_TOKENS} tokens"
    return Threshold(
        name="causality", value=change, limit=bound, unit="logit", n=one.shape[1] - 1,
        where=f"continuation in one call, {where}", origin=ROUNDING_ORIGIN, seems="tokens see the future",
    )  # fmt: skip


def _shares_scales(session: ModelSession) -> bool:
    """Whether the method rounds with scales that tokens of one call may share."""
    return any(c.attention or c.bits is not None or c.activation_bits is not None for c in session.claims)


def _least_change(session: ModelSession, row: Tensor) -> tuple[float, float]:
    """Return the smallest change of earlier logits between two last tokens, and the bound.

    One scale per tensor is set by the largest value of a call: a last token that holds it rounds all earlier ones anew, which is
    no knowledge of the future. Most tokens of a long call hold none, so some two of them change nothing at all; what is
    seen changes with every token.
    """
    side, context = session.candidate, min(_SHORT, row.shape[1] // 2)
    vocabulary = int(side.model.get_input_embeddings().weight.shape[0])
    rows = []
    for number in range(_LAST_TOKENS):
        rows.append(row.clone())
        rows[-1][:, -2] = (row[:, -2] + 1 + number * (vocabulary // _LAST_TOKENS)) % vocabulary
    found = _all(side, rows, context, pattern_of(session, side, "one-shot", row.shape[1] - context))
    pairs = itertools.combinations([each[:, :-1] for each in found], 2)
    changes = [largest_difference(a, b) for a, b in pairs]
    return min((c for c in changes if c == c), default=math.nan), rounding_bound(found[0])


def _all(side: Side, rows: Sequence[Tensor], context: int, pattern: Pattern) -> list[Tensor]:
    results: list[Tensor] = []
    for ids in rows:
        with side.running(), same_draws():
            results.append(teacher_forced(side, ids, context, pattern))
    return results


def _hooks(side: Side) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in side.model.modules())


def _left_behind(session: ModelSession, hooks: int) -> tuple[Refusal, ...]:
    """Look for what removal must undo and a single text may not show."""
    found: list[str] = []
    if weights_digest(session.baseline.model) != session.weights["baseline"]:
        found.append("the weights of the baseline changed while the candidate ran")
    now = _hooks(session.baseline)
    if now != hooks:
        found.append(f"forward hooks of the baseline's model: {hooks} before, {now} after the candidate ran")
    return tuple(Refusal(verdict=Verdict.FAIL, reason=reason) for reason in found)


def _facts(session: ModelSession, length: int, continuation: int) -> tuple[Fact, ...]:
    facts = [
        Fact(name="context", value=length - continuation, unit="tokens"),
        soundness_fact(session, session.baseline),
    ]
    if session.identity is None:
        facts.append(
            Fact(name="identity_setting", value="a candidate of the user's own has none; removal and causality only")
        )
    return tuple(facts)
