"""SnapKV, PyramidKV, TOVA and H2O while decoding, against keep sets computed from eager attention weights."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.engines.calls import call_form
from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.engines.sides import side_of
from pytest_attnaccept.engines.through_cache import extend, parse_pattern, prefill, teacher_forced
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.claims import budget_entries
from pytest_attnaccept.methods.eviction import LayerView
from pytest_attnaccept.methods.observed import LastQuery, ObservationWindow, pyramid_entries
from pytest_attnaccept.methods.stack import apply_stack, identity_stack
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()
CONTEXT = 96
DIRECT = "donot_use_mm_for_euclid_dist"  # the product form is off by up to 5e-3
# Cached against uncached float32 logits of this model differ by at most 2e-5 at logits up to 6.
CLOSE = 1e-4
EVICTIONS = ["h2o", "snapkv", "pyramidkv", "tova", "streaming_llm", "random_eviction"]


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


@pytest.fixture(scope="module", params=["gqa", "mha"])
def model(request):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2 if request.param == "gqa" else 4, initializer_range=0.2, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, 100, (2, CONTEXT + 200), generator=torch.Generator().manual_seed(1))


def side(model, around):
    return side_of("candidate", LoadedModel(model=model, tokenizer=None, trained_length=64, spec="tiny"), around)


def filled(model, name, knobs, ids, pattern="one-shot", step=8):
    applied = side(model, apply_stack(model, stack((name, knobs))).candidate)
    return applied, parse_pattern(pattern, step)


def eager_weights(model, ids):
    """Attention weights (batch, q_heads, queries, keys) of every layer and the untouched cache."""
    cache = DynamicCache(config=model.config)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(ids, **{call_form(model).cache: cache}, output_attentions=True)
    model.set_attn_implementation("sdpa")
    return out.attentions, cache


def grouped(weights, heads):
    batch, q_heads, keys = weights.shape
    return weights.reshape(batch, heads, q_heads // heads, keys).sum(2)


def kept_positions(layer, full):
    """Find each stored key among the full cache's keys: positions (batch, heads, stored)."""
    distance = torch.cdist(layer.key_store.read(), full.keys, compute_mode=DIRECT)
    assert distance.amin(-1).max() < 1e-4
    return distance.argmin(-1)


def test_snapkv_keeps_what_the_last_queries_attend_to(model, ids):
    """Written out per head with loops: last 8 queries vote, votes averaged over 3 neighbours, window and sinks kept."""
    context, count, window = ids[:, :CONTEXT], 32, 8
    weights, full = eager_weights(model, context)
    knobs = {"kv_budget": count, "sinks": 2, "observation": window, "pool": 3}
    applied, pattern = filled(model, "snapkv", knobs, ids)
    with applied.running():
        state = prefill(applied, context, pattern)
    heads = model.config.num_key_value_heads
    for number, layer in enumerate(state.cache.layers):
        votes = grouped(weights[number][:, :, -window:].sum(2), heads)[..., : CONTEXT - window]
        found = kept_positions(layer, full.layers[number])
        for row in range(2):
            for head in range(heads):
                raw = [0.0, *votes[row, head].tolist(), 0.0]
                mean = [sum(raw[i : i + 3]) / 3 for i in range(CONTEXT - window)]
                order = sorted(range(2, CONTEXT - window), key=lambda i: -mean[i])[: count - window - 2]
                assert found[row, head].tolist() == sorted([0, 1, *order]) + list(range(CONTEXT - window, CONTEXT))


def test_tova_keeps_what_the_last_query_attends_to_in_all_heads(model, ids):
    context, count = ids[:, :CONTEXT], 30
    weights, full = eager_weights(model, context)
    applied, pattern = filled(model, "tova", {"kv_budget": count, "sinks": 0}, ids)
    with applied.running():
        state = prefill(applied, context, pattern)
    for number, layer in enumerate(state.cache.layers):
        last = weights[number][:, :, -1].mean(1)[:, :-1]
        found = kept_positions(layer, full.layers[number])
        for row in range(2):
            best = sorted(last[row].argsort(descending=True)[: count - 1].tolist())
            assert all(found[row, head].tolist() == [*best, CONTEXT - 1] for head in range(found.shape[1]))


