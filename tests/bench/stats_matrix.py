"""A matrix of 144 cells (24 stacks on 6 tasks): verdicts and cost of the adaptive design beside simpler rules.

Items of a task are shared by its 24 cells, whose differences correlate with 0.3. An undecided cell grows from n0/2 to 4 n0
items; a proven FAIL stops the matrix. Cost is in units of n0 items per cell.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from stats_common import Check, options, publish

from pytest_attnaccept.stats import fail_from, items_needed, matrix_plan, p_fail, pass_up_to

TASKS, STACKS, MARGIN, NOISE, CORRELATION = 6, 24, 0.02, 0.04, 0.3
CELLS = TASKS * STACKS


def scenario(name: str) -> np.ndarray:
    """True loss of every cell, shape (tasks, stacks)."""
    loss = np.zeros((TASKS, STACKS))
    if name == "all cells lose m / 4":
        loss += MARGIN / 4
    elif name == "one cell loses m":
        loss[0, 0] = MARGIN
    elif name == "one cell loses 2 m":
        loss[0, 0] = 2 * MARGIN
    elif name == "four cells lose 3 m":
        loss[0, :4] = 3 * MARGIN
    elif name == "one task loses 1.5 m":
        loss[0] = 1.5 * MARGIN
    return loss


SCENARIOS = (
    "harmless",
    "all cells lose m / 4",
    "one cell loses m",
    "one cell loses 2 m",
    "four cells lose 3 m",
    "one task loses 1.5 m",
)


def draw(rng: np.random.Generator, reps: int, n: int, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw losses and gains of n fresh items per task, shape (reps, tasks, stacks).

    Each item of each cell follows its task's shared outcome with probability sqrt(0.3), else an outcome of its own.
    """
    share, half = math.sqrt(CORRELATION), NOISE / 2
    shape = (reps, TASKS, STACKS)
    common_loss = rng.binomial(n, half, size=(reps, TASKS, 1))
    common_gain = rng.binomial(n - common_loss, half / (1 - half))
    from_loss = rng.binomial(np.broadcast_to(common_loss, shape), share)
    from_gain = rng.binomial(np.broadcast_to(common_gain, shape), share)
    from_rest = rng.binomial(np.broadcast_to(n - common_loss - common_gain, shape), share)
    own = n - from_loss - from_gain - from_rest
    own_loss = rng.binomial(own, half)
    own_gain = rng.binomial(own - own_loss, half / (1 - half))
    losses, gains = from_loss + own_loss, from_gain + own_gain
    return losses + rng.binomial(n - losses - gains, np.broadcast_to(loss / (1 - NOISE), shape)), gains


def adaptive(rng: np.random.Generator, reps: int, n0: int, loss: np.ndarray) -> dict[str, float]:
    """Run the adaptive design on ``reps`` matrices."""
    plan = matrix_plan(n0, MARGIN, CELLS)
    losses = np.zeros((reps, TASKS, STACKS), dtype=np.int64)
    gains = losses.copy()
    state = np.zeros_like(losses)  # 0 open, 1 PASS, 2 FAIL
    failed = np.zeros(reps, dtype=bool)
    used = np.zeros(reps)
    before = 0
    for n, level_pass, level_fail in zip(plan.looks, plan.pass_levels, plan.fail_levels, strict=True):
        fresh_loss, fresh_gain = draw(rng, reps, n - before, loss)
        losses, gains = losses + fresh_loss, gains + fresh_gain
        running = (state == 0) & ~failed[:, None, None]
        used += running.sum(axis=(1, 2)) * (n - before)
        before = n
        columns = int(gains.max()) + 1
        good = pass_up_to(n, MARGIN, level_pass, columns) if level_pass > 0 else np.full(columns, -1)
        bad = fail_from(n, MARGIN, level_fail, columns) if level_fail > 0 else np.full(columns, n + 1)
        state = np.where(running & (losses <= good[gains]), 1, state)
        state = np.where(running & (losses >= bad[gains]), 2, state)
        failed |= (state == 2).any(axis=(1, 2))
    passed = (state == 1).all(axis=(1, 2))
    return _row(passed, failed, used / (n0 * CELLS))


