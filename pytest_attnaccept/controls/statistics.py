"""Counts whose verdict is known: no harm, harm, and too little to say."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_attnaccept.controls import Control
from pytest_attnaccept.measurement import Measured, PairedCounts
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["controls"]


def _counts(losses: int, gains: int, n: int, base_correct: int) -> Measured:
    return Measured(gates=(PairedCounts(name="needle", losses=losses, gains=gains, n=n, base_correct=base_correct),))


def controls() -> Iterator[Control]:
    """Yield the controls of the verdict itself (margin 5 points)."""
    cases = (
        ("no difference on 1000 answers", (0, 0, 1000, 900), Verdict.PASS),
        ("no difference on 20 answers", (0, 0, 20, 18), Verdict.INCONCLUSIVE),
        ("a loss of 20 points", (200, 0, 1000, 900), Verdict.FAIL),
        ("a baseline that cannot answer", (0, 0, 1000, 10), Verdict.INVALID),
        ("nothing was compared", None, Verdict.INVALID),
    )
    for name, counts, expected in cases:
        measured = Measured() if counts is None else _counts(*counts)
        yield Control(
            surface="statistics",
            name=name,
            check="verdict",
            expected=frozenset({expected}),
            measure=lambda measured=measured: measured,  # type: ignore[misc]
        )
