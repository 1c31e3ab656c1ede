"""Exact error rates, power and sizes of one comparison of right/wrong answers, by enumeration; nothing is random here.

Beside the Gaffke bound: the exact Tango test, and the Wald rule as a known-bad yardstick under the same enumeration.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy import stats as law
from stats_common import Check, options, publish

from pytest_attnaccept.stats import (
    items_for_any_pass,
    items_needed,
    paired_binary,
    probability_fail,
    probability_pass,
    tango,
)

SIZES = (20, 35, 50, 75, 100, 150, 200, 300, 500, 700, 1000)
MARGINS = (0.01, 0.02, 0.05)
NOISE = np.unique(np.concatenate([np.linspace(0, 0.02, 21), np.linspace(0.02, 0.1, 17), np.linspace(0.1, 0.5, 9)]))
ALPHA = 0.05


def boundary(margin: float) -> list[tuple[float, float]]:
    """Outcome probabilities with a true loss of exactly the margin."""
    return [(margin + q / 2, q / 2) for q in NOISE if margin + q <= 1]


def gaffke(n: int, margin: float) -> tuple[float, float]:
    """Largest probability of a wrong PASS and of a wrong FAIL."""
    points = boundary(margin)
    return (
        max(probability_pass(n, margin, ALPHA, *p) for p in points),
        max(probability_fail(n, margin, ALPHA, *p) for p in points),
    )


def by_table(n: int, passes: np.ndarray, p_loss: float, p_gain: float) -> float:
    """Probability of PASS for a rule given as the largest passing number of losses per number of gains."""
    gains = np.arange(passes.size)
    weight = law.binom.pmf(gains, n, p_gain)
    return float(weight @ law.binom.cdf(passes, n - gains, min(1.0, p_loss / (1 - p_gain))))


def tango_table(n: int, margin: float) -> np.ndarray:
    """Boundary of the exact Tango test."""
    table, b = [], -1
    for c in range(min(n, int(0.25 * n + 6 * np.sqrt(n) + 5)) + 1):
        while b + 1 + c <= n and tango.p_pass(b + 1, c, n, margin) < ALPHA:
            b += 1
        table.append(min(b, n - c))
    return np.asarray(table)


def wald_table(n: int, margin: float) -> np.ndarray:
    """Boundary of the Wald interval without continuity correction."""
    b = np.arange(n + 1)
    table = []
    for c in range(n + 1):
        upper = (b - c) / n + law.norm.isf(ALPHA) * np.sqrt(np.maximum(b + c - (b - c) ** 2 / n, 0)) / n
        good = np.nonzero((upper < margin) & (b + c <= n))[0]
        table.append(int(good[-1]) if good.size else -1)
    return np.asarray(table)


def level_rows(sizes: tuple[int, ...], *, with_tango: bool) -> list[dict[str, object]]:
    """One row per size and margin."""
    rows = []
    for n in sizes:
        for margin in MARGINS:
            wrong_pass, wrong_fail = gaffke(n, margin)
            wald = wald_table(n, margin)
            row: dict[str, object] = {
                "n": n,
                "margin": margin,
                "Gaffke wrong PASS": wrong_pass,
                "Gaffke wrong FAIL": wrong_fail,
                "Wald wrong PASS": max(by_table(n, wald, *p) for p in boundary(margin)),
            }
            # Above 100 items the table of exact Tango p-values takes minutes; its level is tested at 200 in the unit tests.
            if with_tango and n <= 100:
                exact = tango_table(n, margin)
                points = [p for p in boundary(margin) if p[1] <= 0.1]
                row["Tango exact wrong PASS"] = max(by_table(n, exact, *p) for p in points)
            else:
                row["Tango exact wrong PASS"] = "-"
            rows.append(row)
    return rows


def size_rows() -> list[dict[str, object]]:
    """Items for 90 % power at zero loss."""
    rows = []
    for margin in (0.02, 0.03, 0.05, 0.10):
        for q in (0.01, 0.02, 0.04, 0.08):
            n = items_needed(margin, discordance=q)
            assert n is not None
            rule = (1.645 + 1.2816) ** 2 * q / margin**2 + 3 / margin
            rows.append(
                {
                    "margin": margin,
                    "discordance": q,
                    "items": n,
                    "rule of thumb": round(rule),
                    "power": probability_pass(n, margin, ALPHA, q / 2, q / 2),
                    "rule of three": items_for_any_pass(margin),
                }
            )
    return rows


def verdict_time_ms() -> float:
    """Median CPU time of one verdict with both bounds on n = 1000."""
    times = []
    for b in range(60):
        start = time.process_time()
        paired_binary(b, 12, 1000, 0.02)
        times.append(time.process_time() - start)
    return float(np.median(times) * 1000)


def main() -> int:
    args = options(__doc__ or "")
    rows = level_rows(SIZES[:3] if args.quick else SIZES, with_tango=not args.quick)
    sizes = size_rows() if not args.quick else []
    worst = max(max(float(row["Gaffke wrong PASS"]), float(row["Gaffke wrong FAIL"])) for row in rows)
    exact = [float(row["Tango exact wrong PASS"]) for row in rows if row["Tango exact wrong PASS"] != "-"]
    checks = [
        Check(name="Gaffke: worst level over all sizes, margins, discordances", value=worst, limit=ALPHA),
        Check(name="Tango exact: worst level", value=max(exact, default=0.0), limit=ALPHA),
        Check(
            name="Wald: worst level (the enumeration must catch it)",
            value=max(float(row["Wald wrong PASS"]) for row in rows),
            limit=0.1,
            at_least=True,
        ),
        Check(name="one verdict at n = 1000, ms of CPU", value=verdict_time_ms(), limit=5.0),
    ]
    checks += [
        Check(name=f"power at {r['items']} items", value=float(r["power"]), limit=0.9, at_least=True) for r in sizes
    ]
    counts = {"discordances": int(NOISE.size), "rows": len(rows)}
    tables = {"Exact levels (nominal .05)": rows, "Items for 90 % power at zero loss": sizes}
    return publish(
        "stats_levels", "Levels of one paired comparison", args.seed, counts, tables, checks, quick=args.quick
    )


if __name__ == "__main__":
    sys.exit(main())
