"""Copies of caches and what is decoded from them: candidates that are honest until they are copied, and honest odd ones."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from transformers import DynamicCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_read, open_session
from pytest_attnaccept.checks.model_data import documents
from pytest_attnaccept.checks.model_decode import batch_gates
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import CandidateError, EngineError
from pytest_attnaccept.methods.claims import budget_entries
from pytest_attnaccept.methods.codec import Codec
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.layer import PolicyLayer
from pytest_attnaccept.model_item import _state_of_model
from pytest_attnaccept.protocol import MODEL_STATE
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
NEEDLE = {"tier": 0.25, "contexts": 2, "questions_per_context": 2}
TEXT = {"tier": 0.25, "documents": 2, "continuation": 16}
KV8, HALF = ("kv8", {}), ("streaming_llm", {"kv_budget": 0.5})
RANDOM = ("random_eviction", {"kv_budget": 0.5})


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


class Stubborn(DynamicCache):
    """Refuses to be copied, so it is filled again."""

    def __deepcopy__(self, memo):
        raise TypeError("no copies")


def caches(toy, layer=PolicyLayer, cache_class=DynamicCache, *, budget=0.5, codec=None):
    policy = None if codec else SinksAndRecent(budget=budget, sinks=4)

    def factory():
        cache = cache_class(config=toy.model.config)
        cache.layers[:] = [
            layer(policy=policy, codec=codec, layer_idx=at, seed=0) for at in range(toy.model.config.num_hidden_layers)
        ]
        return cache

    return factory


def opened(toy, cache, *members, **around):
    return open_session(candidate=Candidate(toy.model, cache=cache, **around), baseline=toy, stack=stack(*members))


def words(found):
    return " ".join(refusal.reason for refusal in found.refusals)


# -- copies that hold more -------------------------------------------------------------------------------------------------


class SinceAsked(PolicyLayer):
    """Filled again with a prompt that was asked something already, it keeps everything."""

    asked: ClassVar[set] = set()

    def update(self, key_states, value_states, *args, **kwargs):
        if self.seen == 0:
            self.prompt = (self.layer_idx, key_states.sum().item())
            self.whole = self.prompt in self.asked
        elif key_states.shape[2] > 1:
            self.asked.add(self.prompt)
        return super().update(key_states, value_states)

    def _evict(self, keys):
        if not self.whole:
            super()._evict(keys)


class Grandchild(DynamicCache):
    """The copy of a copy holds every token."""

    whole: ClassVar[dict] = {}
    generation = 0

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        new, old = (key_states, value_states), self.whole.get(layer_idx) if self.get_seq_length() else None
        self.whole[layer_idx] = new if old is None else tuple(torch.cat(p, 2) for p in zip(old, new, strict=True))
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def __deepcopy__(self, memo):
        if self.generation:
            made = DynamicCache()
            for at, (keys, values) in self.whole.items():
                made.update(keys.clone(), values.clone(), at)
            return made
        made = memo[id(self)] = Grandchild.__new__(Grandchild)
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        made.generation = 1
        return made


@pytest.mark.parametrize(("layer", "cache"), [(SinceAsked, Stubborn), (PolicyLayer, Grandchild)])
def test_what_is_generated_from_is_a_copy_of_a_copy(toy, layer, cache):
    """The context, and the copy that is asked, hold what is claimed."""
    SinceAsked.asked.clear()
    with opened(toy, caches(toy, layer, cache), HALF) as session:
        decision = decide(session.measure("needle", {**NEEDLE, "questions_per_context": 1}), {})
    assert decision.verdict is Verdict.FAIL
    assert "stores more than it claims" in decision.headline
    assert "and" in decision.headline


@pytest.mark.parametrize("cache", [pytest.param(DynamicCache, marks=pytest.mark.full), Stubborn])
@pytest.mark.parametrize("budget", [0.5, 24])
def test_the_same_copies_without_that_are_not_accused(toy, cache, budget):
    with opened(
        toy, caches(toy, PolicyLayer, cache, budget=budget), ("streaming_llm", {"kv_budget": budget})
    ) as session:
        for check, params in (("needle", NEEDLE), ("long-range-kv_recall", {"tiers": (0.25,), "contexts": 2})):
            assert words(session.measure(check, params)) == ""


class OnlyOnce(PolicyLayer):
    """Small budgets are kept in the caches `kept` of each model, counted from 0."""

    made = -1
    kept = range(10**9)

    def __init__(self, **given):
        super().__init__(**given)
        type(self).made += self.layer_idx == 0
        self.number = self.made

    def _evict(self, keys):
        if self.number in self.kept:
            super()._evict(keys)


@pytest.mark.parametrize("kept", [(0, 1, 2, 3), (0, 2, 3)])
def test_other_budgets_of_a_curve_are_kept_in_every_context(toy, kept):
    """Two contexts, and the one that was looked at before: 0 is probed again in cache 1."""

    def candidate(kv_budget=0.5):
        made = type("Layer", (OnlyOnce,), {"made": -1, **({"kept": kept} if kv_budget < 0.5 else {})})
        return Candidate(toy.model, cache=caches(toy, made, budget=kv_budget))

    params = {"tier": 0.25, "contexts": 2, "questions_per_context": 1, "budgets": (0.25,)}
    with open_session(candidate=candidate, baseline=toy, stack=stack(HALF)) as session:
        found = session.measure("budget-curve", params)
    assert [point["label"] for point in found.details["points"]] == ["budget 0.5", "budget 0.25"]
    assert ("not one of budgets" in words(found)) == (1 not in kept), words(found)


# -- caches that cannot be copied --------------------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_copied_is_no_warm_prefix(toy):
    patterns = {"patterns": ("one-shot", "chunk-64", "warm-prefix", "batch"), "screen": 1}
    with opened(toy, caches(toy, PolicyLayer, Stubborn), HALF) as session:
        for check, params in (("needle", NEEDLE), ("perplexity", TEXT)):
            found = session.measure(check, {**params, **patterns})
            facts = {fact.name: str(fact.value) for fact in found.facts}
            assert "cannot be copied" in facts["pattern_skipped[warm-prefix]"]
            assert "pattern_loss[chunk-64]" in facts
            assert words(found) == ""
        with pytest.raises(CandidateError, match="which warm-prefix needs"):  # it alone was asked for
            session.measure("needle", {**NEEDLE, "patterns": ("warm-prefix",)})


# -- draws ---------------------------------------------------------------------------------------------------------------


class DropsAtRandom(PolicyLayer):
    """Random entries, from the global generator."""

    generator: ClassVar[torch.Generator | None] = None

    def _evict(self, keys):
        stored, count = self.key_store.tokens, budget_entries(0.5, self.seen)
        if count < stored:
            kept = torch.randperm(stored - 1, generator=self.generator)[: count - 1].sort().values
            for store in (self.key_store, self.value_store):
                store.gather(torch.cat([kept, torch.tensor([stored - 1])]))


class DropsByItsOwn(DropsAtRandom):
    generator = torch.Generator().manual_seed(1)


class Noisy(PolicyLayer):
    """Stochastic rounding, from a generator of its own."""

    generator = torch.Generator().manual_seed(1)

    def update(self, key_states, value_states, *args, **kwargs):
        noise = 1 + 1e-2 * torch.randn(value_states.shape, generator=self.generator)
        return super().update(key_states, value_states * noise)


class NoisyAndRemembers(Noisy):
    """The newest values of any sequence leak into every other one."""

    newest = torch.zeros(4, 32)

    def update(self, *args, **kwargs):
        keys, values = super().update(*args, **kwargs)
        leaking = values + 0.3 * self.newest[self.layer_idx]
        self.newest[self.layer_idx] = values[0, 0, -1]
        return keys, leaking


class EverySecond(PolicyLayer):
    """Every second cache gives other values."""

    made: ClassVar[dict] = {}

    def __init__(self, **given):
        super().__init__(**given)
        self.made[self.layer_idx] = self.made.get(self.layer_idx, 0) + 1
        self.odd = self.made[self.layer_idx] % 2

    def update(self, *args, **kwargs):
        keys, values = super().update(*args, **kwargs)
        return keys, values * (1 + 0.01 * self.odd)


class AddsUp(PolicyLayer):
    """A counter that nobody resets."""

    calls: ClassVar[list] = [0]

    def update(self, *args, **kwargs):
        keys, values = super().update(*args, **kwargs)
        self.calls[0] += 1
        return keys, values * (1 + 1e-3 * self.calls[0])


@pytest.mark.parametrize("cache", [pytest.param(DynamicCache, marks=pytest.mark.full), Stubborn])
@pytest.mark.parametrize("layer", [DropsAtRandom, pytest.param(DropsByItsOwn, marks=pytest.mark.full), Noisy])
def test_draws_are_no_memory_and_no_view_of_the_future(toy, layer, cache, monkeypatch):
    monkeypatch.setattr(model_read, "_ONE_IN", 1)
    member, codec = (RANDOM, None) if issubclass(layer, DropsAtRandom) else (KV8, Codec(bits=8))
    with opened(toy, caches(toy, layer, cache, codec=codec), member) as session:
        for check, params in (("needle", NEEDLE), ("perplexity", TEXT)):
            assert words(session.measure(check, params)) == ""
        identity = session.measure("identity", {"tier": 0.25, "documents": 1})
    assert decide(identity, {}).verdict is Verdict.PASS


@pytest.mark.parametrize("layer", [NoisyAndRemembers, EverySecond, AddsUp])
def test_what_only_looks_like_a_draw(toy, layer):
    with opened(toy, caches(toy, layer, Stubborn, codec=Codec(bits=8)), KV8) as session:
        found = session.measure("needle", NEEDLE)
    assert "outside of the cache" in words(found)


class NoisyAndMixes(Noisy):
    """Every row of a batch reads the first one's values."""

    def update(self, *args, **kwargs):
        keys, values = super().update(*args, **kwargs)
        return keys, values[:1].expand_as(values)


