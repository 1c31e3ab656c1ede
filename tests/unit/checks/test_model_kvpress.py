"""kvpress presses are first-class candidates: both context conventions, honest ones pass, and their limits show.

Needs kvpress and the transformers version that it pins (< 5.3), so it runs in an environment of its own.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.sides import side_of
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.engines.through_cache import parse_pattern, prefill
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs

pytestmark = [
    pytest.mark.kvpress,
    # kvpress imports fire, which imports the module pipes; both are not ours to fix.
    pytest.mark.filterwarnings("ignore:'pipes' is deprecated:DeprecationWarning"),
    pytest.mark.skipif(importlib.util.find_spec("kvpress") is None, reason="kvpress is not installed"),
]
REGISTRY = Registry.builtin()


def stack(name, knobs):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test"))]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def failing(measured):
    found = [refusal.reason for refusal in measured.refusals]
    return found + [g.name for g in measured.gates if isinstance(g, Threshold) and not g.value <= g.limit]


def test_a_press_holds_its_budget_in_one_shot_prefill(toy):
    from kvpress import StreamingLLMPress

    press = StreamingLLMPress(compression_ratio=0.5, n_sink=4)
    for context in (press, lambda: press(toy.model)):
        with open_session(
            candidate=Candidate(context=context), baseline=toy, stack=stack("streaming_llm", {"kv_budget": 0.5})
        ) as session:
            assert failing(session.measure("footprint", {"patterns": ["one-shot"]})) == []
            assert failing(session.measure("identity")) == []
            kl = session.measure("divergence", {"documents": 4, "continuation": 32}).gates[0]
            assert sum(kl.sums) > 0.1


def test_a_press_agrees_with_our_own_implementation(toy):
    """Sinks and recent entries of the same size: two implementations, one divergence."""
    from kvpress import StreamingLLMPress

    params = {"documents": 6, "continuation": 16, "step": 16}
    member = stack("streaming_llm", {"kv_budget": 0.5, "positions": "text"})
    results = []
    for candidate in (Candidate(context=StreamingLLMPress(compression_ratio=0.5, n_sink=4)), None):
        with open_session(candidate=candidate, baseline=toy, stack=member) as session:
            results.append(sum(session.measure("perplexity", params).gates[0].sums))
    assert results[0] == pytest.approx(results[1], rel=0.1)


@pytest.mark.parametrize("name", ["snapkv", "tova"])
def test_a_press_keeps_the_entries_that_our_method_keeps(toy, name):
    """The same votes, pooling and window: of the entries that two implementations keep, nearly all are the same."""
    from kvpress import SnapKVPress, TOVAPress

    press, knobs = (
        (SnapKVPress(compression_ratio=0.5, window_size=32), {"observation": 32})
        if name == "snapkv"
        else (TOVAPress(compression_ratio=0.5), {})
    )
    ids = torch.arange(1, 201)[None] * 7 % 360
    kept = []
    for around in (
        Candidate(context=press),
        apply_stack(toy.model, stack(name, {"kv_budget": 0.5, "sinks": 0, **knobs})).candidate,
    ):
        side = side_of("candidate", toy, around)
        with side.running():
            layers = prefill(side, ids, parse_pattern("one-shot", 1)).cache.layers
            kept.append([getattr(layer, "key_store", None) or layer for layer in layers])
    for theirs, ours in zip(*kept, strict=True):
        distance = torch.cdist(theirs.keys, ours.read(), compute_mode="donot_use_mm_for_euclid_dist")
        assert theirs.keys.shape[2] == ours.tokens == 100
        assert (distance.amin(-1) < 1e-4).float().mean() > 0.99


def test_chunks_that_a_press_does_not_compress_fail_the_footprint(toy):
    from kvpress import SnapKVPress

    with open_session(
        candidate=Candidate(context=SnapKVPress(compression_ratio=0.5, window_size=16)),
        baseline=toy,
        stack=stack("snapkv", {"kv_budget": 0.5}),
    ) as session:
        found = failing(session.measure("footprint", {"patterns": ["one-shot", "chunk-64"]}))
    assert found
    assert all("one-shot" not in name for name in found)


def test_a_head_wise_press_only_masks_and_fails_the_footprint(toy):
    from kvpress import AdaKVPress, KnormPress

    with open_session(
        candidate=Candidate(context=AdaKVPress(KnormPress(compression_ratio=0.5))),
        baseline=toy,
        stack=stack("snapkv", {"kv_budget": 0.5}),
    ) as session:
        measured = session.measure("footprint", {"patterns": ["one-shot"]})
    assert [g.seems for g in measured.gates if isinstance(g, Threshold) and "mask only" in g.seems]


def test_a_press_with_another_length_per_layer_is_run_token_by_token(toy):
    from kvpress import PyramidKVPress

    with open_session(
        candidate=Candidate(context=PyramidKVPress(compression_ratio=0.5, window_size=16)),
        baseline=toy,
        stack=stack("pyramidkv", {"kv_budget": 0.5}),
    ) as session:
        measured = session.measure("perplexity", {"documents": 2, "continuation": 16})
    assert any("token by token only, because" in str(fact.value) for fact in measured.facts)
    assert measured.refusals == ()


def test_a_press_at_ratio_zero_never_ran(toy):
    from kvpress import KnormPress

    with open_session(
        candidate=Candidate(context=KnormPress(compression_ratio=0.0)),
        baseline=toy,
        stack=stack("h2o", {"kv_budget": 0.5}),
    ) as session:
        assert ["never ran" in reason for reason in failing(session.measure("needle-1x", {"contexts": 2}))] == [True]


def test_random_rows_of_a_batch_are_no_leak(toy):
    from kvpress import RandomPress

    with open_session(
        candidate=Candidate(context=RandomPress(0.5, seed=0)),
        baseline=toy,
        stack=stack("random_eviction", {"kv_budget": 0.5}),
    ) as session:
        assert failing(session.measure("footprint", {"patterns": ["one-shot"]})) == []


def test_chunks_of_row_0_in_every_row_are_found(toy):
    """kvpress 0.5.5: `top_chunks.indices[0]` is what every row of a batch keeps."""
    from kvpress import ChunkKVPress, SnapKVPress

    with open_session(
        candidate=Candidate(context=ChunkKVPress(SnapKVPress(0.5, window_size=32), chunk_length=8)),
        baseline=toy,
        stack=stack("snapkv", {"kv_budget": 0.5}),
    ) as session:
        assert failing(session.measure("footprint", {"patterns": ["one-shot"]})) == ["batch_rows"]


def test_a_press_that_scores_when_it_is_left(toy):
    """KVzip reads the text a second time when its context is left, which is before the questions in kvpress' pipeline."""
    from kvpress import KVzipPress

    found = {}
    for where in ("context", "prefill_context"):
        with open_session(
            candidate=Candidate(**{where: KVzipPress(0.5)}), baseline=toy, stack=stack("snapkv", {"kv_budget": 0.5})
        ) as session:
            found[where] = session.measure("footprint", {"patterns": ["one-shot"]})
    assert ["prefill_context=" in reason for reason in failing(found["context"])] == [True]
    seems = [g.seems for g in found["prefill_context"].gates if isinstance(g, Threshold)]
    assert any("mask only" in words for words in seems)


def test_a_press_that_is_handed_over_uncalled_is_named(toy):
    from kvpress import KnormPress

    press = KnormPress(0.75)
    with (
        open_session(
            candidate=Candidate(context=lambda: press), baseline=toy, stack=stack("h2o", {"kv_budget": 0.25})
        ) as session,
        pytest.raises(ContractError, match="no context manager; call it with the model"),
    ):
        session.measure("footprint", {"patterns": ["one-shot"]})
