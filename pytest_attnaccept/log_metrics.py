"""Which metric of two recorded runs is compared, and what one item scores under it."""

from __future__ import annotations

import math

from pytest_attnaccept.errors import RecordError, suggest
from pytest_attnaccept.logs import SampleLog, SampleRow

__all__ = ["choose_metric", "refuse_direction", "score_of"]

_LOWER_IS_BETTER = (
    "perplexity",
    "bits_per_byte",
    "wer",
    "cer",
    "ter",
    "nll",
    "loss",
    "brier",
    "error",
    "distance",
    "toxicity",
)
_FAVOURITES = ("acc", "exact_match")


def choose_metric(base: SampleLog, cand: SampleLog, wanted: str | None) -> str:
    """Give the metric to compare: the one named, else acc, else exact_match, else the only one."""
    common = [name for name in base.metrics if name in cand.metrics]
    if wanted is not None:
        if wanted in common:
            return wanted
        sides = [log.path.name for log in (base, cand) if wanted not in log.metrics]
        raise RecordError(
            f"metric {wanted!r} is not in {' and '.join(sides)}.{suggest(wanted, common)} Both logs have: "
            f"{', '.join(common) or 'none'}"
        )
    for name in _FAVOURITES:
        if name in common:
            return name
    if len(common) == 1:
        return common[0]
    raise RecordError(f"name the metric to compare with --metric; both logs have: {', '.join(common) or 'none'}")


def score_of(log: SampleLog, row: SampleRow, metric: str) -> float | None:
    """Give one score in [0, 1]; None when there is no usable answer."""
    value = row.values.get(metric)
    if value is None or (isinstance(value, str) and value.strip().lower() in ("nan", "none", "")):
        return None
    if isinstance(value, bool | int | float):
        number = float(value)
        if math.isnan(number):
            return None
        if 0.0 <= number <= 1.0:
            return number
        raise RecordError(
            f"{log.path}:{row.line}: {metric} is {number:g}, and an absolute margin needs scores in [0, 1]; corpus scores and "
            "percentages cannot be compared here"
        )
    raise RecordError(
        f"{log.path}:{row.line}: {metric} is {value!r}, which is no score of one item; choose another metric"
    )


def refuse_direction(metric: str) -> None:
    """Refuse a metric that is better when lower: a loss of it would be a gain."""
    name = metric.lower()
    if any(part == word or name.endswith(word) for word in _LOWER_IS_BETTER for part in name.split("_")):
        raise RecordError(
            f"metric {metric!r} is better when lower; compare a score that is better when higher, or likelihoods as an NLL "
            "table (document,tokens,nll)"
        )