@pytest.mark.parametrize(
    ("layer", "good"), [(DropsAtRandom, True), (DropsByItsOwn, True), (Noisy, True), (NoisyAndMixes, False)]
)
def test_rows_that_draw_do_not_notice_each_other(toy, layer, good):
    member, codec = (RANDOM, None) if issubclass(layer, DropsAtRandom) else (KV8, Codec(bits=8))
    with opened(toy, caches(toy, layer, codec=codec), member) as session:
        data = documents(
            session, Params(check="footprint", given={"text": "builtin"}), count=1, length=128, continuation=16
        )
        torch.manual_seed(0)
        gates = [gate for gate in batch_gates(session, data.rows[0], 112, 8)[0] if gate.name == "batch_rows"]
    assert [gate.value <= gate.limit for gate in gates] == [good], gates


# -- what is decoded -------------------------------------------------------------------------------------------------------


class WrongInBetween(PolicyLayer):
    """A ring that is read at the wrong places until it has wrapped: decoded tokens 40 to 90."""

    decoded = 0

    def update(self, key_states, value_states, *args, **kwargs):
        self.decoded = self.decoded + 1 if key_states.shape[2] == 1 else 0
        keys, values = super().update(key_states, value_states)
        return keys, values.roll(7, dims=-1) * 3 if 40 <= self.decoded < 90 else values


