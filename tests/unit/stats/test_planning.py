"""Planning numbers come from the exact distribution of the verdict, and say what a data set can and cannot certify."""

import numpy as np
import pytest

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import (
    GatePlan,
    conditional_power,
    discordance_from_aa,
    discordance_from_runs,
    gate_power,
    hopeless,
    items_for_any_pass,
    items_for_profile,
    items_needed,
    items_to_decide,
    items_to_decide_scores,
    minimum_detectable_loss,
    paired_binary,
    paired_scores,
    power,
    probability_fail,
    profile_power,
    smallest_margin,
    underpowered,
)
from pytest_attnaccept.taxonomy import Verdict


def test_rule_of_three():
    assert [items_for_any_pass(m) for m in (0.01, 0.02, 0.03, 0.05)] == [299, 149, 99, 59]


@pytest.mark.parametrize(
    ("margin", "q", "formula"),
    [(0.02, 0.02, 578), (0.02, 0.04, 1006), (0.03, 0.08, 861), (0.05, 0.04, 197), (0.05, 0.08, 334)],
)
def test_items_needed_is_the_smallest_that_reaches_the_power(margin, q, formula):
    n = items_needed(margin, discordance=q)
    assert n is not None
    assert power(n, margin, discordance=q) >= 0.9
    assert power(n - 1, margin, discordance=q) < 0.9
    assert n == pytest.approx(formula, rel=0.06)  # the rule of thumb of the documentation


def test_a_loss_at_the_margin_is_out_of_reach():
    assert items_needed(0.02, true_loss=0.02) is None
    assert items_needed(0.02, true_loss=0.0199) is None


def test_smallest_margin_and_detectable_loss_are_certified():
    margin = smallest_margin(300)
    assert margin == pytest.approx(0.038, abs=0.002)
    assert power(300, margin) >= 0.9
    assert power(300, margin - 0.002) < 0.9
    assert smallest_margin(0) is None
    loss = minimum_detectable_loss(500, 0.02)
    assert probability_fail(500, 0.02, 0.05, 0.02 + loss, 0.02) >= 0.8
    assert loss == pytest.approx(0.02 + (1.645 + 0.842) * np.sqrt(0.075 / 500), abs=0.012)
    assert minimum_detectable_loss(20, 0.9) is None


def test_conditional_power_matches_simulation():
    rng = np.random.default_rng(2)
    exact = conditional_power(5, 3, 200, 800, 0.03)
    rest = rng.multinomial(600, [5 / 200, 3 / 200, 192 / 200], size=400)
    ends = [paired_binary(5 + b, 3 + c, 800, 0.03).verdict is Verdict.PASS for b, c, _ in rest[:, :3]]
    assert np.mean(ends) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 400) + 0.005)
    assert conditional_power(0, 0, 400, 400, 0.02) == 1.0
    assert conditional_power(30, 0, 400, 400, 0.02) == 0.0
    with pytest.raises(ContractError, match="n_max"):
        conditional_power(0, 0, 400, 300, 0.02)


def test_advice_after_an_undecided_run():
    assert not hopeless(3, 2, 200, 1000, 0.02)
    assert hopeless(12, 2, 200, 1000, 0.02)
    total = items_to_decide(5, 3, 200, 0.02)
    assert total is not None
    half = min(10 / 202, 0.04) / 2
    assert conditional_power(5, 3, 200, total, 0.02, p_loss=half, p_gain=half) >= 0.8
    assert items_to_decide(0, 0, 0, 0.02) == items_needed(0.02, target=0.8)
    assert items_to_decide_scores([0.3, -0.3] * 50, 0.02) > items_to_decide_scores([0.01, -0.01] * 50, 0.02)


