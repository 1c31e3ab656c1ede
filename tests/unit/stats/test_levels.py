"""Error rates by full enumeration: a harmful candidate passes with at most alpha, whatever its discordance."""

import numpy as np
import pytest

from pytest_attnaccept.stats import paired_binary, probability_fail, probability_pass, tango
from pytest_attnaccept.stats.boundary import fail_from, pass_up_to
from pytest_attnaccept.taxonomy import Verdict

QS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.45)  # discordance beyond the margin itself


def worst_level(probability, n, margin, alpha):
    return max(probability(n, margin, alpha, margin + extra / 2, extra / 2) for extra in QS if margin + extra <= 1)


@pytest.mark.parametrize("margin", [0.01, 0.02, 0.05])
def test_false_pass_and_false_fail_stay_below_alpha(margin):
    for n in (20, 35, 50, 60, 99, 150, 200, 299, 300, 500, 700, 1000):
        assert worst_level(probability_pass, n, margin, 0.05) <= 0.05
        assert worst_level(probability_fail, n, margin, 0.05) <= 0.05


@pytest.mark.parametrize("alpha", [0.01, 0.001, 0.0008])
def test_the_level_holds_at_the_tiny_alphas_of_early_looks(alpha):
    for n in (60, 119, 250):
        for margin in (0.02, 0.05, 0.1):
            assert worst_level(probability_pass, n, margin, alpha) <= alpha
            assert worst_level(probability_fail, n, margin, alpha) <= alpha


def test_known_bad_rule_exceeds_its_level_in_the_same_enumeration():
    """The Wald rule under the same machinery passes a 2 % loss far too often: the test can tell."""
    n, margin = 100, 0.02
    b, c = np.arange(n + 1)[:, None], np.arange(n + 1)[None, :]
    spread = np.sqrt(np.maximum(b + c - (b - c) ** 2 / n, 0))
    wald_passes = ((b - c) + 1.645 * spread < n * margin) & (b + c <= n)
    from scipy import stats

    worst = 0.0
    for extra in QS:
        p_loss, p_gain = margin + extra / 2, extra / 2
        joint = stats.multinomial(n, [p_loss, p_gain, 1 - p_loss - p_gain])
        cells = [(i, j) for i, j in np.argwhere(wald_passes) if i <= 25 and j <= 25]
        worst = max(worst, sum(joint.pmf([i, j, n - i - j]) for i, j in cells))
    assert worst > 0.1
    assert worst_level(probability_pass, n, margin, 0.05) <= 0.05


def test_power_of_the_reference_table():
    # (margin, n) -> power at zero loss and 1 / 4 / 10 % discordance (reference: statistics 1.2)
    for margin, n, expected in [(0.02, 500, (0.97, 0.63, 0.36)), (0.05, 100, (0.92, 0.59, 0.35))]:
        found = [probability_pass(n, margin, 0.05, q / 2, q / 2) for q in (0.01, 0.04, 0.10)]
        assert found == pytest.approx(expected, abs=0.012)


def test_boundaries_agree_with_single_verdicts():
    rng = np.random.default_rng(1)
    for _ in range(60):
        n, margin = int(rng.integers(60, 900)), float(rng.choice([0.02, 0.05]))
        c = int(rng.integers(0, 30))
        last, first = int(pass_up_to(n, margin, 0.05, c + 1)[c]), int(fail_from(n, margin, 0.05, c + 1)[c])
        for b in {max(last, 0), last + 1, first - 1, min(first, n - c)}:
            if not 0 <= b <= n - c:
                continue
            expected = Verdict.PASS if b <= last else Verdict.FAIL if b >= first else Verdict.INCONCLUSIVE
            found = paired_binary(b, c, n, margin).verdict
            assert found is expected or (expected is Verdict.PASS and (1 - margin) ** n >= 0.05)


def test_boundary_columns_may_start_anywhere():
    full = pass_up_to(700, 0.02, 0.05, 90)
    assert (pass_up_to(700, 0.02, 0.05, 90, 37) == full[37:]).all()
    assert pass_up_to(700, 0.02, 0.05, 5, 5).size == 0


@pytest.mark.parametrize(("n", "margin"), [(60, 0.05), (100, 0.02), (200, 0.02)])
def test_exact_tango_test_holds_its_level_and_has_more_power(n, margin):
    from scipy import stats

    columns = min(n, 30)
    last = []
    b = -1
    for c in range(columns):
        while b + 1 + c <= n and tango.p_pass(b + 1, c, n, margin) < 0.05:
            b += 1
        last.append(b)

    def passes(p_loss, p_gain):
        weight = stats.binom.pmf(np.arange(columns), n, p_gain)
        inner = stats.binom.cdf(last, n - np.arange(columns), p_loss / (1 - p_gain))
        return float(weight @ inner)

    for extra in (0.0, 0.005, 0.01, 0.02, 0.04, 0.08):
        assert passes(margin + extra / 2, extra / 2) <= 0.05
    assert passes(0.02, 0.02) >= probability_pass(n, margin, 0.05, 0.02, 0.02)


def test_exact_tango_p_value_is_a_maximum_over_the_discordance():
    """A fine grid of 4000 discordances within the 1 - 1e-6 interval finds nothing above the reported p-value."""
    from scipy import stats

    n, margin, b, c = 120, 0.05, 3, 2
    edge = tango._region_edge(b, c, n, margin, 1, n)
    q = np.linspace(margin, stats.beta.isf(5e-7, b + c + 1, n - b - c), 4000)
    assert tango._region_probability(edge, n, margin, q, 1).max() <= tango.p_pass(b, c, n, margin) + 1e-6


def test_tango_refuses_sizes_it_is_not_made_for():
    from pytest_attnaccept.errors import ContractError

    with pytest.raises(ContractError, match="gaffke"):
        paired_binary(0, 0, 5000, 0.02, method="tango")
    with pytest.raises(ContractError, match="method"):
        paired_binary(0, 0, 100, 0.02, method="wald")
    assert paired_binary(5, 5, 300, 0.05, method="tango").verdict is Verdict.PASS
    assert paired_binary(0, 0, 20, 0.02, method="tango").upper > 0.1