def reference_decode(model, ids, steps, count, choose):
    """Evict by hand in a plain DynamicCache under eager attention, one token per call; returns positions per layer."""
    weights, cache = eager_weights(model, ids[:, :CONTEXT])
    heads = model.config.num_key_value_heads
    held = [torch.arange(CONTEXT).expand(2, heads, CONTEXT) for _ in cache.layers]
    scores = [grouped(w.sum(2), heads) for w in weights]
    last = [grouped(w[:, :, -1], heads) for w in weights]
    model.set_attn_implementation("eager")
    for step in range(steps + 1):
        for number, layer in enumerate(cache.layers):
            keep = choose(scores[number], last[number], count)
            held[number], scores[number] = held[number].gather(2, keep), scores[number].gather(2, keep)
            index = keep[..., None].expand(-1, -1, -1, layer.keys.shape[-1])
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        if step == steps:
            break
        at = CONTEXT + step
        with torch.no_grad():
            out = model(
                ids[:, at : at + 1],
                **{call_form(model).cache: cache},
                output_attentions=True,
                position_ids=torch.full((2, 1), at),
            )
        for number, weight in enumerate(out.attentions):
            last[number] = grouped(weight[:, :, -1], heads)
            scores[number] = torch.nn.functional.pad(scores[number], (0, 1)) + last[number]
            held[number] = torch.cat([held[number], torch.full((2, heads, 1), at)], dim=-1)
    model.set_attn_implementation("sdpa")
    return held


def heavy(scores, last, count):
    recent = count // 2
    stored = scores.shape[-1]
    best = scores[..., : stored - recent].topk(count - recent).indices.sort().values
    return torch.cat([best, torch.arange(stored - recent, stored).expand(*scores.shape[:2], recent)], -1)


def newest(scores, last, count):
    mean = last.mean(1, keepdim=True).expand_as(last).clone()
    mean[..., -1] = torch.inf
    return mean.topk(count).indices.sort().values


@pytest.mark.parametrize(("name", "choose"), [("h2o", heavy), ("tova", newest)])
def test_decoding_evicts_by_its_own_attention(model, ids, name, choose):
    """40 tokens are decoded; every step evicts one entry, chosen by attention that was accumulated while decoding."""
    count, steps = 24, 40
    expected = reference_decode(model, ids, steps, count, choose)
    applied, pattern = filled(model, name, {"kv_budget": count, "sinks": 0}, ids)
    with applied.running():
        state = prefill(applied, ids[:, :CONTEXT], pattern)
        first = [layer.key_store.read().clone() for layer in state.cache.layers]
        extend(applied, state, ids[:, CONTEXT : CONTEXT + steps], step=1)
    plain = side(model, Candidate(model))
    with plain.running():
        full = prefill(plain, ids[:, : CONTEXT + steps], parse_pattern("one-shot", 1)).cache
    # Keys of layer 0 depend on the token alone, so their positions can be read; deeper ones have seen evicted contexts.
    assert torch.equal(kept_positions(state.cache.layers[0], full.layers[0]), expected[0])
    for layer, before in zip(state.cache.layers, first, strict=True):
        assert layer.stored_entries() == count
        gone = torch.cdist(before, layer.key_store.read(), compute_mode=DIRECT).amin(-1) > 1e-4
        assert gone.float().mean() > 0.3  # a good part of what the prompt left has been dropped since


@pytest.mark.parametrize("name", EVICTIONS)
@pytest.mark.parametrize("budget", [24, 0.25])
def test_the_budget_holds_after_every_one_of_160_decoded_tokens(model, ids, name, budget):
    applied, pattern = filled(model, name, {"kv_budget": budget}, ids, "chunk-16")
    with applied.running():
        state = prefill(applied, ids[:, :CONTEXT], pattern)
        for at in range(CONTEXT, CONTEXT + 160):
            extend(applied, state, ids[:, at : at + 1], step=1)
            held = [layer.stored_entries() for layer in state.cache.layers]
            allowed = budget_entries(budget, at + 1)
            assert sum(held) <= 3 * allowed
            assert name == "pyramidkv" or held == [allowed] * 3


@pytest.mark.parametrize("name", EVICTIONS)
def test_identity_setting_is_bitwise_the_baseline(model, ids, name):
    still = side(model, identity_stack(model, stack((name, {"kv_budget": 0.25}))).candidate)
    plain = side(model, Candidate(model))
    results = []
    for each in (still, plain):
        with each.running():
            results.append(teacher_forced(each, ids[:, :140], CONTEXT, parse_pattern("chunk-16", 4)))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", EVICTIONS)
