"""Two builds are compared by interleaved ABBA blocks, and one block gives one log ratio to a t interval over blocks.

Requests of one run share a process, a placement and a clock, so the run is the independent unit; consecutive runs share
drift, so every block contains both builds in mirrored order. Positive means that the candidate is worse.

Positions
---------
1. Fewer than 4 blocks never pass. A half width above the margin is INCONCLUSIVE and says how many blocks it would take.
2. P99 is computed once per run from at least 300 requests, as an order statistic; it is never bootstrapped.
3. An A/A comparison of the baseline with itself must PASS; its half width is the noise floor of every report.
4. Ratios without any spread are a broken clock, not infinite precision. Quantities that are exact by nature (peak
   memory) use `deterministic_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.clustered import quantile_upper
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, decide, require_alpha
from pytest_attnaccept.stats.spending import increment_levels
from pytest_attnaccept.taxonomy import Verdict

__all__ = [
    "BLOCK_STAGES",
    "MIN_BLOCKS",
    "MIN_P99_REQUESTS",
    "PerfResult",
    "abba_order",
    "block_levels",
    "block_log_ratios",
    "compare_blocks",
    "deterministic_ratio",
    "p99",
    "p99_requests_needed",
    "p99_upper",
]

MIN_BLOCKS = 4
"""Fewest ABBA blocks that may pass (reference: statistics, section 8)."""

MIN_P99_REQUESTS = 300
"""Fewest requests per run for a P99: ln(.05) / ln(.99) = 299 (reference: statistics, section 8)."""

BLOCK_STAGES = (4, 8, 16)
"""Numbers of blocks at which an undecided comparison may be looked at."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfResult:
    """What interleaved runs prove about a relative change.

    Attributes
    ----------
    change, lower, upper
        Relative change of the candidate and its one-sided bounds; positive = worse (slower, less throughput, more memory).
    half_width
        Relative half width: the noise floor when both arms are the same build.
    blocks_needed
        Blocks at which the half width would fall below the margin; None when it already does.
    """

    verdict: Verdict
    reason: str
    change: float
    lower: float
    upper: float
    half_width: float
    margin: float
    blocks: int
    blocks_needed: int | None
    p_pass: float
    p_fail: float


def abba_order(blocks: int, seed: int) -> list[str]:
    """Give the order of runs, "A" baseline and "B" candidate, each block randomly ABBA or BAAB."""
    if blocks < 1:
        raise ContractError(f"at least one block is needed, not {blocks}")
    mirrored = np.random.default_rng(seed).integers(0, 2, size=blocks)
    return [arm for flip in mirrored for arm in ("BAAB" if flip else "ABBA")]


