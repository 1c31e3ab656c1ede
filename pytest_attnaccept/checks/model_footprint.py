"""`footprint`: what the cache really stores after the context and after the last token, in every call pattern.

Bytes are those of all storages that the cache can reach, entries are read from tensor shapes; the knob is only the
limit. Evidence that the comparison is hollow is a refusal: a no-op, a continuation that ignores the cache, an original
kept next to its codes or outside the cache. Claims about weights are asked of every linear layer (`model_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from pytest_attnaccept.checks.model_attention import attention_report
from pytest_attnaccept.checks.model_data import context_tokens, documents
from pytest_attnaccept.checks.model_decode import batch_gates, decode_gates
from pytest_attnaccept.checks.model_evidence import (
    indistinguishable,
    longest_context,
    not_evidence,
    pattern_of,
    soundness_fact,
)
from pytest_attnaccept.checks.model_hidden import kept_outside, not_read
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_storage import (
    Moment,
    gates_of,
    kept_original,
    moments,
    unreadable,
)
from pytest_attnaccept.checks.model_weights import weight_report
from pytest_attnaccept.engines.through_cache import teacher_forced
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.measurement import Fact, Gate, Measured, Refusal
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "measure"]

DEFAULTS: Mapping[str, object] = {
    "tier": 1.0,
    "max_tokens": 1024,  # shares and bits do not depend on the length, so a capped one shows them
    "continuation": 16,
    "step": 8,
    "patterns": ("one-shot", "chunk-64", "token"),
    "text": "builtin",
}


def measure(session: ModelSession, params: Params) -> Measured:
    """Measure entries and bytes per layer at both moments in every pattern."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    continuation, step = given.integer("continuation", 16), given.integer("step", 8)
    length = _length(session, params, given)
    data = documents(session, given, count=1, length=length, continuation=continuation)
    row, context = data.rows[0], data.rows[0].shape[1] - continuation
    base = moments(session.baseline, row, context, pattern_of(session, session.baseline, "one-shot", step))
    found = {name: _in_pattern(session, row, context, name, step) for name in given.texts("patterns", ())}
    weights = weight_report(session)
    attention = attention_report(session, row)
    refusals = (*_refusals(session, given, row, context, base, found), *weights.refusals, *attention[1])
    gates: tuple[Gate, ...] = ()
    facts = _facts(session, base, found, context)
    # A run that proves nothing carries no gate: a failing one would outrank the reason why it proves nothing.
    if not any(refusal.verdict is Verdict.INVALID for refusal in refusals):
        decoded, batched = decode_gates(session, row, context), batch_gates(session, row, context, step)
        gates = (*gates_of(session, base, found, context), *weights.gates, *attention[0], *decoded[0], *batched[0])
        facts += [*decoded[1], *batched[1]]
    return Measured(
        gates=gates,
        facts=(*facts, *weights.facts, *attention[2], soundness_fact(session, session.baseline)),
        refusals=refusals,
        data_digest=data.digest,
        details={
            "layers": {name: [m.table() for m in pair] for name, pair in found.items()},
            "baseline": [m.table() for m in base],
        },
    )


def _in_pattern(session: ModelSession, row: Tensor, context: int, name: str, step: int) -> tuple[Moment, Moment]:
    """Return what the candidate stores; one that raises is told in which call pattern."""
    try:
        return moments(session.candidate, row, context, pattern_of(session, session.candidate, name, step))
    except CandidateError as error:
        raise CandidateError(f"{error} (call pattern {name})") from error


def _length(session: ModelSession, params: Params, given: Params) -> int:
    """Return the length of the tier, or what the knobs need where a longer tier of the plan reaches them."""
    length, continuation = (
        context_tokens(session, given, tier=given.number("tier", 1.0)),
        given.integer("continuation", 16),
    )
    needed = max((claim.missing_tokens(length - continuation) for claim in session.claims), default=0)
    longer = needed + needed // 4 + continuation
    return longer if needed and longer <= longest_context(session, params) else length


def _refusals(
    session: ModelSession,
    params: Params,
    row: Tensor,
    context: int,
    base: tuple[Moment, Moment],
    found: Mapping[str, tuple[Moment, Moment]],
) -> tuple[Refusal, ...]:
    step = params.integer("step", 8)
    identical = _identical(session, row, context, step)
    refusals = list(not_evidence(session, context, identical=identical, params=params))
    if refusals or not session.claim.about_kv:
        return tuple(refusals)
    pattern = pattern_of(session, session.candidate, "one-shot", step)
    plain = pattern_of(session, session.baseline, "one-shot", step)
    unread = not_read(session, row, context, (plain, pattern))
    if unread:
        refusals.append(_invalid(unread))
    for name, pair in found.items():
        words = kept_original(session.claim, base, pair)
        if words:
            refusals.append(_invalid(f"{words} ({name})"))
            break
    hidden = unreadable(session, base[0], next(iter(found.values()))[0])
    if hidden:
        refusals.append(_invalid(hidden))
    outside = kept_outside(session, row, context, pattern, base[0])
    if outside:
        refusals.append(_invalid(outside))
    return tuple(refusals)


def _invalid(reason: str) -> Refusal:
    return Refusal(verdict=Verdict.INVALID, reason=reason)


def _identical(session: ModelSession, row: Tensor, context: int, step: int) -> bool:
    logits: list[Tensor] = []
    for side in (session.baseline, session.candidate):
        with side.running():
            logits.append(teacher_forced(side, row, context, pattern_of(session, side, "one-shot", step)))
    return logits[0].shape == logits[1].shape and indistinguishable(session, logits[0], logits[1])


def _facts(
    session: ModelSession, base: tuple[Moment, Moment], found: Mapping[str, tuple[Moment, Moment]], context: int
) -> list[Fact]:
    facts = [
        Fact(name="context", value=context, unit="tokens"),
        Fact(name="claim", value=session.claim.source or "none"),
    ]
    total = max(1, base[1].total_bytes)
    for name, (_, last) in found.items():
        facts.append(Fact(name=f"bytes[{name}]", value=last.total_bytes, unit="bytes"))
        facts.append(Fact(name=f"share_of_baseline[{name}]", value=round(last.total_bytes / total, 4)))
    facts.append(Fact(name="baseline_bytes", value=base[1].total_bytes, unit="bytes"))
    return facts
