"""Token means are judged by documents; skewed and constant samples get the mode that does not lie about them."""

import math

import numpy as np
import pytest

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import clustered_mean, quantile_upper
from pytest_attnaccept.taxonomy import Verdict

MARGIN = math.log1p(0.01)


def documents(rng, size, mean, spread=0.006, shape="normal"):
    """Draw document means around a true mean, and their token counts."""
    tokens = rng.integers(150, 450, size)
    if shape == "normal":
        means = rng.normal(mean, spread, size)
    elif shape == "lognormal":
        means = mean * rng.lognormal(-0.5, 1.0, size)
    else:  # 5 % of the documents carry the whole loss
        means = np.where(rng.random(size) < 0.05, mean / 0.05, 0.0) + rng.normal(0, 0.001, size)
    return means * tokens, tokens


def error_rate(shape, size, replications, seed=0, **options):
    rng = np.random.default_rng(seed)
    passed = 0
    for _ in range(replications):
        sums, tokens = documents(rng, size, MARGIN, shape=shape)
        passed += clustered_mean(sums, tokens, MARGIN, **options).verdict is Verdict.PASS
    return passed / replications


def test_ratio_estimator_holds_its_level_for_normal_documents():
    assert error_rate("normal", 60, 500, mode="t") <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)


@pytest.mark.parametrize(("shape", "size"), [("lognormal", 20), ("sparse", 20), ("sparse", 100), ("lognormal", 100)])
def test_skewed_documents_do_not_pass_at_the_boundary_more_than_alpha(shape, size):
    assert error_rate(shape, size, 80) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 80)


@pytest.mark.parametrize(("share", "loss"), [(0.1, 0.0995), (0.05, 0.2), (0.02, 0.5)])
def test_losses_hidden_in_documents_that_were_not_sampled(share, loss):
    """A few documents carry the whole margin: a sample without one of them looks perfect to a t interval."""
    rng = np.random.default_rng(1)
    passed = {"t": 0, "auto": 0}
    for _ in range(100):
        means = np.where(rng.random(60) < share, loss, 0.0) + rng.normal(0, 0.0005, 60)
        for mode in passed:
            passed[mode] += clustered_mean(means * 300, np.full(60, 300), MARGIN, mode=mode).verdict is Verdict.PASS
    assert passed["auto"] / 100 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100) or loss > 0.3
    if loss > 0.3:  # beyond what any 60 documents can exclude: 2 % of documents at 50 margins; said in the result
        lucky = clustered_mean(rng.normal(0, 0.0005, 60) * 300, np.full(60, 300), MARGIN)
        assert lucky.beyond_upper > 0.045


def test_forty_perfect_documents_are_too_few():
    rng = np.random.default_rng(1)
    tokens = np.full(40, 300)
    lucky = tokens * rng.normal(0, 0.001, 40)
    assert clustered_mean(lucky, tokens, MARGIN, mode="t").verdict is Verdict.PASS  # known bad
    guarded = clustered_mean(lucky, tokens, MARGIN)
    assert guarded.verdict is Verdict.INCONCLUSIVE
    assert "59 are the minimum" in guarded.reason
    assert guarded.beyond_upper > 0.05


def test_the_guard_is_needed():
    """Without it the t interval passes sparse losses at the boundary two to three times too often."""
    assert error_rate("sparse", 20, 400, mode="t") > 0.1


def test_power_for_a_harmless_candidate():
    rng = np.random.default_rng(4)
    verdicts = [clustered_mean(*documents(rng, 80, 0.0), MARGIN).verdict for _ in range(30)]
    assert sum(v is Verdict.PASS for v in verdicts) >= 28


def test_clear_harm_fails_in_both_modes():
    rng = np.random.default_rng(5)
    assert clustered_mean(*documents(rng, 30, 0.05), MARGIN).verdict is Verdict.FAIL
    tokens = np.full(30, 200)
    ruined = clustered_mean(tokens * rng.normal(2.0, 0.1, 30), tokens, MARGIN)
    assert ruined.mode == "robust"
    assert ruined.verdict is Verdict.FAIL
    assert ruined.beyond == 30


def test_pitfall_4_token_level_errors_would_pass_what_documents_refuse():
    """One draw per document repeated over its tokens: per-token errors are 17 times too small."""
    rng = np.random.default_rng(2)
    passed_tokens = passed_documents = 0
    for _ in range(200):
        effect = rng.normal(MARGIN, 0.02, 20)
        tokens = np.repeat(effect, 300) + rng.normal(0, 0.05, 6000)
        upper = tokens.mean() + 1.645 * tokens.std(ddof=1) / math.sqrt(tokens.size)
        passed_tokens += upper < MARGIN
        sums = tokens.reshape(20, 300).sum(axis=1)
        passed_documents += clustered_mean(sums, np.full(20, 300), MARGIN, mode="t").verdict is Verdict.PASS
    assert passed_tokens / 200 > 0.2
    assert passed_documents / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_few_documents_never_pass_but_gross_harm_fails():
    rng = np.random.default_rng(6)
    assert clustered_mean(*documents(rng, 19, -0.02), MARGIN).verdict is Verdict.INCONCLUSIVE
    assert "20 are the minimum" in clustered_mean(*documents(rng, 19, -0.02), MARGIN).reason
    assert clustered_mean(*documents(rng, 20, -0.02), MARGIN, cap=None).verdict is Verdict.PASS
    assert clustered_mean(*documents(rng, 8, 0.2, 0.01), MARGIN).verdict is Verdict.FAIL


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_identical_documents_have_no_zero_width_interval(size):
    result = clustered_mean(np.zeros(size), np.full(size, 100), MARGIN)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.upper > MARGIN
    assert clustered_mean(np.zeros(size), np.full(size, 100), MARGIN, cap=None).verdict is Verdict.INCONCLUSIVE


