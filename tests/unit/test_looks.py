"""Planned looks: a clear case stops early, the error stays that of the plan, and nothing undecided is turned green."""

import numpy as np
import pytest

from pytest_attnaccept.checks.looks import measure_in_looks
from pytest_attnaccept.limits import Limit
from pytest_attnaccept.measurement import Measured, PairedScores, Refusal, Threshold
from pytest_attnaccept.stats.sequential import plan_looks
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

LIMITS = {"needle": Limit(max=0.05, origin="policy: test")}
PLAN = plan_looks(220, 0.05, alpha_fail=0.05 / 5)


class Source:
    """Answers of a model with a known loss, served in pieces; remembers what was asked for."""

    def __init__(self, loss: float, seed: int = 0, refusal: Refusal | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.losses = (rng.random((400, 4)) < loss).mean(axis=1)
        self.asked: list[tuple[int, int]] = []
        self.refusal = refusal

    def __call__(self, params):
        first, count = params["first"], params["contexts"]
        self.asked.append((first, count))
        losses = tuple(self.losses[first : first + count].tolist())
        gate = PairedScores(
            name="needle", losses=losses, base_mean=0.9, n_items=4 * count, discordant=int(sum(losses) * 4)
        )
        return Measured(gates=(gate,), refusals=(self.refusal,) if self.refusal else (), data_digest=str(first))


def run(source):
    measured = measure_in_looks(source, {"contexts": 220, "questions_per_context": 4}, PLAN)
    return measured, decide(measured, LIMITS, family=5)


def test_an_identical_candidate_stops_early_and_passes():
    source = Source(0.0)
    measured, decision = run(source)
    assert decision.verdict is Verdict.PASS
    assert len(measured.gates[0].losses) < 150
    assert measured.details["taken"] == len(source.asked) < 8


def test_a_bad_candidate_stops_at_once_and_fails():
    measured, decision = run(Source(0.6))
    assert decision.verdict is Verdict.FAIL
    assert len(measured.gates[0].losses) <= 28


def test_pieces_follow_each_other_without_gap_or_repeat():
    source = Source(0.045, seed=3)
    measured, _ = run(source)
    positions = [p for first, count in source.asked for p in range(first, first + count)]
    assert positions == list(range(len(positions)))
    assert measured.gates[0].losses == tuple(source.losses[: len(positions)].tolist())
    assert measured.gates[0].n_items == 4 * len(positions)


def test_a_loss_on_the_margin_passes_at_most_at_the_plans_level():
    passes = sum(run(Source(0.05, seed=s))[1].verdict is Verdict.PASS for s in range(300))
    assert passes <= 0.05 * 300 + 3 * (300 * 0.05 * 0.95) ** 0.5


def test_a_plan_that_ends_undecided_is_inconclusive_and_says_what_it_needs():
    source = Source(0.04, seed=1)
    measured, decision = run(source)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert len(measured.gates[0].losses) == 220
    # 292 and 1158 for one look at the end; planned looks need 1.14 times as many.
    assert (
        "needs n=333 for PASS with 80 % probability if the rest shows no loss, n=1321 if it loses as much"
        in decision.headline
    )


@pytest.mark.parametrize("verdict", [Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.FAIL])
def test_a_refusal_stops_the_run_and_is_never_outvoted(verdict):
    source = Source(0.0, refusal=Refusal(verdict=verdict, reason="no"))
    _, decision = run(source)
    assert decision.verdict is verdict
    assert len(source.asked) == 1


def test_a_check_with_other_gates_is_measured_once():
    gate = Threshold(name="x", value=0.0, limit=1.0)
    measured = measure_in_looks(lambda params: Measured(gates=(gate,)), {"contexts": 220}, PLAN)
    assert measured.gates == (gate,)


def test_nan_answers_fail():
    source = Source(0.0)
    source.losses[0] = float("nan")
    with pytest.raises(Exception, match="finite|nan|NaN"):
        run(source)
