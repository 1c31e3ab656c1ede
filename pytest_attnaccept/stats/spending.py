"""A spending function turns alpha into one nominal level per look, so that all looks together err with alpha.

Two ways to convert the share spent by a look into its level:

* ``joint``: the levels whose joint rejection probability equals the plan for a Gaussian walk (Armitage, McPherson and
  Rowe's recursion). Gaffke p-values stay below nominal at every look, and the total error of the combination was
  simulated and enumerated over discordances, margins and sizes (`tests/bench/stats_sequential.py`).
* ``increments``: the plain increments of the spending function. Valid for any p-values by the union bound, at the price
  of about 3 points of power and, for clearly bad candidates, a quarter more items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy import stats as distributions

__all__ = ["RHO", "increment_levels", "joint_levels", "spent"]

RHO = 1.5
"""Exponent of the spending function (reference: statistics 2.1)."""

Possible = Callable[[int, float], bool]
"""Whether a look at n items can decide at all at this level."""

_GRID, _DEEPEST = 401, -7.0  # points of the continuation region and its lower end in standard deviations

FloatArray = NDArray[np.float64]


def spent(fraction: float, rho: float = RHO) -> float:
    """Give the share of alpha that may be spent by this information fraction."""
    return float(min(max(fraction, 0.0), 1.0) ** rho)


def increment_levels(looks: Sequence[int], alpha: float, possible: Possible, rho: float = RHO) -> tuple[float, ...]:
    """Spend plain increments; an instalment that cannot decide moves on to the next look."""
    levels: list[float] = []
    used = 0.0
    for n in looks:
        level = alpha * spent(n / looks[-1], rho) - used
        allowed = level > 0 and possible(n, level)
        levels.append(level if allowed else 0.0)
        used += levels[-1]
    return tuple(levels)


def joint_levels(looks: Sequence[int], alpha: float, possible: Possible, rho: float = RHO) -> tuple[float, ...]:
    """Spend the same shares, crediting that a walk rejected at one look would often be rejected at the next too."""
    levels: list[float] = []
    used, time = 0.0, 0.0
    grid, density = np.zeros(1), np.ones(1)  # the walk starts at 0 with probability one
    for n in looks:
        now = n / looks[-1]
        step = float(np.sqrt(now - time))
        share = alpha * spent(now, rho) - used
        level = _level(grid, density, step, now, share)
        if not (share > 0 and possible(n, level)):
            level = 0.0
        used += share if level > 0 else 0.0
        levels.append(level)
        grid, density = _advance(grid, density, step, now, level)
        time = now
    return tuple(levels)


def _level(grid: FloatArray, density: FloatArray, step: float, now: float, share: float) -> float:
    """Find the nominal level at which the walk, still running, first crosses with probability ``share``."""
    if share <= 0:
        return 0.0

    def excess(z: float) -> float:
        crossing = distributions.norm.sf((z * np.sqrt(now) - grid) / step)
        return float(np.dot(density, crossing)) - share

    top, bottom = 10.0, -1.0
    if excess(bottom) <= 0:
        return float(distributions.norm.sf(bottom))
    return float(distributions.norm.sf(optimize.brentq(excess, bottom, top, xtol=1e-10)))


def _advance(
    grid: FloatArray, density: FloatArray, step: float, now: float, level: float
) -> tuple[FloatArray, FloatArray]:
    """Move the probability mass of the walk to the next look and cut off what was rejected there."""
    scale = float(np.sqrt(now))
    end = scale * float(distributions.norm.isf(level)) if level > 0 else -_DEEPEST * scale
    points = np.linspace(_DEEPEST * scale, end, _GRID)
    width = points[1] - points[0]
    kernel = np.exp(-0.5 * ((points[:, None] - grid[None, :]) / step) ** 2) / (step * np.sqrt(2 * np.pi))
    mass = (kernel @ density) * width
    mass[0] /= 2
    mass[-1] /= 2
    return points, np.asarray(mass, dtype=np.float64)
