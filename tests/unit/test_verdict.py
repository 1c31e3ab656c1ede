"""Measured values -> verdict: nothing that is not finite, compared and within its limit is green."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_attnaccept.limits import Limit
from pytest_attnaccept.measurement import ClusteredSums, Measured, PairedCounts, PairedScores, Refusal, Threshold
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

V = Verdict
LIMITS = {"needle": Limit(max=0.1, origin="policy: x"), "perplexity": Limit(max=0.1, origin="policy: x")}


def threshold(value: float, limit: float = 1.0) -> Threshold:
    return Threshold(name="t", value=value, limit=limit, where="head 3", seems="window")


def counts(losses: int = 0, n: int = 2000, name: str = "needle") -> PairedCounts:
    return PairedCounts(name=name, losses=losses, gains=0, n=n, base_correct=n)


@pytest.mark.parametrize(
    ("value", "limit", "verdict"),
    [(0.0, 1.0, V.PASS), (1.0, 1.0, V.PASS), (1.0000001, 1.0, V.FAIL), (math.nan, 1.0, V.FAIL), (math.inf, 1.0, V.FAIL),
     (0.0, math.nan, V.FAIL), (-math.inf, 1.0, V.FAIL), (0.0, math.inf, V.FAIL)],
)  # fmt: skip
def test_thresholds(value: float, limit: float, verdict: Verdict) -> None:
    found = decide(Measured(gates=(threshold(value, limit),)), {})
    assert found.verdict is verdict
    assert ("head 3" in found.headline) == (verdict is V.FAIL)


def test_nothing_measured_is_invalid() -> None:
    assert decide(Measured(), LIMITS).verdict is V.INVALID


@pytest.mark.parametrize("verdict", [v for v in V if v is not V.PASS])
def test_refusals_outrank_a_pass_and_never_a_failure(verdict: Verdict) -> None:
    refusal = Refusal(verdict=verdict, reason="because")
    passing = decide(Measured(gates=(threshold(0.0),), refusals=(refusal,)), LIMITS)
    failing = decide(Measured(gates=(threshold(2.0),), refusals=(refusal,)), LIMITS)
    assert failing.verdict is V.FAIL
    if verdict is not V.NOT_APPLICABLE:
        assert passing.verdict is verdict
        assert "because" in passing.headline


def test_a_refusal_that_says_pass_cannot_make_one() -> None:
    refusal = Refusal(verdict=V.PASS, reason="trust me")
    assert decide(Measured(refusals=(refusal,)), LIMITS).verdict is not V.PASS


def test_not_applicable_needs_no_gate() -> None:
    refusal = Refusal(verdict=V.NOT_APPLICABLE, reason="no such feature")
    assert decide(Measured(refusals=(refusal,)), LIMITS).verdict is V.NOT_APPLICABLE


@pytest.mark.parametrize(("losses", "n", "verdict"), [(0, 2000, V.PASS), (600, 2000, V.FAIL), (0, 5, V.INCONCLUSIVE)])
def test_paired_counts(losses: int, n: int, verdict: Verdict) -> None:
    found = decide(Measured(gates=(counts(losses, n),)), LIMITS)
    assert found.verdict is verdict
    metric = found.metrics[0]
    assert metric.n == n
    assert metric.limit == 0.1
    assert f"n={n}" in found.headline


def test_statistics_without_a_limit_are_invalid() -> None:
    found = decide(Measured(gates=(counts(name="unheard"),)), LIMITS)
    assert found.verdict is V.INVALID
    assert "no limit" in found.headline


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_and_sums_that_are_not_finite_fail(bad: float) -> None:
    scores = PairedScores(name="needle", losses=(0.0,) * 99 + (bad,), base_mean=1.0, n_items=100)
    sums = ClusteredSums(name="perplexity", sums=(0.0,) * 99 + (bad,), tokens=(10,) * 100)
    assert decide(Measured(gates=(scores,)), LIMITS).verdict is V.FAIL
    assert decide(Measured(gates=(sums,)), LIMITS).verdict is V.FAIL


def test_the_worst_gate_decides() -> None:
    found = decide(Measured(gates=(threshold(0.0), counts(0, 5), threshold(3.0))), LIMITS)
    assert found.verdict is V.FAIL
    assert found.headline.startswith("t 3 is beyond 1")
    assert len(found.metrics) == 3


@given(st.lists(st.one_of(st.floats(), st.just(0.0)), min_size=1, max_size=5))
def test_pass_only_if_every_threshold_holds(values: list[float]) -> None:
    found = decide(Measured(gates=tuple(threshold(v) for v in values)), LIMITS)
    finite = all(math.isfinite(v) and v <= 1.0 for v in values)
    assert (found.verdict is V.PASS) == finite


def test_body_says_what_it_looks_like_and_how_to_reproduce() -> None:
    measured = Measured(
        gates=(threshold(2.0),), seems="sliding window of 256", reproduce="call(1)\ncall(2)", resolution="3e-6"
    )
    body = decide(measured, LIMITS).body
    for text in ("looks like: sliding window of 256", "    call(2)", "resolution: 3e-6"):
        assert text in body


def perplexity_of(*losses: float, tokens: int = 10) -> str:
    gate = ClusteredSums(name="perplexity", sums=tuple(x * tokens for x in losses), tokens=(tokens,) * len(losses))
    return decide(Measured(gates=(gate,)), LIMITS).metrics[0].text


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        # constant losses of 24 documents: what is missing is the minimum, not one document more
        ([0.001] * 24, "needs about 59 documents"),
        # 4 of 100 beyond the cap: 4 % is shown to be under 5 % by 2.706 x 0.0475 / 0.01^2 documents
        ([0.02] * 96 + [0.6] * 4, "needs about 1286 documents"),
        (
            [0.01] * 92 + [0.6] * 8,
            "8.0% of the documents lie beyond the cap and 5% may: more documents will not make it pass",
        ),
        ([0.0, 0.2] * 20, "the estimate is not below the margin: more documents will not make it pass"),
    ],
)
def test_how_many_documents_would_decide(losses: list[float], words: str) -> None:
    assert words in perplexity_of(*losses)


@pytest.mark.parametrize(
    "losses",
    [
        [0.001 * (i % 7) for i in range(60)],
        [0.01] * 59 + [3.0],
        [0.02] * 96 + [0.6] * 4,
        [0.1 + 0.001 * (i % 5) for i in range(60)],
        [0.0, 0.2] * 20,
    ],
)
def test_one_unit_in_the_text_of_a_relative_limit(losses: list[float]) -> None:
    """The limit is a relative increase of 0.1; its logarithm (0.0953) beside it would read as another limit."""
    text = perplexity_of(*losses)
    margins = {float(number) for number in re.findall(r"margin (\d\.\d+)", text)}
    assert margins == {LIMITS["perplexity"].max}, text


def test_values_of_a_divergence_are_shown_as_they_are() -> None:
    gate = ClusteredSums(name="kl", sums=(0.2, 0.4) * 30, tokens=(10,) * 60, scale="mean", unit="nats")
    (metric,) = decide(Measured(gates=(gate,)), {"kl": Limit(max=0.05, origin="policy: test")}).metrics
    assert "mean +0.03000" in metric.text
    assert "margin 0.05000" in metric.text
