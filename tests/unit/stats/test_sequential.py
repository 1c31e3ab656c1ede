"""Planned looks keep the error, save items, and stop only where the plan allows."""

import math

import numpy as np
import pytest

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import (
    Monitor,
    item_order,
    items_needed,
    joint_levels,
    matrix_plan,
    operating_characteristics,
    order_digest,
    p_fail,
    p_pass,
    plan_looks,
)
from pytest_attnaccept.taxonomy import Verdict

PLAN = plan_looks(1117, 0.02)


def always(n, level):
    return True


def test_levels_of_the_recommended_design():
    found = joint_levels([1, 2, 4, 6, 8, 10, 12, 16], 0.05, always)
    expected = [0.00076, 0.0016, 0.0046, 0.0074, 0.0108, 0.0145, 0.0189, 0.0328]  # reference: statistics 2.1
    assert found == pytest.approx(expected, abs=2e-4)


def test_joint_levels_spend_what_they_say():
    """Simulated Gaussian walks cross the eight boundaries with probability .05."""
    rng = np.random.default_rng(0)
    times = np.array([1, 2, 4, 6, 8, 10, 12, 16]) / 16
    levels = joint_levels([1, 2, 4, 6, 8, 10, 12, 16], 0.05, always)
    walk = np.cumsum(rng.normal(size=(40_000, 8)) * np.sqrt(np.diff(times, prepend=0)), axis=1) / np.sqrt(times)
    from scipy import stats

    crossed = (walk > stats.norm.isf(levels)).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.0035)


def test_increments_sum_to_alpha():
    plan = plan_looks(1117, 0.02, spending="increments")
    assert sum(plan.pass_levels) == pytest.approx(0.05)
    assert sum(plan.fail_levels) == pytest.approx(0.05)
    assert sum(PLAN.pass_levels) > 0.05  # the joint levels credit the correlation of the looks


@pytest.mark.parametrize("margin", [0.01, 0.02, 0.05, 0.1])
def test_error_stays_below_alpha_for_every_discordance(margin):
    """Exact enumeration of whole runs at the boundary."""
    smallest = math.ceil(math.log(0.05) / math.log(1 - margin))
    for n_max, extras in ((smallest, (0.0, 0.02)), (smallest + 90, (0.0, 0.04)), (700, (0.01, 0.2))):
        plan = plan_looks(n_max, margin)
        for extra in extras:
            run = operating_characteristics(plan, margin + extra / 2, extra / 2)
            assert run.passes <= 0.05
            assert run.fails <= 0.05
            assert run.passes + run.fails + run.inconclusive == pytest.approx(1.0, abs=1e-9)


def test_cost_of_the_recommended_design():
    fixed = items_needed(0.02)
    assert fixed == pytest.approx(984, abs=15)
    plan = plan_looks(math.ceil(1.14 * fixed), 0.02)
    # candidate -> (loss, gain, cost in units of the fixed n); reference: statistics, section 0
    for p_loss, p_gain, cost in [(0, 0, 0.28), (0.02, 0.02, 0.74), (0.06, 0.01, 0.58), (0.21, 0.01, 0.10)]:
        run = operating_characteristics(plan, p_loss, p_gain)
        assert run.mean_items / fixed == pytest.approx(cost, abs=0.04)
    assert operating_characteristics(plan, 0.02, 0.02).passes >= 0.9


def test_pitfall_6_peeking_without_spending_triples_the_error():
    """The same looks, each at the full .05: known bad. The plan's levels: good."""
    from dataclasses import replace

    sixteen = plan_looks(1600, 0.02, fractions=[k / 16 for k in range(1, 17)])
    naive = replace(sixteen, pass_levels=(0.05,) * 16, fail_levels=(0.0,) * 16)
    assert operating_characteristics(naive, 0.04, 0.02).passes > 0.13
    assert operating_characteristics(sixteen, 0.04, 0.02).passes <= 0.05


def test_a_look_that_cannot_pass_spends_nothing():
    assert PLAN.pass_levels[:2] == (0.0, 0.0)  # 70 and 140 items cannot exclude 2 %
    assert all(level > 0 for level in PLAN.fail_levels)


def run_monitor(plan, answers, **options):
    """Feed a list of losses (-1, 0, 1) to a monitor as a measuring loop would."""
    monitor = Monitor(plan=plan)
    while not monitor.decided:
        seen = answers[: monitor.next_n]
        rest = answers[monitor.next_n :]
        extra = {}
        if options.get("curtail"):
            right = sum(base for base in options["base"][len(seen) :])
            extra = {"rest_base_right": right, "rest_base_wrong": len(rest) - right}
        monitor = monitor.observe(seen.count(1), seen.count(-1), **extra)
    return monitor


def test_monitor_walks_the_plan():
    same = run_monitor(PLAN, [0] * 1117)
    assert same.verdict is Verdict.PASS
    assert same.n == 280
    bad = run_monitor(PLAN, [1, 0, 0, 0] * 280)
    assert bad.verdict is Verdict.FAIL
    assert bad.n == 70
    middling = run_monitor(PLAN, ([1] + [0] * 49) * 23)
    assert middling.verdict is Verdict.INCONCLUSIVE
    assert middling.why == "planned maximum reached"
    assert middling.n == 1117
    assert middling.result is not None
    assert middling.result.losses == 23


def test_monitor_ends_like_the_exact_enumeration():
    rng = np.random.default_rng(12)
    plan = plan_looks(300, 0.05)
    ends = []
    for _ in range(250):
        answers = rng.choice([1, -1, 0], p=[0.05, 0.02, 0.93], size=300).tolist()
        ends.append(run_monitor(plan, answers).verdict)
    exact = operating_characteristics(plan, 0.05, 0.02)
    for verdict, p in ((Verdict.PASS, exact.passes), (Verdict.INCONCLUSIVE, exact.inconclusive)):
        found = sum(end is verdict for end in ends) / 250
        assert abs(found - p) <= 4 * math.sqrt(p * (1 - p) / 250) + 0.005


