"""Two one-sided p-values decide: harm is excluded (PASS), harmlessness is excluded (FAIL), or neither (INCONCLUSIVE).

Positions
---------
1. Harm is the null hypothesis: without evidence the verdict is INCONCLUSIVE, never PASS.
2. NaN never passes, and both nulls rejected at once is INVALID: it can only come from broken inputs.
"""

from __future__ import annotations

import math

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["DEFAULT_ALPHA", "decide", "require_alpha", "require_margin"]

DEFAULT_ALPHA = 0.05
"""Error probability of a wrong PASS per cell and of a wrong FAIL per matrix (reference: statistics, section 0)."""


def decide(
    p_pass: float, p_fail: float, alpha_pass: float = DEFAULT_ALPHA, alpha_fail: float = DEFAULT_ALPHA
) -> Verdict:
    """Turn the two p-values into PASS, FAIL, INCONCLUSIVE or INVALID."""
    if math.isnan(p_pass) or math.isnan(p_fail):
        return Verdict.INVALID
    if p_pass < alpha_pass and p_fail < alpha_fail:
        return Verdict.INVALID
    if p_fail < alpha_fail:
        return Verdict.FAIL
    return Verdict.PASS if p_pass < alpha_pass else Verdict.INCONCLUSIVE


def require_alpha(alpha: float, name: str = "alpha") -> float:
    """Refuse an error probability outside (0, 0.5]."""
    if isinstance(alpha, bool) or not 0.0 < alpha <= 0.5:
        raise ContractError(f"{name} = {alpha!r} is not an error probability: allowed are values in (0, 0.5]")
    return float(alpha)


def require_margin(margin: float, low: float = 0.0, high: float = 1.0) -> float:
    """Refuse a margin outside (low, high): the lower end proves nothing, the upper end forgives everything."""
    if isinstance(margin, bool) or not low < margin < high:
        hint = "; margins are absolute fractions: 2 points are 0.02" if margin >= high else ""
        raise ContractError(f"margin = {margin!r} is outside the open interval ({low:g}, {high:g}){hint}")
    return float(margin)
