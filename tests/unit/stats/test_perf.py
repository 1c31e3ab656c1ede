"""Interleaved blocks survive drift, a P99 needs enough requests, and no spread is no precision."""

import math

import numpy as np
import pytest

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import (
    abba_order,
    block_levels,
    block_log_ratios,
    compare_blocks,
    deterministic_ratio,
    p99,
    p99_requests_needed,
    p99_upper,
)
from pytest_attnaccept.taxonomy import Verdict


def runs(rng, order, change, *, ramp=0.0, noise=0.01):
    """Simulate one value per run under a linear drift over the whole session."""
    position = np.linspace(0, ramp, len(order))
    true = np.array([math.log1p(change) if arm == "B" else 0.0 for arm in order])
    return np.exp(3.0 + true + position + rng.normal(0, noise, len(order)))


def rates(change, blocks, replications, **options):
    rng = np.random.default_rng(0)
    ends = []
    for i in range(replications):
        order = abba_order(blocks, seed=i)
        ends.append(compare_blocks(block_log_ratios(order, runs(rng, order, change, **options)), 0.03).verdict)
    return {v: np.mean([end is v for end in ends]) for v in (Verdict.PASS, Verdict.FAIL)}


@pytest.mark.parametrize("ramp", [0.0, 0.03])
def test_blocks_hold_their_level_under_drift(ramp):
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    boundary = rates(0.03, 4, 400, ramp=ramp)
    assert boundary[Verdict.PASS] <= limit
    assert boundary[Verdict.FAIL] <= limit


def test_blocks_decide_clear_cases():
    assert rates(0.0, 8, 60, ramp=0.03)[Verdict.PASS] > 0.95
    assert rates(0.10, 4, 60, ramp=0.03)[Verdict.FAIL] > 0.95


def test_sequential_arms_are_known_bad_under_drift():
    """AAAA BBBB with a 3 % ramp: an equal build looks slower nearly always."""
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(200):
        values = np.log(runs(rng, ["A"] * 16, 0.0, ramp=0.03))
        gap = values[8:].mean() - values[:8].mean()
        error = math.sqrt(values[8:].var(ddof=1) / 8 + values[:8].var(ddof=1) / 8)
        alarms += gap / error > 1.76
    assert alarms / 200 > 0.5


def test_order_is_mirrored_and_reproducible():
    order = abba_order(6, seed=3)
    assert order == abba_order(6, seed=3)
    assert {"".join(order[i : i + 4]) for i in range(0, 24, 4)} == {"ABBA", "BAAB"}
    with pytest.raises(ContractError, match="at least one block"):
        abba_order(0, seed=0)


def test_log_ratios_cancel_linear_drift_exactly():
    order = ["A", "B", "B", "A", "B", "A", "A", "B"]
    drift = np.exp(np.arange(8) * 0.1)
    assert block_log_ratios(order, drift).tolist() == pytest.approx([0.0, 0.0])
    slower = drift * np.array([1.1 if arm == "B" else 1.0 for arm in order])
    assert block_log_ratios(order, slower).tolist() == pytest.approx([math.log(1.1)] * 2)
    assert block_log_ratios(order, slower, higher_is_better=True)[0] == pytest.approx(-math.log(1.1))


@pytest.mark.parametrize(
    ("order", "values"),
    [
        (["A", "B", "B"], [1, 1, 1]),
        (["A", "B", "A", "B"], [1, 1, 1, 1]),
        (["A", "B", "B", "A"], [1, 1, float("nan"), 1]),
        (["A", "B", "B", "A"], [1, 1, 0, 1]),
        ([], []),
    ],
)
def test_broken_blocks_are_refused(order, values):
    with pytest.raises(ContractError):
        block_log_ratios(order, values)


def test_few_blocks_never_pass():
    assert compare_blocks([-0.3, -0.31, -0.3], 0.03).verdict is Verdict.INCONCLUSIVE
    assert compare_blocks([-0.3], 0.03).verdict is Verdict.INCONCLUSIVE
    assert compare_blocks([], 0.03).verdict is Verdict.INCONCLUSIVE


def test_equal_ratios_are_a_broken_clock():
    assert compare_blocks([0.0] * 8, 0.03).verdict is Verdict.INVALID
    assert compare_blocks([-0.2] * 8, 0.03).verdict is Verdict.INVALID


def test_wide_intervals_say_what_they_need():
    rng = np.random.default_rng(2)
    result = compare_blocks(rng.normal(0, 0.06, 6), 0.03)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.blocks_needed is not None
    assert result.blocks_needed > 6
    assert f"about {result.blocks_needed} blocks" in result.reason
    assert result.half_width > 0.03


def test_levels_of_added_blocks_sum_to_alpha():
    assert sum(block_levels()) == pytest.approx(0.05)
    assert len(block_levels()) == 3


def test_margin_and_ratios_must_be_numbers():
    with pytest.raises(ContractError, match="margin"):
        compare_blocks([0.0, 0.1], float("nan"))
    with pytest.raises(ContractError, match="not finite"):
        compare_blocks([0.0, float("inf")], 0.03)


def test_peak_memory_is_compared_by_maxima():
    assert deterministic_ratio([100, 100, 101], [100, 101, 101], 0.03).verdict is Verdict.PASS
    assert deterministic_ratio([100, 100, 100], [110, 111, 110], 0.03).verdict is Verdict.FAIL
    assert deterministic_ratio([100, 100, 100], [90, 100, 110], 0.03).verdict is Verdict.INCONCLUSIVE
    assert deterministic_ratio([100, 100], [100, 100], 0.03).verdict is Verdict.INCONCLUSIVE
    with pytest.raises(ContractError, match="positive"):
        deterministic_ratio([100, 0, 100], [1, 1, 1], 0.03)


def test_p99_needs_requests_and_refuses_nan():
    assert p99(np.arange(299)) is None
    assert p99(np.arange(1000)) == 989
    assert p99_upper(np.arange(298)) is None
    with pytest.raises(ContractError, match="NaN"):
        p99([1.0] * 400 + [float("nan")])


def test_pitfall_5_the_bootstrap_of_a_p99_does_not_cover_and_the_order_statistic_does():
    rng = np.random.default_rng(5)
    truth = math.exp(0.5 * 2.3263)
    covered_bootstrap = covered_order = 0
    for _ in range(120):
        sample = rng.lognormal(0, 0.5, 300)
        draws = np.sort(rng.choice(sample, size=(200, 300)), axis=1)[:, math.ceil(0.99 * 300) - 1]
        covered_bootstrap += np.quantile(draws, 0.95) >= truth
        upper = p99_upper(sample)
        covered_order += upper is not None and upper >= truth
    assert covered_order / 120 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 120)
    assert covered_bootstrap / 120 < 0.92


def test_requests_needed_for_a_p99_slowdown():
    assert p99_requests_needed(0.05, 0.2) == pytest.approx(2897, rel=0.01)  # reference: statistics, section 8
    assert p99_requests_needed(0.02, 0.2) == pytest.approx(17583, rel=0.01)


def test_an_aa_comparison_passes_and_gives_the_noise_floor():
    rng = np.random.default_rng(8)
    order = abba_order(8, seed=1)
    result = compare_blocks(block_log_ratios(order, runs(rng, order, 0.0)), 0.03)
    assert result.verdict is Verdict.PASS
    assert 0 < result.half_width < 0.02