def test_a_decode_that_is_wrong_in_between(toy):
    with opened(toy, caches(toy, WrongInBetween), HALF) as session:
        found = session.measure("footprint", {"tier": 0.5, "patterns": ("one-shot",)})
    failed = [gate.name for gate in found.gates if not gate.value <= gate.limit]
    assert failed == ["decode_between"]


def test_drafts_over_what_is_left_before_the_question_are_not_measured(toy):
    """generate() has no such moment: the stack would be judged by what it never was."""
    given = {"cache": caches(toy), "prefill_context": lambda model: nullcontext()}
    members = stack(HALF, ("prompt_lookup", {}))
    with (
        open_session(candidate=Candidate(toy.model, **given), baseline=toy, stack=members) as session,
        pytest.raises(EngineError, match="prefill_context"),
    ):
        session.measure("speculation", {"documents": 1})


def test_calls_that_never_enter_a_prefill_context_say_nothing_about_it(toy):
    """The state checks of a model fill caches themselves: both sides would be the baseline."""

    def halved(model):
        raise AssertionError("entered")

    given = Candidate(toy.model, prefill_context=halved)
    with open_session(candidate=given, baseline=toy, stack=stack(("chunked_prefill", {}))) as session:
        for check in MODEL_STATE:
            with pytest.raises(EngineError, match="prefill_context"):
                _state_of_model(check, session, 0)
    told = Candidate(toy.model, context=nullcontext)
    with open_session(candidate=told, baseline=toy, stack=stack(("chunked_prefill", {}))) as session:
        assert decide(_state_of_model("chunked", session, 0), {}).verdict is Verdict.PASS
