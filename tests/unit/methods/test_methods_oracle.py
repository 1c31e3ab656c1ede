"""Evicted and coded caches against oracles that use no cache: one forward pass with the evicted columns masked."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.engines.sides import side_of
from pytest_attnaccept.engines.through_cache import Pattern, extend, parse_pattern, prefill, teacher_forced
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.attention import column_sums
from pytest_attnaccept.methods.eviction import HeavyHitters, LayerView, RandomKeep, SinksAndRecent
from pytest_attnaccept.methods.stack import apply_stack, identity_stack, stack_claim
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()
CONTEXT, CONTINUATION = 48, 12
# Cached against uncached float32 logits of this model differ by at most 2e-5 at logits up to 6.
CLOSE = 1e-4


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, 100, (2, CONTEXT + CONTINUATION), generator=torch.Generator().manual_seed(1))


def side(model, around):
    return side_of("candidate", LoadedModel(model=model, tokenizer=None, trained_length=64, spec="tiny"), around)


def run(model, members, ids, pattern="one-shot", step=CONTINUATION):
    applied = side(model, apply_stack(model, stack(*members)).candidate)
    with applied.running():
        state = prefill(applied, ids[:, :CONTEXT], parse_pattern(pattern, step))
        kept = [layer.stored_entries() for layer in state.cache.layers]
        return extend(applied, state, ids[:, CONTEXT:]), kept, state


def masked_reference(model, ids, dropped):
    """Logits of the continuation when rows from CONTEXT on do not see the `dropped` columns."""
    length = ids.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[CONTEXT:, dropped] = False
    with torch.no_grad():
        return model(ids, attention_mask=mask[None, None].expand(ids.shape[0], 1, -1, -1)).logits[:, CONTEXT:]


def test_streaming_equals_the_masked_forward_pass(model, ids):
    logits, kept, _ = run(model, [("streaming_llm", {"kv_budget": 24, "sinks": 4, "positions": "text"})], ids)
    assert kept == [24, 24, 24]
    expected = masked_reference(model, ids, list(range(4, CONTEXT - 20)))
    assert (logits - expected).abs().max() < CLOSE


def test_positions_stay_those_of_the_text(model, ids):
    """The same eviction with positions that count from the shortened length is far away: the oracle sees positions."""
    expected = masked_reference(model, ids, list(range(4, CONTEXT - 20)))
    shifted = side(
        model, apply_stack(model, stack(("streaming_llm", {"kv_budget": 24, "positions": "text"}))).candidate
    )
    with shifted.running():
        state = prefill(shifted, ids[:, :CONTEXT], parse_pattern("one-shot", CONTINUATION))
        state.seen = 24
        wrong = extend(shifted, state, ids[:, CONTEXT:])
    assert (wrong - expected).abs().max() > 0.5


@pytest.mark.parametrize("pattern", ["one-shot", "chunk-7", "token"])
def test_sliding_window_equals_the_banded_forward_pass_in_every_pattern(model, ids, pattern):
    window, length = 10, CONTEXT + CONTINUATION
    mask = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask[None, None].expand(2, 1, -1, -1)).logits[:, CONTEXT:]
    logits, kept, _ = run(model, [("sliding_window", {"window": window})], ids, pattern, 5)
    assert kept == [window - 1] * 3
    assert (logits - expected).abs().max() < CLOSE


def test_h2o_keeps_what_eager_attention_says(model, ids):
    """Keep sets recomputed from the attention weights of a plain eager forward, then the masked per-head oracle."""
    _, _, state = run(model, [("h2o", {"kv_budget": 24, "sinks": 2})], ids[:, : CONTEXT + 1], step=1)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        weights = model(ids[:, :CONTEXT], output_attentions=True).attentions
        model.set_attn_implementation("sdpa")
    policy = HeavyHitters(budget=24, sinks=2)
    for number, layer in enumerate(state.cache.layers):
        scores = weights[number].sum(dim=2).reshape(2, 2, 2, CONTEXT).sum(dim=2)
        view = LayerView(
            stored=CONTEXT,
            seen=CONTEXT,
            layer_idx=number,
            seed=0,
            batch=2,
            heads=2,
            device=scores.device,
            scores=scores,
        )
        keep = policy.keep(view)
        plain = side(model, Candidate(model))
        with plain.running():
            full = prefill(plain, ids[:, :CONTEXT], Pattern(name="one-shot", prefill=None, step=1)).cache.layers[number]
        expected = full.keys.gather(2, keep[..., None].expand(-1, -1, -1, full.keys.shape[-1]))
        # One further token was fed, so one more eviction happened: all but one of the kept entries are still there.
        stored = layer.key_store.read()
        found = torch.cdist(expected, stored).amin(dim=-1) < 1e-5
        assert found.sum(dim=-1).min() >= 22


def test_column_sums_equal_the_softmax(model):
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(1, 4, 300, 16, generator=generator)
    key = torch.randn(1, 2, 310, 16, generator=generator)
    mask = torch.ones(300, 310, dtype=torch.bool).tril(10)
    weights = (query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.25).masked_fill(~mask, -torch.inf).softmax(-1)
    assert torch.allclose(column_sums(query, key, None, 0.25), weights.sum(2), atol=1e-4)
    assert torch.allclose(column_sums(query, key, mask[None, None], 0.25), weights.sum(2), atol=1e-4)
    additive = torch.zeros(1, 1, 300, 310).masked_fill(~mask, torch.finfo(torch.float32).min)
    assert torch.allclose(column_sums(query, key, additive, 0.25), weights.sum(2), atol=1e-4)


@pytest.mark.parametrize("pattern", ["chunk-5", "token"])
@pytest.mark.parametrize("name", ["kv8", "kv4", "kv2"])
def test_token_codes_do_not_depend_on_the_call_pattern(model, ids, name, pattern):
    one, _, first = run(model, [(name, {})], ids)
    other, _, second = run(model, [(name, {})], ids, pattern, 3)
    for left, right in zip(first.cache.layers, second.cache.layers, strict=True):
        same = left.key_store.coded.codes == right.key_store.coded.codes
        assert same.float().mean() > 0.998  # a value on the edge of two codes may fall to either side by rounding
    assert (one - other).abs().mean() < 1e-3


def test_codes_are_what_attention_reads_in_the_prefill_too(model, ids):
    """Unlike transformers' QuantizedCache, a prefill in one call already shows the loss."""
    coded = side(model, apply_stack(model, stack(("kv4", {}))).candidate)
    with coded.running():
        first = prefill(coded, ids, parse_pattern("one-shot", 1)).last
    with torch.no_grad():
        plain = model(ids).logits[:, -1]
    assert (first - plain).abs().max() > 0.05