@pytest.mark.parametrize("base", ["sdpa", "eager"])
def test_several_tokens_at_once_equal_one_forward_with_the_same_entries(model, ids, name, base):
    """The first call after the prompt sees the same entries whether it brings one token or eight: so logits agree.

    This is where a mask made for another layer's length, or positions counted from the shortened cache, would show.
    """
    model.set_attn_implementation(base)
    applied, pattern = filled(model, name, {"kv_budget": 0.5}, ids)
    with applied.running():
        many = prefill(applied, ids[:, :CONTEXT], pattern)
        together = extend(applied, many, ids[:, CONTEXT : CONTEXT + 8], step=8)
        alone = prefill(applied, ids[:, :CONTEXT], pattern)
        for layer in alone.cache.layers:
            layer.policy = replace(layer.policy, budget=10**6)  # nothing is dropped any more, as inside of one call
        one_by_one = extend(applied, alone, ids[:, CONTEXT : CONTEXT + 8], step=1)
    model.set_attn_implementation("sdpa")
    assert (together - one_by_one).abs().max() < CLOSE


def test_pyramid_budgets_are_linear_and_their_mean_is_the_budget():
    for budget in (1, 7, 24, 0.05, 0.25, 0.5, 0.75, 0.9, 1.0):
        for seen in (1, 30, 96, 1000):
            for layers, window in itertools.product((1, 2, 3, 30), (0, 8, 32)):
                counts = pyramid_entries(budget, seen, layers, 20.0, window)
                mean = budget_entries(budget, seen)
                assert min(counts) >= min(window, mean // 2)
                assert sum(counts) == layers * mean
                assert all(1 <= count <= seen for count in counts)
                steps = [before - after for before, after in itertools.pairwise(counts)]
                assert not steps or max(steps) - min(steps) <= 3
                assert not steps or min(steps) >= -1
    assert pyramid_entries(0.25, 1000, 4, 20.0)[0] > 5 * pyramid_entries(0.25, 1000, 4, 20.0)[-1]


def test_every_layer_of_the_pyramid_keeps_the_window_and_a_twentieth_of_the_rest():
    """Cai et al., 2024: the window is kept everywhere; 232 of 264 entries fall with depth from 1.95 to 0.05 of their mean."""
    assert pyramid_entries(264, 1000, 2, 20.0, 32) == [round(32 + 1.95 * 232), round(32 + 0.05 * 232)]


def test_pyramidkv_holds_more_in_the_first_layers(model, ids):
    applied, pattern = filled(model, "pyramidkv", {"kv_budget": 0.25}, ids)
    with applied.running():
        state = prefill(applied, ids[:, :CONTEXT], pattern)
    held = [layer.stored_entries() for layer in state.cache.layers]
    assert held == pyramid_entries(0.25, CONTEXT, 3, 20.0, 32)
    assert held[0] > held[1] > held[2]


def test_votes_fade_over_calls_and_a_whole_window_replaces_them(model, ids):
    applied, _ = filled(model, "snapkv", {"kv_budget": 0.9, "observation": 8}, ids)
    with applied.running():
        state = prefill(applied, ids[:, :CONTEXT], parse_pattern("one-shot", 1))
        layer = state.cache.layers[0]
        before = layer.scores.sum(-1)
        extend(applied, state, ids[:, CONTEXT : CONTEXT + 2], step=2)
        after = layer.scores.sum(-1)
        per_query = model.config.num_attention_heads // model.config.num_key_value_heads
        # two of eight votes are new, three quarters of the old ones are remembered (what was dropped took some along)
        assert (after <= 0.75 * before + 2 * per_query + 1e-3).all()
        assert (after > 0.5 * before).all()
        extend(applied, state, ids[:, CONTEXT + 2 : CONTEXT + 12], step=10)
        assert (layer.scores.sum(-1) <= 8 * per_query + 1e-3).all()


def test_small_budgets_and_windows():
    scores = torch.rand(1, 2, 40, generator=torch.Generator().manual_seed(0))
    for count in (1, 2, 3, 39):
        view = LayerView(
            stored=40, seen=40, layer_idx=0, seed=0, batch=1, heads=2, device=torch.device("cpu"), scores=scores
        )
        for policy in (ObservationWindow(budget=count, sinks=4), LastQuery(budget=count, sinks=4)):
            keep = policy.keep(view)
            assert keep.shape == (1, 2, count)
            assert (keep[..., -1] == 39).all()
            assert (keep.diff(dim=-1) > 0).all()


def test_an_even_pool_would_move_scores(model):
    with pytest.raises(ContractError, match="pool=4 must be odd"):
        apply_stack(model, stack(("snapkv", {"kv_budget": 0.5, "pool": 4})))
