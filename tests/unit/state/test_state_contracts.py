"""Contracts of cache, prefix cache and decoder: what is refused, and in which words."""

import pytest
import torch

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.state.cache_contract import OPERATIONS, make_cache_contract
from pytest_attnaccept.state.decoder_contract import make_decoder_contract, plan_for
from pytest_attnaccept.state.prefix_oracle import make_prefix_contract

CACHE = {"q_heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 4, "dtype": "float32", "capacity_tokens": 64}


def test_cache_defaults_and_names():
    contract = make_cache_contract(**CACHE)
    assert contract.dtype is torch.float32
    assert contract.window is None
    assert contract.sink_tokens == 0
    assert contract.operations == OPERATIONS
    assert contract.capacity_pages == 16
    assert make_cache_contract(**contract.keywords()) == contract


def test_cache_keywords_survive_a_round_trip():
    contract = make_cache_contract(**CACHE, window=8, sink_tokens=2, operations=("fork",))
    assert make_cache_contract(**contract.keywords()) == contract


@pytest.mark.parametrize("name", sorted(CACHE))
def test_cache_names_what_is_missing(name):
    with pytest.raises(ContractError, match=f"missing.*{name}"):
        make_cache_contract(**{key: value for key, value in CACHE.items() if key != name})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_heads": 3}, "multiple"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": True}, "page_size"),
        ({"page_size": 4.0}, "page_size"),
        ({"dtype": "int8"}, "dtype"),
        ({"dtype": "float8"}, "dtype"),
        ({"window": 0}, "window"),
        ({"sink_tokens": 4}, "needs a window"),
        ({"sink_tokens": -1, "window": 8}, "sink_tokens"),
        ({"capacity_tokens": 3}, "less than one page"),
        ({"operations": "fork"}, "operations"),
        ({"operations": ("forks",)}, "Did you mean 'fork'"),
        ({"operations": ("fork", "fork")}, "twice"),
        ({"pagesize": 4}, "Did you mean 'page_size'"),
    ],
)
def test_cache_refuses(change, words):
    with pytest.raises(ContractError, match=words):
        make_cache_contract(**{**CACHE, **change})


def test_prefix_defaults():
    contract = make_prefix_contract()
    assert (contract.kv_heads, contract.head_dim, contract.block_size) == (2, 16, 1)
    assert contract.identity_keys == ("adapter", "image", "tenant")
    assert make_prefix_contract(**contract.keywords()) == contract


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_size": 0}, "block_size"),
        ({"identity_keys": "adapter"}, "identity_keys"),
        ({"identity_keys": ("a", "a")}, "twice"),
        ({"kv_heads": 1, "head_dim": 1}, "at least 4"),
        ({"blocksize": 2}, "Did you mean 'block_size'"),
    ],
)
def test_prefix_refuses(change, words):
    with pytest.raises(ContractError, match=words):
        make_prefix_contract(**change)


def test_decoder_takes_lists_and_tensors():
    contract = make_decoder_contract(
        vocab_size=8, prompts=[[1, 2], torch.tensor([3])], temperatures=[0, 1], sampling={"top_k": 4}
    )
    assert contract.prompts == ((1, 2), (3,))
    assert contract.temperatures == (0.0, 1.0)
    assert contract.sampled == (1.0,)
    assert contract.sampling == (("top_k", 4),)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": 1}, "vocab_size"),
        ({"temperatures": ()}, "empty"),
        ({"temperatures": (-1.0,)}, "at least 0"),
        ({"temperatures": (float("nan"),)}, "finite"),
        ({"temperatures": (True,)}, "finite"),
        ({"prompts": []}, "prompts"),
        ({"prompts": [[]]}, "non-empty"),
        ({"prompts": [[8]]}, "token"),
        ({"sampling": {"topk": 4}}, "Did you mean 'top_k'"),
        ({"sampling": {"top_k": 0}}, "top_k"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"sampling": [4]}, "dict"),
        ({"vocab": 8}, "Did you mean 'vocab_size'"),
    ],
)
def test_decoder_refuses(change, words):
    with pytest.raises(ContractError, match=words):
        make_decoder_contract(**{"vocab_size": 8, **change})


def test_smoke_spends_less():
    assert plan_for("smoke").draws < plan_for("longctx").draws == plan_for("release").draws