def test_many_identical_documents_pass_in_the_robust_mode():
    assert clustered_mean(np.zeros(200), np.full(200, 100), MARGIN).verdict is Verdict.PASS


def test_documents_beyond_the_cap_are_counted():
    tokens = np.full(200, 300)
    few, many = np.zeros(200), np.zeros(200)
    few[:2], many[:24] = 0.5 * 300, 0.5 * 300
    tolerated, refused = clustered_mean(few, tokens, MARGIN), clustered_mean(many, tokens, MARGIN)
    assert tolerated.verdict is Verdict.PASS
    assert tolerated.beyond == 2
    assert tolerated.beyond_upper < 0.05
    assert refused.verdict is Verdict.FAIL
    assert "24 of 200" in refused.reason


def test_one_exploding_document_is_not_capped_away():
    """The cap bounds what is assumed about documents not seen; what was seen counts in full."""
    sums = np.zeros(200)
    sums[7] = 1e6
    result = clustered_mean(sums, np.full(200, 10), MARGIN)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "1 of 200 documents carry the mean" in result.reason


def test_skew_without_a_cap_is_not_certified():
    rng = np.random.default_rng(7)
    sums, tokens = documents(rng, 60, 0.001, shape="sparse")
    assert clustered_mean(sums, tokens, 0.05, cap=None).verdict is Verdict.INCONCLUSIVE


def test_left_skew_does_not_prove_harm():
    tokens = np.full(40, 100)
    means = np.full(40, 0.015) + np.linspace(0, 0.001, 40)
    means[0] = -0.2
    assert clustered_mean(means * tokens, tokens, 0.008, cap=None).verdict is not Verdict.FAIL


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_unusable_documents_are_invalid(bad):
    sums = np.zeros(50)
    sums[3] = bad
    assert clustered_mean(sums, np.full(50, 10), MARGIN).verdict is Verdict.INVALID


def test_nothing_compared_is_invalid():
    assert clustered_mean([], [], MARGIN).verdict is Verdict.INVALID


def test_bad_arguments_are_refused():
    with pytest.raises(ContractError, match="token counts"):
        clustered_mean([0.0], [1, 2], MARGIN)
    with pytest.raises(ContractError, match="at least one scored token"):
        clustered_mean([0.0], [0], MARGIN)
    with pytest.raises(ContractError, match="margin"):
        clustered_mean([0.0], [1], float("nan"))
    with pytest.raises(ContractError, match="mode"):
        clustered_mean([0.0], [1], MARGIN, mode="robust", cap=None)


def test_top1_flips_are_a_mean_over_documents_too():
    rng = np.random.default_rng(9)
    tokens = np.full(120, 256)
    calm, wild = rng.binomial(256, 0.02, 120), rng.binomial(256, 0.12, 120)
    assert clustered_mean(calm, tokens, 0.05).verdict is Verdict.PASS
    assert clustered_mean(wild, tokens, 0.05).verdict is Verdict.FAIL
    bounded = clustered_mean(calm, tokens, 0.05, cap=1.0)  # no assumption at all, at a price
    assert bounded.verdict is Verdict.PASS
    assert clustered_mean(calm[:50], tokens[:50], 0.05, cap=1.0).verdict is Verdict.INCONCLUSIVE


def test_long_documents_weigh_more():
    """The estimand is the token mean: one long document counts by its tokens."""
    tokens = np.array([100] * 39 + [100_000])
    means = np.array([0.0] * 39 + [0.05])
    result = clustered_mean(means * tokens, tokens, MARGIN)
    assert result.mean > 0.04
    assert result.verdict is not Verdict.PASS


def test_quantile_bound_covers():
    rng = np.random.default_rng(3)
    truth = 3.0902  # 99.9 % of the standard normal
    bounds = [quantile_upper(rng.normal(size=4000), 0.999) for _ in range(200)]
    assert all(b is not None for b in bounds)
    assert np.mean([b >= truth for b in bounds if b is not None]) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 200)


def test_quantile_needs_enough_values():
    assert quantile_upper(np.arange(298), 0.99) is None
    assert quantile_upper(np.arange(299), 0.99) == 298
    assert quantile_upper([], 0.5) is None
    with pytest.raises(ContractError, match="NaN"):
        quantile_upper([1.0, float("nan")], 0.5)