def block_log_ratios(order: Sequence[str], values: ArrayLike, *, higher_is_better: bool = False) -> FloatArray:
    """Turn one value per run, in run order, into one log ratio per block (positive = candidate worse)."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if len(order) != array.size or array.size % 4 or array.size == 0:
        raise ContractError(f"{array.size} run values for {len(order)} planned runs: whole blocks of four are needed")
    if not (np.isfinite(array) & (array > 0)).all():
        raise ContractError("run values must be positive finite numbers; a failed run voids its block")
    ratios = []
    for first in range(0, array.size, 4):
        arms, four = "".join(order[first : first + 4]), np.log(array[first : first + 4])
        if arms not in ("ABBA", "BAAB"):
            raise ContractError(f"block {first // 4} ran in the order {arms}; only ABBA and BAAB cancel drift")
        sign = np.asarray([1.0 if arm == "B" else -1.0 for arm in arms])
        ratios.append(float(sign @ four) / 2)
    return np.asarray(ratios, dtype=np.float64) * (-1.0 if higher_is_better else 1.0)


def block_levels(alpha: float = DEFAULT_ALPHA, stages: Sequence[int] = BLOCK_STAGES) -> tuple[float, ...]:
    """Spend alpha over the stages by plain increments of t ** 1.5."""
    require_alpha(alpha)
    return increment_levels(stages, alpha, lambda n, level: n >= MIN_BLOCKS)


def compare_blocks(
    log_ratios: ArrayLike,
    margin: float,
    *,
    alpha_pass: float = DEFAULT_ALPHA,
    alpha_fail: float = DEFAULT_ALPHA,
) -> PerfResult:
    """Compare block log ratios with a relative margin (0.03: at most 3 % worse)."""
    require_alpha(alpha_pass, "alpha_pass"), require_alpha(alpha_fail, "alpha_fail")
    if not (math.isfinite(margin) and margin > 0):
        raise ContractError(f"margin = {margin!r} must be a positive relative change, such as 0.03")
    ratios = np.asarray(log_ratios, dtype=np.float64).ravel()
    blocks = ratios.size
    if not np.isfinite(ratios).all():
        raise ContractError("a block ratio is not finite: void the block before comparing")
    if blocks < 2:
        return _refused(
            Verdict.INCONCLUSIVE, f"{blocks} block(s) show no spread: {MIN_BLOCKS} are needed", margin, ratios
        )
    spread = float(ratios.std(ddof=1))
    if spread <= 1e-12:
        reason = "all blocks give the same ratio to the last digit: the values were copied or the clock is too coarse"
        return _refused(Verdict.INVALID, reason, margin, ratios)
    mean, error, limit = float(ratios.mean()), spread / math.sqrt(blocks), math.log1p(margin)
    law = distributions.t(blocks - 1)
    tails = float(law.cdf((mean - limit) / error)), float(law.sf((mean - limit) / error))
    reach = float(law.isf(alpha_pass)) * error
    lower, upper = mean - float(law.isf(alpha_fail)) * error, mean + reach
    verdict = decide(*tails, alpha_pass, alpha_fail)
    needed = _blocks_needed(spread, limit, alpha_pass, blocks)
    half = math.expm1(reach)
    relation = {Verdict.PASS: "below", Verdict.FAIL: "above"}.get(verdict, "around")
    reason = (
        f"change {math.expm1(mean):+.2%}, {math.expm1(lower):+.2%} to {math.expm1(upper):+.2%}: {relation} {margin:.2%}"
    )
    if verdict is Verdict.PASS and blocks < MIN_BLOCKS:
        verdict, reason = Verdict.INCONCLUSIVE, f"{blocks} blocks are too few to pass: {MIN_BLOCKS} are the minimum"
    elif verdict is Verdict.INCONCLUSIVE and needed is not None:
        reason = (
            f"half width {half:.1%} exceeds the margin {margin:.1%}: needs about {needed} blocks, or a quieter machine"
        )
    return PerfResult(
        verdict=verdict,
        reason=reason,
        change=math.expm1(mean),
        lower=math.expm1(lower),
        upper=math.expm1(upper),
        half_width=half,
        margin=margin,
        blocks=blocks,
        blocks_needed=needed,
        p_pass=tails[0],
        p_fail=tails[1],
    )


def _blocks_needed(spread: float, limit: float, alpha: float, blocks: int) -> int | None:
    """Find the number of blocks whose half width falls below the margin at the observed spread."""
    for count in range(max(blocks, 2), 10_000):
        if float(distributions.t(count - 1).isf(alpha)) * spread / math.sqrt(count) < limit:
            return count if count > blocks else None
    return 10_000


def _refused(verdict: Verdict, reason: str, margin: float, ratios: FloatArray) -> PerfResult:
    change = math.expm1(float(ratios.mean())) if ratios.size else math.nan
    return PerfResult(
        verdict=verdict,
        reason=reason,
        change=change,
        lower=-1.0,
        upper=math.inf,
        half_width=math.inf,
        margin=margin,
        blocks=ratios.size,
        blocks_needed=MIN_BLOCKS,
        p_pass=1.0,
        p_fail=1.0,
    )


def deterministic_ratio(base: ArrayLike, cand: ArrayLike, margin: float) -> PerfResult:
    """Compare a nearly deterministic quantity (peak bytes) by its maxima over at least 3 runs of each arm.

    Runs of one arm that differ by more than the margin make it INCONCLUSIVE: the quantity is not deterministic then.
    """
    first, second = np.asarray(base, dtype=np.float64).ravel(), np.asarray(cand, dtype=np.float64).ravel()
    both = np.concatenate([first, second])
    if both.size and not (np.isfinite(both) & (both > 0)).all():
        raise ContractError("run values must be positive finite numbers")
    if min(first.size, second.size) < 3:
        return _refused(Verdict.INCONCLUSIVE, "3 runs of each arm are needed", margin, np.zeros(0))
    change = float(second.max() / first.max()) - 1
    wide = max(float(np.ptp(arm) / arm.min()) for arm in (first, second))
    if wide > margin:
        verdict, reason = (
            Verdict.INCONCLUSIVE,
            f"runs of one arm differ by {wide:.1%}, more than the margin {margin:.1%}",
        )
    else:
        verdict = Verdict.PASS if change <= margin else Verdict.FAIL
        reason = f"largest of {second.size} runs changes by {change:+.2%}, margin {margin:.2%}"
    return PerfResult(
        verdict=verdict,
        reason=reason,
        change=change,
        lower=change,
        upper=change,
        half_width=wide,
        margin=margin,
        blocks=min(first.size, second.size),
        blocks_needed=None,
        p_pass=0.0 if verdict is Verdict.PASS else 1.0,
        p_fail=0.0 if verdict is Verdict.FAIL else 1.0,
    )


def p99(latencies: ArrayLike) -> float | None:
    """Give the P99 of one run as an order statistic; None below 300 requests, where no such number exists."""
    ordered = np.sort(np.asarray(latencies, dtype=np.float64).ravel())
    if np.isnan(ordered).any():
        raise ContractError("a latency is NaN: count the request as failed, do not average it away")
    if ordered.size < MIN_P99_REQUESTS:
        return None
    return float(ordered[math.ceil(0.99 * ordered.size) - 1])


def p99_upper(latencies: ArrayLike, alpha: float = DEFAULT_ALPHA) -> float | None:
    """Give the upper bound of the P99 within one run; None below 299 requests."""
    return quantile_upper(latencies, 0.99, alpha)


def p99_requests_needed(slowdown: float, sigma: float, *, alpha: float = DEFAULT_ALPHA, target: float = 0.8) -> int:
    """Give the requests per arm that show a P99 slowdown when log latencies spread with ``sigma``."""
    z = float(distributions.norm.isf(alpha) + distributions.norm.ppf(target))
    return math.ceil(2 * (3.73 * sigma * z / math.log1p(slowdown)) ** 2)
