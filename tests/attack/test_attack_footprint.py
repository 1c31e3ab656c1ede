"""Candidates that show an honest cache and are not: originals kept elsewhere, late growth, one layer, mixed rows."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks.model_hidden import damage_effects
from pytest_attnaccept.checks.model_session import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.memory import left_behind
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.engines.storage import layer_storage
from pytest_attnaccept.engines.through_cache import parse_pattern, prefill
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.layer import PolicyLayer
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

POOL = torch.zeros(4, 2, 1, 2, 1024, 32)  # layer, keys or values: there before anything runs
BUFFER = np.zeros(2**21, dtype=np.float32)
GLOBAL: dict[int, object] = {}
SHORT = {"tier": 0.5, "patterns": ("one-shot",)}
REGISTRY = Registry.builtin()


def stack(name, knobs):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test"))]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


class Hoards(PolicyLayer):
    """Evicts, reads everything, and lets a trace of what is stored into the answer."""

    trace = 1e-4

    def update(self, key_states, value_states, *args, **kwargs):
        super().update(key_states, value_states)
        self.keep(key_states, value_states)
        keys, values = self.kept()
        return keys + self.key_store.read().mean() * self.trace, values + self.value_store.read().mean() * self.trace

    def get_seq_length(self, *args):
        return self.seen

    def get_mask_sizes(self, query_length):
        return self.seen + (query_length if isinstance(query_length, int) else query_length.shape[0]), 0


class InPool(Hoards):
    """A tensor that was allocated at import."""

    def keep(self, *pair):
        for number, x in enumerate(pair):
            POOL[self.layer_idx, number, :, :, self.seen - x.shape[2] : self.seen] = x

    def kept(self):
        return [POOL[self.layer_idx, number, :, :, : self.seen] for number in range(2)]


class InBuffer(Hoards):
    """A NumPy buffer that was allocated at import."""

    def place(self, number):
        size = BUFFER.size // 8
        return BUFFER[(self.layer_idx * 2 + number) * size :][: size // 64 * 64].reshape(-1, 64)

    def keep(self, *pair):
        for number, x in enumerate(pair):
            self.place(number)[self.seen - x.shape[2] : self.seen] = x[0].transpose(0, 1).reshape(-1, 64).numpy()

    def kept(self):
        return [torch.tensor(self.place(n)[: self.seen]).reshape(1, self.seen, 2, 32).transpose(1, 2) for n in range(2)]


class InList(Hoards):
    """Python numbers in a list of the layer."""

    def keep(self, *pair):
        old = getattr(self, "numbers", [[], []])
        self.numbers = [o + x[0].transpose(0, 1).flatten().tolist() for o, x in zip(old, pair, strict=True)]

    def kept(self):
        return [torch.tensor(n).reshape(1, self.seen, 2, 32).transpose(1, 2) for n in self.numbers]


class InFile(Hoards):
    """A file: nothing of it is in memory."""

    def keep(self, *pair):
        before = self.kept() if hasattr(self, "path") else None
        kept = [x if before is None else torch.cat([b, x], 2) for b, x in zip(before or pair, pair, strict=True)]
        with tempfile.NamedTemporaryFile(delete=False, suffix=".pt") as file:
            torch.save(kept, file)
        self.path = file.name

    def kept(self):
        return torch.load(self.path)


class HalfFromThere(InList):
    """Nearly all of the answer from the originals, a visible part from what is shown."""

    trace = 0.02


def caches(toy, layer, policy=None):
    def factory():
        cache = DynamicCache(config=toy.model.config)
        cache.layers[:] = [
            layer(policy=policy or SinksAndRecent(budget=0.5, sinks=4), codec=None, layer_idx=at, seed=0)
            for at in range(toy.model.config.num_hidden_layers)
        ]
        return cache

    return factory


def judge(toy, candidate, name="streaming_llm", knobs=None, params=SHORT):
    with open_session(
        candidate=candidate, baseline=toy, stack=stack(name, {"kv_budget": 0.5} if knobs is None else knobs)
    ) as session:
        return decide(session.measure("footprint", params), {})


@pytest.mark.parametrize("layer", [InPool, InBuffer, InList, InFile, HalfFromThere])
def test_originals_elsewhere(toy, layer):
    decision = judge(toy, Candidate(toy.model, cache=caches(toy, layer)))
    assert decision.verdict in (Verdict.FAIL, Verdict.INVALID)
    assert "bypasses the cache" in decision.headline or "still stored" in decision.headline


@pytest.mark.parametrize(("layer", "found"), [(InPool, "rewritten"), (InBuffer, "rewritten"), (InFile, None)])
def test_memory_of_the_process_shows_it_too(toy, layer, found):
    """The second line of defence by itself, against the baseline's cache of 96 tokens (196 kB)."""
    side = candidate_side(toy, Candidate(toy.model, cache=caches(toy, layer)))
    ids = torch.arange(96)[None] % 300

    def run(text=ids):
        return prefill(side, text, parse_pattern("one-shot", 1))

    run(ids.flip(1))
    left = left_behind(run, [toy.model])
    assert found is None or getattr(left, found) > 90_000
    assert found is not None or left.total < 50_000  # a file is not memory: only the damage shows it


