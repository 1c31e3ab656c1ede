"""Methods against each other on the embedded models: an eviction that asks for attention beats chance, fewer bits cost more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Kind, Knob, Layer, Method, Surface, Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def lost_answers(toy, name, budget):
    with open_session(baseline=toy, stack=stack((name, {"kv_budget": budget}))) as session:
        gate = session.measure("needle-1x", {"contexts": 16}).gates[0]
    assert gate.base_mean > 0.8
    return sum(gate.losses) / len(gate.losses)


def divergence(toy, *members):
    with open_session(baseline=toy, stack=stack(*members)) as session:
        gate = session.measure("divergence", {"documents": 4}).gates[0]
    return sum(gate.sums) / sum(gate.tokens)


@pytest.fixture(scope="module")
def at_random(toy):
    return lost_answers(toy, "random_eviction", 0.5)


@pytest.mark.parametrize("name", ["h2o", "snapkv", "pyramidkv", "tova", "streaming_llm"])
def test_half_of_the_entries_by_attention_beat_half_by_chance(toy, at_random, name):
    """measured on 16 contexts: .13 (snapkv, pyramidkv), .53 (h2o), .59 (tova), .48 (streaming) against .91."""
    assert lost_answers(toy, name, 0.5) < at_random - 0.2


@pytest.mark.parametrize("name", ["h2o", "snapkv", "pyramidkv"])
def test_a_smaller_budget_costs_more(toy, name):
    costs = [divergence(toy, (name, {"kv_budget": budget})) for budget in (0.75, 0.5, 0.125)]
    assert costs[0] < costs[1] < costs[2]
    assert costs[1] < divergence(toy, ("random_eviction", {"kv_budget": 0.5}))


def test_fewer_bits_cost_more(toy):
    kv = [divergence(toy, (f"kv{bits}", {})) for bits in (8, 4, 2)]
    assert 10 * kv[0] < kv[1] < 0.1 * kv[2]
    weights = [divergence(toy, member) for member in (("w8a8", {}), ("w4a16", {"group_size": 16}), ("w4a16", {}))]
    assert 5 * weights[0] < weights[1] < weights[2]
    assert divergence(toy, ("w4a16", {}), ("kv2", {})) > kv[2]
    assert 0 < divergence(toy, ("fp8_attention", {})) < weights[2]


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "tova"])
def test_a_budget_of_everything_never_ran_and_a_wrong_one_is_refused(toy, name):
    with open_session(baseline=toy, stack=stack((name, {"kv_budget": 1.0}))) as session:
        measured = session.measure("footprint", {"tier": 0.5, "patterns": ("one-shot",)})
    assert decide(measured, load_profile("smoke").limits).verdict is Verdict.INVALID
    # What keeps .6 is not what claims .5.
    with open_session(baseline=toy, stack=stack((name, {"kv_budget": 0.6}))) as session:
        around = session.candidate.around
    with open_session(candidate=around, baseline=toy, stack=stack((name, {"kv_budget": 0.5}))) as session:
        measured = session.measure("footprint", {"tier": 0.5, "patterns": ("one-shot",)})
    decision = decide(measured, load_profile("smoke").limits)
    assert decision.verdict is Verdict.FAIL
    assert "entries" in decision.headline


def test_the_example_of_the_documentation_is_a_method(toy, monkeypatch):
    text = (Path(__file__).parents[3] / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class Newest" in block)
    names: dict[str, object] = {}
    exec(compile("\n".join(line[3:] for line in code.splitlines()), "docs", "exec"), names)
    monkeypatch.setattr("tests.unit.checks.leaky_method.apply", names["apply"])
    monkeypatch.setattr("tests.unit.checks.leaky_method.identity", names["identity"])
    method = Method(
        name="mykv", kind=Kind.APPROXIMATE, layer=Layer.CONTENT, surface=Surface.MODEL, note="",
        knobs=(Knob(name="kv_budget", types=(float, int), doc="share", required=True, worst="lower", identity=1.0),),
        applies="tests.unit.checks.leaky_method:apply",
    )  # fmt: skip
    with open_session(baseline=toy, stack=[(method, {"kv_budget": 0.5})]) as session:
        for check in ("identity", "footprint"):
            measured = session.measure(check, {"tier": 0.5, "patterns": ("one-shot",)})
            assert decide(measured, load_profile("smoke").limits).verdict is Verdict.PASS
