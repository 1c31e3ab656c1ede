"""Controls in the run: a gate that cannot fail here is INVALID, and an eviction has to beat random eviction."""

from __future__ import annotations

import pytest
from transformers import DynamicCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_controls, open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
SMALL = {"contexts": 45, "tier": 0.5, "margin": 0.1}


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def entry(name, **knobs):
    return REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")


def opened(toy, name, candidate=None, **knobs):
    return open_session(baseline=toy, candidate=candidate, stack=[entry(name, **knobs)])


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


def test_known_bad_controls_are_rejected_and_the_baseline_equals_itself(toy):
    with opened(toy, "kv4") as session:
        measured = session.measure("controls", SMALL)
    assert decide(measured, {}).verdict is Verdict.PASS
    assert facts(measured)["known_bad[window of 16 without sinks]"].startswith("FAIL")
    assert facts(measured)["known_bad[two bits per token]"].startswith(("FAIL", "INCONCLUSIVE"))
    assert facts(measured)["baseline_against_itself"] == 0.0


def test_an_eviction_that_chooses_at_random_is_no_better_than_random(toy):
    around = apply_stack(toy.model, [entry("random_eviction", kv_budget=0.5)], seed=7).candidate
    with opened(toy, "h2o", around, kv_budget=0.5) as session:
        decision = decide(session.measure("controls", SMALL), {})
    assert decision.verdict is Verdict.INVALID
    assert "no better than random eviction at the same budget" in decision.headline
    assert "; below 0.05 it would be shown to lose less)" in decision.headline
    with opened(toy, "streaming_llm", kv_budget=0.5) as session:
        measured = session.measure("controls", SMALL)
    assert decide(measured, {}).verdict is Verdict.PASS
    assert facts(measured)["better_than_random_p"] < 0.01


def test_a_budget_that_random_eviction_passes_too_is_named(toy):
    with opened(toy, "h2o", kv_budget=127) as session:
        measured = session.measure("controls", {**SMALL, "margin": 0.2})
    assert decide(measured, {}).verdict is Verdict.PASS
    assert "the budget is what passes" in facts(measured)["random_eviction"]


def test_a_gate_that_cannot_fail_on_this_model_is_invalid(toy, monkeypatch):
    """A model that ignores its cache in the known-bad runs: nothing is lost, so nothing could be seen."""
    untouched = Candidate(toy.model, cache=lambda: DynamicCache(config=toy.model.config))
    monkeypatch.setattr(
        model_controls, "apply_stack", lambda *args, **kwargs: type("Stack", (), {"candidate": untouched})()
    )
    with opened(toy, "kv8") as session:
        decision = decide(session.measure("controls", SMALL), {})
    assert decision.verdict is Verdict.INVALID
    assert "this gate cannot fail here" in decision.headline


def test_a_model_without_a_cache_that_evictions_act_on_has_no_controls():
    method = entry("w8a8")
    with open_session(baseline="toy-mamba", candidate=lambda: load(parse_spec("toy-mamba")), stack=[method]) as session:
        refusals = [r for r in session.measure("controls", SMALL).refusals if r not in session.findings]
    assert [r.verdict for r in refusals] == [Verdict.NOT_APPLICABLE]


def test_better_is_a_paired_comparison():
    assert model_controls.better_p([0.0] * 30, [0.25] * 30) == 0.0
    assert model_controls.better_p([0.25] * 30, [0.25] * 30) == 1.0
    assert model_controls.better_p([0.0] * 5, [1.0] * 5) == 1.0
    assert model_controls.better_p([0.0, 0.5] * 20, [0.5, 0.0] * 20) == pytest.approx(0.5)


def test_random_eviction_keeps_the_rest_of_the_stack(toy, monkeypatch):
    made = []
    real = model_controls._applied
    monkeypatch.setattr(
        model_controls, "_applied", lambda session, members: made.append(members) or real(session, members)
    )
    stack = [entry("w4a16"), entry("streaming_llm", kv_budget=0.5), entry("kv8")]
    with open_session(baseline=toy, stack=stack) as session:
        session.measure("controls", {**SMALL, "contexts": 24})
    assert [list(m) for m in made] == [["sliding_window"], ["kv2"], ["random_eviction", "w4a16", "kv8"]]
    assert made[2]["random_eviction"]["kv_budget"] == 0.5
