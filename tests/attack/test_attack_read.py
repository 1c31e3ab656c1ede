"""Candidates that keep their promise where it is looked at, and answer from originals elsewhere: by length, batch, pattern."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_read
from pytest_attnaccept.checks.model_session import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.methods.codec import Codec
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.layer import PolicyLayer
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

POOL = torch.zeros(4, 2, 16, 2, 1024, 32)  # layer, keys or values: there before anything runs
REGISTRY = Registry.builtin()
NEEDLE = {"tier": 0.5, "contexts": 3, "questions_per_context": 2}
TEXT = {"tier": 0.5, "documents": 3, "continuation": 16}


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


class Elsewhere(PolicyLayer):
    """Stores what is promised; where `hides` says so, attention reads originals from a pool that was there before."""

    hidden = ("keys", "values")
    rows = 1

    def hides(self):
        return True

    def update(self, key_states, value_states, *args, **kwargs):
        self.rows = key_states.shape[0]
        self.calls = getattr(self, "calls", 0) + 1
        self.last = key_states.shape[2]
        shown = super().update(key_states, value_states)
        for number, x in enumerate((key_states, value_states)):
            POOL[self.layer_idx, number, : self.rows, :, self.seen - x.shape[2] : self.seen] = x
        if not self.hides():
            return shown
        whole = [POOL[self.layer_idx, number, : self.rows, :, : self.seen].clone() for number in range(2)]
        read = [w if name in self.hidden else s for name, w, s in zip(("keys", "values"), whole, shown, strict=True)]
        if "keys" in self.hidden and "values" in self.hidden:
            read = [read[0] + self.key_store.read().mean() * 1e-4, read[1] + self.value_store.read().mean() * 1e-4]
        return tuple(read)

    def get_seq_length(self, *args):
        return self.seen if self.hides() else super().get_seq_length()

    def get_mask_sizes(self, query_length):
        length = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        return (self.seen if self.hides() else self.key_store.tokens) + length, 0


class WhereShort(Elsewhere):
    """`footprint` looks at long contexts."""

    def hides(self):
        return self.seen < 200


class InChunks(Elsewhere):
    """Where a prompt came in chunks of 64."""

    chunked = False

    def hides(self):
        self.chunked = self.chunked or getattr(self, "last", 0) == 64
        return self.chunked


class OneLayer(Elsewhere):
    """A single layer of the three."""

    def hides(self):
        return self.layer_idx == 1


class OnlyValues(Elsewhere):
    """Keys are read as they are stored, values are not."""

    hidden = ("values",)


class OnlyKeys(Elsewhere):
    hidden = ("keys",)


def caches(toy, layer, *, policy=None, codec=None):
    def factory():
        cache = DynamicCache(config=toy.model.config)
        cache.layers[:] = [
            layer(policy=policy, codec=codec, layer_idx=at, seed=0) for at in range(toy.model.config.num_hidden_layers)
        ]
        return cache

    return factory


def measured(toy, layer, check, params, member=("streaming_llm", {"kv_budget": 0.5}), **kinds):
    kinds = kinds or {"policy": SinksAndRecent(budget=0.5, sinks=4)}
    around = Candidate(toy.model, cache=caches(toy, layer, **kinds))
    with open_session(candidate=around, baseline=toy, stack=stack(member)) as session:
        return session.measure(check, params)


def words(found):
    return " ".join(refusal.reason for refusal in found.refusals)


@pytest.mark.parametrize(
    ("layer", "check", "params"),
    [
        (WhereShort, "needle", NEEDLE),
        (WhereShort, "perplexity", TEXT),
        (WhereShort, "divergence", TEXT),
        (WhereShort, "long-range-kv_recall", {"tiers": (0.5,), "contexts": 3}),
        (WhereShort, "length-curve", {"lengths": (0.5,), "operating": 0.5, "contexts": 3, "documents": 2}),
        (InChunks, "needle", {**NEEDLE, "tier": 0.75, "patterns": ("chunk-64",)}),
        (InChunks, "perplexity", {**TEXT, "tier": 0.75, "patterns": ("one-shot", "chunk-64")}),
    ],
)
def test_where_the_footprint_does_not_look(toy, layer, check, params):
    """The footprint of this candidate is that of its method, and what it stores is right everywhere."""
    found = measured(toy, layer, check, params)
    assert decide(found, {}).verdict is Verdict.INVALID
    assert "bypasses the cache" in words(found)
    assert "where answers are judged" in words(found)


def test_the_footprint_itself_is_satisfied(toy):
    found = measured(toy, WhereShort, "footprint", {"patterns": ("one-shot",)})
    assert "bypasses" not in words(found)


@pytest.mark.parametrize("layer", [OnlyKeys, OnlyValues])
@pytest.mark.parametrize("check", ["footprint", "needle", "perplexity"])
def test_half_of_a_quantized_cache_that_is_not_read(toy, layer, check):
    params = {"footprint": {"tier": 0.5, "patterns": ("one-shot",)}, "needle": NEEDLE, "perplexity": TEXT}[check]
    found = measured(toy, layer, check, params, ("kv2", {}), codec=Codec(bits=2))
    assert "bypasses the cache" in words(found)


def test_one_layer_is_met_after_some_contexts(toy):
    found = measured(
        toy,
        OneLayer,
        "needle",
        {**NEEDLE, "contexts": 40, "questions_per_context": 1},
        ("kv2", {}),
        codec=Codec(bits=2),
    )
    assert "layer 1" in words(found)


def test_a_cache_that_shows_nothing_where_it_is_judged(toy):
    class Empty(Elsewhere):
        """Below 200 tokens nothing is stored at all: there is nothing to damage."""

        def hides(self):
            return self.seen < 200

        def update(self, key_states, value_states, *args, **kwargs):
            read = super().update(key_states, value_states, *args, **kwargs)
            if self.hides():
                for store in (self.key_store, self.value_store):
                    store.gather(torch.arange(1))
            return read

    found = measured(toy, Empty, "needle", NEEDLE)
    assert decide(found, {}).verdict is Verdict.INVALID


ACCUSATIONS = ("bypasses", "future", "remembers")


class AfterAWhile(Elsewhere):
    """The first dozen of caches keep their promise."""

    made = 0

    def __init__(self, **given):
        super().__init__(**given)
        AfterAWhile.made += 1
        self.late = AfterAWhile.made > 48  # four layers

    def hides(self):
        return self.late


def test_a_habit_that_begins_later(toy):
    found = measured(toy, AfterAWhile, "needle", {**NEEDLE, "tier": 0.25, "contexts": 40, "questions_per_context": 1})
    assert "bypasses the cache" in words(found)


def test_another_budget_of_a_curve_reads_what_it_stores(toy):
    """The operating point is honest; the points below it are as good as the whole cache, because they read it."""

    def candidate(kv_budget=0.5):
        layer = PolicyLayer if kv_budget == 0.5 else Elsewhere
        return Candidate(toy.model, cache=caches(toy, layer, policy=SinksAndRecent(budget=kv_budget, sinks=4)))

    member = ("streaming_llm", {"kv_budget": 0.5, "positions": "text"})
    with open_session(candidate=candidate, baseline=toy, stack=stack(member)) as session:
        found = session.measure(
            "budget-curve", {"tier": 0.25, "contexts": 4, "questions_per_context": 1, "budgets": (0.5,)}
        )
    assert "bypasses the cache" in words(found)


HONEST = [
    *([(name, {"kv_budget": 0.1})] for name in ("h2o", "pyramidkv", "snapkv", "tova", "random_eviction")),
    [("streaming_llm", {"kv_budget": 16})],
    [("sliding_window", {"window": 8})],
    *([(name, {})] for name in ("kv8", "kv2")),
    [("kv4", {"axis": "channel", "residual": 32})],
    [("h2o", {"kv_budget": 0.25}), ("kv4", {}), ("w4a16", {})],
]
ELSEWHERE = [HONEST[1], HONEST[-1]]
CASES = [("toy-gqa", m) for m in HONEST] + [(spec, m) for spec in ("toy-mha", "toy-mla") for m in ELSEWHERE]


def every_context(session, checks):
    """Measure with a probe of every context, not of one in eight; return what the refusals say and how many probes ran."""
    found = [session.measure(check, params) for check, params in checks]
    return " ".join(map(words, found)), len(session.memo[model_read._PROBES])


@pytest.mark.parametrize(
    ("spec", "members"), CASES, ids=[f"{s}-{'+'.join(n for n, _ in m)}-{i}" for i, (s, m) in enumerate(CASES)]
)
def test_what_every_registered_method_stores_is_what_it_reads(spec, members, monkeypatch):
    monkeypatch.setattr(model_read, "_ONE_IN", 1)
    monkeypatch.setattr(model_read, "_ours", lambda session: False)
    with open_session(baseline=load(parse_spec(spec)), stack=stack(*members)) as session:
        said, probes = every_context(session, [
            ("needle", {**NEEDLE, "patterns": ("one-shot", "chunk-64", "warm-prefix")}),
            ("perplexity", {**TEXT, "tier": 0.25, "patterns": ("one-shot", "token")}),
        ])  # fmt: skip
    assert not any(word in said for word in ACCUSATIONS)
    assert probes


class Packed(DynamicLayer):
    """A quantized layer as transformers builds them: codes of what is old, a full-precision tail of what is new."""

    residual = 16

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._quantized_keys = self._quantized_values = None
            self.seen = 0
        self.seen += key_states.shape[2]
        read = []
        for name, new in (("keys", key_states), ("values", value_states)):
            old, tail = getattr(self, f"_quantized_{name}"), getattr(self, name)
            parts = [] if old is None else [old[0].float() * old[1] + old[2]]
            read.append(torch.cat([*parts, *([tail] if tail.numel() else []), new], dim=2))
            kept = read[-1]
            if old is None or kept.shape[2] - old[0].shape[2] > self.residual:
                low, high = kept.amin(-1, keepdim=True), kept.amax(-1, keepdim=True)
                scale = ((high - low) / 255).clamp(min=1e-8)
                setattr(self, f"_quantized_{name}", (((kept - low) / scale).round().to(torch.uint8), scale, low))
                setattr(self, name, torch.tensor([]))
            else:
                setattr(self, name, kept[:, :, old[0].shape[2] :])
        return read[0], read[1]

    def get_seq_length(self, *args):
        return getattr(self, "seen", 0)

    def get_mask_sizes(self, query_length):
        return self.get_seq_length() + query_length, 0


class Pool(Cache):
    """One tensor for all layers: no layer has storage, no name says what keys are."""

    def __init__(self):
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.pool = {}

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        new = torch.stack([key_states, value_states]).bfloat16().float()
        old = self.pool.get(layer_idx)
        self.pool[layer_idx] = new if old is None else torch.cat([old, new], dim=3)
        return self.pool[layer_idx][0], self.pool[layer_idx][1]

    def get_seq_length(self, layer_idx=0):
        return self.pool[0].shape[3] if self.pool else 0

    def get_mask_sizes(self, query_length, layer_idx=0):
        return (self.pool[layer_idx].shape[3] if layer_idx in self.pool else 0) + query_length, 0


@contextmanager
def pressed(model):
    """What a press does: after the prefill, hooks of the attention layers cut what the cache holds."""

    def cut(module, args, kwargs, output):
        cache = kwargs.get("past_key_values", kwargs.get("cache"))  # its name changed with transformers 5.20
        layer = cache.layers[module.layer_idx]
        if kwargs["hidden_states"].shape[1] > 16:
            kept = layer.keys.shape[2] // 2
            layer.keys, layer.values = (x[:, :, -kept:].contiguous() for x in (layer.keys, layer.values))
        return output

    handles = [layer.self_attn.register_forward_hook(cut, with_kwargs=True) for layer in model.model.layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


USERS = {
    "packed": (("kv8", {}), lambda toy: {"cache": lambda: of_layers(toy, Packed)}),
    "pool": (("kv8", {}), lambda toy: {"cache": Pool}),
    "press": (("streaming_llm", {"kv_budget": 0.5}), lambda toy: {"context": pressed}),
}


def of_layers(toy, layer):
    cache = DynamicCache(config=toy.model.config)
    cache.layers[:] = [layer() for _ in cache.layers]
    return cache


@pytest.mark.parametrize("name", USERS)
def test_caches_and_presses_of_users_are_not_accused(toy, name, monkeypatch):
    monkeypatch.setattr(model_read, "_ONE_IN", 1)
    member, around = USERS[name]
    with open_session(candidate=Candidate(toy.model, **around(toy)), baseline=toy, stack=stack(member)) as session:
        said, probes = every_context(session, [
            ("needle", {**NEEDLE, "patterns": ("one-shot", "warm-prefix")}),
            ("perplexity", {**TEXT, "patterns": ("one-shot", "chunk-64")}),
            ("footprint", {"tier": 0.5, "patterns": ("one-shot",)}),
            ("long-range-kv_recall", {"tiers": (0.5,), "contexts": 2}),
        ])  # fmt: skip
    assert not any(word in said for word in ACCUSATIONS)
    assert probes


def test_one_context_in_eight_is_probed(toy):
    around = Candidate(toy.model, cache=apply_stack(toy.model, stack(("kv8", {}))).candidate.cache)
    for candidate, least, most in ((around, 2, 12), (None, 1, 1)):
        with open_session(candidate=candidate, baseline=toy, stack=stack(("kv8", {}))) as session:
            session.measure("needle", {"tier": 0.25, "contexts": 40, "questions_per_context": 1})
            assert least <= len(session.memo[model_read._PROBES]) <= most
