"""A comparison is refused when no data of its size could pass, or when its baseline has too little to lose.

Both are known before the candidate runs; both protect against a PASS that could not have been anything else.
"""

from __future__ import annotations

import math

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, require_alpha, require_margin
from pytest_attnaccept.stats.gaffke import difference_cdf

__all__ = ["FLOOR_MARGINS", "MIN_CLUSTERS", "baseline_floor", "items_for_any_pass", "too_few_items"]

FLOOR_MARGINS = 3
"""A baseline must be able to lose this many margins (reference: statistics 1.2, floor)."""

MIN_CLUSTERS = 20
"""Fewest clusters for a verdict on cluster means (reference: statistics, section 0)."""


def items_for_any_pass(margin: float, alpha: float = DEFAULT_ALPHA) -> int:
    """Give the smallest n at which zero losses can pass: ln(alpha) / ln(1 - margin), the rule of three."""
    require_margin(margin), require_alpha(alpha)
    n = max(1, math.floor(math.log(alpha) / math.log1p(-margin)))
    while (1 - margin) ** n >= alpha:
        n += 1
    return n


def baseline_floor(base_mean: float, n: int, margin: float, chance: float = 0.0) -> str:
    """Say why this baseline cannot show a loss, or return an empty string.

    A candidate that knows nothing scores ``chance``: the baseline can lose at most ``base_mean - chance``.
    """
    if not 0.0 <= chance < 1.0:
        raise ContractError(f"chance = {chance!r} must be in [0, 1)")
    if not -1e-9 <= base_mean <= 1 + 1e-9:
        raise ContractError(f"baseline accuracy = {base_mean!r} must be in [0, 1]")
    need = FLOOR_MARGINS * margin
    if base_mean - chance < need - 1e-12:
        over = f" over a chance level of {chance:.1%}" if chance else ""
        return (
            f"baseline scores {base_mean:.1%}{over}: it cannot lose {FLOOR_MARGINS} margins of {margin:.1%}; "
            "use items that the baseline can answer"
        )
    # At chance: P(X >= correct) for guessing must be small, else the baseline shows no ability to lose.
    if chance > 0 and n > 0 and difference_cdf(round(base_mean * n), 0, n - round(base_mean * n) + 1, chance) > 0.05:
        return f"baseline scores {base_mean:.1%} on {n} items, not distinguishable from chance ({chance:.1%})"
    return ""


def too_few_items(n: int, share: float, alpha: float) -> str:
    """Say that n items cannot pass a margin (as a share of the worst loss), or return an empty string."""
    need = items_for_any_pass(share, alpha)
    return f"{n} items are too few to pass: {need} are the minimum for this margin" if n < need else ""
