"""A paired loss passes when its Gaffke upper bound lies below the margin, and fails when its lower bound lies above.

Items are independent; what is paired is one item's score under the baseline and under the candidate, and
``loss = baseline score - candidate score`` (positive = candidate worse).

Positions
---------
1. One engine for 0/1 answers, bounded scores, cluster means and relative margins; its price is one imaginary lost item.
2. The default refuses nothing silently: a sample that is too small for PASS is INCONCLUSIVE with the number it needs,
   a baseline that could not lose three margins is INVALID whatever the candidate did, unless the FAIL is proven.
3. Intervals are the exact duals of the p-values, so text and verdict can never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import tango
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, decide, require_alpha, require_margin
from pytest_attnaccept.stats.floors import MIN_CLUSTERS, baseline_floor, too_few_items
from pytest_attnaccept.stats.gaffke import difference_cdf, difference_sf, weighted_mean_tail
from pytest_attnaccept.stats.roots import bound
from pytest_attnaccept.taxonomy import Verdict

__all__ = [
    "PairedResult",
    "cluster_means",
    "count_outcomes",
    "p_fail",
    "p_pass",
    "p_pass_scores",
    "paired_binary",
    "paired_relative",
    "paired_scores",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedResult:
    """What a paired comparison proves.

    Attributes
    ----------
    loss, lower, upper
        Estimate and one-sided bounds of the mean loss, at levels ``alpha_fail`` and ``alpha_pass``.
    losses, gains
        Discordant pairs for 0/1 answers; items with a positive (negative) loss for scores.
    measurable
        The lower bound excludes zero loss: a PASS with a real, tolerated loss.
    """

    verdict: Verdict
    reason: str
    method: str
    n: int
    losses: int
    gains: int
    loss: float
    lower: float
    upper: float
    p_pass: float
    p_fail: float
    margin: float
    alpha_pass: float
    alpha_fail: float
    measurable: bool


def p_pass(losses: int, gains: int, n: int, margin: float) -> float:
    """Evidence for harm: P(mean loss >= margin) with one imaginary lost item. Small values prove harmlessness."""
    return difference_sf(losses + 1, gains, n - losses - gains, margin)


def p_fail(losses: int, gains: int, n: int, margin: float) -> float:
    """Evidence for harmlessness: P(mean loss <= margin) with one imaginary gained item. Small values prove harm."""
    return difference_cdf(losses, gains + 1, n - losses - gains, margin)


def paired_binary(
    losses: int,
    gains: int,
    n: int,
    margin: float,
    *,
    alpha_pass: float = DEFAULT_ALPHA,
    alpha_fail: float = DEFAULT_ALPHA,
    base_correct: int | None = None,
    chance: float = 0.0,
    method: str = "gaffke",
) -> PairedResult:
    """Compare right/wrong answers: ``losses`` items only the baseline got right, ``gains`` only the candidate.

    ``method="tango"`` uses the exact unconditional test ordered by Tango's score: 3 to 10 points more power, n <= 1000.
    """
    require_margin(margin), require_alpha(alpha_pass, "alpha_pass"), require_alpha(alpha_fail, "alpha_fail")
    _require_counts(losses, gains, n, base_correct)
    if method not in ("gaffke", "tango"):
        raise ContractError(f"method = {method!r} is unknown; allowed: 'gaffke', 'tango'")
    if n == 0:
        return _empty(margin, alpha_pass, alpha_fail, method)
    upper_tail: Callable[[float], float]
    lower_tail: Callable[[float], float]
    if method == "gaffke":
        upper_tail, lower_tail = partial(p_pass, losses, gains, n), partial(p_fail, losses, gains, n)
    else:
        upper_tail, lower_tail = partial(tango.p_pass, losses, gains, n), partial(tango.p_fail, losses, gains, n)
    floor = "" if base_correct is None else baseline_floor(base_correct / n, n, margin, chance)
    return _conclude(
        upper_tail,
        lower_tail,
        support=(-1.0, 1.0),
        loss=(losses - gains) / n,
        counts=(n, losses, gains),
        margin=margin,
        alphas=(alpha_pass, alpha_fail),
        method=method,
        floor=floor,
        too_few=too_few_items(n, margin, alpha_pass),
    )


def paired_scores(
    losses: ArrayLike,
    margin: float,
    *,
    alpha_pass: float = DEFAULT_ALPHA,
    alpha_fail: float = DEFAULT_ALPHA,
    base_mean: float | None = None,
    chance: float = 0.0,
    worst: float = 1.0,
    best: float = -1.0,
    clusters: bool = False,
) -> PairedResult:
    """Compare bounded scores (F1, ROUGE, rubric) item by item, or cluster by cluster.

    Parameters
    ----------
    losses : array, shape (n,), float in [best, worst]
        ``baseline - candidate`` per independent item or cluster; NaN is refused, never dropped.
    margin : float in (0, worst)
        Largest tolerated mean loss, in score units.
    alpha_pass, alpha_fail : float
        Error probabilities of a wrong PASS and a wrong FAIL.
    base_mean, chance : float
        Mean score of the baseline and of a blind guess, for the floor check; None: no check.
    worst, best : float
        Ends of the possible loss; a sharper ``worst`` (the largest baseline score) needs a reason known before the run.
    clusters : bool
        The values are means of clusters: fewer than 20 of them never pass.
    """
    require_margin(margin, low=0.0, high=worst)
    require_alpha(alpha_pass, "alpha_pass"), require_alpha(alpha_fail, "alpha_fail")
    values = _require_values(losses, best, worst)
    if values.size == 0:
        return _empty(margin, alpha_pass, alpha_fail, "gaffke")
    floor = "" if base_mean is None else baseline_floor(base_mean, values.size, margin, chance)
    too_few = too_few_items(values.size, margin / worst, alpha_pass)
    if clusters and values.size < MIN_CLUSTERS:
        too_few = f"{values.size} clusters are too few to pass: {MIN_CLUSTERS} are the minimum"
    return _scores(values, margin, (best, worst), (alpha_pass, alpha_fail), floor, too_few)


def paired_relative(
    base: ArrayLike,
    cand: ArrayLike,
    tolerated_loss: float,
    *,
    alpha_pass: float = DEFAULT_ALPHA,
    alpha_fail: float = DEFAULT_ALPHA,
) -> PairedResult:
    """Ask whether the candidate keeps ``1 - tolerated_loss`` of the baseline's mean score.

    The tested value per item is ``(1 - r) * base - cand`` in [-1, 1 - r], whose mean must be below 0; the bounds of the
    result are in that unit (absolute score missing to the tolerated level), and its margin is 0.
    """
    require_margin(tolerated_loss)
    require_alpha(alpha_pass, "alpha_pass"), require_alpha(alpha_fail, "alpha_fail")
    first, second = _require_values(base, 0.0, 1.0), _require_values(cand, 0.0, 1.0)
    if first.size != second.size:
        raise ContractError(f"baseline has {first.size} scores and candidate {second.size}: items must be paired")
    if first.size == 0:
        return _empty(0.0, alpha_pass, alpha_fail, "gaffke-relative")
    keep = 1.0 - tolerated_loss
    floor = "" if first.mean() > 0 else "baseline scores 0: there is nothing to lose"
    result = _scores(keep * first - second, 0.0, (-1.0, keep), (alpha_pass, alpha_fail), floor, "")
    absolute = np.append(first - second, -1.0)
    measurable = weighted_mean_tail(-absolute, None, 0.0) < alpha_fail
    kept = second.mean() / first.mean() if first.mean() > 0 else float("nan")
    reason = floor or f"candidate keeps {kept:.2%} of the baseline's {first.mean():.2%}; required {keep:.2%}"
    return replace(result, method="gaffke-relative", measurable=measurable, reason=reason)


def p_pass_scores(losses: ArrayLike, margin: float, worst: float = 1.0) -> float:
    """Evidence for harm from bounded losses alone, without bounds or refusals: for planning and simulation."""
    return weighted_mean_tail(np.append(np.asarray(losses, dtype=np.float64).ravel(), worst), None, margin)


def cluster_means(values: ArrayLike, clusters: Sequence[Hashable]) -> NDArray[np.float64]:
    """Average the values of each cluster; clusters keep the order of their first appearance."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size != len(clusters):
        raise ContractError(f"{array.size} values and {len(clusters)} cluster labels: give one label per value")
    order: dict[Hashable, int] = {}
    index = np.asarray([order.setdefault(label, len(order)) for label in clusters], dtype=np.intp)
    sizes = np.bincount(index, minlength=len(order))
    return np.asarray(np.bincount(index, weights=array, minlength=len(order)) / sizes, dtype=np.float64)