def test_monitor_takes_scores():
    monitor = Monitor(plan=plan_looks(400, 0.05)).observe_scores([0.0] * 25)
    assert not monitor.decided
    monitor = monitor.observe_scores([0.9] * 50)
    assert monitor.verdict is Verdict.FAIL


def test_pitfall_14_a_decided_run_takes_no_more_looks():
    done = run_monitor(PLAN, [0] * 1117)
    with pytest.raises(ContractError, match="nobody planned"):
        done.observe(0, 0, 400)
    with pytest.raises(ContractError, match="nobody planned"):
        done.observe_scores([0.0] * 400)


def test_looks_outside_the_plan_are_refused():
    with pytest.raises(ContractError, match="not planned"):
        Monitor(plan=PLAN).observe(0, 0, 2000)
    with pytest.raises(ContractError, match="not planned"):
        Monitor(plan=PLAN).observe(0, 0, 70).observe(0, 0, 60)


def test_pitfall_15_everything_that_was_fixed_is_in_the_digest():
    same = plan_looks(1117, 0.02)
    assert same.digest() == PLAN.digest()
    others = [
        plan_looks(1117, 0.021),
        plan_looks(1118, 0.02),
        plan_looks(1117, 0.02, alpha_pass=0.04),
        plan_looks(1117, 0.02, alpha_fail=0.01),
        plan_looks(1117, 0.02, fractions=[0.5, 1.0]),
        plan_looks(1117, 0.02, seed=1),
        plan_looks(1117, 0.02, order="abc"),
    ]
    assert len({plan.digest() for plan in [PLAN, *others]}) == 8


def test_pitfall_12_order_is_shuffled_reproducibly():
    ids = [f"gsm8k-{i}" for i in range(1000)]
    first = item_order(ids, seed=0)
    assert first == item_order(reversed(ids), seed=0)
    assert first != item_order(ids, seed=1)
    assert sorted(first) == sorted(ids)
    positions = [int(name.split("-")[1]) for name in first[:200]]
    assert 400 < np.mean(positions) < 600  # the first 200 of the order are not the first 200 of the file
    assert order_digest(first) != order_digest(ids)
    with pytest.raises(ContractError, match="unique"):
        item_order(["a", "a"], seed=0)


def test_curtailment_stops_only_runs_whose_end_is_settled():
    """No continuation of a curtailed run passes (brute force over the possible rests), and it saves items."""
    rng = np.random.default_rng(21)
    plan = plan_looks(120, 0.1)
    stopped = saved = 0
    for _ in range(60):
        base = (rng.random(120) < 0.8).tolist()
        answers = [int(right and rng.random() < 0.15) for right in base]
        monitor, full = run_monitor(plan, answers, curtail=True, base=base), run_monitor(plan, answers)
        if not monitor.why.startswith("curtailed"):
            assert monitor.verdict is full.verdict
            continue
        stopped, saved = stopped + 1, saved + full.n - monitor.n
        assert monitor.verdict is Verdict.INCONCLUSIVE
        assert full.verdict is not Verdict.PASS
        losses = sum(answers[: monitor.n])
        for n, level in zip(plan.looks[monitor.look :], plan.pass_levels[monitor.look :], strict=True):
            for gained in range(min(n - monitor.n, 120 - monitor.n - sum(base[monitor.n :])) + 1):
                assert not p_pass(losses, gained, n, 0.1) < level
    assert stopped >= 5
    assert saved > 0


def test_curtailment_announces_a_certain_end():
    from dataclasses import replace

    late = replace(plan_looks(200, 0.1), fail_levels=(0.0,) * 7 + (0.05,), pass_levels=(0.0,) * 7 + (0.05,))
    open_run = Monitor(plan=late).observe(2, 0, 13, rest_base_right=187, rest_base_wrong=0)
    assert not open_run.decided  # 187 right answers could still follow
    ruined = Monitor(plan=late).observe(60, 0, 100, rest_base_right=95, rest_base_wrong=5)
    assert ruined.verdict is Verdict.FAIL
    assert p_fail(60, 5, 200, 0.1) < 0.05
    saved = Monitor(plan=late).observe(0, 0, 195, rest_base_right=3, rest_base_wrong=2)
    assert saved.verdict is Verdict.PASS
    assert p_pass(3, 0, 200, 0.1) < 0.05


def test_curtailment_refuses_counts_beyond_the_plan():
    with pytest.raises(ContractError, match="plan ends"):
        Monitor(plan=PLAN).observe(0, 0, 70, rest_base_right=2000, rest_base_wrong=0)


def test_matrix_plan_divides_the_fail_budget():
    plan = matrix_plan(500, 0.02, cells=144)
    assert plan.looks == (250, 375, 500, 750, 1000, 2000)
    assert plan.alpha_fail == pytest.approx(0.05 / 144)
    with pytest.raises(ContractError, match="at least one cell"):
        matrix_plan(500, 0.02, cells=0)


@pytest.mark.parametrize("fractions", [[], [0.5], [1.0, 0.5], [0.0, 1.0]])
def test_impossible_looks_are_refused(fractions):
    with pytest.raises(ContractError, match="looks need"):
        plan_looks(100, 0.05, fractions=fractions)
    with pytest.raises(ContractError, match="spending"):
        plan_looks(100, 0.05, spending="pocock")


def test_tiny_runs_have_fewer_looks():
    assert plan_looks(3, 0.5).looks == (1, 2, 3)
