"""The float64 reference: against a loop over rows, against torch, and the bound against real rounding."""

import math

import numpy as np
import pytest
import torch

from pytest_attnaccept.state.cache_contract import make_cache_contract
from pytest_attnaccept.state.cache_reference import Bank, View, aimed_queries, attend64


def contract(**change):
    keywords = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "page_size": 4, "dtype": "float32", "capacity_tokens": 64}
    return make_cache_contract(**{**keywords, **change})


def by_hand(queries, keys, values, window, sinks):
    heads, count, dim = queries.shape
    length = keys.shape[1]
    out = torch.zeros(heads, count, dim, dtype=torch.float64)
    for head in range(heads):
        group = head // (heads // keys.shape[0])
        for row in range(count):
            place = length - count + row
            seen = [k for k in range(place + 1) if window is None or k > place - window or k < sinks]
            scores = [float(queries[head, row].double() @ keys[group, k].double()) / math.sqrt(dim) for k in seen]
            weights = [math.exp(score - max(scores)) for score in scores]
            for k, weight in zip(seen, weights, strict=True):
                out[head, row] += weight / sum(weights) * values[group, k].double()
    return out


@pytest.mark.parametrize(("window", "sinks"), [(None, 0), (3, 0), (3, 2), (1, 0), (20, 1)])
@pytest.mark.parametrize("count", [1, 4])
def test_reference_equals_a_loop_over_rows(window, sinks, count):
    generator = torch.Generator().manual_seed(count)
    queries = torch.randn(4, count, 8, generator=generator)
    keys, values = (torch.randn(2, 9, 8, generator=generator) for _ in range(2))
    got = attend64(queries, keys, values, View(window=window, sinks=sinks), torch.float32)
    torch.testing.assert_close(got.out, by_hand(queries, keys, values, window, sinks), rtol=1e-12, atol=1e-12)


def test_an_empty_list_gives_zeros():
    got = attend64(
        torch.ones(4, 1, 8), torch.ones(2, 0, 8), torch.ones(2, 0, 8), View(window=None, sinks=0), torch.float32
    )
    assert not got.out.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 7, 64, 700])
def test_rounding_of_correct_kernels_stays_within_half_of_the_bound(dtype, length):
    facts = contract(dtype=dtype)
    worst = 0.0
    for seed in range(20):
        bank = Bank(facts, seed)
        bank.loud.update(range(0, length, 11) if seed % 2 else ())
        keys, values = bank.rows(range(length))
        count = min(length, 3)
        queries = aimed_queries(bank, list(range(length)), [9999], count, np.random.default_rng(seed))
        want = attend64(queries, keys, values, View(window=None, sinks=0), dtype)
        mask = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        out = torch.nn.functional.scaled_dot_product_attention(
            queries[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
        )[0]
        scores = (queries @ keys.repeat_interleave(2, 0).transpose(-1, -2)) * 8**-0.5
        eager = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values.repeat_interleave(2, 0)
        for got in (out, eager):
            worst = max(worst, float(((got.double() - want.out).abs() / want.bound).max()))
    assert worst < 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_replaced_token_is_far_outside_the_bound(dtype):
    facts = contract(dtype=dtype)
    seen = 0
    for seed in range(20):
        bank = Bank(facts, seed)
        tokens = list(range(30))
        queries = aimed_queries(bank, tokens, [], 1, np.random.default_rng(seed))
        want = attend64(queries, *bank.rows(tokens), View(window=None, sinks=0), dtype)
        other = attend64(queries, *bank.rows([*tokens[:-1], 77]), View(window=None, sinks=0), dtype)
        seen += bool(((other.out - want.out).abs() > 2 * want.bound).any())
    assert seen >= 18


def test_bank_is_the_same_for_the_same_seed_and_loud_tokens_are_larger():
    one, two, other = Bank(contract(), 1), Bank(contract(), 1), Bank(contract(), 2)
    assert torch.equal(one.rows([5])[0], two.rows([5])[0])
    assert not torch.equal(one.rows([5])[0], other.rows([5])[0])
    two.loud.add(5)
    assert torch.equal(two.rows([5])[0], 6 * one.rows([5])[0])


def test_one_head_is_aimed_too():
    facts = contract(q_heads=1, kv_heads=1)
    bank = Bank(facts, 0)
    tokens = list(range(12))
    largest = []
    for seed in range(8):
        queries = aimed_queries(bank, tokens, [], 1, np.random.default_rng(seed))
        largest.append(float((queries @ bank.rows(tokens)[0].transpose(-1, -2) * 8**-0.5).softmax(-1).max()))
    assert min(largest) > 0.3
