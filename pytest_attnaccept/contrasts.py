"""The losses that records keep, document by document -> the interaction of a stack, or why it cannot be said.

Perplexity: contrast in nats per token over the documents that all cells share. Retrieval: contrast in log-odds over the
contexts that all cells share (a sample that stopped early holds fewer of them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.records import Metric, Record

__all__ = ["Contrast", "contrast_of", "effects_on_shared_data", "same_baseline"]

_SHARE = 0.5  # policy: an interaction of half a margin is worth a name
_ADD_UP = ("perplexity", "needle", "long-range")
_LEAST_BASELINE = 1e-6  # equal baselines give equal scores; what is left is the rounding of the record


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An interaction with its interval.

    Attributes
    ----------
    compounds
        True, False or None (undecided; `reason` says why when nothing could be computed).
    """

    compounds: bool | None
    text: str
    scale: str = ""
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    margin: float | None = None
    n: int = 0

    @property
    def short(self) -> str:
        """Return the answer as a table shows it."""
        if self.value is None or self.lower is None or self.upper is None:
            return "undecided"
        word = {True: "compounds", False: "no compounding", None: "undecided"}[self.compounds]
        return f"{word} {self.value:+.3g} [{self.lower:+.3g}, {self.upper:+.3g}]"


def contrast_of(metric: Metric, full: Record, alone: Mapping[str, Record | None]) -> Contrast | None:
    """Return the interaction of one quantity, or None where losses do not add (KL, flips) or nothing was kept."""
    family = metric.name.partition("[")[0]
    if family not in _ADD_UP or any(r is None for r in alone.values()):
        return None
    singles = [r for r in alone.values() if r is not None]
    kept = [_kept(r, metric.name) for r in (full, *singles)]
    if any(k is None for k in kept):
        elsewhere = all(isinstance(r.details.get("losses"), Mapping) and r.details["losses"] for r in (full, *singles))
        why = "the cells are worst in different call patterns" if elsewhere else "a record holds no losses by document"
        return Contrast(compounds=None, text=f"interaction undecided: {why}")
    if not same_baseline(full, singles):
        return Contrast(compounds=None, text="interaction undecided: the cells have different baselines")
    try:
        rows = _shared_rows(kept)
        if not rows[0]:
            return Contrast(compounds=None, text="interaction undecided: different data")
        return _text_contrast(metric, kept, rows) if family == "perplexity" else _answers_contrast(metric, kept, rows)
    except (KeyError, TypeError, IndexError, ValueError, ContractError) as error:
        return Contrast(compounds=None, text=f"interaction undecided: the kept losses cannot be compared ({error})")


def effects_on_shared_data(metric: Metric, records: Sequence[Record]) -> list[float] | None:
    """Return the loss of each record over the units that all of them measured, in the unit of the limit; None: none shared.

    Two samples that stopped at different sizes differ by noise; the culprit is looked for where they do not.
    """
    kept = [_kept(r, metric.name) for r in records]
    if not kept or any(k is None for k in kept) or not same_baseline(records[0], records[1:]):
        return None
    try:
        rows = _shared_rows(kept)
        if not rows[0]:
            return None
        if all(k is not None and "sums" in k for k in kept):
            means = [
                sum(k["sums"][i] for i in row) / sum(k["tokens"][i] for i in row)
                for k, row in zip(kept, rows, strict=True)
                if k
            ]
            return [math.expm1(m) for m in means] if metric.name.partition("[")[0] == "perplexity" else means
        return [sum(k["losses"][i] for i in row) / len(row) for k, row in zip(kept, rows, strict=True) if k]
    except (KeyError, TypeError, IndexError, ValueError, ArithmeticError):
        return None


def _shared_rows(kept: Sequence[Mapping[str, Any] | None]) -> list[list[int]]:
    """Return, per record, where the units stand that every record holds, in one order."""
    columns = [dict(zip(map(str, k["units"]), range(len(k["units"])), strict=True)) for k in kept if k]
    shared = [unit for unit in columns[0] if all(unit in c for c in columns)]
    return [[c[unit] for unit in shared] for c in columns]


