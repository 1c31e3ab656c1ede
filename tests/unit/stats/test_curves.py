"""Curves are certified point by point from the easy end; averages and extrapolations never count."""

import numpy as np
import pytest

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats import (
    CurvePoint,
    adjacent_steps,
    certified_at,
    certified_range,
    degradation_area,
    isotonic_drawing,
    p_pass,
    paired_binary,
)
from pytest_attnaccept.taxonomy import Verdict

P, F, U = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def curve(*verdicts, start=1024):
    return [CurvePoint(at=start * 2**i, verdict=v) for i, v in enumerate(verdicts)]


def test_certified_up_to_the_last_point_before_the_first_that_does_not_pass():
    claim = certified_range(curve(P, P, U, P))
    assert claim.last == 2048
    assert claim.stopped_at == 4096
    assert "4096" in claim.text
    assert certified_range(curve(F, P, P)).last is None
    everything = certified_range(curve(P, P, P))
    assert everything.last == 4096
    assert "not tested beyond 4096" in everything.text


def test_budgets_are_walked_from_the_generous_end():
    points = [CurvePoint(at=b, verdict=v) for b, v in [(1.0, P), (0.5, P), (0.25, F), (0.125, P)]]
    claim = certified_range(points, easy_end="high", unit="of the cache")
    assert claim.last == 0.5
    assert certified_at(points, 0.125, easy_end="high") != ""
    assert certified_at(points, 0.5, easy_end="high") == ""


def test_nothing_is_extrapolated():
    points = curve(P, P, P)
    assert certified_at(points, 4096) == ""
    assert "outside the tested range" in certified_at(points, 8192)
    assert "outside the tested range" in certified_at(points, 512)
    assert "was not tested" in certified_at(points, 3000)
    assert certified_at(points, 3000, monotone=True) == ""
    far = [CurvePoint(at=1024, verdict=P), CurvePoint(at=8192, verdict=P)]
    assert "factor 2" in certified_at(far, 3000, monotone=True)
    assert "beyond the certified range" in certified_at(curve(P, F, P), 4096)


def test_malformed_curves_are_refused():
    for bad in ([], [CurvePoint(at=1, verdict=P), CurvePoint(at=1, verdict=F)]):
        with pytest.raises(ContractError, match="point"):
            certified_range(bad)
    with pytest.raises(ContractError, match="easy_end"):
        certified_range(curve(P), easy_end="short")


def test_fixed_sequence_overclaims_at_most_alpha():
    """Only the last of seven lengths loses exactly the margin: claiming it is the error."""
    rng = np.random.default_rng(7)
    over = 0
    for _ in range(400):
        verdicts = []
        for length in range(7):
            p_loss, p_gain = (0.06, 0.01) if length == 6 else (0.01, 0.01)
            b, c, _ = rng.multinomial(400, [p_loss, p_gain, 1 - p_loss - p_gain])
            verdicts.append(P if p_pass(int(b), int(c), 400, 0.05) < 0.05 else U)
        over += certified_range(curve(*verdicts)).stopped_at is None
    assert over / 400 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_pitfall_7_the_average_over_lengths_passes_a_cliff():
    """Three margins lost at the longest length: the pooled answers pass, the points do not."""
    lost = [2, 2, 2, 2, 2, 2, 2, 60]  # of 400 each; margin 5 %
    pooled = paired_binary(sum(lost), 0, 3200, 0.05)
    assert pooled.verdict is Verdict.PASS  # known bad
    points = [CurvePoint(at=2.0**i, verdict=paired_binary(b, 0, 400, 0.05).verdict) for i, b in enumerate(lost)]
    claim = certified_range(points)
    assert claim.stopped_at == 128
    assert points[-1].verdict is Verdict.FAIL


def test_drawing_is_monotone_and_keeps_the_order():
    fitted = isotonic_drawing([8, 1, 4, 2], [0.05, 0.0, 0.01, 0.02])
    assert fitted.tolist() == pytest.approx([0.05, 0.0, 0.015, 0.015])


def test_area_weighs_log_length():
    assert degradation_area([1, 2, 4], [0.0, 0.0, 0.04]) == pytest.approx(0.01)
    assert degradation_area([7], [0.03]) == pytest.approx(0.03)


def paired_curve(rng, means, n=300, sd=0.2):
    shared = rng.normal(0, sd * np.sqrt(0.5), (n, 1))
    return np.asarray(means) + shared + rng.normal(0, sd * np.sqrt(0.5), (n, len(means)))


def test_cliffs_and_dips_are_found_and_flat_curves_are_left_alone():
    rng = np.random.default_rng(9)
    cliff = adjacent_steps(paired_curve(rng, [0, 0, 0, 0, 0, 0.15]))
    assert cliff.cliff == 4
    dip = adjacent_steps(paired_curve(rng, [0, 0.12, 0.12, 0, 0, 0]))
    assert dip.against_order == 2  # lost in the middle: the isotonic drawing would hide it
    false = [adjacent_steps(paired_curve(rng, [0.0] * 6, n=150), seed=i).cliff is not None for i in range(120)]
    assert np.mean(false) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)


def test_steps_without_spread_or_items_are_refused_or_zero():
    flat = adjacent_steps(np.zeros((30, 3)))
    assert flat.cliff is None
    assert flat.z == (0.0, 0.0)
    for shape in ((5, 3), (30, 1)):
        with pytest.raises(ContractError, match="at least 20 items"):
            adjacent_steps(np.zeros(shape))
