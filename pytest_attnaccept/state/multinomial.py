"""Whether counts follow given probabilities: p-values that hold in the far tail, and what deviation they would find.

Positions
---------
1. Pearson's statistic with cells of at least 20 expected counts, its null a gamma with the statistic's exact mean and
   variance (the plain chi-square is too light at 1e-8); simulated in the tests.
2. Every cell alone by the exact binomial, Bonferroni-corrected: sees one displaced cell that the sum dilutes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

__all__ = ["LEAST_EXPECTED", "detectable_distance", "pearson_p", "pool", "worst_cell"]

LEAST_EXPECTED = 20.0
Floats = NDArray[np.float64]


def pool(counts: Floats, probabilities: Floats) -> tuple[Floats, Floats]:
    """Return counts and probabilities with all cells below `LEAST_EXPECTED` expected counts merged into one."""
    total = counts.sum()
    order = np.argsort(-probabilities, kind="stable")
    counts, probabilities = counts[order], probabilities[order]
    keep = int((probabilities * total >= LEAST_EXPECTED).sum())
    rest = probabilities[keep:].sum()
    if rest * total < LEAST_EXPECTED and keep:
        keep -= 1  # too little is left for a cell of its own: it joins the smallest kept one
    counts = np.array([*counts[:keep], counts[keep:].sum()])
    probabilities = np.array([*probabilities[:keep], probabilities[keep:].sum()])
    return counts, probabilities


def pearson_p(counts: Floats, probabilities: Floats) -> float:
    """Return the p-value of Pearson's statistic; 1.0 when fewer than two cells are left."""
    cells, total = len(counts), float(counts.sum())
    if cells < 2:
        return 1.0
    expected = probabilities * total
    statistic = float(((counts - expected) ** 2 / expected).sum())
    mean = cells - 1.0
    variance = 2 * mean + (float((1 / probabilities).sum()) - cells * cells - 2 * cells + 2) / total
    scale = max(variance, 2 * mean) / mean
    return float(stats.gamma.sf(statistic, mean / scale, scale=scale))


def worst_cell(counts: Floats, probabilities: Floats) -> tuple[float, int]:
    """Return the Bonferroni-corrected exact p-value of the most displaced cell, and its number."""
    total = int(counts.sum())
    upper = stats.binom.sf(counts - 1, total, probabilities)
    lower = stats.binom.cdf(counts, total, probabilities)
    each = np.minimum(1.0, 2 * np.minimum(upper, lower))
    place = int(np.argmin(each))
    return float(min(1.0, each[place] * len(counts))), place


def detectable_distance(total: int, cells: int, alpha: float, power: float = 0.9) -> float:
    """Return the total-variation distance over the cells that is found with probability `power`.

    A distance d means a chi-square divergence of at least 4 d^2, so a noncentrality of at least 4 d^2 total.
    """
    if cells < 2:
        return 1.0
    critical = stats.chi2.isf(alpha, cells - 1)

    def short(noncentrality: float) -> float:
        return float(stats.ncx2.sf(critical, cells - 1, noncentrality)) - power

    noncentrality = float(optimize.brentq(short, 1e-3, 50 * critical + 100))
    return min(1.0, 0.5 * float(np.sqrt(noncentrality / total)))