def test_a_buffer_of_the_model_is_no_hiding_place(toy):
    model = copy.deepcopy(toy.model)
    model.register_buffer("pool", POOL, persistent=False)
    side = candidate_side(replace(toy, model=model), Candidate(model, cache=caches(toy, InPool)))
    ids = torch.arange(96)[None] % 300

    def run(text=ids):
        return prefill(side, text, parse_pattern("one-shot", 1))

    run(ids.flip(1))
    assert left_behind(run, [model]).rewritten > 90_000


def candidate_side(toy, around):
    from pytest_attnaccept.engines.sides import side_of

    return side_of("candidate", toy, around)


def test_an_honest_run_leaves_nothing_behind(toy):
    side = candidate_side(toy, apply_stack(toy.model, stack("h2o", {"kv_budget": 0.5})).candidate)
    ids = torch.arange(96)[None] % 300

    def run():
        with side.running():
            return prefill(side, ids, parse_pattern("one-shot", 1))

    run()
    assert left_behind(run, [toy.model]).total < 20_000


@pytest.mark.parametrize("name", ["h2o", "snapkv", "streaming_llm", "kv4", "kv2"])
def test_damage_to_honest_caches_matters_as_in_the_baseline(toy, name):
    ids = torch.arange(200)[None] * 7 % 300
    knobs = {"kv_budget": 0.25} if not name.startswith("kv") else {}
    effects = [
        damage_effects(candidate_side(toy, around), ids, 190, parse_pattern("one-shot", 4))
        for around in (Candidate(toy.model), apply_stack(toy.model, stack(name, knobs)).candidate)
    ]
    assert list(effects[0]) == list(effects[1])
    assert {"layer 0", "the cache", "keys", "values"} <= set(effects[0])
    assert all(bool((effects[1][part] > 0.3 * effects[0][part]).all()) for part in effects[0])


def test_bytes_text_and_lists_are_counted():
    class Layer:
        keys = torch.zeros(1, 1, 2, 4)

        def __init__(self):
            self.keys = type(self).keys
            self.raw = b"x" * 1000
            self.frozen = np.ones(100, dtype=np.float32)
            self.frozen.flags.writeable = False
            self.numbers = [0.5] * 100
            self.text = "y" * 2000
            self.name = "layer"
            self.sizes = (1, 2, 3)

    class Cache:
        def __init__(self):
            self.layers = [Layer()]

    assert layer_storage(Cache())[0].storage_bytes == 32 + 1000 + 400 + 800 + 2000


def test_a_cache_that_shows_nothing_at_all(toy):
    class OnlyFile(InFile):
        def update(self, key_states, value_states, *args, **kwargs):
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            self.seen += key_states.shape[2]
            self.keep(key_states, value_states)
            return self.kept()[0] * 1.01, self.kept()[1]

    decision = judge(toy, Candidate(toy.model, cache=caches(toy, OnlyFile)))
    assert decision.verdict is Verdict.INVALID
    assert "can be read" in decision.headline


# -- a footprint that is declared ----------------------------------------------------------------------------------------


def test_a_footprint_that_is_declared_too_small(toy):
    """Nothing can be read from the cache, the declaration says half, the pool holds everything."""

    class Handle(InPool):
        def update(self, key_states, value_states, *args, **kwargs):
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            self.seen += key_states.shape[2]
            self.keep(key_states, value_states)
            return self.kept()[0] * 1.01, self.kept()[1]

    layers = toy.model.config.num_hidden_layers
    width = 2 * 2 * 32 * 4

    def honest_looking(cache):
        kept = cache.layers[0].seen // 2
        return [(kept, kept * width)] * layers

    candidate = Candidate(toy.model, cache=caches(toy, Handle), kv_footprint=honest_looking)
    decision = judge(toy, candidate)
    assert decision.verdict in (Verdict.FAIL, Verdict.INVALID)
    assert "outside of the cache" in decision.headline


class EightBits(DynamicLayer):
    """Every entry is kept, in eight bits."""

    def update(self, key_states, value_states, *args, **kwargs):
        new = [(x * 16).round().clamp(-127, 127).to(torch.int8) for x in (key_states, value_states)]
        if self.is_initialized:
            new = [torch.cat(pair, 2) for pair in zip((self.keys, self.values), new, strict=True)]
        self.keys, self.values = new
        self.is_initialized, self.dtype, self.device = True, key_states.dtype, key_states.device
        return self.keys.float() / 16, self.values.float() / 16