def count_outcomes(base: Sequence[bool], cand: Sequence[bool]) -> tuple[int, int, int, int]:
    """Count ``(losses, gains, n, base_correct)`` of two equally long lists of right/wrong answers."""
    if len(base) != len(cand):
        raise ContractError(f"baseline has {len(base)} answers and candidate {len(cand)}: items must be paired")
    losses = sum(bool(a) and not b for a, b in zip(base, cand, strict=True))
    gains = sum(bool(b) and not a for a, b in zip(base, cand, strict=True))
    return losses, gains, len(base), sum(map(bool, base))


def _scores(
    values: NDArray[np.float64],
    margin: float,
    support: tuple[float, float],
    alphas: tuple[float, float],
    floor: str,
    too_few: str,
) -> PairedResult:
    """Conclude from bounded losses with one imaginary item at either end of the support."""
    distinct, counts = np.unique(values, return_counts=True)
    with_worst, with_best = np.append(distinct, support[1]), np.append(-distinct, -support[0])
    weight = np.append(counts, 1)
    return _conclude(
        lambda m: weighted_mean_tail(with_worst, weight, m),
        lambda m: weighted_mean_tail(with_best, weight, -m),
        support=support,
        loss=float(values.mean()),
        counts=(values.size, int((values > 0).sum()), int((values < 0).sum())),
        margin=margin,
        alphas=alphas,
        method="gaffke-scores",
        floor=floor,
        too_few=too_few,
    )


