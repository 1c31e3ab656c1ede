"""The lists of tokens: what each operation leaves, which operations are legal, and how many pages they need."""

import pytest

from pytest_attnaccept.state.cache_contract import make_cache_contract
from pytest_attnaccept.state.token_model import Op, TokenModel


def model(**change):
    keywords = {"q_heads": 1, "kv_heads": 1, "head_dim": 4, "page_size": 4, "dtype": "float32", "capacity_tokens": 16}
    return TokenModel(make_cache_contract(**{**keywords, **change}))


def do(lists, *ops):
    for op in ops:
        assert lists.valid(op), op
        lists.apply(op)
    return lists


def test_tokens_are_never_equal_across_appends():
    lists = do(model(), Op("append", 0, 3), Op("append", 1, 3), Op("append", 0, 1))
    assert lists.sequences[0].tokens == [0, 1, 2, 6]
    assert lists.sequences[1].tokens == [3, 4, 5]


def test_fork_shares_and_then_diverges():
    lists = do(model(), Op("append", 0, 3), Op("fork", 0, 1), Op("append", 0, 1), Op("append", 1, 1))
    assert lists.sequences[0].tokens[:3] == lists.sequences[1].tokens[:3]
    assert lists.sequences[0].tokens[3] != lists.sequences[1].tokens[3]


def test_truncate_and_free_leave_ghosts():
    lists = do(model(), Op("append", 0, 3), Op("truncate", 0, 1), Op("free", 0))
    assert lists.sequences == {}
    assert lists.ghosts == [("truncated", 0, [0, 1, 2]), ("freed", 0, [0])]


@pytest.mark.parametrize(
    ("ops", "pages"),
    [
        ([Op("append", 0, 1)], 1),
        ([Op("append", 0, 4)], 1),
        ([Op("append", 0, 5)], 2),
        ([Op("append", 0, 8), Op("fork", 0, 1)], 2),
        ([Op("append", 0, 6), Op("fork", 0, 1)], 3),
        ([Op("append", 0, 6), Op("fork", 0, 1), Op("append", 0, 1), Op("append", 1, 1)], 3),
        ([Op("append", 0, 8), Op("fork", 0, 1), Op("free", 0)], 2),
        ([Op("append", 0, 8), Op("fork", 0, 1), Op("truncate", 1, 6)], 3),
        ([Op("append", 0, 8), Op("truncate", 0, 4)], 1),
        ([Op("append", 0, 8), Op("free", 0)], 0),
    ],
)
def test_needed_pages(ops, pages):
    assert do(model(), *ops).needed_pages() == pages


def test_memory_error_is_allowed_only_beyond_the_room():
    lists = do(model(), Op("append", 0, 12))
    assert not lists.may_refuse(Op("append", 0, 4))
    assert lists.may_refuse(Op("append", 0, 5))
    assert lists.may_refuse(Op("append", 1, 5))
    assert not lists.may_refuse(Op("fork", 0, 1))
    assert not lists.may_refuse(Op("free", 0))
    do(lists, Op("append", 0, 3))
    assert not lists.may_refuse(Op("append", 0, 1))
    # A fork may copy the shared partial page at once: five pages would be needed.
    assert lists.may_refuse(Op("fork", 0, 1))


@pytest.mark.parametrize(
    "op",
    [
        Op("attend", 9, 0),
        Op("append", 0, 0),
        Op("fork", 0, 0),
        Op("fork", 9, 1),
        Op("free", 9),
        Op("truncate", 0, 0),
        Op("truncate", 0, 4),
    ],
)
def test_illegal_steps(op):
    assert not do(model(), Op("append", 0, 3)).valid(op)


def test_undeclared_operations_are_illegal():
    lists = do(model(operations=("free",)), Op("append", 0, 3))
    assert lists.valid(Op("free", 0))
    assert not lists.valid(Op("fork", 0, 1))
    assert not lists.valid(Op("truncate", 0, 1))


def test_window_limits_rollback_to_the_last_append():
    lists = do(model(window=4), Op("append", 0, 5), Op("append", 0, 3))
    assert lists.lowest_truncation(0) == 6
    assert not lists.valid(Op("truncate", 0, 5))
    do(lists, Op("truncate", 0, 7))
    assert not lists.valid(Op("truncate", 0, 6))


def test_queries_follow_the_last_append():
    lists = do(model(), Op("append", 0, 3))
    assert lists.queries(Op("attend", 0, 1)) == 3
    assert lists.queries(Op("attend", 0, 0)) == 1
    do(lists, Op("fork", 0, 1), Op("truncate", 0, 2))
    assert lists.queries(Op("attend", 1, 1)) == 1
    assert lists.queries(Op("attend", 0, 1)) == 1
