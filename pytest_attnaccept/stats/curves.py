"""A curve over lengths or budgets is certified point by point from its easy end, and never beyond the last tested point.

Positions
---------
1. The certified range is a fixed sequence of tests, each at full alpha, that stops at the first point that does not pass;
   no correction is needed because nothing behind a failure is claimed.
2. The average over the curve is never tested: a candidate that collapses at the longest context passes it.
3. The isotonic fit is for drawing. A dip in the middle is real and the fit hides it, so steps against the order are
   reported instead.
4. No extrapolation: the upper bound of a fit on shorter lengths covers the truth of a cliff with probability 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, require_alpha
from pytest_attnaccept.taxonomy import Verdict

__all__ = [
    "CertifiedRange",
    "CurvePoint",
    "Steps",
    "adjacent_steps",
    "certified_at",
    "certified_range",
    "degradation_area",
    "isotonic_drawing",
]

MAX_RATIO = 2.0
"""Largest ratio of neighbouring lengths between which a monotone curve may be interpolated (statistics, section 6)."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One tested point: its position (tokens, or a budget share), its verdict and its loss."""

    at: float
    verdict: Verdict
    loss: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedRange:
    """What a curve certifies.

    Attributes
    ----------
    last
        Last certified point from the easy end; None when not even the easiest passes.
    stopped_at
        First point that did not pass; None when all passed.
    text
        The claim in words.
    """

    easiest: float
    last: float | None
    stopped_at: float | None
    points: int
    text: str


def certified_range(points: Sequence[CurvePoint], *, easy_end: str = "low", unit: str = "tokens") -> CertifiedRange:
    """Walk from the easy end outward and stop at the first point that does not PASS.

    ``easy_end`` is "low" for lengths (short is easy) and "high" for budgets (much is easy).
    """
    if easy_end not in ("low", "high"):
        raise ContractError(f"easy_end = {easy_end!r} is unknown; allowed: 'low' (lengths), 'high' (budgets)")
    if not points:
        raise ContractError("a curve needs at least one tested point")
    ordered = sorted(points, key=lambda point: point.at, reverse=easy_end == "high")
    if len({point.at for point in ordered}) != len(ordered):
        raise ContractError("a curve has one verdict per point: merge repeated points before")
    last: float | None = None
    stopped: float | None = None
    for point in ordered:
        if point.verdict is not Verdict.PASS:
            stopped = point.at
            break
        last = point.at
    hardest = ordered[-1].at
    if last is None:
        text = f"nothing certified: the easiest point, {ordered[0].at:g} {unit}, did not pass"
    elif stopped is None:
        text = f"certified from {ordered[0].at:g} to {last:g} {unit}; not tested beyond {hardest:g}"
    else:
        text = f"certified from {ordered[0].at:g} to {last:g} {unit}; {stopped:g} did not pass"
    return CertifiedRange(easiest=ordered[0].at, last=last, stopped_at=stopped, points=len(ordered), text=text)


def certified_at(points: Sequence[CurvePoint], at: float, *, monotone: bool = False, easy_end: str = "low") -> str:
    """Return "" when ``at`` is certified by these points, else why not.

    Between two passing neighbours a point counts only under a declared monotone loss and with a ratio of at most 2.
    """
    claim = certified_range(points, easy_end=easy_end)
    tested = sorted(point.at for point in points)
    if not tested[0] <= at <= tested[-1]:
        return (
            f"{at:g} lies outside the tested range {tested[0]:g} to {tested[-1]:g}: measure it, nothing is extrapolated"
        )
    inside = claim.last is not None and (at <= claim.last if easy_end == "low" else at >= claim.last)
    if not inside:
        return f"{at:g} lies beyond the certified range: {claim.text}"
    if at in tested:
        return ""
    below, above = max(t for t in tested if t < at), min(t for t in tested if t > at)
    if not monotone:
        return f"{at:g} was not tested; declare the loss monotone or measure it"
    if below <= 0 or above / below > MAX_RATIO:
        return f"{at:g} lies between {below:g} and {above:g}, more than a factor {MAX_RATIO:g} apart: measure it"
    return ""


def isotonic_drawing(at: ArrayLike, losses: ArrayLike, weights: ArrayLike | None = None) -> FloatArray:
    """Give the non-decreasing fit of the losses in the order of ``at``, for a picture and never for a verdict."""
    x, y = np.asarray(at, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    order = np.argsort(x, kind="stable")
    w = None if weights is None else np.asarray(weights, dtype=np.float64)[order]
    fitted = np.empty_like(y)
    fitted[order] = optimize.isotonic_regression(y[order], weights=w).x
    return fitted


def degradation_area(at: ArrayLike, losses: ArrayLike) -> float:
    """Average the loss over log length by trapezoids: a figure for ranking, never for a verdict."""
    x, y = np.log(np.asarray(at, dtype=np.float64)), np.asarray(losses, dtype=np.float64)
    order = np.argsort(x)
    x, y = x[order], y[order]
    if x.size < 2:
        return float(y.mean()) if y.size else math.nan
    return float(np.sum((y[1:] + y[:-1]) / 2 * np.diff(x)) / (x[-1] - x[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Differences of neighbouring points, tested together.

    Attributes
    ----------
    z
        Standardised step from each point to the next harder one (positive = loss grows).
    critical
        Simultaneous critical value of the largest step (sup-t).
    cliff
        Index of the largest step when it is significant, else None.
    against_order
        Index of a significant step in the wrong direction ("lost in the middle"), else None.
    """

    z: tuple[float, ...]
    critical: float
    cliff: int | None
    against_order: int | None


def adjacent_steps(losses: ArrayLike, *, alpha: float = DEFAULT_ALPHA, seed: int = 0) -> Steps:
    """Test all steps between neighbouring points at once.

    Parameters
    ----------
    losses : array, shape (n, K), float
        Loss of every item at every point, points ordered from easy to hard; the same n items at each point.
    alpha : float
        Error probability of a false cliff, and of a false step against the order.
    seed : int
        Seed of the simulated maximum of the correlated steps.
    """
    require_alpha(alpha)
    table = np.asarray(losses, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 20 or table.shape[1] < 2 or not np.isfinite(table).all():
        raise ContractError(f"steps need at least 20 items and 2 points of finite losses, not shape {table.shape}")
    steps = np.diff(table, axis=1)
    spread = steps.std(axis=0, ddof=1)
    error = np.where(spread > 0, spread, 1.0) / math.sqrt(table.shape[0])
    z = np.where(spread > 0, steps.mean(axis=0) / error, 0.0)
    covariance = np.atleast_2d(np.cov(steps, rowvar=False))
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(scale, scale)
    draws = np.random.default_rng(seed).multivariate_normal(
        np.zeros(z.size), correlation, size=20_000, check_valid="ignore", method="eigh"
    )
    critical = float(np.quantile(draws.max(axis=1), 1 - alpha))
    high, low = int(np.argmax(z)), int(np.argmin(z))
    return Steps(
        z=tuple(float(value) for value in z),
        critical=critical,
        cliff=high if z[high] > critical else None,
        against_order=low if -z[low] > critical else None,
    )