def fixed(rng: np.random.Generator, reps: int, n0: int, loss: np.ndarray) -> dict[str, dict[str, float]]:
    """Judge n0 items per cell by three simpler rules."""
    losses, gains = draw(rng, reps, n0, loss)
    columns = int(gains.max()) + 1
    good = losses <= pass_up_to(n0, MARGIN, 0.05, columns)[gains]
    all_pass = good.all(axis=(1, 2))
    significant = losses >= fail_from(n0, 1e-9, 0.05, columns)[gains]  # "any significant drop"
    observed = (losses - gains) / n0 > MARGIN
    smallest = np.array([_smallest_p(row_l, row_g, n0) for row_l, row_g in zip(losses, gains, strict=True)])
    cost = np.ones(reps)
    return {
        "fixed n0, all PASS / Holm FAIL": _row(all_pass, (smallest < 0.05 / CELLS) & ~all_pass, cost),
        "observed loss above m anywhere": _row(~observed.any(axis=(1, 2)), observed.any(axis=(1, 2)), cost),
        "any significant drop": _row(~significant.any(axis=(1, 2)), significant.any(axis=(1, 2)), cost),
    }


def _smallest_p(losses: np.ndarray, gains: np.ndarray, n: int) -> float:
    """Smallest p-value of FAIL of one matrix (Holm's first step); only the worst few differences can hold it."""
    worst = np.argsort((gains - losses).ravel())[:3]
    return min(p_fail(int(losses.ravel()[i]), int(gains.ravel()[i]), n, MARGIN) for i in worst)


def _row(passed: np.ndarray, failed: np.ndarray, cost: np.ndarray) -> dict[str, float]:
    return {
        "PASS": float(passed.mean()),
        "FAIL": float(failed.mean()),
        "INCONCLUSIVE": float((~passed & ~failed).mean()),
        "cost": float(cost.mean()),
    }


def main() -> int:
    args = options(__doc__ or "")
    reps = 150 if args.quick else 4000
    n0 = items_needed(MARGIN, discordance=NOISE)
    assert n0 is not None
    rows: list[dict[str, object]] = []
    found: dict[str, dict[str, float]] = {}
    for index, name in enumerate(SCENARIOS):
        rng = np.random.default_rng([args.seed, index])
        found[name] = adaptive(rng, reps, n0, scenario(name))
        rows.append({"candidate": name, "rule": "adaptive, n0 / 2 to 4 n0", **found[name]})
        if not args.quick:
            few = fixed(rng, min(reps, 1000), n0, scenario(name))
            rows += [{"candidate": name, "rule": rule, **row} for rule, row in few.items()]
    checks = [
        Check(name="harmless: PASS", value=found["harmless"]["PASS"], limit=0.98, at_least=True),
        Check(name="harmless: cost", value=found["harmless"]["cost"], limit=1.3),
        Check(name="harmless: FAIL", value=found["harmless"]["FAIL"], limit=0.002),
        Check(name="one cell at m: PASS", value=found["one cell loses m"]["PASS"], limit=0.055),
        Check(name="one cell at m: FAIL", value=found["one cell loses m"]["FAIL"], limit=0.01),
        Check(name="all at m / 4: FAIL", value=found["all cells lose m / 4"]["FAIL"], limit=0.002),
        Check(name="one cell at 2 m: PASS", value=found["one cell loses 2 m"]["PASS"], limit=0.001),
        Check(name="four cells at 3 m: FAIL", value=found["four cells lose 3 m"]["FAIL"], limit=0.98, at_least=True),
    ]
    counts = {"matrices per candidate": reps, "cells": CELLS, "n0": n0}
    tables = {f"Margin {MARGIN:.0%}, {NOISE:.0%} harmless discordance": rows}
    return publish("stats_matrix", "A matrix of 144 cells", args.seed, counts, tables, checks, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
