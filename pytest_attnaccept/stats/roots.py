"""A confidence bound is where a p-value, as a function of the margin, crosses alpha."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize

__all__ = ["bound"]


def bound(tail: Callable[[float], float], alpha: float, inside: float, end: float) -> float:
    """Find where the tail crosses alpha between the estimate and the end of the support."""

    def gap(m: float) -> float:
        return math.log(max(tail(m), 1e-300)) - math.log(alpha)

    if gap(inside) <= 0:  # the estimate itself is excluded: only possible for coarse exact tests
        return inside
    near = inside + (end - inside) * 0.02
    step = 0.02
    while gap(near) > 0 and step < 1:
        inside, step = near, min(1.0, step * 2.5)
        near = inside + (end - inside) * step
    return end if gap(near) > 0 else float(optimize.brentq(gap, inside, near, xtol=1e-7, rtol=1e-7))
