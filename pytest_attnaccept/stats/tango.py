"""The exact unconditional test ranks outcomes by Tango's score and takes the worst probability over all discordances.

Positions
---------
1. The nuisance parameter (discordance q) runs over a 1 - 1e-6 interval given the data, and 1e-6 is added to the p-value
   (Berger and Boos 1994): the result stays valid and the maximisation stays away from absurd q.
2. Above 1000 items the Gaffke bound has caught up and this test is refused: it costs O(n) per value of q.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from pytest_attnaccept.errors import ContractError

__all__ = ["MAX_ITEMS", "p_fail", "p_pass", "score"]

MAX_ITEMS = 1000
_BETA, _REST = 1e-6, 1e-12
_GRID = 100  # points over q; a second grid refines around the maximum (tests compare with 4000 points)

FloatArray = NDArray[np.float64]


def score(losses: ArrayLike, gains: ArrayLike, n: int, margin: float) -> FloatArray:
    """Tango's score statistic for H0: mean loss = margin (1998); small values speak against harm."""
    b, c = np.asarray(losses, dtype=np.float64), np.asarray(gains, dtype=np.float64)
    first = 2.0 * n
    second = -b - c + (2 * n - b + c) * margin
    third = -c * margin * (1 - margin)
    q01 = (np.sqrt(np.maximum(second**2 - 4 * first * third, 0.0)) - second) / (2 * first)
    variance = n * (2 * q01 + margin * (1 - margin))
    distance = b - c - n * margin
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = distance / np.sqrt(variance)
    # Without discordance at margin 0 both are zero: no evidence either way.
    return np.asarray(np.where((variance <= 0) & (distance == 0), 0.0, ratio), dtype=np.float64)


def p_pass(losses: int, gains: int, n: int, margin: float) -> float:
    """Give max over q of P(score <= observed) when the mean loss equals the margin."""
    return _p_value(losses, gains, n, float(margin), 1)


def p_fail(losses: int, gains: int, n: int, margin: float) -> float:
    """Give max over q of P(score >= observed) when the mean loss equals the margin."""
    return _p_value(losses, gains, n, float(margin), -1)


@lru_cache(maxsize=4096)
def _p_value(losses: int, gains: int, n: int, margin: float, side: int) -> float:
    if n > MAX_ITEMS:
        raise ContractError(f"the exact Tango test takes at most {MAX_ITEMS} items, not {n}; use method='gaffke'")
    if margin < 0:  # swap the roles of baseline and candidate
        return _p_value(gains, losses, n, -margin, -side)
    if margin >= 1:
        return 0.0 if side == 1 else 1.0
    discordant = losses + gains
    low = special.betaincinv(discordant, n - discordant + 1, _BETA / 2) if discordant else 0.0
    high = special.betainccinv(discordant + 1, n - discordant, _BETA / 2) if discordant < n else 1.0
    low, high = max(float(low), margin), max(float(high), margin)
    gain = max((high - margin) / 2, 0.0)
    columns = min(n, int(n * gain + 9 * np.sqrt(n * gain) + 25))  # more gains than this: probability below _REST
    edge = _region_edge(losses, gains, n, margin, side, columns)
    grid = np.linspace(low, high, _GRID)
    values = _region_probability(edge, n, margin, grid, side)
    best = int(values.argmax())
    fine = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)], 40)
    largest = max(values.max(), _region_probability(edge, n, margin, fine, side).max())
    return min(1.0, float(largest) + _BETA + _REST)


def _region_edge(losses: int, gains: int, n: int, margin: float, side: int, columns: int) -> NDArray[np.int64]:
    """For each number of gains, find the last (side 1) or first (side -1) number of losses in the region.

    The score grows with losses and falls with gains (Barnard's convexity), so that one edge per gain describes it.
    """
    observed = float(score(losses, gains, n, margin))
    slack = 1e-10 * max(1.0, abs(observed))
    column = np.arange(columns + 1)
    low, high = np.full(columns + 1, -1), n - column + 1  # low: inside for side 1; high: outside
    while True:
        open_ = high - low > 1
        if not open_.any():
            break
        middle = (low + high) // 2
        value = score(np.maximum(middle, 0), column, n, margin)
        below = (value <= observed + slack) if side == 1 else (value < observed - slack)
        low = np.where(open_ & below, middle, low)
        high = np.where(open_ & ~below, middle, high)
    return np.asarray(low if side == 1 else high, dtype=np.int64)


def _region_probability(edge: NDArray[np.int64], n: int, margin: float, q: FloatArray, side: int) -> FloatArray:
    """Sum the trinomial probability of the region for each discordance q at mean loss = margin."""
    gain = np.maximum((q - margin) / 2, 0.0)[None, :]
    loss = ((q + margin) / 2)[None, :]
    c = np.arange(edge.size)[:, None]
    log_choose = special.gammaln(n + 1) - special.gammaln(c + 1) - special.gammaln(n - c + 1)
    column = np.exp(log_choose + special.xlogy(c, gain) + special.xlog1py(n - c, -gain))
    share = np.minimum(loss / np.maximum(1 - gain, 1e-300), 1.0)
    k, trials = edge[:, None], n - c
    if side == 1:  # P(losses <= edge)
        inner = np.where(k >= trials, 1.0, _binomial_cdf(np.clip(k, 0, None), trials, share))
        inner = np.where(k < 0, 0.0, inner)
    else:  # P(losses >= edge)
        inner = 1.0 - np.where(k - 1 >= trials, 1.0, _binomial_cdf(np.clip(k - 1, 0, None), trials, share))
        inner = np.where(k <= 0, 1.0, inner)
    return np.asarray((column * inner).sum(axis=0), dtype=np.float64)


def _binomial_cdf(k: NDArray[np.int64], trials: NDArray[np.int64], share: FloatArray) -> FloatArray:
    """P(X <= k) for k < trials, through the incomplete beta function (vectorised)."""
    rest = np.maximum(trials - k, 1).astype(np.float64)
    return np.asarray(special.betaincc(k + 1.0, rest, share), dtype=np.float64)
