"""The exact chance that a planned run ends in PASS or FAIL, and its mean cost, come from the distribution of (losses, gains).

The joint distribution is carried from look to look by convolution with the trinomial of the new items; what a look
decides is cut off. No simulation, no approximation beyond the truncation of improbable counts (below 1e-12).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal, special

from pytest_attnaccept.stats.boundary import fail_from, pass_up_to
from pytest_attnaccept.stats.sequential import SequentialPlan

__all__ = ["Characteristics", "operating_characteristics"]

FloatArray = NDArray[np.float64]

_SPREAD, _EXTRA = 9.0, 15  # counts kept: mean + 9 standard deviations + 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Characteristics:
    """Probabilities of the three ends of a run, and the mean number of items it uses."""

    passes: float
    fails: float
    inconclusive: float
    mean_items: float


def operating_characteristics(plan: SequentialPlan, p_loss: float, p_gain: float) -> Characteristics:
    """Enumerate a planned run for a candidate that loses and gains items with these probabilities."""
    rows, columns = _size(plan.n_max, p_loss), _size(plan.n_max, p_gain)
    state = np.zeros((rows, columns))
    state[0, 0] = 1.0
    passes = fails = items = 0.0
    losses, before = np.arange(rows)[:, None], 0
    for n, level_pass, level_fail in zip(plan.looks, plan.pass_levels, plan.fail_levels, strict=True):
        items += float(state.sum()) * (n - before)
        fresh = _trinomial(n - before, p_loss, p_gain, rows, columns)
        state = np.maximum(signal.fftconvolve(state, fresh)[:rows, :columns], 0.0)
        before = n
        if level_pass > 0:
            edge = _pad(pass_up_to(n, plan.margin, level_pass, columns), columns, -1)
            passes += _cut(state, losses <= edge[None, :])
        if level_fail > 0:
            edge = _pad(fail_from(n, plan.margin, level_fail, columns), columns, n + 1)
            fails += _cut(state, losses >= edge[None, :])
    return Characteristics(passes=passes, fails=fails, inconclusive=float(state.sum()), mean_items=items)


def _size(n: int, p: float) -> int:
    return 1 + (min(n, int(n * p + _SPREAD * np.sqrt(n * p) + _EXTRA)) if p > 0 else 0)


def _pad(edge: NDArray[np.int64], columns: int, value: int) -> NDArray[np.int64]:
    return np.pad(edge, (0, columns - edge.size), constant_values=value)


def _cut(state: FloatArray, region: NDArray[np.bool_]) -> float:
    """Remove the probability of a region and return it."""
    mass = float(state[region].sum())
    state[region] = 0.0
    return mass


def _trinomial(n: int, p_loss: float, p_gain: float, rows: int, columns: int) -> FloatArray:
    """Probability of (losses, gains) among n fresh items."""
    b, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
    rest = n - b - c
    kept = np.maximum(rest, 0)
    log_p = (
        special.gammaln(n + 1)
        - special.gammaln(b + 1)
        - special.gammaln(c + 1)
        - special.gammaln(kept + 1)
        + special.xlogy(b, p_loss)
        + special.xlogy(c, p_gain)
        + special.xlogy(kept, max(0.0, 1 - p_loss - p_gain))
    )
    return np.asarray(np.where(rest >= 0, np.exp(log_p), 0.0), dtype=np.float64)
