"""A token mean at its margin: how often it passes by tokens, by documents, and by our guarded rule.

Documents of 300 tokens with an intraclass correlation of .01 and AR(1) .3 within a document; the true mean loss equals the
margin, so every PASS is an error. Shapes: normal effects, lognormal effects, and a loss carried by 5 % of the documents.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from scipy import stats as law
from stats_common import Check, options, publish

from pytest_attnaccept.stats import clustered_mean
from pytest_attnaccept.taxonomy import Verdict

MARGIN, TOKENS, TOKEN_SD, ICC, AR = math.log(1.01), 300, 0.1, 0.01, 0.3
SHAPES = ("normal", "lognormal", "sparse")


def effects(rng: np.random.Generator, shape: str, size: int, mean: float) -> np.ndarray:
    """Draw the mean loss of each document."""
    spread = TOKEN_SD * math.sqrt(ICC)
    if shape == "normal":
        return rng.normal(mean, spread, size)
    if shape == "lognormal":
        return mean * rng.lognormal(-0.5, 1.0, size)
    return np.where(rng.random(size) < 0.05, mean / 0.05, 0.0)


def documents(rng: np.random.Generator, shape: str, size: int, mean: float) -> np.ndarray:
    """Draw the observed mean of each document: its effect and the exact distribution of an AR(1) mean."""
    spread = 2 * AR * (1 - AR**TOKENS) / (TOKENS * (1 - AR) ** 2)
    variance = TOKEN_SD**2 / TOKENS * ((1 + AR) / (1 - AR) - spread)
    return effects(rng, shape, size, mean) + rng.normal(0, math.sqrt(variance), size)


def row(shape: str, size: int, reps: int, seed: int) -> dict[str, object]:
    """Error of each rule for one shape and size, and our power at zero loss."""
    rng = np.random.default_rng([seed, SHAPES.index(shape), size])
    passed = dict.fromkeys(("tokens", "cluster z", "cluster t", "ours"), 0)
    power = 0
    counts = np.full(size, TOKENS)
    for _ in range(reps):
        means = documents(rng, shape, size, MARGIN)
        # Tokens scatter around their document with TOKEN_SD; what 300 tokens per document add to that is negligible.
        by_token = means.mean() + 1.645 * math.sqrt((TOKEN_SD**2 + means.var()) / (size * TOKENS))
        error = means.std(ddof=1) / math.sqrt(size)
        passed["tokens"] += by_token < MARGIN
        passed["cluster z"] += means.mean() + 1.645 * error < MARGIN
        passed["cluster t"] += means.mean() + law.t.isf(0.05, size - 1) * error < MARGIN
        passed["ours"] += clustered_mean(means * TOKENS, counts, MARGIN).verdict is Verdict.PASS
    for _ in range(reps // 4):
        means = documents(rng, "normal", size, 0.0)
        power += clustered_mean(means * TOKENS, counts, MARGIN).verdict is Verdict.PASS
    rates = {f"{name}: wrong PASS": count / reps for name, count in passed.items()}
    return {"shape": shape, "documents": size, **rates, "ours: power at 0": power / (reps // 4)}


def main() -> int:
    args = options(__doc__ or "")
    reps = 80 if args.quick else 1000
    sizes = (20, 60) if args.quick else (20, 60, 120)
    rows = [row(shape, size, reps, args.seed) for shape in SHAPES for size in sizes]
    slack = 3 * math.sqrt(0.05 * 0.95 / reps)
    checks = [
        Check(
            name=f"ours, {r['shape']}, {r['documents']} documents",
            value=float(r["ours: wrong PASS"]),
            limit=0.05 + slack,
        )
        for r in rows
    ]
    checks.append(
        Check(
            name="token errors (known bad)",
            value=max(float(r["tokens: wrong PASS"]) for r in rows),
            limit=0.15,
            at_least=True,
        )
    )
    large = [float(r["ours: power at 0"]) for r in rows if int(str(r["documents"])) >= 120]
    checks.append(
        Check(name="power at zero loss with 120 documents", value=min(large, default=1.0), limit=0.9, at_least=True)
    )
    counts = {"replications": reps, "tokens per document": TOKENS}
    tables = {"True mean = margin (ln 1.01); nominal .05": rows}
    return publish("stats_documents", "Token means by documents", args.seed, counts, tables, checks, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
