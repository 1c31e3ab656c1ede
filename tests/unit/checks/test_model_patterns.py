"""The worst call pattern is the one that is gated: planted faults that a single pattern does not show."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.checks.model_data import documents
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_patterns import FRESH
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.engines.through_cache import PATTERNS, padded_away, parse_pattern, teacher_forced
from pytest_attnaccept.errors import SchemaError
from pytest_attnaccept.methods.codec import Codec
from pytest_attnaccept.methods.layer import PolicyLayer, policy_cache
from pytest_attnaccept.profiles import parse_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.strict_yaml import load_text

REGISTRY = Registry.builtin()
KV8 = Codec(bits=8)


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def opened(toy, name="kv8", candidate=None, **knobs):
    method = REGISTRY.get(name)
    return open_session(baseline=toy, candidate=candidate, stack=[(method, check_knobs(method, knobs, "test"))])


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


def caches(model, cls):
    def factory():
        cache = policy_cache(model, policy=None, codec=KV8, seed=0)
        cache.layers[:] = [cls(policy=None, codec=KV8, layer_idx=i, seed=0) for i in range(len(cache.layers))]
        return cache

    return factory


class BrokenInChunks(PolicyLayer):
    """Loses what earlier chunks stored as soon as another chunk of the prompt arrives."""

    lost = 0

    def update(self, key_states, value_states, *args, **kwargs):
        if self.seen and key_states.shape[2] == 64:
            self.lost = self.seen
        keys, values = super().update(key_states, value_states)
        values = values.clone()
        values[:, :, : self.lost] = 0
        return keys, values


class OneRowOnly(PolicyLayer):
    """A cache for a single request."""

    def update(self, key_states, value_states, *args, **kwargs):
        if key_states.shape[0] > 1:
            raise ValueError("this cache holds one request")
        return super().update(key_states, value_states)


@contextmanager
def without_mask(model):
    """Drop the padding mask, as a kernel without variable lengths does."""
    original = model.forward

    def forward(*args, **kwargs):
        kwargs.pop("attention_mask", None)
        return original(*args, **kwargs)

    model.forward = forward
    try:
        yield
    finally:
        del model.forward


SMALL = {"contexts": 20, "documents": 20, "continuation": 16, "tier": 0.75, "screen": 6}


@pytest.mark.parametrize(("check", "name"), [("needle-0.75x", "needle"), ("perplexity", "perplexity")])
def test_a_fault_in_one_pattern_is_the_one_that_is_gated(toy, check, name):
    around = Candidate(toy.model, cache=caches(toy.model, BrokenInChunks))
    given = {**SMALL, "continuation": 56}
    with opened(toy, candidate=around) as session:
        blind = session.measure(check, {**given, "screen": None})
        found = session.measure(check, {**given, "patterns": ["one-shot", "warm-prefix", "chunk-64"]})
    assert facts(found)["pattern_gated"] == "chunk-64"
    assert "chunk-64 loses" in facts(found)["order_dependent"]
    assert [gate.name for gate in found.gates] == [f"{name}[chunk-64]"]
    losses = [getattr(m.gates[0], "losses", None) or m.gates[0].sums for m in (blind, found)]
    assert abs(sum(losses[0])) < 0.1 * sum(losses[1])


def test_a_candidate_that_ignores_the_padding_mask_is_gated_in_a_padded_batch(toy):
    around = Candidate(toy.model, cache=caches(toy.model, PolicyLayer), context=without_mask)
    with opened(toy, candidate=around) as session:
        found = session.measure("perplexity", {**SMALL, "patterns": ["one-shot", "batch", "batch-left", "batch-right"]})
    assert facts(found)["pattern_gated"] == "batch-right"
    assert facts(found)["pattern_loss[batch-right]"] > 10 * abs(facts(found)["pattern_loss[batch]"]) + 0.01
    assert "order_dependent" not in facts(found)  # padded rows are another text


def test_a_candidate_of_ones_own_is_measured_in_batches_and_a_refusal_is_named(toy):
    patterns = {**SMALL, "patterns": ["one-shot", "batch"]}
    with opened(toy, candidate=Candidate(toy.model, cache=caches(toy.model, OneRowOnly))) as session:
        found = facts(session.measure("perplexity", patterns))
    assert found["pattern_gated"] == "one-shot"
    assert "this cache holds one request" in found["pattern_skipped[batch]"]
    with opened(toy, candidate=Candidate(toy.model, cache=caches(toy.model, PolicyLayer))) as session:
        assert "pattern_loss[batch]" in facts(session.measure("perplexity", patterns))


def test_patterns_that_agree_leave_the_first_one_and_evictions_are_not_padded(toy):
    with opened(toy) as session:
        found = session.measure("perplexity", {**SMALL, "patterns": ["one-shot", "chunk-64", "warm-prefix"]})
    assert facts(found)["pattern_gated"] == "one-shot"
    assert "order_dependent" not in facts(found)
    with opened(toy, "streaming_llm", kv_budget=0.9) as session:
        found = session.measure("perplexity", {**SMALL, "patterns": ["one-shot", "batch-left"]})
    assert "padding mask" in facts(found)["pattern_skipped[batch-left]"]


def test_screening_reads_other_texts_than_the_gate(toy, tmp_path):
    with opened(toy) as session:
        rows = [
            documents(session, Params(check="t", given={"first": first}), count=4, length=64, continuation=8).rows
            for first in (0, FRESH)
        ]
        texts = {tuple(row.flatten().tolist()) for row in rows[0]} & {tuple(row.flatten().tolist()) for row in rows[1]}
        assert not texts
        file = tmp_path / "texts.txt"
        file.write_text("\f".join(f"w{i} " * 40 + "the " * 200 for i in range(5)), encoding="utf-8")
        ends = [
            documents(
                session,
                Params(check="t", given={"first": first, "text": str(file)}),
                count=1,
                length=64,
                continuation=8,
            ).digest
            for first in (0, FRESH)
        ]
    assert len(ends) == 2


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_of_an_untouched_cache_gives_the_same_logits(toy, name):
    ids = torch.randint(1, 300, (4, 60), generator=torch.Generator().manual_seed(0))
    lost = [padded_away(row, 40) if name in ("batch-left", "batch-right") else 0 for row in range(4)]
    assert name in ("batch-left", "batch-right") or lost == [0] * 4
    with opened(toy) as session:
        side = session.baseline
        with side.running():
            got = teacher_forced(side, ids, 41, parse_pattern(name, 8))
            alone = [
                teacher_forced(side, ids[r : r + 1, lost[r] :], 41 - lost[r], parse_pattern("one-shot", 8))
                for r in range(4)
            ]
    assert (got - torch.cat(alone)).abs().max() < 1e-3


def test_a_profile_names_patterns_that_exist():
    text = "schema: 1\nname: mine\nclaim: c\nchecks: {needle: {tiers: [1], patterns: [%s], screen: 4}}\n"
    profile = parse_profile(load_text(text % ", ".join(PATTERNS), "p.yaml"))
    assert profile.checks["needle"]["patterns"] == list(PATTERNS)
    for wrong in ("chunks-64", "chunk-0", "batch-middle", "3"):
        with pytest.raises(SchemaError, match="must be a list of one-shot"):
            parse_profile(load_text(text % wrong, "p.yaml"))
