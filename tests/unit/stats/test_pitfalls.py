"""The pitfalls of the statistics study that belong to no single function, each as known bad and known good.

The others are named where their function is tested: 4 (clusters), 5 (perf), 6, 12, 14, 15 (sequential), 7 (curves), 8, 9
(matrix), 13 (compare), 18 (gaffke), 20 (planning). 10, 11 and 19 belong to kernels.
"""

import numpy as np
import pytest

from pytest_attnaccept.stats import baseline_floor, item_order, p_pass, paired_binary, paired_scores
from pytest_attnaccept.taxonomy import Verdict


@pytest.mark.parametrize("margin", [0.005, 0.01, 0.02, 0.05, 0.1, 0.13])
@pytest.mark.parametrize("method", ["gaffke", "tango"])
def test_pitfall_1_twenty_equal_answers_prove_nothing(margin, method):
    result = paired_binary(0, 0, 20, margin, method=method)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "minimum" in result.reason
    assert paired_binary(0, 0, 20, 0.15, method=method).verdict is Verdict.PASS


def test_pitfall_2_no_interval_has_zero_width():
    for b, c, n in [(0, 0, 1), (0, 0, 20), (0, 0, 100_000), (5, 5, 10), (20, 0, 20), (0, 20, 20)]:
        result = paired_binary(b, c, n, 0.02)
        assert result.upper - result.lower > 1e-6
    for losses in ([0.0] * 30, [0.3] * 30, [-1.0] * 5):
        result = paired_scores(losses, 0.02)
        assert result.upper - result.lower > 1e-6


def test_pitfall_3_resampling_and_flat_priors_pass_what_is_not_proven():
    """Rare total failures, mean loss exactly at the margin: percentile bootstrap, t and a flat prior pass too often."""
    rng = np.random.default_rng(0)
    margin, n, replications = 0.02, 50, 400
    passed = dict.fromkeys(("percentile", "t", "gaffke"), 0)
    for _ in range(replications):
        losses = np.where(rng.random(n) < margin / 0.9, 0.9, 0.0)
        means = rng.choice(losses, size=(300, n)).mean(axis=1)
        passed["percentile"] += np.quantile(means, 0.95) < margin
        passed["t"] += losses.mean() + 1.677 * losses.std(ddof=1) / np.sqrt(n) < margin
        passed["gaffke"] += paired_scores(losses, margin).verdict is Verdict.PASS
    assert passed["percentile"] / replications > 0.25
    assert passed["t"] / replications > 0.25
    assert passed["gaffke"] / replications <= 0.05
    # A flat Dirichlet(1, 1, 1) prior at n = 20 and zero discordance excludes 10 %: the imaginary loss comes with two more.
    draws = rng.dirichlet([1, 1, 21], size=20_000)
    assert np.quantile(draws[:, 0] - draws[:, 1], 0.95) < 0.12 < paired_binary(0, 0, 20, 0.1).upper


def test_pitfall_16_a_candidate_chosen_on_the_gate_items_must_be_gated_on_others():
    """The best of twenty borderline candidates passes on the items it was chosen on, and not on held-out ones."""
    rng = np.random.default_rng(3)
    tuned = held_out = 0
    for _ in range(120):
        counts = rng.multinomial(600, [0.04, 0.01, 0.95], size=(20, 2))  # loss exactly 3 %, the margin
        best = min(range(20), key=lambda i: counts[i, 0, 0] - counts[i, 0, 1])
        tuned += p_pass(int(counts[best, 0, 0]), int(counts[best, 0, 1]), 600, 0.03) < 0.05
        held_out += p_pass(int(counts[best, 1, 0]), int(counts[best, 1, 1]), 600, 0.03) < 0.05
    assert tuned / 120 > 0.3
    assert held_out / 120 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)
    ids = [f"item-{i}" for i in range(400)]
    order = item_order(ids, seed=7)
    assert set(order[:200]).isdisjoint(order[200:])  # one seeded order splits tuning from gating


def test_pitfall_17_a_baseline_at_the_floor_is_invalid_not_passed():
    blind = paired_binary(2, 2, 2000, 0.02, base_correct=20)  # 1 % accuracy cannot lose 2 points
    assert blind.verdict is Verdict.INVALID
    assert blind.p_pass < 0.05
    assert "cannot lose" in blind.reason
    guessing = paired_binary(2, 2, 400, 0.01, base_correct=106, chance=0.25)
    assert guessing.verdict is Verdict.INVALID
    assert paired_binary(2, 2, 2000, 0.02, base_correct=1400).verdict is Verdict.PASS
    assert baseline_floor(0.06, 1000, 0.02) == ""
    # A proven FAIL stays a FAIL: the floor protects a PASS, it does not excuse harm.
    assert paired_binary(100, 0, 2000, 0.02, base_correct=110).verdict is Verdict.FAIL
