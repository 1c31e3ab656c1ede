"""A matrix passes when every planned cell passes, and fails when one cell fails after Holm's correction.

Positions
---------
1. PASS is an intersection-union test: if one cell is harmful, the matrix passes at most as often as that cell does. No
   correction, and no average: a mean over cells hides the worst one.
2. FAIL is a union-intersection test: with 144 cells some lower bound exceeds its margin by luck, so Holm's adjusted
   p-values decide. A cell that looks bad but is not proven after the correction is INCONCLUSIVE and blocks as well.
3. A planned cell without evidence makes the matrix INCOMPLETE.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, require_alpha
from pytest_attnaccept.taxonomy import Verdict, worst_of

__all__ = ["CellEvidence", "CellVerdict", "FamilyResult", "Suspect", "attribute", "family_verdict", "holm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEvidence:
    """The two p-values of one cell, and what the report shows beside them.

    Attributes
    ----------
    refused
        INVALID, INCOMPLETE or INCONCLUSIVE when the cell may not pass whatever its p-values are; None otherwise.
    """

    name: str
    p_pass: float
    p_fail: float
    loss: float = math.nan
    margin: float = math.nan
    measurable: bool = False
    refused: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellVerdict:
    """The verdict of one cell within its family."""

    name: str
    verdict: Verdict
    p_pass: float
    p_fail_adjusted: float
    measurable: bool

    @property
    def label(self) -> str:
        """The verdict with its sub-verdict."""
        real = self.verdict is Verdict.PASS and self.measurable
        return f"{self.verdict.value} (measurable loss)" if real else self.verdict.value


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyResult:
    """The verdict of a matrix.

    Attributes
    ----------
    worst
        Name of the cell that decides (smallest distance to FAIL); "" without cells.
    undecided
        Cells that more items could decide.
    missing
        Planned cells without evidence.
    """

    verdict: Verdict
    cells: tuple[CellVerdict, ...]
    worst: str
    undecided: tuple[str, ...]
    missing: tuple[str, ...]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for the family (Holm 1979); NaN counts as 1 and stays in the family."""
    clean = [1.0 if math.isnan(p) else min(max(p, 0.0), 1.0) for p in p_values]
    order = sorted(range(len(clean)), key=clean.__getitem__)
    adjusted, running = [1.0] * len(clean), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(clean) - rank) * clean[index]))
        adjusted[index] = running
    return adjusted


def family_verdict(
    cells: Iterable[CellEvidence],
    planned: Iterable[str] | None = None,
    *,
    alpha_pass: float = DEFAULT_ALPHA,
    alpha_fail: float = DEFAULT_ALPHA,
) -> FamilyResult:
    """Decide a matrix from its cells; ``planned`` names every cell that must be there."""
    require_alpha(alpha_pass, "alpha_pass"), require_alpha(alpha_fail, "alpha_fail")
    evidence = list(cells)
    names = [cell.name for cell in evidence]
    if len(set(names)) != len(names):
        raise ContractError("a cell may appear only once in a matrix: " + ", ".join(_repeated(names)))
    wanted = names if planned is None else list(planned)
    missing = tuple(name for name in wanted if name not in set(names))
    # Cells that were planned and not measured stay in the family: leaving them out would soften the correction.
    adjusted = holm([cell.p_fail for cell in evidence] + [1.0] * len(missing))
    verdicts = tuple(
        CellVerdict(
            name=cell.name,
            verdict=_cell_verdict(cell, p, alpha_pass, alpha_fail),
            p_pass=cell.p_pass,
            p_fail_adjusted=p,
            measurable=cell.measurable,
        )
        for cell, p in zip(evidence, adjusted, strict=False)
    )
    every = [cell.verdict for cell in verdicts] + [Verdict.INCOMPLETE] * len(missing)
    return FamilyResult(
        verdict=worst_of(every),
        cells=verdicts,
        worst=_worst(verdicts),
        undecided=tuple(cell.name for cell in verdicts if cell.verdict is Verdict.INCONCLUSIVE),
        missing=missing,
    )


def _cell_verdict(cell: CellEvidence, adjusted: float, alpha_pass: float, alpha_fail: float) -> Verdict:
    if cell.refused is not None and cell.refused is not Verdict.PASS:
        return cell.refused
    if math.isnan(cell.p_pass) or math.isnan(cell.p_fail):
        return Verdict.INVALID
    if adjusted < alpha_fail:
        return Verdict.FAIL
    return Verdict.PASS if cell.p_pass < alpha_pass else Verdict.INCONCLUSIVE


def _worst(verdicts: Sequence[CellVerdict]) -> str:
    """Name the deciding cell: by severity of the verdict, then by evidence of harm, then by lack of proof."""
    if not verdicts:
        return ""
    severest = worst_of([cell.verdict for cell in verdicts])
    among = [cell for cell in verdicts if cell.verdict is severest]
    return min(among, key=lambda cell: (cell.p_fail_adjusted, -cell.p_pass)).name


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One member of a failed stack.

    Attributes
    ----------
    single
        Loss of this member alone.
    marginal
        Loss of the full stack minus the loss of the stack without this member.
    interaction
        ``marginal - single``: what the member costs only in company.
    named
        Whether it is held responsible: it carries at least half a margin in the stack, or loses a whole one alone.
    """

    name: str
    single: float
    marginal: float
    interaction: float
    named: bool


def attribute(full: float, singles: dict[str, float], without: dict[str, float], margin: float) -> tuple[Suspect, ...]:
    """Name the culprits of a failed stack from 2k + 1 runs: the stack, every member alone, every member left out."""
    if set(singles) != set(without):
        raise ContractError("attribution needs, for every member, the run with it alone and the run without it")
    suspects = [
        Suspect(
            name=name,
            single=singles[name],
            marginal=full - without[name],
            interaction=full - without[name] - singles[name],
            named=full - without[name] >= margin / 2 or singles[name] >= margin,
        )
        for name in singles
    ]
    return tuple(sorted(suspects, key=lambda suspect: -suspect.marginal))
