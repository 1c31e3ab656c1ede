"""The same simulated candidates under the rules that are in use and under ours: who passes, and how many items it takes.

Candidates: a baseline with 75 % accuracy; 4 % of the answers differ without loss, plus the true loss. Rules:

* ours: paired non-inferiority, margin 2 points, at a fixed n and with planned looks up to n;
* "no significant difference": exact two-sided McNemar test, p > .05 passes;
* a floor of 5 points under the baseline's own score on these items;
* TensorRT-LLM's threshold: unpaired, sigma 50, alpha .05, against a reference that was measured on these items;
* percentile bootstrap of the paired difference: upper 95 % bound below 2 points.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from scipy import stats as law
from stats_common import Check, options, publish

from pytest_attnaccept.stats import fail_from, pass_up_to, plan_looks

MARGIN, NOISE, ALPHA = 0.02, 0.04, 0.05
SIZES, LOSSES = (50, 200, 1000, 1319), (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)


def ours(n: int, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Paired non-inferiority at a fixed n: -1 FAIL, 0 INCONCLUSIVE, 1 PASS."""
    columns = int(c.max()) + 1
    good, bad = pass_up_to(n, MARGIN, ALPHA, columns)[c], fail_from(n, MARGIN, ALPHA, columns)[c]
    return np.where(b <= good, 1, np.where(b >= bad, -1, 0))


def ours_sequential(n: int, outcomes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Planned looks on full sequences of outcomes, shape (paths, n): verdicts and items used."""
    plan = plan_looks(n, MARGIN)
    losses, gains = np.cumsum(outcomes == 1, axis=1), np.cumsum(outcomes == -1, axis=1)
    verdict = np.zeros(outcomes.shape[0], dtype=int)
    used = np.full(outcomes.shape[0], n)
    for look, p, f in zip(plan.looks, plan.pass_levels, plan.fail_levels, strict=True):
        b, c = losses[:, look - 1], gains[:, look - 1]
        columns = int(c.max()) + 1
        good = pass_up_to(look, MARGIN, p, columns)[c] if p > 0 else np.full(b.shape, -1)
        bad = fail_from(look, MARGIN, f, columns)[c] if f > 0 else np.full(b.shape, look + 1)
        new = np.where(b <= good, 1, np.where(b >= bad, -1, 0))
        fresh = (verdict == 0) & (new != 0)
        verdict[fresh], used[fresh] = new[fresh], look
    return verdict, used


def mcnemar(b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Pass when the exact two-sided test finds no difference."""
    p = np.minimum(1.0, 2 * law.binom.cdf(np.minimum(b, c), np.maximum(b + c, 1), 0.5))
    return np.where(b + c == 0, True, p > 0.05)


def bootstrap(rng: np.random.Generator, n: int, b: np.ndarray, c: np.ndarray, draws: int) -> np.ndarray:
    """Pass when the 95 % percentile of the resampled loss lies below the margin."""
    passed = np.zeros(b.size, dtype=bool)
    for i, (x, y) in enumerate(zip(b, c, strict=True)):
        sample = rng.multinomial(n, [x / n, y / n, (n - x - y) / n], size=draws)
        passed[i] = np.quantile((sample[:, 0] - sample[:, 1]) / n, 0.95) < MARGIN
    return passed


def rows_for(n: int, loss: float, paths: int, draws: int, seed: int) -> dict[str, object]:
    """Pass rates of every rule for one size and one true loss."""
    rng = np.random.default_rng([seed, n, round(loss * 1000)])
    p = [NOISE / 2 + loss, NOISE / 2, 1 - NOISE - loss]
    outcomes = rng.choice(np.array([1, -1, 0], dtype=np.int8), p=p, size=(paths, n))
    b, c = (outcomes == 1).sum(axis=1), (outcomes == -1).sum(axis=1)
    fixed = ours(n, b, c)
    looks, used = ours_sequential(n, outcomes)
    threshold = law.norm.isf(ALPHA) * math.sqrt(2 * 0.5**2 / n)
    difference = (b - c) / n
    return {
        "true loss": loss,
        "n": n,
        "ours: PASS": float((fixed == 1).mean()),
        "ours: FAIL": float((fixed == -1).mean()),
        "looks: PASS": float((looks == 1).mean()),
        "looks: items": float(used.mean()),
        "McNemar passes": float(mcnemar(b, c).mean()),
        "floor -5 passes": float((difference <= 0.05).mean()),
        "TensorRT-LLM passes": float((difference <= threshold).mean()),
        "bootstrap passes": float(bootstrap(rng, n, b[: paths // 4], c[: paths // 4], draws).mean()),
    }


def main() -> int:
    args = options(__doc__ or "")
    paths, draws = (100, 200) if args.quick else (4000, 1000)
    sizes = SIZES[:2] if args.quick else SIZES
    rows = [rows_for(n, loss, paths, draws, args.seed) for n in sizes for loss in LOSSES]
    harmful = [row for row in rows if float(row["true loss"]) >= MARGIN]
    worst = {
        rule: max(float(row[rule]) for row in harmful)
        for rule in (
            "ours: PASS",
            "looks: PASS",
            "McNemar passes",
            "floor -5 passes",
            "TensorRT-LLM passes",
            "bootstrap passes",
        )
    }
    slack = 3 * math.sqrt(0.05 * 0.95 / paths)
    checks = [
        Check(
            name="ours: worst pass rate of a loss of 2 points or more", value=worst["ours: PASS"], limit=0.05 + slack
        ),
        Check(name="planned looks: the same", value=worst["looks: PASS"], limit=0.05 + slack),
    ]
    if not args.quick:
        checks += [
            Check(name=f"{rule} lets harm through (known bad)", value=worst[rule], limit=0.3, at_least=True)
            for rule in ("McNemar passes", "floor -5 passes", "TensorRT-LLM passes")
        ]
        harmless = [row for row in rows if row["true loss"] == 0.0 and int(str(row["n"])) >= 1000]
        checks.append(
            Check(
                name="ours: harmless passes from 1000 items on",
                value=min(float(r["ours: PASS"]) for r in harmless),
                limit=0.88,
                at_least=True,
            )
        )
    summary = [{"rule": rule, "worst pass rate of a loss >= 2 points": value} for rule, value in worst.items()]
    tables = {"Pass rates": rows, "Worst over all harmful candidates and sizes": summary}
    counts = {"simulated runs per row": paths, "bootstrap draws": draws}
    return publish(
        "stats_rivals", "The rules in use on the same candidates", args.seed, counts, tables, checks, quick=args.quick
    )


if __name__ == "__main__":
    sys.exit(main())
