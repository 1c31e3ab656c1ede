"""A number that was never measured, and a check that vouches for itself, never pass an item."""

import pytest

from pytest_attnaccept.limits import Limit
from pytest_attnaccept.measurement import Fact, Measured, PairedScores, Refusal, Threshold
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

LIMITS = {"needle": Limit(max=0.05, origin="policy: test")}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_fails(value: float) -> None:
    gate = Threshold(name="bound", value=value, limit=1.0)
    assert decide(Measured(gates=(gate,)), LIMITS).verdict is Verdict.FAIL


def test_a_limit_over_no_comparison_is_invalid() -> None:
    gates = (Threshold(name="bound", value=0.0, limit=1.0), Threshold(name="empty", value=0.0, limit=1.0, n=0))
    decision = decide(Measured(gates=gates), LIMITS)
    assert (decision.verdict, decision.headline) == (Verdict.INVALID, "empty: nothing was compared")
    broken = Threshold(name="broken", value=1.0, limit=0.0, n=0)  # broke before anything could be compared
    assert decide(Measured(gates=(broken,)), LIMITS).verdict is Verdict.FAIL


def test_a_check_cannot_pass_itself_by_a_refusal() -> None:
    refusal = Refusal(verdict=Verdict.PASS, reason="trust me")
    assert decide(Measured(refusals=(refusal,)), LIMITS).verdict is Verdict.INVALID
    assert decide(Measured(), LIMITS).verdict is Verdict.INVALID
    neutral = Refusal(verdict=Verdict.NOT_APPLICABLE, reason="no such feature")
    assert decide(Measured(refusals=(neutral, refusal)), LIMITS).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_a_gate_cannot_raise_its_own_level(level: float) -> None:
    gate = PairedScores(name="needle", losses=(0.0,) * 30, base_mean=0.9, alpha_pass=level, alpha_fail=level)
    assert decide(Measured(gates=(gate,)), LIMITS, alpha=0.05).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("value", "shown"), [(0.5, True), (1.5, False)])
def test_a_pass_says_to_which_length_it_holds(value: float, shown: bool) -> None:
    facts = (Fact(name="certified_to", value=4096, unit="keys"),)
    decision = decide(Measured(gates=(Threshold(name="maxz", value=value, limit=1.0),), facts=facts), LIMITS)
    assert decision.headline.startswith("certified to 4096 keys; ") is shown
