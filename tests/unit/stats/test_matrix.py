"""A matrix passes when all pass and fails by Holm; interactions are claimed only on scales where losses add."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import (
    CellEvidence,
    attribute,
    family_verdict,
    holm,
    interaction_accuracy,
    interaction_nll,
    paired_binary,
)
from pytest_attnaccept.taxonomy import Verdict


def cell(name, p_pass=0.001, p_fail=0.99, **more):
    return CellEvidence(name=name, p_pass=p_pass, p_fail=p_fail, **more)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([float("nan"), 0.01]) == pytest.approx([1.0, 0.02])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_is_monotone_and_never_below_the_raw_value(p_values):
    adjusted = holm(p_values)
    assert all(a >= p - 1e-12 for a, p in zip(adjusted, p_values, strict=True))
    assert all(a <= 1 for a in adjusted)
    order = np.argsort(p_values, kind="stable")
    assert all(x <= y + 1e-12 for x, y in zip(np.array(adjusted)[order], np.array(adjusted)[order][1:], strict=False))


def test_every_cell_must_pass():
    assert family_verdict([cell("a"), cell("b")]).verdict is Verdict.PASS
    mixed = family_verdict([cell("a"), cell("b", p_pass=0.2, p_fail=0.5)])
    assert mixed.verdict is Verdict.INCONCLUSIVE
    assert mixed.undecided == ("b",)
    assert mixed.worst == "b"


def test_no_cells_are_no_pass():
    assert family_verdict([]).verdict is Verdict.INCOMPLETE
    assert family_verdict([cell("a")], planned=["a", "b"]).verdict is Verdict.INCOMPLETE
    assert family_verdict([cell("a")], planned=["a", "b"]).missing == ("b",)


def test_missing_cells_stay_in_the_correction():
    one = cell("a", p_pass=0.99, p_fail=0.03)
    assert family_verdict([one]).verdict is Verdict.FAIL
    assert family_verdict([one], planned=["a", "b"]).cells[0].verdict is Verdict.INCONCLUSIVE


def test_failure_needs_holm():
    noise = [cell(f"c{i}") for i in range(143)]
    lucky = family_verdict([*noise, cell("bad", p_pass=0.9, p_fail=0.03)])
    assert lucky.verdict is Verdict.INCONCLUSIVE
    proven = family_verdict([*noise, cell("bad", p_pass=1.0, p_fail=0.0002)])
    assert proven.verdict is Verdict.FAIL
    assert proven.worst == "bad"


def test_nan_and_refused_cells_block():
    assert family_verdict([cell("a"), cell("b", p_pass=float("nan"))]).verdict is Verdict.INVALID
    assert family_verdict([cell("a"), cell("b", refused=Verdict.INVALID)]).verdict is Verdict.INVALID
    with pytest.raises(ContractError, match="only once"):
        family_verdict([cell("a"), cell("a")])


def test_sub_verdict_of_a_tolerated_loss():
    assert family_verdict([cell("a", measurable=True)]).cells[0].label == "PASS (measurable loss)"
    assert family_verdict([cell("a")]).cells[0].label == "PASS"


def evidence(name, counts, n, margin):
    result = paired_binary(*counts, n, margin)
    return CellEvidence(name=name, p_pass=result.p_pass, p_fail=result.p_fail)


def test_one_harmful_cell_passes_at_most_alpha():
    rng = np.random.default_rng(4)
    passed = 0
    for _ in range(150):
        good = rng.multinomial(1500, [0.01, 0.01, 0.98], size=5)
        bad = rng.multinomial(1500, [0.035, 0.015, 0.95])
        cells = [evidence(str(i), (int(b), int(c)), 1500, 0.02) for i, (b, c, _) in enumerate([*good, bad])]
        passed += family_verdict(cells).verdict is Verdict.PASS
    assert passed / 150 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)


def test_pitfall_8_the_sum_of_single_margins_is_no_margin_for_the_stack():
    """Three members lose 1.5 points each: every single passes 2 %, the stack loses 4.5 and fails its own 2 %."""
    singles = [paired_binary(75, 0, 5000, 0.02).verdict for _ in range(3)]
    assert singles == [Verdict.PASS] * 3
    assert paired_binary(225, 0, 5000, 0.02).verdict is Verdict.FAIL
    assert paired_binary(225, 0, 5000, 0.06).verdict is Verdict.PASS  # known bad: the sum of the margins forgives it


def test_pitfall_9_points_near_the_ceiling_look_like_an_interaction_and_log_odds_do_not():
    """Two effects exactly additive on the logit of each item; base accuracy 97 %."""
    rng = np.random.default_rng(0)
    logits = rng.normal(6.5, 2.5, 200_000)
    draw = rng.random((4, logits.size))

    def right(shift, row):
        return (draw[row] < 1 / (1 + np.exp(-(logits - shift)))).astype(float)

    base, one, two, both = right(0, 0), right(1.5, 1), right(1.5, 2), right(3.0, 3)
    result = interaction_accuracy(base, both, [one, two], margin=0.15)
    assert result.full > 1.2 * result.singles  # +35 % in points, without any interaction
    assert result.compounds is False
    assert result.upper < 0.15


def test_true_interactions_are_found_on_both_scales():
    rng = np.random.default_rng(1)
    tokens = np.full(100, 500)
    single = tokens * rng.normal(0.005, 0.004, 100)
    stack = 2 * single + tokens * rng.normal(0.02, 0.015, 100)
    found = interaction_nll(stack, [single, single], tokens, 0.01)
    assert found.compounds is True
    assert "compounds" in found.text
    additive = 2 * single + tokens * rng.normal(0.0, 0.015, 100)
    assert interaction_nll(additive, [single, single], tokens, 0.01).compounds is False
    base = np.ones(2000)
    base[:200] = 0
    one, two, both = base.copy(), base.copy(), base.copy()
    one[200:230], two[230:260], both[200:900] = 0, 0, 0
    assert interaction_accuracy(base, both, [one, two], margin=0.5).compounds is True


def test_interaction_level_at_its_boundary():
    rng = np.random.default_rng(6)
    tokens = np.full(40, 400)
    claims = 0
    for _ in range(800):
        one, two = tokens * rng.normal(0.003, 0.01, (2, 40))
        stack = one + two + tokens * rng.normal(0.01, 0.015, 40)
        claims += interaction_nll(stack, [one, two], tokens, 0.01).compounds is True
    assert claims / 800 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 800)


def test_interactions_without_evidence_are_undecided():
    tokens = np.full(30, 100)
    zero = np.zeros(30)
    assert interaction_nll(zero, [zero, zero], tokens, 0.01).compounds is None  # no spread, no claim
    few = np.arange(10.0)
    assert interaction_nll(few, [few, few], np.full(10, 10), 0.01).compounds is None
    assert interaction_accuracy(np.ones(50), np.ones(50), [np.ones(50)] * 2, 0.1).compounds is None


def test_interactions_need_the_same_items():
    with pytest.raises(ContractError, match="same items"):
        interaction_nll([1.0, 2.0], [[1.0, 2.0], [1.0]], [10, 10], 0.01)
    with pytest.raises(ContractError, match="finite"):
        interaction_nll([float("nan")], [[0.0], [0.0]], [10], 0.01)


def test_attribution_names_single_and_joint_culprits():
    # h2o alone is harmless, in company it costs three points; kv4 loses a little everywhere.
    found = attribute(0.05, {"h2o": 0.002, "kv4": 0.012}, {"h2o": 0.013, "kv4": 0.021}, margin=0.02)
    first = found[0]
    assert first.name == "h2o"
    assert first.named
    assert first.interaction == pytest.approx(0.035)
    harmless = attribute(0.03, {"a": 0.03, "b": 0.0}, {"a": 0.0, "b": 0.029}, margin=0.02)
    assert [s.named for s in harmless] == [True, False]
    with pytest.raises(ContractError, match="without it"):
        attribute(0.05, {"a": 0.0}, {}, margin=0.02)
