"""Codes: packing loses nothing, the grid bounds the error, and bad values stay visible."""

from __future__ import annotations

import pytest
import torch

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.claims import budget_entries, claim_of, combine, default_group
from pytest_attnaccept.methods.codec import Codec, decode, encode, pack, unpack
from pytest_attnaccept.methods.store import Store


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing_is_lossless(bits):
    codes = torch.randint(0, 2**bits, (2, 3, 5, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape[-1] == 16 * bits // 8
    assert torch.equal(unpack(packed, bits), codes)


def test_packing_refuses_half_bytes():
    with pytest.raises(ContractError, match="whole bytes"):
        pack(torch.zeros(1, 3, dtype=torch.uint8), 4)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_error_is_at_most_half_a_step(bits, across):
    x = torch.randn(1, 2, 64, 32, generator=torch.Generator().manual_seed(1))
    codec = Codec(bits=bits, group_size=16)
    back = decode(encode(x, codec, across_tokens=across), codec, x.dtype, across_tokens=across)
    groups = x.reshape(1, 2, 4, 16, 32) if across else x.reshape(1, 2, 64, 2, 16)
    axis = 3 if across else 4
    step = (groups.amax(axis, keepdim=True) - groups.amin(axis, keepdim=True)) / (2**bits - 1)
    # Half a step, and what float16 rounding of scale (times the code) and lower bound adds.
    limit = 0.5 * step + groups.abs().amax(axis, keepdim=True) * 2e-3
    assert ((back - x).reshape(groups.shape).abs() <= limit).all()


def test_constant_groups_and_zeros_are_exact():
    codec = Codec(bits=4)
    x = torch.full((1, 1, 3, 32), 0.5)
    assert torch.equal(decode(encode(x, codec, across_tokens=False), codec, x.dtype, across_tokens=False), x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_values_stay_visible(bad):
    codec = Codec(bits=8)
    x = torch.zeros(1, 1, 2, 32)
    x[0, 0, 1, 3] = bad
    back = decode(encode(x, codec, across_tokens=False), codec, x.dtype, across_tokens=False)
    assert torch.isfinite(back[0, 0, 0]).all()
    assert not torch.isfinite(back[0, 0, 1]).all()


def test_codes_never_change_once_written():
    """transformers' QuantizedCache quantizes everything again at each flush; here old codes are final."""
    generator = torch.Generator().manual_seed(2)
    store = Store(codec=Codec(bits=2))
    store.append(torch.randn(1, 1, 8, 16, generator=generator))
    first = store.coded.codes.clone()
    for _ in range(5):
        store.append(torch.randn(1, 1, 8, 16, generator=generator) * 10)
    assert torch.equal(store.coded.codes[:, :, :8], first)


def test_channel_groups_wait_until_they_are_full():
    store = Store(codec=Codec(bits=4, group_size=8, axis="channel"), across_tokens=True)
    store.append(torch.randn(1, 1, 13, 16, generator=torch.Generator().manual_seed(3)))
    assert (store.coded.tokens, store.tail.shape[2], store.tokens) == (8, 5, 13)


def test_a_store_keeps_no_view_of_what_it_coded():
    store = Store(codec=Codec(bits=4, residual=2))
    store.append(torch.randn(1, 1, 100, 16))
    assert store.tail.untyped_storage().nbytes() == 2 * 16 * 4


@pytest.mark.parametrize(
    ("budget", "tokens", "kept"),
    [(0.25, 10, 3), (0.1, 30, 3), (1.0, 7, 7), (6, 10, 6), (6, 4, 4), (0.001, 5, 1)],
)
def test_budgets_are_rounded_up_and_stay_inside_the_text(budget, tokens, kept):
    assert budget_entries(budget, tokens) == kept


@pytest.mark.parametrize(
    ("dim", "wanted", "group"), [(64, 64, 64), (96, 64, 48), (32, 64, 32), (48, 32, 24), (7, 4, 1)]
)
def test_default_groups_divide_the_head(dim, wanted, group):
    assert default_group(dim, wanted) == group


@pytest.mark.parametrize(
    ("name", "knobs", "tokens", "missing"),
    [
        ("sliding_window", {"window": 4096}, 1000, 4096),
        ("sliding_window", {"window": 64}, 1000, 0),
        ("h2o", {"kv_budget": 2000}, 1000, 2000),
        ("h2o", {"kv_budget": 0.99}, 50, 100),
        ("h2o", {"kv_budget": 1.0}, 50, 0),
        ("kv4", {"residual": 128}, 100, 128),
        ("kv4", {"residual": 0}, 100, 0),
        ("w4a16", {}, 1, 0),
    ],
)
def test_a_claim_knows_the_context_it_needs(name, knobs, tokens, missing):
    assert claim_of(name, knobs).missing_tokens(tokens) == missing


def test_identity_knobs_promise_nothing():
    assert claim_of("h2o", {"kv_budget": 1.0}).is_identity
    assert not claim_of("w8a8", {}).is_identity
    assert not combine([claim_of("h2o", {"kv_budget": 1.0}), claim_of("kv8", {})]).is_identity


def test_bits_count_the_parameters_of_a_group_and_never_exceed_the_model():
    claim = claim_of("kv4", {"group_size": 64})
    assert claim.stored_bits(32) == 5.0
    assert claim_of("kv8", {"group_size": 4}).stored_bits(16) == 16.0
