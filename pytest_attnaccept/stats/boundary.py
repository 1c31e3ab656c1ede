"""A boundary says, for every number of gains, how many losses still pass and from how many losses it fails.

Because the p-values move one way in losses and the other way in gains, one number per column describes the whole
rejection region. Power, planning and simulation then are table look-ups and sums of binomial probabilities: exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pytest_attnaccept.stats.paired import p_fail, p_pass

__all__ = [
    "fail_from",
    "gain_distribution",
    "loss_cdf",
    "pass_up_to",
    "probability_fail",
    "probability_pass",
    "split_discordance",
]

IntArray = NDArray[np.int64]

# Gains kept by power sums: 8 standard deviations, and 20 more on the skewed side (probability beyond: < 1e-12).
_TAIL, _SKEW, _BLOCK = 8.0, 20, 32


@lru_cache(maxsize=20_000)
def _pass_block(n: int, margin: float, alpha: float, block: int) -> tuple[int, ...]:
    """Walk up one block of the pass boundary: it rises by at most a few losses per further gain."""
    gains = block * _BLOCK
    losses = _last(lambda b: p_pass(b, gains, n, margin) < alpha, n - gains)
    table: list[int] = []
    for column in range(gains, gains + _BLOCK):
        while losses + 1 + column <= n and p_pass(losses + 1, column, n, margin) < alpha:
            losses += 1
        table.append(min(losses, n - column))
    return tuple(table)


@lru_cache(maxsize=20_000)
def _fail_block(n: int, margin: float, alpha: float, block: int) -> tuple[int, ...]:
    """Walk up one block of the fail boundary; n + 1 means that no number of losses fails."""
    gains = block * _BLOCK
    losses = _last(lambda b: not p_fail(b, gains, n, margin) < alpha, n - gains) + 1
    table: list[int] = []
    for column in range(gains, gains + _BLOCK):
        while losses + column <= n and not p_fail(losses, column, n, margin) < alpha:
            losses += 1
        table.append(losses if losses + column <= n else n + 1)
    return tuple(table)


def _last(condition: Callable[[int], bool], top: int) -> int:
    """Find the last number in 0 .. top for which a condition that only switches off still holds; -1: none."""
    low, step = -1, 1
    while low + step <= top and condition(low + step):  # gallop: the boundary lies near n * margin, far below top
        low, step = low + step, step * 2
    high = min(low + step, top + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if condition(middle) else (low, middle)
    return low


def pass_up_to(n: int, margin: float, alpha: float, columns: int, first: int = 0) -> IntArray:
    """Give the largest number of losses that passes for first .. columns-1 gains; -1: none."""
    return _gather(_pass_block, n, margin, alpha, first, min(columns, n + 1))


def fail_from(n: int, margin: float, alpha: float, columns: int, first: int = 0) -> IntArray:
    """Give the smallest number of losses that fails for first .. columns-1 gains; n + 1: none."""
    return _gather(_fail_block, n, margin, alpha, first, min(columns, n + 1))


def _gather(
    block_of: Callable[[int, float, float, int], tuple[int, ...]],
    n: int,
    margin: float,
    alpha: float,
    first: int,
    end: int,
) -> IntArray:
    """Concatenate the cached blocks that hold columns first .. end-1."""
    if end <= first:
        return np.zeros(0, dtype=np.int64)
    start = first // _BLOCK
    blocks = [block_of(n, float(margin), float(alpha), i) for i in range(start, (end - 1) // _BLOCK + 1)]
    flat = np.asarray([value for block in blocks for value in block], dtype=np.int64)
    return flat[first - start * _BLOCK : end - start * _BLOCK]


def split_discordance(loss: float, discordance: float) -> tuple[float, float]:
    """Give P(only baseline right) and P(only candidate right): noise of the given size plus a true loss on top.

    A negative loss is a gain. The total discordance is ``discordance + abs(loss)``.
    """
    noise = discordance / 2
    return noise + max(loss, 0.0), noise + max(-loss, 0.0)


def probability_pass(n: int, margin: float, alpha: float, p_loss: float, p_gain: float) -> float:
    """Give the exact probability of PASS for n items with these outcome probabilities."""
    gains, weight = gain_distribution(n, p_gain)
    edge = pass_up_to(n, margin, alpha, int(gains[-1]) + 1, int(gains[0]))
    return float(weight @ loss_cdf(edge, n - gains, _conditional(p_loss, p_gain)))


def probability_fail(n: int, margin: float, alpha: float, p_loss: float, p_gain: float) -> float:
    """Give the exact probability of FAIL for n items with these outcome probabilities."""
    gains, weight = gain_distribution(n, p_gain)
    edge = fail_from(n, margin, alpha, int(gains[-1]) + 1, int(gains[0]))
    return float(weight @ (1 - loss_cdf(edge - 1, n - gains, _conditional(p_loss, p_gain))))


def _conditional(p_loss: float, p_gain: float) -> float:
    return min(1.0, p_loss / (1 - p_gain)) if p_gain < 1 else 0.0


def gain_distribution(n: int, p_gain: float) -> tuple[IntArray, NDArray[np.float64]]:
    """Give the numbers of gains that matter and their binomial probabilities."""
    centre, spread = n * p_gain, np.sqrt(n * p_gain * (1 - p_gain))
    low = max(0, int(centre - _TAIL * spread) - 1)
    high = min(n, int(centre + _TAIL * spread + _SKEW))
    k = np.arange(low, high + 1)
    log_weight = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    weight = np.exp(log_weight + special.xlogy(k, p_gain) + special.xlog1py(n - k, -p_gain))
    return k, np.asarray(weight, dtype=np.float64)


def loss_cdf(k: IntArray, trials: IntArray, share: float) -> NDArray[np.float64]:
    """P(X <= k) for arrays, with k < 0 and k >= trials allowed."""
    inner = special.betaincc(np.maximum(k, 0) + 1.0, np.maximum(trials - k, 1.0), share)
    return np.asarray(np.where(k < 0, 0.0, np.where(k >= trials, 1.0, inner)), dtype=np.float64)
