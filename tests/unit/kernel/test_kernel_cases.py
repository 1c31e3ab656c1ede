"""Cases stay inside the contract and are rebuilt from their spec alone."""

import pytest
import torch

from pytest_attnaccept.kernel.cases import LAYOUTS, CaseSpec, build_case
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.families import FAMILIES, applies
from pytest_attnaccept.kernel.plans import LONGEST_CALLS, Planner
from pytest_attnaccept.kernel.poison import same_layout
from pytest_attnaccept.kernel.shapes import boundary_shapes


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families_are_finite_and_repeatable(family):
    contract = make_contract(softcap=20.0 if family == "cap" else None, dtype="float16")
    assert applies(family, contract, contract.variants()[0])
    spec = CaseSpec(family=family, batch=2, q_len=3, kv_len=50, seed=9)
    one, two = build_case(contract, spec, "cpu"), build_case(contract, spec, "cpu")
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(one.call, name), getattr(two.call, name))
        assert torch.isfinite(getattr(one.call, name)).all()


def test_layouts_hold_the_same_numbers_with_other_strides():
    contract = make_contract()
    base = None
    strides = set()
    for layout in LAYOUTS:
        case = build_case(contract, CaseSpec(batch=2, q_len=3, kv_len=10, layout=layout, seed=1), "cpu")
        assert case.call.k.stride(-1) == 1
        strides.add(case.call.k.stride())
        assert same_layout(case.call.k).stride() == case.call.k.stride()
        base = base or case
        assert case.call.k.shape == base.call.k.shape
    assert len(strides) >= 3


def test_paged_cases_name_no_nan_page_and_poison_the_rest():
    contract = make_contract(page_size=4)
    call = build_case(contract, CaseSpec(batch=3, q_len=2, kv_len=30, seed=2), "cpu").call
    named = set(call.block_table.flatten().tolist())
    assert min(named) >= 0
    assert torch.isfinite(call.k[sorted(named)].float()).all()
    others = [page for page in range(call.k.shape[0]) if page not in named]
    assert others
    assert torch.isnan(call.k[others].float()).all()
    for row, length in enumerate(call.kv_lengths.tolist()):
        pages = call.block_table[row, : -(-length // 4)].tolist()
        assert len(set(pages)) == len(pages)


def test_fp8_scales_differ_and_are_not_one():
    contract = make_contract(kv_dtype="float8_e4m3fn")
    calls = [build_case(contract, CaseSpec(batch=1, q_len=2, kv_len=9, seed=seed), "cpu").call for seed in range(6)]
    assert all(call.k_scale != call.v_scale and 1.0 not in (call.k_scale, call.v_scale) for call in calls)
    assert len({(call.k_scale, call.v_scale) for call in calls}) > 1


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"q_lens": "square"},
        {"q_lens": "decode"},
        {"q_lens": (2, 16)},
        {"q_lens": (300, 4000)},
        {"q_heads": [2, 4, 6, 8], "head_dim": [16, 32, 48], "kv_heads": [1, 2]},
        {"multiple_of": 16, "ragged": True},
        {"alignment": "top_left"},
        {"strides": "contiguous", "window": [None, 50], "page_size": [16, 32]},
    ],
    ids=str,
)
def test_every_planned_case_is_inside_the_contract(keywords):
    contract = make_contract(**keywords)
    plan = Planner(contract, 131072, 0, cpu=True)
    specs = plan.value() + plan.inputs() + plan.mass() + plan.long() + boundary_shapes(plan)
    assert sum(spec.kv_len == 131072 for spec in plan.long()) <= LONGEST_CALLS
    for spec in specs:
        assert spec.kv_len % contract.multiple_of == 0
        assert 0 <= spec.kv_len <= 131072
        assert 1 <= spec.batch <= 4
        assert spec.kv_len <= 16384 or spec.q_len * spec.kv_len < 2**23
        if contract.q_lens == "square":
            assert spec.q_len == spec.kv_len
        elif contract.q_lens == "decode":
            assert spec.q_len == 1
        elif isinstance(contract.q_lens, tuple):
            assert contract.q_lens[0] <= spec.q_len <= contract.q_lens[1]
        if contract.strides == "contiguous":
            assert spec.layout == "contiguous"


@pytest.mark.parametrize("keywords", [{}, {"page_size": 16}, {"causal": False}], ids=str)
def test_large_shapes_meet_every_pair_of_large_sizes(keywords):
    plan = Planner(make_contract(**keywords), 8192, 5, cpu=True)
    cases = [spec for spec in boundary_shapes(plan) if spec.kv_len > 513]
    queries, keys = (0, 1, 16, 128, 300, 2**30), (513, 1025, 2049, 4097, 8192)

    def place(value, edges):
        return sum(value > edge for edge in edges)

    pairs = {(place(spec.q_len, queries), place(spec.kv_len, keys)) for spec in cases}
    assert {(q, kv) for q in range(1, 6) for kv in range(1, 5)} <= pairs
    assert {(spec.layout, place(spec.kv_len, keys)) for spec in cases} >= {
        (name, kv) for name in plan.layouts() for kv in range(1, 5)
    }
    assert any(spec.batch > 1 and spec.q_len == 1 and spec.kv_len == 8192 for spec in cases)
    assert max(spec.q_len for spec in cases) >= 2040
    assert all(spec.q_len * spec.kv_len < 2**22 for spec in cases)


def test_what_has_no_call_at_the_longest_length_is_said():
    contract = make_contract(q_heads=[2, 4, 6, 8], kv_heads=[1, 2], head_dim=[16, 32, 48, 64], window=[None, 100])
    assert len(contract.variants()) > 12
    long, short = (Planner(contract, top, 0, cpu=True) for top in (131072, 8192))
    reached = {spec.variant for spec in long.long() if spec.kv_len == 131072}
    assert reached | set(long.left_out()) == set(range(len(contract.variants())))
    assert long.left_out()
    assert {spec.variant for spec in long.long() if spec.kv_len == 16384} == set(long.left_out())
    assert not short.left_out()
    for variant in range(len(contract.variants())):
        lengths = {(spec.q_len, spec.kv_len) for spec in short.long() if spec.variant == variant}
        assert lengths >= {(1, 8192), (16, 8192)}


def test_shapes_meet_every_pair_of_batch_and_q_len_and_degenerate_cases():
    plan = Planner(make_contract(), 8192, 0, cpu=True)
    specs = boundary_shapes(plan)
    pairs = {(spec.batch, spec.q_len) for spec in specs}
    assert all((batch, q_len) in pairs for batch in (1, 2, 3, 4) for q_len in (1, 2, 9, 16, 17))
    assert any(spec.kv_len == 0 and spec.q_len for spec in specs)
    assert any(spec.q_len == 0 for spec in specs)
    assert any(0 < spec.kv_len < spec.q_len for spec in specs)
    assert {(spec.layout, spec.q_len) for spec in specs} >= {(layout, 1) for layout in LAYOUTS}
