"""A paired comparison passes only proven harmlessness, and its interval never contradicts its verdict."""

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import (
    baseline_floor,
    cluster_means,
    count_outcomes,
    decide,
    items_for_any_pass,
    p_fail,
    p_pass,
    paired_binary,
    paired_relative,
    paired_scores,
)
from pytest_attnaccept.taxonomy import Verdict

COUNTS = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 900))


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, m=st.sampled_from([0.01, 0.02, 0.05, 0.2]))
def test_evidence_moves_the_right_way_in_losses_gains_and_items(counts, m):
    b, c, rest = counts
    n = b + c + rest
    assume(n > 0)
    here = p_pass(b, c, n, m)
    assert p_pass(b + 1, c, n + 1, m) >= here - 1e-12  # one more lost item
    assert p_pass(b, c + 1, n + 1, m) <= here + 1e-12  # one more gained item
    assert p_pass(b, c, n + 1, m) <= here + 1e-12  # one more equal item
    assert p_fail(b + 1, c, n + 1, m) <= p_fail(b, c, n, m) + 1e-12
    assert here + p_fail(b, c, n, m) >= 1 - 1e-9  # never both proven


@settings(max_examples=40, deadline=None)
@given(counts=COUNTS, m=st.sampled_from([0.02, 0.05, 0.3]))
def test_interval_is_the_dual_of_the_verdict_and_symmetric(counts, m):
    b, c, rest = counts
    n = b + c + rest
    assume(n > 0)
    one, other = paired_binary(b, c, n, m), paired_binary(c, b, n, m)
    assert -1 <= one.lower <= one.loss <= one.upper <= 1
    assert one.upper - one.lower > 0
    assert one.upper == pytest.approx(-other.lower, abs=1e-6)
    if abs(one.p_pass - 0.05) > 1e-4 and n >= items_for_any_pass(m):
        assert (one.verdict is Verdict.PASS) == (one.upper < m)
    if abs(one.p_fail - 0.05) > 1e-4:
        assert (one.verdict is Verdict.FAIL) == (one.lower > m)


@settings(max_examples=25, deadline=None)
@given(
    losses=st.lists(st.sampled_from([-1.0, -0.5, -0.1, 0.0, 0.0, 0.0, 0.2, 1.0]), min_size=1, max_size=120),
    m=st.sampled_from([0.05, 0.2]),
)
def test_scores_are_symmetric_and_bounded(losses, m):
    one, other = paired_scores(losses, m), paired_scores([-x for x in losses], m)
    assert -1 <= one.lower <= one.loss + 1e-9 <= one.upper + 2e-9 <= 1 + 3e-9
    assert one.upper == pytest.approx(-other.lower, abs=1e-6)


def test_scores_of_right_and_wrong_answers_equal_the_binary_bound():
    for b, c, n in [(0, 0, 200), (4, 7, 300), (30, 2, 250)]:
        binary = paired_binary(b, c, n, 0.05)
        scores = paired_scores([1] * b + [-1] * c + [0] * (n - b - c), 0.05)
        assert scores.p_pass == pytest.approx(binary.p_pass, rel=1e-6)
        assert scores.upper == pytest.approx(binary.upper, abs=1e-6)
        assert scores.verdict is binary.verdict


def test_one_verdict_on_a_thousand_pairs_takes_less_than_five_milliseconds():
    rng = np.random.default_rng(3)
    base, cand = (rng.random(1000) < 0.7).tolist(), (rng.random(1000) < 0.7).tolist()
    paired_binary(1, 1, 10, 0.1)  # imports and caches of numpy
    times = []
    for extra in range(15):
        start = time.process_time()
        b, c, n, correct = count_outcomes(base, cand)
        paired_binary(b // 10 + extra, c // 10, n, 0.02, base_correct=correct)
        times.append(time.process_time() - start)
    assert sorted(times)[len(times) // 2] < 0.005


def test_verdicts_of_clear_cases():
    assert paired_binary(10, 12, 1000, 0.02).verdict is Verdict.PASS
    assert paired_binary(80, 10, 1000, 0.02).verdict is Verdict.FAIL
    assert paired_binary(20, 15, 300, 0.02).verdict is Verdict.INCONCLUSIVE
    assert paired_binary(0, 0, 0, 0.02).verdict is Verdict.INVALID


def test_a_pass_with_a_real_loss_says_so():
    result = paired_binary(30, 2, 3000, 0.02)
    assert result.verdict is Verdict.PASS
    assert result.measurable
    assert "measurable loss" in result.reason
    assert not paired_binary(3, 2, 3000, 0.02).measurable


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((-1, 0, 5), "whole number"),
        ((3, 3, 5), "exceed"),
        ((0, 0.5, 5), "whole number"),
        ((True, 0, 5), "whole number"),
    ],
)
def test_impossible_counts_are_refused(counts, message):
    with pytest.raises(ContractError, match=message):
        paired_binary(*counts, 0.02)


