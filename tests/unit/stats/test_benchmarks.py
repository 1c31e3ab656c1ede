"""The stored tables are what the public functions give today: a sample of each is measured again and compared."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
NAMES = ("levels", "sequential", "matrix", "rivals", "documents", "profiles")


@pytest.fixture(autouse=True)
def _bench_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in [m for m in sys.modules if m.startswith("stats_")]:
        del sys.modules[name]


def stored(name):
    return json.loads((BENCH / "results" / f"stats_{name}.json").read_text(encoding="utf-8"))


def table(name, index=0):
    return list(stored(name)["tables"].values())[index]


def script(name):
    return importlib.import_module(f"stats_{name}")


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_table_says_how_it_was_made_and_met_its_thresholds(name):
    data = stored(name)
    assert data["command"] == f"python tests/bench/stats_{name}.py --seed {data['seed']}"
    assert len(data["commit"]) == 40
    assert data["counts"]
    assert data["checks"]
    assert all(check["holds"] is True for check in data["checks"])
    readable = (BENCH / "results" / f"stats_{name}.md").read_text(encoding="utf-8")
    assert data["commit"] in readable


def test_levels_are_reproduced():
    rows = {(row["n"], row["margin"]): row for row in table("levels")}
    again = script("levels").level_rows((50,), with_tango=False)
    for row in again:
        before = rows[row["n"], row["margin"]]
        for column in ("Gaffke wrong PASS", "Gaffke wrong FAIL", "Wald wrong PASS"):
            assert row[column] == pytest.approx(before[column], rel=1e-6)


def test_sequential_errors_and_costs_are_reproduced():
    from pytest_attnaccept.stats import operating_characteristics, plan_looks

    module = script("sequential")
    row = next(r for r in table("sequential") if r["margin"] == 0.05 and r["n_max"] == 118 and r["spending"] == "joint")
    plan = plan_looks(118, 0.05)
    runs = [operating_characteristics(plan, 0.05 + q / 2, q / 2) for q in module.NOISE]
    assert max(run.passes for run in runs) == pytest.approx(row["wrong PASS"], rel=1e-6)
    costs = {r["candidate"]: r for r in table("sequential", 1)}
    fixed, n_max = 980, math.ceil(1.14 * 980)
    run = operating_characteristics(plan_looks(n_max, 0.02), 0.06, 0.01)
    assert run.mean_items / fixed == pytest.approx(costs["5 % worse"]["cost"], rel=1e-4)


def near(found, before, found_reps, before_reps):
    """Whether two simulated shares agree within four standard errors."""
    p = min(max(before, 1 / before_reps), 1 - 1 / before_reps)
    return abs(found - before) <= 4 * math.sqrt(p * (1 - p) * (1 / found_reps + 1 / before_reps)) + 1e-3


def test_matrix_rates_are_reproduced():
    module = script("matrix")
    rows = {(r["candidate"], r["rule"]): r for r in table("matrix")}
    for name in ("harmless", "one cell loses 2 m"):
        found = module.adaptive(np.random.default_rng([99, 1]), 120, 980, module.scenario(name))
        before = rows[name, "adaptive, n0 / 2 to 4 n0"]
        assert near(found["PASS"], before["PASS"], 120, 4000)
        assert near(found["FAIL"], before["FAIL"], 120, 4000)
        assert found["cost"] == pytest.approx(before["cost"], abs=0.03)


def test_rivals_are_reproduced():
    rows = {(r["n"], r["true loss"]): r for r in table("rivals")}
    found = script("rivals").rows_for(200, 0.05, paths=300, draws=100, seed=99)
    before = rows[200, 0.05]
    for column in (
        "ours: PASS",
        "ours: FAIL",
        "looks: PASS",
        "McNemar passes",
        "floor -5 passes",
        "TensorRT-LLM passes",
    ):
        assert near(found[column], before[column], 300, 4000), column


def test_document_errors_are_reproduced():
    found = script("documents").row("sparse", 20, reps=120, seed=99)
    before = next(r for r in table("documents") if r["shape"] == "sparse" and r["documents"] == 20)
    for column in ("tokens: wrong PASS", "cluster t: wrong PASS", "ours: wrong PASS"):
        assert near(found[column], before[column], 120, 1000), column


def test_profiles_are_reproduced():
    from pytest_attnaccept.profiles import load_profile

    _, whole, _ = script("profiles").simulate(load_profile("smoke"), reps=30, seed=99)
    before = next(r for r in table("profiles") if r["profile"] == "smoke")
    assert near(whole, before["harmless passes"], 30, 600)