@pytest.mark.parametrize(("rate_lost", "rate_gained"), [(0.05, 0.01), (0.03, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("further", [0.0, 1.0])
def test_the_number_of_contexts_that_decides_is_simulated(rate_lost: float, rate_gained: float, further: float) -> None:
    """Contexts of four questions; the rest loses as much as it gains, or what the first did."""
    rng = np.random.default_rng(5)

    def contexts(n: int, lost: float, gained: float) -> np.ndarray:
        kinds = rng.multinomial(1, [lost, gained, 1 - lost - gained], size=(n, 4))
        return (kinds[..., 0] - kinds[..., 1]).mean(1)

    first = contexts(40, rate_lost, rate_gained)
    mean, margin = max(0.0, float(first.mean())), max(0.05, 1.5 * float(first.mean()))
    upper = paired_scores(first, margin, clusters=True).upper
    total = items_to_decide_scores(first, margin, upper=upper, further_loss=further * mean)
    assert total is not None and total > 40
    spread = float(np.mean(np.abs(first)))
    rest = ((spread + further * mean) / 2, (spread - further * mean) / 2)
    ends = [
        paired_scores([*first, *contexts(total - 40, *rest)], margin, clusters=True).verdict is Verdict.PASS
        for _ in range(60)
    ]
    assert np.mean(ends) >= 0.65  # planned for 0.8; what the first losses do not show is not known


def test_more_of_a_loss_beyond_the_margin_never_decides():
    assert items_to_decide_scores([0.25, 0.0] * 20, 0.05, further_loss=0.125) is None
    assert items_to_decide_scores([0.0] * 4, 0.05, upper=0.5271) == 60


def test_underpowered_says_everything_before_the_run():
    text = underpowered(300, 0.02)
    for part in ("2.0%", "4.0%", "980", "300 available", "42%", "3.9 %"):
        assert part in text
    assert underpowered(1500, 0.02) == ""


def test_pitfall_20_noise_of_the_baseline_enters_the_plan():
    """An A/A run with other batches raises the discordance and with it the number of items."""
    noisy = discordance_from_aa(80, 1000)
    assert noisy == pytest.approx(82 / 1002)
    assert items_needed(0.02, discordance=noisy) > 1.5 * items_needed(0.02)
    # sglang-jax PR 1333: 61 runs of 200 questions, sd .009 -> q = 3.2 % (reference: statistics 1.5)
    rng = np.random.default_rng(0)
    runs = 0.7 + 0.009 * rng.standard_normal(4000)
    assert discordance_from_runs(runs, 200) == pytest.approx(0.0324, rel=0.1)
    for bad in ([0.5], []):
        with pytest.raises(ContractError, match="two runs"):
            discordance_from_runs(bad, 100)
    with pytest.raises(ContractError, match="count"):
        discordance_from_aa(5, 0)


def test_profile_power_multiplies_exact_gates():
    gates = [
        GatePlan(name="needle", kind="binary", n=150, margin=0.1, count=4),
        GatePlan(name="ppl", kind="tokens", n=60, margin=0.0953, spread=0.1),
        GatePlan(name="kernel", kind="fixed", n=1, spread=1e-6, count=10),
    ]
    result = profile_power(gates)
    expected = power(150, 0.1) ** 4 * gate_power(gates[1]) * (1 - 1e-6) ** 10
    assert result.probability == pytest.approx(expected, rel=1e-12)
    assert result.at_least <= result.probability + 1e-12
    assert result.sufficient
    assert not profile_power([GatePlan(name="x", kind="binary", n=300, margin=0.02)]).sufficient


def test_profile_power_agrees_with_simulated_profiles():
    rng = np.random.default_rng(3)
    gate = GatePlan(name="needle", kind="binary", n=150, margin=0.06, count=3)
    passed = 0
    for _ in range(300):
        rows = rng.multinomial(150, [0.02, 0.02, 0.96], size=3)
        passed += all(paired_binary(int(b), int(c), 150, 0.06).verdict is Verdict.PASS for b, c, _ in rows)
    exact = profile_power([gate]).probability
    assert passed / 300 == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 300))


def test_cluster_and_sequential_gates_have_power():
    assert gate_power(GatePlan(name="x", kind="clusters", n=60, margin=0.1, cluster_size=4), repetitions=80) > 0.9
    assert gate_power(GatePlan(name="x", kind="clusters", n=15, margin=0.1, cluster_size=4)) == 0.0
    assert gate_power(GatePlan(name="x", kind="sequential", n=1117, margin=0.02)) == pytest.approx(0.912, abs=0.01)
    assert gate_power(GatePlan(name="x", kind="tokens", n=10, margin=0.01, spread=0.001)) == 0.0
    with pytest.raises(ContractError, match="allowed: binary"):
        gate_power(GatePlan(name="x", kind="binari", n=10, margin=0.1))
    with pytest.raises(ContractError, match="without gates"):
        profile_power([])


def test_items_for_a_profile_reach_its_target():
    n = items_for_profile(0.05, 12)
    assert n is not None
    assert power(n, 0.05) ** 12 >= 0.98
    assert power(n - 1, 0.05) ** 12 < 0.98