@pytest.mark.parametrize(
    ("share", "member", "words"),
    [
        (0.35, ("h2o", {"kv_budget": 0.35}), "entries[one-shot, after a context"),
        (1.0, ("kv8", {"group_size": 8}), ""),
        (-1.0, ("kv8", {}), "counts"),
    ],
)
def test_entries_that_can_be_read_are_not_talked_down(toy, share, member, words):
    """A quarter of the bytes, and all of the entries: eight bits are no eviction."""

    def factory():
        cache = DynamicCache(config=toy.model.config)
        cache.layers[:] = [EightBits() for _ in cache.layers]
        return cache

    def declared(cache):
        return [(int(share * layer.keys.shape[2]), 2 * layer.keys.numel()) for layer in cache.layers]

    candidate = Candidate(toy.model, cache=factory, kv_footprint=declared)
    with open_session(candidate=candidate, baseline=toy, stack=stack(*member)) as session:
        if share < 0:
            with pytest.raises(CandidateError, match=words):
                session.measure("needle", {"tier": 0.25, "contexts": 1})
            return
        found = session.measure("needle", {"tier": 0.25, "contexts": 1})
    reasons = " ".join(refusal.reason for refusal in found.refusals)
    assert words in reasons
    assert bool(words) == bool(reasons)


# -- late faults ---------------------------------------------------------------------------------------------------------


class StopsEvicting(PolicyLayer):
    """Holds its budget for 140 tokens and grows from then on."""

    def _evict(self, keys):
        if self.seen < 140:
            super()._evict(keys)


class LosesItself(PolicyLayer):
    """After 40 further tokens, the newest key is stored in place of every other."""

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = super().update(key_states, value_states)
        if self.seen > 140:
            keys, values = keys.roll(7, dims=2), values
        return keys, values


class MixesRows(PolicyLayer):
    """Every row of a batch reads the first one's values."""

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = super().update(key_states, value_states)
        return keys, values[:1].expand_as(values)


class OneRowBudget(PolicyLayer):
    """Evicts only in a batch of one."""

    def _evict(self, keys):
        if keys is not None and keys.shape[0] == 1:
            super()._evict(keys)


class OneLayerOnly(PolicyLayer):
    """Evicts in the first layer only."""

    def _evict(self, keys):
        if self.layer_idx == 0:
            super()._evict(keys)


@pytest.mark.parametrize(
    ("layer", "budget", "words"),
    [
        (StopsEvicting, 48, "entries[decode"),
        (LosesItself, 0.5, "decode_drift"),
        (MixesRows, 0.5, "batch_rows"),
        (OneRowBudget, 0.5, "entries[batch of 2"),
        (OneLayerOnly, 0.5, "entries"),
    ],
)
def test_faults_that_short_runs_of_one_row_do_not_show(toy, layer, budget, words):
    policy = SinksAndRecent(budget=budget, sinks=4)
    candidate = Candidate(toy.model, cache=caches(toy, layer, policy))
    with open_session(
        candidate=candidate, baseline=toy, stack=stack("streaming_llm", {"kv_budget": budget})
    ) as session:
        measured = session.measure("footprint", SHORT)
    assert measured.refusals == ()
    failed = [gate.name for gate in measured.gates if not gate.value <= gate.limit]
    assert [name for name in failed if name.startswith(words)], failed
    assert layer is OneLayerOnly or all("one-shot" not in name for name in failed)


def test_the_same_caches_without_a_fault_pass(toy):
    for budget in (48, 0.5):
        policy = SinksAndRecent(budget=budget, sinks=4)
        decision = judge(toy, Candidate(toy.model, cache=caches(toy, PolicyLayer, policy)), knobs={"kv_budget": budget})
        assert decision.verdict is Verdict.PASS, decision.headline


@pytest.mark.parametrize(("trained", "decoded"), [(40, 0), (100, 32), (150, 96), (256, 160)])
def test_a_decode_stays_inside_of_the_trained_length(toy, trained, decoded):
    with open_session(baseline=replace(toy, trained_length=trained), stack=stack("h2o", {"kv_budget": 0.5})) as session:
        measured = session.measure("footprint", {**SHORT, "tier": 1.0, "continuation": 8})
    facts = {fact.name: fact.value for fact in measured.facts}
    assert facts["decoded_tokens"] == decoded
    assert decide(measured, {}).verdict is Verdict.PASS


def test_a_cache_for_one_row_is_named_and_not_failed(toy):
    class OneRow(PolicyLayer):
        def update(self, key_states, value_states, *args, **kwargs):
            if key_states.shape[0] > 1:
                raise ValueError("one row only")
            return super().update(key_states, value_states)

    with open_session(
        candidate=Candidate(toy.model, cache=caches(toy, OneRow)), baseline=toy,
        stack=stack("streaming_llm", {"kv_budget": 0.5}),
    ) as session:  # fmt: skip
        measured = session.measure("footprint", SHORT)
    assert decide(measured, {}).verdict is Verdict.PASS
    assert ["one row only" in str(fact.value) for fact in measured.facts if fact.name == "batch"] == [True]


def test_kv_quantization_of_one_layer_only(toy):
    def factory():
        cache = apply_stack(toy.model, stack("kv4", {})).candidate.cache()
        for layer in cache.layers[1:]:
            layer.codec = layer.key_store.codec = layer.value_store.codec = None
        return cache

    decision = judge(toy, Candidate(toy.model, cache=factory), "kv4", {})
    assert decision.verdict is Verdict.FAIL
    assert "bytes" in decision.headline
