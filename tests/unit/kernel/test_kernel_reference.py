"""The streamed reference equals a brute-force loop that is written down independently."""

import math

import pytest
import torch

from pytest_attnaccept.kernel import reference
from pytest_attnaccept.kernel.cases import CaseSpec, build_case, row_sample
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.precision import precision_of
from pytest_attnaccept.kernel.reference import reference_rows, semantics_of


def brute(case, batch, head, row):
    """One row of attention by the words of the contract, in python floats."""
    call, contract = case.call, case.contract
    length = int(call.kv_lengths[batch]) if call.kv_lengths is not None else call.k.shape[2]
    position = row + (length - call.q.shape[2] if contract.alignment == "bottom_right" else 0)
    group = case.variant.group
    logits, values = [], []
    for key in range(length):
        if call.causal and key > position:
            continue
        if call.causal and call.window is not None and position - key >= call.window:
            continue
        if call.block_table is not None:
            size = call.k.shape[1]
            page = int(call.block_table[batch, key // size])
            k, v = call.k[page, key % size, head // group], call.v[page, key % size, head // group]
        else:
            k, v = call.k[batch, head // group, key], call.v[batch, head // group, key]
        k = k.double() * (call.k_scale or 1.0)
        v = v.double() * (call.v_scale or 1.0)
        s = float(call.q[batch, head, row].double() @ k) * call.scale
        if call.softcap is not None:
            s = call.softcap * math.tanh(s / call.softcap)
        if call.alibi_slopes is not None:
            s -= float(call.alibi_slopes[head]) * abs(key - position)
        logits.append(s)
        values.append(v)
    if call.sinks is not None:
        logits.append(float(call.sinks[head]))
        values.append(torch.zeros(case.variant.v_head_dim, dtype=torch.float64))
    if not logits:
        return torch.zeros(case.variant.v_head_dim, dtype=torch.float64), -math.inf
    s = torch.tensor(logits, dtype=torch.float64)
    return torch.softmax(s, 0) @ torch.stack(values), float(torch.logsumexp(s, 0))


CONTRACTS = [
    {},
    {"causal": False, "v_head_dim": 24, "head_dim": 40},
    {"alignment": "top_left", "window": 7},
    {"window": 9, "sinks": True, "ragged": True},
    {"softcap": 3.0, "alibi": True, "q_heads": 10},
    {"page_size": 4, "kv_dtype": "float8_e4m3fn", "alibi": True, "sinks": True},
    {"ragged": True, "masked_read": "never"},
    {"page_size": 16, "masked_read": "never", "strides": "any"},
    {"kv_dtype": "float8_e4m3fn", "kv_heads": 1},
    {"scale": 0.7, "dtype": "float16"},
]


@pytest.mark.parametrize("keywords", CONTRACTS, ids=str)
@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 30), (9, 4), (1, 17), (3, 0)])
def test_reference_equals_brute_force(keywords, q_len, kv_len, monkeypatch):
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 64 * 3 * 8 * 5)  # several blocks even at these sizes
    contract = make_contract(**keywords)
    case = build_case(
        contract, CaseSpec(family="diffuse", batch=3, q_len=q_len, kv_len=kv_len, layout="fused", seed=3), "cpu"
    )
    index = row_sample(case, 64)
    rows = reference_rows(case.call, semantics_of(case.call, contract.alignment), index, precision_of(contract))
    for batch, head, row in [(0, 0, 0), (1, 3, q_len - 1), (2, case.variant.q_heads - 1, q_len // 2)]:
        out, lse = brute(case, batch, head, row)
        assert torch.allclose(rows.out[batch, head, row], out, rtol=1e-12, atol=1e-13)
        assert float(rows.lse[batch, head, row]) == pytest.approx(lse, abs=1e-11)


def test_memory_stays_flat(monkeypatch):
    """No block holds more than the block budget, whatever the length."""
    contract = make_contract(head_dim=16, q_heads=2, kv_heads=1)
    case = build_case(contract, CaseSpec(batch=1, q_len=16, kv_len=50000, seed=1), "cpu")
    sizes = [
        block.s.numel()
        for block in reference.blocks(case.call, semantics_of(case.call, "bottom_right"), row_sample(case, 16))
    ]
    assert max(sizes) <= reference._BLOCK_ELEMENTS
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 2**14)
    sizes = [
        block.s.numel()
        for block in reference.blocks(case.call, semantics_of(case.call, "bottom_right"), row_sample(case, 16))
    ]
    assert max(sizes) <= 2**14


def test_a_window_skips_the_blocks_that_nobody_sees():
    contract = make_contract(head_dim=16, q_heads=2, kv_heads=1, window=100)
    case = build_case(contract, CaseSpec(batch=1, q_len=8, kv_len=20000, seed=1), "cpu")
    keys = [
        block.s.shape[-1]
        for block in reference.blocks(case.call, semantics_of(case.call, "bottom_right"), row_sample(case, 16))
    ]
    assert sum(keys) == 107


def test_rows_are_first_last_edges_and_random():
    contract = make_contract(window=100, page_size=16)
    case = build_case(contract, CaseSpec(batch=1, q_len=700, kv_len=700, seed=1), "cpu")
    rows = row_sample(case, 64).tolist()
    assert len(rows) == 64
    assert {0, 1, 698, 699, 127, 128, 63, 64, 15, 16, 99, 100, 101} <= set(rows)
    assert rows == row_sample(case, 64).tolist()