def _kept(record: Record, name: str) -> Mapping[str, Any] | None:
    losses = record.details.get("losses")
    found = losses.get(name) if isinstance(losses, Mapping) else None
    return found if isinstance(found, Mapping) else None


def same_baseline(full: Record, singles: Sequence[Record]) -> bool:
    """Whether records compare with one baseline, as far as their fingerprints say."""
    keys = [k for k in full.fingerprint if k.startswith("baseline.") and k != "baseline.spec"]
    return all(s.fingerprint.get(k) in (None, full.fingerprint[k]) for s in singles for k in keys)


def _text_contrast(metric: Metric, kept: Sequence[Any], rows: Sequence[Sequence[int]]) -> Contrast:
    from pytest_attnaccept.stats.interaction import interaction_nll

    sums = [[k["sums"][i] for i in row] for k, row in zip(kept, rows, strict=True)]
    tokens = [[k["tokens"][i] for i in row] for k, row in zip(kept, rows, strict=True)]
    if any(t != tokens[0] for t in tokens):
        return Contrast(compounds=None, text="interaction undecided: different data (tokens per document)")
    result = interaction_nll(sums[0], sums[1:], tokens[0], math.log1p(metric.limit or 0.0) * _SHARE)
    return _contrast(result, "documents")


def _answers_contrast(metric: Metric, kept: Sequence[Any], rows: Sequence[Sequence[int]]) -> Contrast:
    from pytest_attnaccept.stats.interaction import interaction_accuracy

    base = [[k["baseline"][i] for i in row] for k, row in zip(kept, rows, strict=True)]
    if any(abs(a - b) > _LEAST_BASELINE for other in base[1:] for a, b in zip(base[0], other, strict=True)):
        return Contrast(compounds=None, text="interaction undecided: the baselines answered differently")
    right = [[b - k["losses"][i] for b, i in zip(base[0], row, strict=True)] for k, row in zip(kept, rows, strict=True)]
    margin = _in_log_odds(sum(base[0]) / len(base[0]), (metric.limit or 0.0) * _SHARE)
    result = interaction_accuracy(base[0], right[0], right[1:], margin, questions=_questions([*base, *right]))
    return _contrast(result, "contexts")


def _in_log_odds(accuracy: float, points: float) -> float:
    """Return what `points` of accuracy cost at the baseline's level, in log-odds.

    Above 95 % the same points cost ever more log-odds (four times as many at 99.5 %), and no interaction would reach them.
    """
    high = min(max(accuracy, points + 0.01), 0.95)
    low = high - points
    return math.log(high / (1 - high)) - math.log(low / (1 - low))


def _questions(shares: Sequence[Sequence[float]]) -> int:
    """Return how many questions a context had: the smallest number that makes every share a whole number of answers."""
    flat = [x for row in shares for x in row]
    return next((k for k in range(1, 33) if all(abs(x * k - round(x * k)) < 1e-6 for x in flat)), 1)


def _contrast(result: Any, unit: str) -> Contrast:
    word = {True: "errors compound", False: "errors do not compound", None: "undecided whether errors compound"}
    clear = result.upper < result.margin or result.lower > result.margin
    few = f" (too few or too equal {unit} to say so)" if result.compounds is None and clear else ""
    text = (
        f"{word[result.compounds]} beyond {result.margin:.3g} {result.scale}{few}: contrast {result.contrast:+.4f}"
        f" [{result.lower:+.4f}, {result.upper:+.4f}] over {result.n} shared {unit}; the stack loses"
        f" {result.full:+.4f}, its members alone {result.singles:+.4f} together"
    )
    return Contrast(
        compounds=result.compounds, text=text, scale=result.scale, value=result.contrast, lower=result.lower,
        upper=result.upper, margin=result.margin, n=result.n,
    )  # fmt: skip
