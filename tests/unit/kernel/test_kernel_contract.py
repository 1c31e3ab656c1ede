"""The contract refuses what cannot be, and combines lists without losing a value."""

import subprocess
import sys

import pytest

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.kernel.contract import make_contract


def test_defaults():
    contract = make_contract()
    (variant,) = contract.variants()
    assert contract.dtype == "bfloat16"
    assert (variant.q_heads, variant.kv_heads, variant.head_dim, variant.v_head_dim) == (8, 2, 64, 64)
    assert contract.alignment == "bottom_right"
    assert not contract.has_lengths


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"windw": 4}, "Did you mean 'window'"),
        ({"window": 4, "causal": False}, "needs causal=True"),
        ({"q_heads": 6, "kv_heads": 4}, "multiple of kv_heads"),
        ({"q_heads": [8, 6], "kv_heads": [4, 2, 5]}, "fits no other"),
        ({"dtype": "int8"}, "Allowed: bfloat16"),
        ({"sinks": "float32"}, "the gate chooses"),
        ({"kv_dtype": "float16"}, "only float8_e4m3fn may differ"),
        ({"backward": True, "page_size": 16}, "no gradient"),
        ({"lse_base": "2"}, "without returns_lse"),
        ({"q_lens": (5, 2)}, "1 <= low <= high"),
        ({"q_lens": "prefill"}, "Allowed: any, decode, square"),
        ({"page_size": [None, 16]}, "mixes None"),
        ({"softcap": 0}, "above 0"),
        ({"head_dim": True}, "whole number"),
        ({"head_dim": []}, "names no value"),
        ({"scale": float("nan")}, "finite number"),
        ({"alignment": "top_left", "page_size": 16}, "bottom_right"),
        ({"alignment": "top_left", "q_lens": "decode"}, "sees only key 0"),
        ({"max_length": 4, "multiple_of": 16}, "no length is left"),
        ({"q_heads": [8, 8]}, "twice"),
    ],
)
def test_impossible_contracts_are_refused_with_a_reason(keywords, text):
    with pytest.raises(ContractError, match=text):
        make_contract(**keywords)


def test_every_pair_of_listed_values_is_combined():
    contract = make_contract(
        q_heads=[8, 10], kv_heads=[1, 2], window=[None, 64], head_dim=[64, 80], softcap=[None, 20.0]
    )
    variants = contract.variants()
    pairs = {(v.window, v.head_dim) for v in variants}
    assert pairs == {(None, 64), (None, 80), (64, 64), (64, 80)}
    assert {(v.softcap, v.q_heads) for v in variants} == {(None, 8), (None, 10), (20.0, 8), (20.0, 10)}
    assert variants[0].window is None
    assert len(variants) < 16


def test_dtypes_by_name_and_by_object():
    import torch

    assert make_contract(dtype=torch.float16) == make_contract(dtype=torch.float16)
    assert make_contract(dtype=torch.float16).dtype == make_contract(dtype="fp16").dtype == "float16"
    assert make_contract(kv_dtype=torch.float8_e4m3fn).stored_dtype == "float8_e4m3fn"
    assert make_contract(kv_dtype="bfloat16").kv_dtype is None


def test_lengths_stay_inside_the_contract():
    contract = make_contract(multiple_of=16)
    assert contract.fit_kv(1000) == 992
    assert contract.fit_kv(0) == 0
    assert contract.fit_q(17, 992) == 32
    assert make_contract(q_lens=(2, 5)).fit_q(64, 992) == 5
    assert make_contract(q_lens="square").fit_q(64, 300) == 300


def test_importing_contract_and_call_needs_no_torch():
    code = "import sys; import pytest_attnaccept.kernel.contract, pytest_attnaccept.kernel.call; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
