"""Why two recorded runs cannot pass: the logs cannot show what the method does, or equal numbers prove nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_attnaccept.log_pairs import PairedLog
from pytest_attnaccept.measurement import ClusteredSums, Refusal
from pytest_attnaccept.taxonomy import Kind, Method, Verdict

__all__ = ["blind", "mostly_void", "not_exact", "vacuous"]

MOST_VOID = 0.02
"""Share of items without a usable baseline answer up to which a PASS counts (policy: below the usual margins)."""


def blind(
    baseline: Path, candidate: Path, pairs: Sequence[PairedLog], method: Method | None, through_cache: bool
) -> list[str]:
    """Give the reasons why these logs cannot show what the method does."""
    reasons = []
    if baseline.samefile(candidate):
        reasons.append(f"{candidate} was compared with itself")
    if method is not None and method.acts_on_kv:
        table = isinstance(pairs[0].gate, ClusteredSums)
        if not (through_cache if table else all(pair.generative for pair in pairs)):
            unknown = not table and any(pair.generative is None for pair in pairs)
            what = "the logs do not say that answers were generated" if unknown else "these are log-likelihood scores"
            reasons.append(
                f"{method.name} acts on the KV cache, and {what}: one forward pass never reads the compressed cache, so the "
                "loss cannot show. Use generative tasks (output_type generate_until)"
                + (", or state --through-cache if the table was measured through it" if table else "")
            )
    return reasons


def vacuous(pairs: Sequence[PairedLog], method: Method | None) -> list[str]:
    """Give the reasons why equal numbers prove nothing here."""
    reasons = []
    if method is not None and method.kind is Kind.APPROXIMATE and all(pair.identical for pair in pairs):
        reasons.append(
            f"every answer is identical to the baseline's: {method.name} was not active, or never had to act"
        )
    reasons += [
        f"{pair.name} is {pair.constant:g} on every item of both runs: a score that never varies measures nothing"
        for pair in pairs
        if pair.constant is not None and pair.constant < 1.0
    ]
    return reasons


def mostly_void(pairs: Sequence[PairedLog]) -> tuple[Refusal, ...]:
    """Refuse to pass where many items have no usable baseline answer: the candidate's losses may be among them."""
    return tuple(
        Refusal(
            verdict=Verdict.INCONCLUSIVE,
            reason=(
                f"{pair.name}: {pair.void} of {pair.void + pair.items} items have no usable baseline answer, more than"
                f" {MOST_VOID:.0%}: run the baseline again"
            ),
        )
        for pair in pairs
        if pair.void > MOST_VOID * (pair.void + pair.items)
    )


def not_exact(pairs: Sequence[PairedLog], method: Method | None) -> tuple[Refusal, ...]:
    """Refuse to pass an exact method whose answers differ: only logits can tell a near-tie from a wrong result."""
    if method is None or method.kind is not Kind.EXACT or all(pair.identical for pair in pairs):
        return ()
    reason = (
        f"{method.name} is exact, and answers differ: logs cannot tell near-ties from a wrong result; gate it with"
        f" accept.{method.surface.value}(...)"
    )
    return (Refusal(verdict=Verdict.INCONCLUSIVE, reason=reason),)
