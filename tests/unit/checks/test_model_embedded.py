"""Every embedded model is measured through its cache, and can replace another."""

from __future__ import annotations

import pytest
from toy_sessions import facts, stack

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import EMBEDDED, embedded_path, parse_spec
from pytest_attnaccept.errors import EngineError


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def _shipped():
    # That all five are there is a test of the models themselves; here every one that is there must be measurable.
    found = []
    for name in EMBEDDED:
        try:
            embedded_path(name)
        except EngineError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("name", _shipped())
def test_every_embedded_model_is_measured_through_its_cache(name):
    loaded = load(parse_spec(name))
    recurrent = name in ("toy-linear", "toy-mamba")
    members = stack(("kv8", {}), ("streaming_llm", {"kv_budget": 0.5}))
    if name == "toy-mamba":
        with pytest.raises(EngineError, match="no full-attention K/V layer"):
            open_session(baseline=loaded, stack=members).measure("footprint", {"tokens": 96})
        return
    with open_session(baseline=loaded, stack=members) as opened:
        footprint = opened.measure("footprint", {"tokens": 96, "patterns": ["one-shot", "chunk-32"]})
        assert footprint.refusals == ()
        assert all(gate.value <= gate.limit for gate in footprint.gates)
        assert all(
            gate.value <= gate.limit for gate in opened.measure("identity", {"tokens": 96, "documents": 1}).gates
        )
        asked = opened.measure("needle-0.5x", {"contexts": 4, "questions_per_context": 2}).gates[0]
    assert asked.base_mean > 0.5 or recurrent


@pytest.mark.parametrize("name", [name for name in _shipped() if name != "toy-gqa"])
def test_an_embedded_model_can_replace_another_as_a_candidate(toy, name):
    with open_session(candidate=name, baseline=toy, stack=stack(("checkpoint_conversion", {}))) as opened:
        text = opened.measure("perplexity", {"documents": 4, "continuation": 32})
        asked = opened.measure("needle-0.5x", {"contexts": 4})
    assert text.refusals == asked.refusals == ()
    # All of them were trained on this text: none may be lost in it, which a wrong cache keyword or position would be.
    assert facts(text)["ppl_candidate"] < 3 * facts(text)["ppl_baseline"]
