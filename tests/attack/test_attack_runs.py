"""Caches that keep their promise where `footprint` looks and store everything where answers are judged."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest
from transformers import DynamicCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.layer import PolicyLayer
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
SHORT = {"tier": 0.25, "patterns": ("one-shot",)}
ASK = {"contexts": 2, "questions_per_context": 1, "documents": 2, "continuation": 16}


def stack(name, **knobs):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test"))]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


GENEROUS = SinksAndRecent(budget=0.95, sinks=4)  # no no-op: something is evicted, nothing that matters


class Partly(PolicyLayer):
    """Keeps the promise only where it has to."""

    first = 0

    def update(self, key_states, value_states, *args, **kwargs):
        self.first = self.first or int(key_states.shape[2])
        self.rows = int(key_states.shape[0])
        return super().update(key_states, value_states, *args, **kwargs)

    def honest(self):
        raise AssertionError

    def _evict(self, keys):
        strict, self.policy = self.policy, self.policy if self.honest() else GENEROUS
        super()._evict(keys)
        self.policy = strict


class OnlyShortTexts(Partly):
    def honest(self):
        return self.first < 100


class OnlyOneCall(Partly):
    def honest(self):
        return self.first != 50


class OnlyOneRow(Partly):
    def honest(self):
        return self.rows == 1


def candidate(toy, layer, budget=0.5):
    def factory():
        cache = DynamicCache(config=toy.model.config)
        cache.layers[:] = [
            layer(policy=SinksAndRecent(budget=budget, sinks=4), codec=None, layer_idx=at, seed=0)
            for at in range(toy.model.config.num_hidden_layers)
        ]
        return cache

    return Candidate(toy.model, cache=factory)


def opened(toy, layer):
    return open_session(candidate=candidate(toy, layer), baseline=toy, stack=stack("streaming_llm", kv_budget=0.5))


CASES = [
    (OnlyShortTexts, "needle", {"tier": 0.5}),
    (OnlyShortTexts, "perplexity", {"tier": 0.5}),
    (OnlyShortTexts, "long-range-kv_recall", {"tiers": [0.5]}),
    (OnlyOneCall, "needle", {"tier": 0.5, "patterns": ("chunk-50",)}),
    (OnlyOneRow, "needle", {"tier": 0.25, "patterns": ("batch",), "contexts": 4}),
]


@pytest.mark.parametrize(("layer", "check", "params"), CASES)
def test_what_is_judged_is_what_is_claimed(toy, layer, check, params):
    with opened(toy, layer) as session:
        if layer is not OnlyOneRow:  # a batch of two rows is part of footprint
            assert decide(session.measure("footprint", SHORT), {}).verdict is Verdict.PASS
        found = session.measure(check, {**ASK, **params})
        assert [refusal.verdict for refusal in found.refusals] == [Verdict.FAIL]
        assert "stores more than it claims where its answers are judged" in found.refusals[0].reason
        easier = {key: value for key, value in params.items() if key == "contexts"}
        again = session.measure(check, {**ASK, **easier, "tier": 0.25, "tiers": [0.25]})
    assert again.refusals == ()


def test_quantization_of_short_texts_only(toy):
    plain = apply_stack(toy.model, stack("kv2")).candidate
    eight = apply_stack(toy.model, stack("kv8")).candidate.cache().layers[0].codec

    class Quits(PolicyLayer):
        def update(self, key_states, value_states, *args, **kwargs):
            if not self.seen and key_states.shape[2] > 150:
                self.codec = self.key_store.codec = self.value_store.codec = eight
            return super().update(key_states, value_states, *args, **kwargs)

    def factory():
        cache = plain.cache()
        for layer in cache.layers:
            layer.__class__ = Quits
        return cache

    with open_session(candidate=Candidate(toy.model, cache=factory), baseline=toy, stack=stack("kv2")) as session:
        assert decide(session.measure("footprint", SHORT), {}).verdict is Verdict.PASS
        found = session.measure("needle", {**ASK, "tier": 0.75})
    assert [refusal.verdict for refusal in found.refusals] == [Verdict.FAIL]
    assert "bytes[" in found.refusals[0].reason


@pytest.mark.parametrize(
    ("name", "knobs"),
    [("h2o", {"kv_budget": 0.25}), ("pyramidkv", {"kv_budget": 0.5}), ("sliding_window", {"window": 24}), ("kv2", {}),
     ("snapkv", {"kv_budget": 0.5}), ("streaming_llm", {"kv_budget": 40})],
)  # fmt: skip
@pytest.mark.parametrize("pattern", ["one-shot", "chunk-7", "token", "warm-prefix", "batch"])
def test_the_methods_of_this_package_keep_their_promise_everywhere(toy, name, knobs, pattern):
    with open_session(baseline=toy, stack=stack(name, **knobs)) as session:
        found = session.measure("needle", {**ASK, "contexts": 3, "tier": 0.25, "patterns": (pattern,)})
    assert found.refusals == ()


class StopsEvicting(PolicyLayer):
    """Evicts while the context is short, and keeps everything from 140 tokens on."""

    def _evict(self, keys):
        if self.seen < 140:
            super()._evict(keys)


class Every(PolicyLayer):
    """Evicts every so many tokens, as engines do that work in pages."""

    interval = 64

    def _evict(self, keys):
        if self.seen < 70 or self.seen % self.interval == 0:
            super()._evict(keys)


class EverySecondPage(Every):
    interval = 32


class OnlyThePrompt(PolicyLayer):
    """Compresses the prompt and keeps what is decoded, as SnapKV does: a share is a share of the context."""

    def _evict(self, keys):
        if keys is not None and keys.shape[2] == self.seen:  # everything came in this call
            super()._evict(keys)


@pytest.mark.parametrize("budget", [0.5, 0.9])
def test_an_eviction_by_share_that_stops_while_decoding(toy, budget):
    side = candidate(toy, StopsEvicting, budget)
    with open_session(candidate=side, baseline=toy, stack=stack("streaming_llm", kv_budget=budget)) as session:
        decision = decide(session.measure("footprint", SHORT), {})
    assert decision.verdict is Verdict.FAIL
    assert "looks like an eviction that stops" in decision.headline


@pytest.mark.parametrize("layer", [PolicyLayer, Every, EverySecondPage, OnlyThePrompt])
def test_evictions_that_pause_or_end_with_the_prompt_do_not_stop(toy, layer):
    side = candidate(toy, layer)
    with open_session(candidate=side, baseline=toy, stack=stack("streaming_llm", kv_budget=0.5)) as session:
        decision = decide(session.measure("footprint", {**SHORT, "tier": 0.25}), {})
    assert decision.verdict is Verdict.PASS, decision.headline


def test_a_share_and_a_number_both_hold(toy):
    """The stack's two evictions promise a tenth and 200 entries: a cache of 64 of 128 entries keeps one promise only."""
    both = [*stack("h2o", kv_budget=0.1), *stack("streaming_llm", kv_budget=100)]
    for order in (both, both[::-1]):
        with open_session(candidate=candidate(toy, PolicyLayer), baseline=toy, stack=order) as session:
            decision = decide(session.measure("footprint", {"tier": 0.5, "patterns": ("one-shot",)}), {})
        assert decision.verdict is Verdict.FAIL
        assert "entries" in decision.headline


@pytest.mark.parametrize("at", ["enter", "exit"])
def test_a_context_that_raises_is_the_candidates_failure(toy, at):
    @contextmanager
    def breaks():
        if at == "enter":
            raise ValueError("broken")
        yield
        raise ValueError("broken")

    session = open_session(baseline=toy, candidate=Candidate(toy.model, context=breaks), stack=stack("kv8"))
    with pytest.raises(CandidateError, match="the context of the candidate raised.* ValueError: broken"):
        session.measure("perplexity", {"documents": 2, "tokens": 128})
    with pytest.raises(KeyboardInterrupt), session.candidate.running() if at == "exit" else nullcontext():
        raise KeyboardInterrupt  # what ends a run is not swallowed by a context that breaks on its way out
