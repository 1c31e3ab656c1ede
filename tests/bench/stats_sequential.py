"""Errors and mean cost of the planned looks, enumerated exactly; a simulated `Monitor` must agree with the enumeration.

Costs are in units of the fixed sample that has 90 % power for 4 % harmless discordance. "5 % worse" carries 2 % noise and
"20 % worse" too; the candidate of the study's table is the first of each pair.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
from stats_common import Check, options, publish

from pytest_attnaccept.stats import Monitor, SequentialPlan, items_needed, operating_characteristics, plan_looks
from pytest_attnaccept.taxonomy import Verdict

NOISE = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3)
# name -> (p_loss, p_gain, cost in the study, allowed distance)
CANDIDATES = {
    "identical": (0.0, 0.0, 0.28, 0.04),
    "harmless, 4 % differ": (0.02, 0.02, 0.74, 0.05),
    "5 % worse": (0.06, 0.01, 0.58, 0.05),
    "20 % worse": (0.21, 0.01, 0.10, 0.03),
}
MORE = {
    "harmless, 1 % differ": (0.005, 0.005),
    "harmless, 12 % differ": (0.06, 0.06),
    "1 % worse": (0.03, 0.02),
    "4 % worse": (0.06, 0.02),
    "5 % worse, 4 % noise": (0.07, 0.02),
    "2 % worse (boundary)": (0.04, 0.02),
}


def error_rows(quick: bool) -> list[dict[str, object]]:
    """Worst error over discordances for both spendings."""
    rows = []
    for margin in (0.01, 0.02, 0.05, 0.1):
        smallest = math.ceil(math.log(0.05) / math.log1p(-margin))
        for n_max in sorted({smallest, smallest + 17, 2 * smallest, 600, 1117, 2000}):
            if n_max < smallest or (quick and n_max > 400):
                continue
            for spending in ("joint", "increments"):
                plan = plan_looks(n_max, margin, spending=spending)
                runs = [operating_characteristics(plan, margin + q / 2, q / 2) for q in NOISE]
                rows.append(
                    {
                        "margin": margin,
                        "n_max": n_max,
                        "spending": spending,
                        "wrong PASS": max(run.passes for run in runs),
                        "wrong FAIL": max(run.fails for run in runs),
                    }
                )
    return rows


def peeking_rows() -> list[dict[str, object]]:
    """What happens without spending: sixteen looks, each at the full alpha."""
    plan = plan_looks(1600, 0.02, fractions=[k / 16 for k in range(1, 17)])
    naive = replace(plan, pass_levels=(0.05,) * 16, fail_levels=(0.0,) * 16)
    return [
        {"rule": name, "wrong PASS at the boundary": operating_characteristics(p, 0.04, 0.02).passes}
        for name, p in (("16 looks at .05 each", naive), ("16 looks with spending", plan))
    ]


def cost_rows(plan: SequentialPlan, fixed: int) -> list[dict[str, object]]:
    """Cost and verdicts of each candidate."""
    rows = []
    every = {name: (*values[:2], values[2]) for name, values in CANDIDATES.items()} | {
        name: (*values, math.nan) for name, values in MORE.items()
    }
    for name, (p_loss, p_gain, study) in every.items():
        run = operating_characteristics(plan, p_loss, p_gain)
        rows.append(
            {
                "candidate": name,
                "PASS": run.passes,
                "FAIL": run.fails,
                "cost": run.mean_items / fixed,
                "cost in the study": "-" if math.isnan(study) else study,
            }
        )
    return rows


def simulate(plan: SequentialPlan, p_loss: float, p_gain: float, paths: int, seed: int) -> tuple[float, float]:
    """Run `Monitor` objects on simulated answers: share of PASS, mean items."""
    rng = np.random.default_rng(seed)
    passed = items = 0
    for _ in range(paths):
        answers = rng.choice([1, -1, 0], p=[p_loss, p_gain, 1 - p_loss - p_gain], size=plan.n_max)
        losses, gains = np.cumsum(answers == 1), np.cumsum(answers == -1)
        monitor = Monitor(plan=plan)
        while not monitor.decided:
            n = monitor.next_n
            monitor = monitor.observe(int(losses[n - 1]), int(gains[n - 1]))
        passed += monitor.verdict is Verdict.PASS
        items += monitor.n
    return passed / paths, items / paths


def main() -> int:
    args = options(__doc__ or "")
    fixed = items_needed(0.02)
    assert fixed is not None
    plan = plan_looks(math.ceil(1.14 * fixed), 0.02)
    errors, costs, peeking = error_rows(args.quick), cost_rows(plan, fixed), peeking_rows()
    paths = 60 if args.quick else 1500
    monitors = []
    for index, (p_loss, p_gain) in enumerate([(0.02, 0.02), (0.06, 0.01)]):
        share, items = simulate(plan, p_loss, p_gain, paths, args.seed + index)
        exact = operating_characteristics(plan, p_loss, p_gain)
        monitors.append(
            {
                "p_loss": p_loss,
                "p_gain": p_gain,
                "paths": paths,
                "PASS simulated": share,
                "PASS exact": exact.passes,
                "cost simulated": items / fixed,
                "cost exact": exact.mean_items / fixed,
            }
        )
    checks = [
        Check(name="worst wrong PASS", value=max(float(r["wrong PASS"]) for r in errors), limit=0.05),
        Check(name="worst wrong FAIL", value=max(float(r["wrong FAIL"]) for r in errors), limit=0.05),
        Check(name="power at 4 % harmless discordance", value=float(costs[1]["PASS"]), limit=0.9, at_least=True),
        Check(
            name="naive peeking (must be caught)",
            value=float(peeking[0]["wrong PASS at the boundary"]),
            limit=0.13,
            at_least=True,
        ),
    ]
    by_name = {row["candidate"]: row for row in costs}
    for name, (_, _, study, distance) in CANDIDATES.items():
        checks.append(
            Check(name=f"cost of {name}: distance", value=abs(float(by_name[name]["cost"]) - study), limit=distance)
        )
    for row in monitors:
        p = float(row["PASS exact"])
        limit = 4 * math.sqrt(p * (1 - p) / paths) + 1e-3
        gap = abs(float(row["PASS simulated"]) - p)
        checks.append(Check(name=f"Monitor agrees, p_loss {row['p_loss']}", value=gap, limit=limit))
    tables = {
        "Exact errors at the boundary (nominal .05, worst of the discordances)": errors,
        f"Margin 2 %, n_max {plan.n_max}: verdicts and cost in units of {fixed} items": costs,
        "Peeking": peeking,
        "Monitor against enumeration": monitors,
    }
    counts = {"discordances": len(NOISE), "simulated paths": paths}
    return publish("stats_sequential", "Planned early stopping", args.seed, counts, tables, checks, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