def test_baseline_count_that_contradicts_the_pairs_is_refused():
    with pytest.raises(ContractError, match="contradicts"):
        paired_binary(5, 0, 100, 0.05, base_correct=3)


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0, 2.0, float("nan"), True])
def test_margins_outside_the_open_interval_are_refused(margin):
    with pytest.raises(ContractError, match="margin"):
        paired_binary(0, 0, 500, margin)


@pytest.mark.parametrize("alpha", [0.0, 0.6, float("nan")])
def test_alphas_that_are_no_error_probability_are_refused(alpha):
    with pytest.raises(ContractError, match="alpha"):
        paired_binary(0, 0, 500, 0.05, alpha_pass=alpha)


def test_a_percentage_as_margin_is_explained():
    with pytest.raises(ContractError, match=r"2 points are 0\.02"):
        paired_binary(0, 0, 500, 2.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.5, -1.5])
def test_scores_that_are_no_scores_are_refused(bad):
    with pytest.raises(ContractError, match="position 1"):
        paired_scores([0.0, bad, 0.1], 0.05)


def test_nan_p_values_never_pass():
    assert decide(float("nan"), 0.9) is Verdict.INVALID
    assert decide(0.001, float("nan")) is Verdict.INVALID
    assert decide(0.001, 0.001) is Verdict.INVALID


def test_too_few_clusters_never_pass_but_can_fail():
    assert paired_scores([-0.9] * 15, 0.3, clusters=True).verdict is Verdict.INCONCLUSIVE
    assert paired_scores([-0.9] * 15, 0.3).verdict is Verdict.PASS
    assert paired_scores([0.9] * 15, 0.3, clusters=True).verdict is Verdict.FAIL


def test_cluster_means_average_and_keep_order():
    assert cluster_means([1, 0, 1, 1], ["x", "y", "x", "y"]).tolist() == [1.0, 0.5]
    with pytest.raises(ContractError, match="one label per value"):
        cluster_means([1, 0], ["x"])


def test_clustering_widens_the_bound_of_dependent_answers():
    rng = np.random.default_rng(0)
    per_cluster = rng.choice([-1.0, 0.0, 1.0], p=[0.03, 0.94, 0.03], size=100)
    repeated = np.repeat(per_cluster, 5)  # five copies of one answer are one answer
    naive = paired_scores(repeated, 0.1)
    honest = paired_scores(cluster_means(repeated, np.repeat(np.arange(100), 5).tolist()), 0.1, clusters=True)
    assert honest.upper - honest.loss > 1.5 * (naive.upper - naive.loss)


def test_relative_margin_follows_the_baseline():
    base = [1.0] * 100 + [0.0] * 900  # 10 % accuracy: an absolute margin of 5 % would forgive half of it
    lost = [1.0] * 60 + [0.0] * 940
    assert paired_relative(base, base, 0.3).verdict is Verdict.PASS
    assert paired_relative(base, lost, 0.2).verdict is Verdict.FAIL
    assert paired_relative(base, lost, 0.2).measurable
    assert "keeps 60.00%" in paired_relative(base, lost, 0.2).reason
    assert paired_relative([0.0] * 500, [0.0] * 500, 0.1).verdict is not Verdict.PASS
    assert paired_relative([], [], 0.1).verdict is Verdict.INVALID
    with pytest.raises(ContractError, match="paired"):
        paired_relative([1.0], [1.0, 0.0], 0.1)


def test_relative_margin_holds_its_level():
    rng = np.random.default_rng(8)
    passed = 0
    for _ in range(250):  # candidate keeps exactly 90 %, tolerated loss 10 %: passing is the error
        base = rng.random(300) < 0.6
        cand = base & (rng.random(300) < 0.9)
        passed += paired_relative(base.astype(float), cand.astype(float), 0.1).verdict is Verdict.PASS
    assert passed / 250 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 250)


def test_sharper_worst_value_sharpens_the_bound():
    losses = [0.0] * 60
    assert paired_scores(losses, 0.04, worst=0.5).upper < paired_scores(losses, 0.04).upper


def test_floor_names_its_reason():
    assert "cannot lose 3 margins" in baseline_floor(0.05, 500, 0.02)
    assert "chance" in baseline_floor(0.27, 100, 0.005, chance=0.25)
    assert baseline_floor(0.4, 500, 0.05, chance=0.25) == ""
    with pytest.raises(ContractError, match="chance"):
        baseline_floor(0.5, 10, 0.1, chance=1.0)
