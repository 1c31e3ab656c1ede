"""Errors compound when the stack loses more than its members' single losses together, on a scale where losses add.

``I = L_full - sum of L_single``, all relative to the same baseline on the same items, so the contrast is formed per item.

Positions
---------
1. The claim is made on NLL, where losses add. Accuracies near the ceiling look super-additive (+35 %) and near the floor
   sub-additive without any interaction; there the contrast of log-odds decides and points are only reported.
2. Three answers, as everywhere: compounds beyond the margin, does not, or undecided. The gate of a stack never depends on
   this: the stack has a margin of its own, and the sum of single margins is not it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.clustered import MIN_DOCUMENTS
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, require_alpha

__all__ = ["InteractionResult", "interaction_accuracy", "interaction_nll"]

FloatArray = NDArray[np.float64]
_LEAST_FALSE = 100  # answers; measured: below, the delta method is off near 0 and 1 (tests/bench/matrix_planted.py)
_LEAST_TRUE = 40  # answers in at least 10 contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionResult:
    """How much a stack loses beyond the sum of its members.

    Attributes
    ----------
    scale
        "nats/token" or "log-odds".
    contrast, lower, upper
        Estimate and one-sided bounds of the interaction on that scale.
    compounds
        True, False or None (undecided).
    full, singles
        Loss of the stack and sum of the single losses, in nats or in accuracy.
    """

    scale: str
    contrast: float
    lower: float
    upper: float
    margin: float
    compounds: bool | None
    full: float
    singles: float
    n: int

    @property
    def text(self) -> str:
        """The finding in one sentence."""
        word = {True: "compounds", False: "does not compound", None: "undecided whether it compounds"}[self.compounds]
        unit = "nats/token" if self.scale == "nats/token" else "accuracy"
        return (
            f"stack loses {self.full:+.4f}, singles sum to {self.singles:+.4f} ({unit}): {word} beyond "
            f"{self.margin:g} ({self.scale} contrast {self.contrast:+.4f}, {self.lower:+.4f} to {self.upper:+.4f})"
        )


def interaction_nll(
    full: ArrayLike,
    singles: Sequence[ArrayLike],
    tokens: ArrayLike,
    margin: float,
    *,
    alpha: float = DEFAULT_ALPHA,
) -> InteractionResult:
    """Contrast loss sums per document (candidate NLL minus baseline NLL) of the stack and of its members.

    Parameters
    ----------
    full, singles : array, shape (G,), float
        Per document, the sum of NLL differences over its tokens, in nats.
    tokens : array, shape (G,), int
        Scored tokens per document, the same for every run.
    margin : float
        Tolerated interaction in nats per token.
    alpha : float
        Error probability of each of the two claims.
    """
    require_alpha(alpha)
    stack, counts = _column(full), _column(tokens)
    members = [_column(single) for single in singles]
    _require_same_items(stack, [*members, counts])
    summed = np.sum(members, axis=0)
    total = float(counts.sum())
    contrast = stack - summed
    mean = float(contrast.sum() / total)
    size = stack.size
    residual = contrast - mean * counts
    error = math.sqrt(size / (size - 1) * float(residual @ residual)) / total if size > 1 else math.inf
    reach = float(distributions.t(max(size - 1, 1)).isf(alpha)) * error
    decided = size >= MIN_DOCUMENTS and error > 0
    return InteractionResult(
        scale="nats/token",
        contrast=mean,
        lower=mean - reach,
        upper=mean + reach,
        margin=margin,
        compounds=_answer(mean - reach, mean + reach, margin) if decided else None,
        full=float(stack.sum() / total),
        singles=float(summed.sum() / total),
        n=size,
    )


def interaction_accuracy(
    base: ArrayLike,
    full: ArrayLike,
    singles: Sequence[ArrayLike],
    margin: float,
    *,
    alpha: float = DEFAULT_ALPHA,
    questions: int = 1,
) -> InteractionResult:
    """Contrast log-odds of right answers by the delta method over items; report points beside it.

    Parameters
    ----------
    base, full, singles : array, shape (n,), float in [0, 1]
        Per independent item (or context): 0 or 1, or the share of its `questions` that is right.
    margin : float
        Tolerated contrast in log-odds.

    "Does not compound" needs 100 answers. "Compounds" needs 10 contexts: a sample that stopped early because the stack
    fails is small, and t quantiles keep the error of the claim there (tests/bench/matrix_planted.py).
    """
    require_alpha(alpha)
    first, stack = _column(base), _column(full)
    members = [_column(single) for single in singles]
    _require_same_items(first, [stack, *members])
    size = first.size
    columns = [(1.0 - len(members), first), (-1.0, stack), *((1.0, member) for member in members)]
    contrast, influence = 0.0, np.zeros(size)
    for weight, column in columns:
        share = (float(column.sum()) + 0.5) / (size + 1)  # half an item keeps 0 % and 100 % finite
        contrast += weight * math.log(share / (1 - share))
        influence += weight * (column - share) / (share * (1 - share))
    error = float(influence.std(ddof=1)) / math.sqrt(size) if size > 1 else math.inf
    reach = float(distributions.t(max(size - 1, 1)).isf(alpha)) * error
    answer = _answer(contrast - reach, contrast + reach, margin) if error > 0 else None
    needed = _LEAST_FALSE if answer is False else _LEAST_TRUE if questions > 1 else _LEAST_FALSE
    return InteractionResult(
        scale="log-odds",
        contrast=contrast,
        lower=contrast - reach,
        upper=contrast + reach,
        margin=margin,
        compounds=answer if size * questions >= needed and size >= min(needed, 10) else None,
        full=float(first.mean() - stack.mean()),
        singles=float(sum(first.mean() - member.mean() for member in members)),
        n=size,
    )


def _answer(lower: float, upper: float, margin: float) -> bool | None:
    if lower > margin:
        return True
    return False if upper < margin else None


def _column(values: ArrayLike) -> FloatArray:
    array = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(array).all():
        raise ContractError("an interaction needs finite numbers for every item of every run")
    return array


def _require_same_items(first: FloatArray, others: Sequence[FloatArray]) -> None:
    sizes = {first.size, *(other.size for other in others)}
    if len(sizes) != 1 or first.size == 0 or len(others) < 2:
        raise ContractError(
            f"an interaction needs the same items in the stack and in every single run, not {sorted(sizes)} items"
        )
