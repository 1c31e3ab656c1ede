"""The bound is computed exactly: against closed forms, against an independent evaluation, and deep in the tail."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from pytest_attnaccept.stats.gaffke import difference_cdf, difference_sf, weighted_mean_tail


def _adaptive(loss, gain, rest, margin):
    """Integrate the definition adaptively: slow, and independent of the panels."""

    def inner(t):
        return stats.beta.pdf(t, loss + gain, rest) * special.betaincc(loss, gain, (1 + margin / t) / 2)

    centre = (loss + gain) / (loss + gain + rest)
    points = sorted({margin, min(max(centre, margin), 1.0), min(max(3 * centre, margin), 1.0), 1.0})
    return sum(integrate.quad(inner, a, b, epsabs=0, epsrel=1e-10, limit=400)[0] for a, b in itertools.pairwise(points))


@pytest.mark.parametrize(
    ("b", "c", "n", "m"),
    [
        (0, 1, 30, 0.02),
        (3, 2, 100, 0.05),
        (10, 12, 500, 0.02),
        (20, 20, 1000, 0.02),
        (2, 30, 800, 0.01),
        (40, 5, 300, 0.1),
    ],
)
def test_quadrature_agrees_with_adaptive_integration(b, c, n, m):
    assert difference_sf(b + 1, c, n - b - c, m) == pytest.approx(_adaptive(b + 1, c, n - b - c, m), rel=1e-7)


def test_without_gains_it_is_clopper_pearson():
    for b, n, m in [(0, 149, 0.02), (3, 200, 0.05), (17, 90, 0.25)]:
        exact = stats.binom.cdf(b, n, m)
        assert difference_sf(b + 1, 0, n - b, m) == pytest.approx(exact, rel=1e-12)


def test_two_independent_evaluations_agree_over_the_whole_range():
    rng = np.random.default_rng(11)
    for _ in range(300):
        n = int(rng.integers(3, 3000))
        b, c = int(rng.integers(0, min(n, 60))), int(rng.integers(0, min(n, 60)))
        c = min(c, n - b)
        m = float(rng.choice([0.005, 0.01, 0.02, 0.05, 0.1, 0.3]))
        exact, contour = difference_sf(b + 1, c, n - b - c, m), weighted_mean_tail([1, -1, 0], [b + 1, c, n - b - c], m)
        assert contour == pytest.approx(exact, rel=1e-6, abs=1e-18)


def test_pitfall_18_midpoint_quadrature_is_wrong_in_the_tail_and_ours_is_not():
    b, c, n, m = 2, 10, 1500, 0.01
    truth = _adaptive(b + 1, c, n - b - c, m)
    assert truth < 1e-4
    middle = (np.arange(60) + 0.5) / 60
    t = special.betaincinv(b + 1 + c, n - b - c, middle)
    midpoint = np.mean(np.where(t > m, special.betaincc(b + 1, c, np.minimum((1 + m / t) / 2, 1.0)), 0.0))
    assert abs(midpoint / truth - 1) > 0.3
    assert difference_sf(b + 1, c, n - b - c, m) == pytest.approx(truth, rel=1e-6)


def test_scores_agree_with_the_random_definition():
    rng = np.random.default_rng(5)
    values = np.append(rng.uniform(-0.4, 0.5, 60), 1.0)
    for margin in (0.02, 0.08, 0.15):
        weights = rng.exponential(size=(40_000, values.size))
        simulated = np.mean(weights @ (values - margin) >= 0)
        assert weighted_mean_tail(values, None, margin) == pytest.approx(simulated, abs=0.012)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_small_samples_keep_their_precision(size):
    # All items at 0: the tail is (1 - m) ** n in closed form.
    assert weighted_mean_tail([0.0, 1.0], [size, 1], 0.3) == pytest.approx(0.7**size, rel=1e-9)
    assert weighted_mean_tail([0.0, 1.0], [size, 1], 0.9) == pytest.approx(0.1**size, rel=1e-8)


def test_degenerate_margins_have_defined_tails():
    assert difference_sf(0, 0, 10, 0.1) == 0.0
    assert difference_cdf(0, 3, 10, 0.0) == 1.0
    assert difference_sf(3, 2, 0, 1.0) == 0.0
    assert difference_sf(5, 0, 0, 0.99) == 1.0
    assert weighted_mean_tail([0.5, 0.5], None, 0.4) == 1.0
    assert weighted_mean_tail([0.3, 0.1], None, 0.4) == 0.0
    assert math.isnan(weighted_mean_tail([float("nan"), 1.0], None, 0.1))


@settings(max_examples=60, deadline=None)
@given(
    b=st.integers(0, 40),
    c=st.integers(0, 40),
    rest=st.integers(0, 500),
    m=st.floats(-0.9, 0.9, allow_nan=False),
)
def test_tails_are_complementary_and_antisymmetric(b, c, rest, m):
    if b + c == 0:
        return
    upper, lower = difference_sf(b, c, rest, m), difference_cdf(b, c, rest, m)
    if b > 0 and c > 0:
        assert upper + lower == pytest.approx(1.0, abs=1e-9)
    assert difference_cdf(c, b, rest, -m) == pytest.approx(upper, abs=1e-12)