def test_residual_tokens_stay_in_full_precision(model, ids):
    _, _, state = run(model, [("kv4", {"residual": 16})], ids)
    store = state.cache.layers[0].key_store
    assert (store.coded.tokens, store.tail.shape[2]) == (CONTEXT + CONTINUATION - 16, 16)


@pytest.mark.parametrize(
    "members",
    [
        [("h2o", {"kv_budget": 0.5})],
        [("kv4", {})],
        [("h2o", {"kv_budget": 0.5}), ("kv8", {})],
        [("sliding_window", {"window": 8})],
    ],
)
def test_identity_setting_is_bitwise_the_baseline(model, ids, members):
    still = side(model, identity_stack(model, stack(*members)).candidate)
    plain = side(model, Candidate(model))
    pattern = parse_pattern("chunk-16", 4)
    results = []
    for each in (still, plain):
        with each.running():
            results.append(teacher_forced(each, ids, CONTEXT, pattern))
    assert torch.equal(*results)


def test_an_eviction_inside_the_residual_codes_it_once(model, ids):
    logits, kept, state = run(model, [("random_eviction", {"kv_budget": 0.25}), ("kv8", {"residual": 40})], ids)
    assert kept == [12, 12, 12]
    assert torch.isfinite(logits).all()
    assert state.cache.layers[0].key_store.tokens == state.cache.layers[0].value_store.tokens == 15


def test_random_choices_differ_by_text_and_layer_and_repeat(model, ids):
    _, _, first = run(model, [("random_eviction", {"kv_budget": 0.25})], ids)
    _, _, again = run(model, [("random_eviction", {"kv_budget": 0.25})], ids)
    alone, _, _ = run(model, [("random_eviction", {"kv_budget": 0.25})], ids[1:])
    both, _, _ = run(model, [("random_eviction", {"kv_budget": 0.25})], ids)
    assert torch.equal(first.cache.layers[0].key_store.tail, again.cache.layers[0].key_store.tail)
    assert (both[1:] - alone).abs().max() < CLOSE  # a row does not depend on its batch
    policy = RandomKeep(budget=8, sinks=2)
    sets = [
        tuple(policy.keep(LayerView(
            stored=40, seen=40, layer_idx=layer, seed=seed, batch=1, heads=1, device=torch.device("cpu"), streams=(text,),
        )).flatten().tolist())
        for layer, seed, text in ((0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6))
    ]  # fmt: skip
    assert len(set(sets)) == 4


def test_sinks_never_exceed_the_budget():
    view = LayerView(stored=10, seen=10, layer_idx=0, seed=0, batch=1, heads=1, device=torch.device("cpu"))
    assert SinksAndRecent(budget=2, sinks=4).keep(view).tolist() == [0, 9]
    assert SinksAndRecent(budget=1, sinks=4).keep(view).tolist() == [9]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("h2o", {"kv_budget": 0.5}), ("streaming_llm", {"kv_budget": 0.5})], "two evictions"),
        ([("kv8", {}), ("kv4", {})], "two KV quantizations"),
        ([("linear_attention", {})], "pass the changed model"),
    ],
)
def test_stacks_that_make_no_sense_are_refused(model, members, words):
    with pytest.raises(ContractError, match=words):
        apply_stack(model, stack(*members))


def test_channel_groups_refuse_an_eviction(model, ids):
    with pytest.raises(ContractError, match="axis='token'"):
        run(model, [("h2o", {"kv_budget": 0.5}), ("kv4", {"axis": "channel"})], ids)


def test_a_group_that_does_not_divide_the_head_is_refused(model, ids):
    with pytest.raises(ContractError, match="group_size=12 does not divide the head dimension 16"):
        run(model, [("kv4", {"group_size": 12})], ids)


def test_claims_of_a_stack_take_the_smaller_promise():
    claim = stack_claim(stack(("h2o", {"kv_budget": 0.5}), ("kv8", {"residual": 4})))
    assert (claim.entries(100), claim.entries(100, 8), claim.bits, claim.full_precision) == (50, 58, 8.0, 4)
