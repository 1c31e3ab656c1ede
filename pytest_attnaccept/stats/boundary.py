"""A boundary says, for every number of gains, how many losses still pass and from how many losses it fails.

Because the p-values move one way in losses and the other way in gains, one number per column describes the whole
rejection region. Power, planning and simulation then are table look-ups and sums of binomial probabilities: exact.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pytest_attnaccept.stats.paired import p_fail, p_pass

__all__ = ["fail_from", "pass_up_to", "probability_fail", "probability_pass", "split_discordance"]

IntArray = NDArray[np.int64]

_TAIL = 12.0  # standard deviations of the number of gains that power sums keep (probability beyond: < 1e-12)


@lru_cache(maxsize=2048)
def _pass_table(n: int, margin: float, alpha: float, columns: int) -> tuple[int, ...]:
    """Walk up the pass boundary: it rises by at most a few losses per further gain."""
    table: list[int] = []
    losses = -1
    for gains in range(columns):
        while losses + 1 + gains <= n and p_pass(losses + 1, gains, n, margin) < alpha:
            losses += 1
        table.append(min(losses, n - gains))
    return tuple(table)


@lru_cache(maxsize=2048)
def _fail_table(n: int, margin: float, alpha: float, columns: int) -> tuple[int, ...]:
    """Walk up the fail boundary; n + 1 means that no number of losses fails."""
    table: list[int] = []
    losses = _first_failure(n, margin, alpha)
    for gains in range(columns):
        while losses + gains <= n and not p_fail(losses, gains, n, margin) < alpha:
            losses += 1
        table.append(losses if losses + gains <= n else n + 1)
    return tuple(table)


def _first_failure(n: int, margin: float, alpha: float) -> int:
    """Bisect the smallest number of losses that fails without any gain."""
    low, high = -1, n + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if p_fail(middle, 0, n, margin) < alpha else (middle, high)
    return high


def pass_up_to(n: int, margin: float, alpha: float, columns: int) -> IntArray:
    """Give the largest number of losses that passes for 0 .. columns-1 gains; -1: none."""
    size = min(columns, n + 1)
    return np.asarray(_pass_table(n, float(margin), float(alpha), _round_up(size, n))[:size], dtype=np.int64)


def fail_from(n: int, margin: float, alpha: float, columns: int) -> IntArray:
    """Give the smallest number of losses that fails for 0 .. columns-1 gains; n + 1: none."""
    size = min(columns, n + 1)
    return np.asarray(_fail_table(n, float(margin), float(alpha), _round_up(size, n))[:size], dtype=np.int64)


def _round_up(size: int, n: int) -> int:
    """Share tables between requests of similar size."""
    return min(n + 1, 1 << max(4, (size - 1).bit_length()))


def split_discordance(loss: float, discordance: float) -> tuple[float, float]:
    """Give P(only baseline right) and P(only candidate right): noise of the given size plus a true loss on top.

    A negative loss is a gain. The total discordance is ``discordance + abs(loss)``.
    """
    noise = discordance / 2
    return noise + max(loss, 0.0), noise + max(-loss, 0.0)


def probability_pass(n: int, margin: float, alpha: float, p_loss: float, p_gain: float) -> float:
    """Give the exact probability of PASS for n items with these outcome probabilities."""
    gains, weight = _gain_distribution(n, p_gain)
    edge = pass_up_to(n, margin, alpha, int(gains[-1]) + 1)[gains]
    return float(weight @ _binomial_cdf(edge, n - gains, _conditional(p_loss, p_gain)))


def probability_fail(n: int, margin: float, alpha: float, p_loss: float, p_gain: float) -> float:
    """Give the exact probability of FAIL for n items with these outcome probabilities."""
    gains, weight = _gain_distribution(n, p_gain)
    edge = fail_from(n, margin, alpha, int(gains[-1]) + 1)[gains]
    return float(weight @ (1 - _binomial_cdf(edge - 1, n - gains, _conditional(p_loss, p_gain))))


def _conditional(p_loss: float, p_gain: float) -> float:
    return min(1.0, p_loss / (1 - p_gain)) if p_gain < 1 else 0.0


def _gain_distribution(n: int, p_gain: float) -> tuple[IntArray, NDArray[np.float64]]:
    """Give the numbers of gains that matter and their binomial probabilities."""
    centre, spread = n * p_gain, np.sqrt(n * p_gain * (1 - p_gain))
    low = max(0, int(centre - _TAIL * spread) - 1)
    high = min(n, int(centre + _TAIL * spread + 20))
    k = np.arange(low, high + 1)
    log_weight = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    weight = np.exp(log_weight + special.xlogy(k, p_gain) + special.xlog1py(n - k, -p_gain))
    return k, np.asarray(weight, dtype=np.float64)


def _binomial_cdf(k: IntArray, trials: IntArray, share: float) -> NDArray[np.float64]:
    """P(X <= k) for arrays, with k < 0 and k >= trials allowed."""
    inner = special.betaincc(np.maximum(k, 0) + 1.0, np.maximum(trials - k, 1.0), share)
    return np.asarray(np.where(k < 0, 0.0, np.where(k >= trials, 1.0, inner)), dtype=np.float64)