def _conclude(
    upper_tail: Callable[[float], float],
    lower_tail: Callable[[float], float],
    *,
    support: tuple[float, float],
    loss: float,
    counts: tuple[int, int, int],
    margin: float,
    alphas: tuple[float, float],
    method: str,
    floor: str,
    too_few: str,
) -> PairedResult:
    """Compute p-values and bounds, and put the reason of the verdict into words."""
    chance_of_harm, chance_of_none = upper_tail(margin), lower_tail(margin)
    verdict = decide(chance_of_harm, chance_of_none, *alphas)
    if too_few and verdict is Verdict.PASS:
        verdict = Verdict.INCONCLUSIVE
    if floor and verdict is not Verdict.FAIL:
        verdict = Verdict.INVALID
    upper = bound(upper_tail, alphas[0], loss, support[1])
    lower = bound(lower_tail, alphas[1], loss, support[0])
    n, losses, gains = counts
    return PairedResult(
        verdict=verdict,
        reason=_reason(verdict, loss, lower, upper, margin, floor, too_few),
        method=method,
        n=n,
        losses=losses,
        gains=gains,
        loss=loss,
        lower=lower,
        upper=upper,
        p_pass=chance_of_harm,
        p_fail=chance_of_none,
        margin=margin,
        alpha_pass=alphas[0],
        alpha_fail=alphas[1],
        measurable=lower > 0,
    )


def _reason(verdict: Verdict, loss: float, lower: float, upper: float, margin: float, floor: str, too_few: str) -> str:
    """Say in one sentence why this verdict."""
    if verdict is Verdict.PASS:
        known = " (measurable loss)" if lower > 0 else ""
        return f"loss {loss:+.2%}, upper bound {upper:+.2%} is below the margin {margin:.2%}{known}"
    if verdict is Verdict.FAIL:
        return f"loss {loss:+.2%}, lower bound {lower:+.2%} is above the margin {margin:.2%}"
    if verdict is Verdict.INVALID:
        return floor or "the scores are not usable numbers"
    return too_few or f"loss {loss:+.2%}, interval {lower:+.2%} to {upper:+.2%} contains the margin {margin:.2%}"


def _empty(margin: float, alpha_pass: float, alpha_fail: float, method: str) -> PairedResult:
    """Nothing measured is INVALID, with the widest bounds."""
    return PairedResult(
        verdict=Verdict.INVALID,
        reason="no items were compared",
        method=method,
        n=0,
        losses=0,
        gains=0,
        loss=float("nan"),
        lower=-1.0,
        upper=1.0,
        p_pass=1.0,
        p_fail=1.0,
        margin=margin,
        alpha_pass=alpha_pass,
        alpha_fail=alpha_fail,
        measurable=False,
    )


def _require_counts(losses: int, gains: int, n: int, base_correct: int | None) -> None:
    for name, value in (("losses", losses), ("gains", gains), ("n", n), ("base_correct", base_correct or 0)):
        if isinstance(value, bool) or int(value) != value or value < 0:
            raise ContractError(f"{name} = {value!r} must be a whole number, 0 or more")
    if losses + gains > n:
        raise ContractError(f"{losses} losses and {gains} gains exceed n = {n}")
    if base_correct is not None and not losses <= base_correct <= n - gains:
        raise ContractError(f"base_correct = {base_correct} contradicts {losses} losses and {gains} gains of {n}")


def _require_values(values: ArrayLike, low: float, high: float) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64).ravel()
    bad = ~((array >= low - 1e-9) & (array <= high + 1e-9))  # NaN compares False and lands here
    if bad.any():
        where = int(np.nonzero(bad)[0][0])
        raise ContractError(f"value {array[where]!r} at position {where} is outside [{low:g}, {high:g}]")
    return np.clip(array, low, high)
