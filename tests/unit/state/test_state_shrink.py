"""Shrinking: minimal on planted causes, never beyond its budget, and what it returns always breaks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_attnaccept.state.cache_contract import make_cache_contract
from pytest_attnaccept.state.programs import THEMES, edge_programs, random_program
from pytest_attnaccept.state.shrink import Shrinker, shrink_program
from pytest_attnaccept.state.token_model import Op, TokenModel


def halves(number):
    if number > 1:
        yield 1
        yield number // 2
        yield number - 1


def test_finds_the_two_steps_that_matter():
    def breaks(program):
        return program if {3, 7} <= {step // 10 for step in program} else None

    program = [10 * step for step in range(20)]
    assert sorted(Shrinker(breaks, lambda step: iter(())).shrink(program)) == [30, 70]


def test_makes_numbers_smaller():
    def breaks(program):
        return program if sum(program) >= 12 else None

    least = Shrinker(breaks, halves).shrink([40, 3, 2])
    assert sum(least) == 12
    assert len(least) == 1


def test_cuts_behind_the_failing_step():
    def breaks(program):
        return program[: program.index(5) + 1] if 5 in program else None

    assert Shrinker(breaks, lambda step: iter(())).shrink([1, 5, 2, 5, 3]) == [5]


def test_keeps_to_its_budget():
    runs = []

    def breaks(program):
        runs.append(len(program))
        return program if len(program) >= 60 else None

    Shrinker(breaks, halves, budget=1700).shrink(list(range(100, 200)))
    assert 1700 <= sum(runs) < 1700 + 100


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=25), st.sets(st.integers(1, 30), min_size=1, max_size=4))
def test_what_is_returned_breaks_and_is_no_longer(program, needed):
    def breaks(candidate):
        return candidate if needed <= set(candidate) else None

    program = program + sorted(needed)
    least = Shrinker(breaks, lambda step: iter(()), budget=2000).shrink(program)
    assert breaks(least) is not None
    assert sorted(least) == sorted(needed)


def test_sequences_are_numbered_in_order_of_appearance():
    def breaks(program):
        return program if any(op.name == "attend" for op in program) else None

    program = [Op("append", 16, 2), Op("fork", 16, 19), Op("attend", 19, 1)]
    assert shrink_program(program, breaks) == [Op("attend", 0, 0)]


CONTRACTS = [
    {"page_size": 4, "capacity_tokens": 64},
    {"page_size": 1, "capacity_tokens": 9},
    {"page_size": 16, "capacity_tokens": 1024, "window": 40, "sink_tokens": 4},
    {"page_size": 4, "capacity_tokens": 64, "operations": ()},
    {"page_size": 4, "capacity_tokens": 64, "operations": ("truncate",), "window": 9},
]


@pytest.mark.parametrize("theme", sorted(THEMES))
@pytest.mark.parametrize("change", CONTRACTS)
def test_programs_are_legal_and_seeded(theme, change):
    contract = make_cache_contract(q_heads=1, kv_heads=1, head_dim=4, dtype="float32", **change)
    attended = 0
    for index in range(25):
        program = random_program(contract, theme, f"0/{index}")
        assert program == random_program(contract, theme, f"0/{index}")
        lists = TokenModel(contract)
        for op in program:
            assert lists.valid(op), (op, program)
            if op.name in ("append", "fork") and lists.may_refuse(op):
                continue
            lists.apply(op)
            attended += op.name == "attend"
        assert lists.needed_pages() <= contract.capacity_pages
    assert attended > 50


def test_programs_reach_edges_and_full_pools():
    contract = make_cache_contract(
        q_heads=1, kv_heads=1, head_dim=4, dtype="float32", page_size=4, capacity_tokens=64, window=9
    )
    lengths, refused = set(), 0
    for index in range(150):
        lists = TokenModel(contract)
        for op in random_program(contract, "pressure", f"1/{index}"):
            if op.name in ("append", "fork") and lists.may_refuse(op):
                refused += 1
                continue
            lists.apply(op)
            if op.name == "append":
                lengths.add(lists.length(op.seq))
    assert {3, 4, 5, 8, 9, 10} <= lengths
    assert refused > 30


def test_edge_sweep_hits_every_edge_in_more_than_one_way():
    contract = make_cache_contract(
        q_heads=1, kv_heads=1, head_dim=4, dtype="float32", page_size=4, capacity_tokens=96, window=7
    )
    ends = []
    for program in edge_programs(contract):
        lists = TokenModel(contract)
        for op in program:
            assert lists.valid(op)
            lists.apply(op)
        ends.append(lists.length(3))
    for edge in (3, 4, 5, 6, 7, 8, 13, 14, 15):
        assert ends.count(edge) >= 3, edge
