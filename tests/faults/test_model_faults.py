"""Every broken model candidate is caught by the check that its table names, and the honest ones are left alone."""

from __future__ import annotations

import math

import pytest

from fixtures.broken.models import BROKEN_MODELS, RAISES, WRONG_POSITIONS
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict

REGISTRY = Registry.builtin()


# Long enough for every knob here to act, short enough for the token-by-token pattern.
SHORT = {"tokens": 128, "documents": 2, "contexts": 2}


def toy():
    return load(parse_spec("toy-gqa"))


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


def reasons(measured):
    """Every reason that blocks, as (verdict, words): what the verdict layer would act on."""
    found = [(refusal.verdict.value, refusal.reason) for refusal in measured.refusals]
    for gate in measured.gates:
        if isinstance(gate, Threshold) and not gate.value <= gate.limit:
            found.append(("FAIL", f"{gate.name} at {gate.where}: {gate.seems}"))
    return found


@pytest.mark.parametrize("name", BROKEN_MODELS)
def test_broken_candidate_is_caught_by_its_check(name):
    broken, loaded = BROKEN_MODELS[name], toy()
    with open_session(
        candidate=broken.build(loaded.model), baseline=loaded, stack=stack((broken.method, broken.knobs))
    ) as session:
        found = reasons(session.measure(broken.check, {"tokens": 160} if broken.check == "footprint" else SHORT))
    assert [words for verdict, words in found if verdict == broken.verdict and broken.words in words], found


@pytest.mark.parametrize("check", ["footprint", "divergence", "perplexity", "needle-1x"])
@pytest.mark.parametrize("name", ["no_op", "same_object", "unchanged_copy", "edited_baseline"])
def test_a_candidate_that_never_ran_proves_nothing_in_any_check(name, check):
    broken, loaded = BROKEN_MODELS[name], toy()
    with open_session(
        candidate=broken.build(loaded.model), baseline=loaded, stack=stack((broken.method, broken.knobs))
    ) as session:
        measured = session.measure(check, SHORT)
    assert Verdict.INVALID in [refusal.verdict for refusal in measured.refusals]


@pytest.mark.parametrize("check", ["divergence", "perplexity", "needle-1x"])
def test_nan_fails_wherever_it_appears(check):
    broken, loaded = BROKEN_MODELS["not_a_number"], toy()
    with open_session(
        candidate=broken.build(loaded.model), baseline=loaded, stack=stack(("h2o", {"kv_budget": 0.5}))
    ) as session:
        measured = session.measure(check, SHORT)
    assert measured.gates == ()
    assert [(r.verdict, "NaN logits of the candidate at position" in r.reason) for r in measured.refusals] == [
        (Verdict.FAIL, True)
    ]


def test_wrong_positions_show_in_divergence_and_perplexity():
    loaded, member = toy(), stack(("streaming_llm", {"kv_budget": 0.9}))
    params = {"documents": 10, "continuation": 32}
    with open_session(baseline=loaded, stack=member) as honest:
        right = honest.measure("divergence", params).gates[0]
    with open_session(candidate=WRONG_POSITIONS(loaded.model), baseline=loaded, stack=member) as session:
        wrong = session.measure("divergence", params).gates[0]
        loss = session.measure("perplexity", params).gates[0]
    # The eviction itself costs little here; counting positions from the shortened length costs a multiple of it.
    assert sum(wrong.sums) > 5 * sum(right.sums)
    assert math.exp(sum(loss.sums) / sum(loss.tokens)) > 1.2


def test_what_a_candidate_raises_keeps_its_message():
    loaded = toy()
    with (
        open_session(
            candidate=RAISES(loaded.model), baseline=loaded, stack=stack(("h2o", {"kv_budget": 0.5}))
        ) as session,
        pytest.raises(CandidateError, match="RuntimeError: no free page"),
    ):
        session.measure("perplexity", {"documents": 2})


@pytest.mark.parametrize(
    "members",
    [
        [("h2o", {"kv_budget": 0.5})],
        [("h2o", {"kv_budget": 64})],
        [("streaming_llm", {"kv_budget": 0.25})],
        [("random_eviction", {"kv_budget": 0.25})],
        [("sliding_window", {"window": 64})],
        [("kv8", {})],
        [("kv4", {"residual": 16})],
        [("kv4", {"axis": "channel"})],
        [("kv2", {"group_size": 16})],
        [("h2o", {"kv_budget": 0.5}), ("kv8", {})],
        [("streaming_llm", {"kv_budget": 0.5}), ("kv4", {"residual": 8})],
    ],
    ids=lambda members: "+".join(name for name, _ in members),
)
def test_honest_methods_raise_no_alarm(members):
    with open_session(baseline=toy(), stack=stack(*members)) as session:
        for check in ("identity", "footprint"):
            assert reasons(session.measure(check, SHORT)) == [], check
        for check in ("divergence", "perplexity", "needle-1x"):
            assert session.measure(check, SHORT).refusals == (), check
