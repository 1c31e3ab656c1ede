"""Plans as values: digests, ids, merging, reading back."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.matrix import RULES, Plan, PlannedItem, slug, unique


def item(cell: str = "c", check: str = "value", static: str = "s") -> PlannedItem:
    return PlannedItem(
        cell=cell, check=check, kind="exact", surface="kernel", methods=("gqa", "mqa"), stack="gqa + mqa", reason="为什么",
        profile="smoke", params={"tier": 1, "tiers": [0.5, 1]}, limits={"kl": 0.1}, static=static, context={"files": {"a": "1"}},
    )  # fmt: skip


def test_round_trip() -> None:
    plan = Plan(items=(item(), item("d")), profile="smoke", claim="c", alpha=0.01)
    again = Plan.from_json(plan.to_json(), "here")
    assert again == plan
    assert again.digest() == plan.digest()


def test_digest_depends_on_items_and_static_not_on_order() -> None:
    a, b = item(), item("d")
    plan = Plan(items=(a, b), profile="smoke")
    assert plan.digest() == Plan(items=(b, a), profile="smoke").digest()
    assert plan.digest() != Plan(items=(a,), profile="smoke").digest()
    assert plan.digest() != Plan(items=(a, dataclasses.replace(b, static="t")), profile="smoke").digest()
    assert plan.digest() != Plan(items=(a, b), profile="edge").digest()


def test_merged_keeps_its_own_items() -> None:
    mine, theirs = item(static="new"), item(static="old")
    merged = Plan(items=(mine,), profile="p").merged(Plan(items=(theirs, item("d")), profile="p"))
    assert [(i.cell, i.static) for i in merged.items] == [("c", "new"), ("d", "s")]


@pytest.mark.parametrize("alpha", ["0.01", 0, -0.1, 0.7, True, None])
def test_a_level_that_is_none_is_refused(alpha: object) -> None:
    body = json.loads(Plan(items=(item(),), profile="smoke").to_json())
    with pytest.raises(RecordError, match="here"):
        Plan.from_json(json.dumps({**body, "alpha": alpha}), "here")
    del body["alpha"]  # plans of earlier versions
    assert Plan.from_json(json.dumps(body), "here").alpha == 0.05


def test_unique_keeps_the_first() -> None:
    assert [i.static for i in unique([item(static="1"), item(static="2"), item("d")])] == ["1", "s"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "items": [{"cell": 1}], "profile": "p"}', "3"]
)
def test_unreadable_plans(text: str) -> None:
    with pytest.raises(RecordError, match="here"):
        Plan.from_json(text, "here")


@given(st.text())
def test_slug_is_an_id(text: str) -> None:
    found = slug(text)
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789._+-")
    assert slug(found) == found


def rules(**more: object) -> dict[str, object]:
    return {"family": "instructions", "parameters": {}, "tiers": [1], "score": "generated", **more}


@pytest.mark.parametrize(
    ("check", "params", "tests"),
    [
        ("identity", {}, 0),
        ("controls", {}, 0),
        ("perplexity", {}, 1),
        ("perplexity", {"patterns": ["one-shot", "token"]}, 2),
        ("perplexity", {"patterns": ["one-shot", "token"], "screen": 8}, 1),
        ("divergence", {"patterns": ["one-shot", "token"]}, 4),
        ("needle-1x", {"tier": 1, "patterns": ["one-shot", "token", "chunk-7"]}, 3),
        ("long-range-kv", {"family": "kv_recall", "tiers": [0.5, 1], "patterns": ["one-shot", "token"]}, 4),
        ("long-range-rules", rules(), RULES + 1),
        ("long-range-rules", rules(parameters={"rules": 7}, tiers=[0.5, 1]), 16),
        ("long-range-rules", rules(score="teacher_forced"), 1),
        ("benchmark-mmlu", {}, 1),
        ("samples", {}, 1),
        ("budget-curve", {"budgets": [1, 0.5], "margin": 0.05}, 1),
        ("budget-curve", {"budgets": [1, 0.5], "margin": 0.05, "halving": 0.1}, 2),
        ("length-curve", {"lengths": [0.25, 0.5, 1, 2, 4]}, 3),
        ("length-curve", {"lengths": [0.5, 1, 2], "operating": 2, "halving": 0.1}, 4),
        ("length-curve", {"lengths": [4]}, 1),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_fail_is_controlled_over_every_test_that_an_item_holds(
    check: str, params: dict[str, object], tests: int
) -> None:
    one = dataclasses.replace(item(check=check), params=params)
    assert Plan(items=(one, item("d")), profile="p").family == tests


def test_the_rules_of_a_family_are_counted_as_the_family_has_them() -> None:
    from pytest_attnaccept.tasks.instructions import DEFAULTS

    assert DEFAULTS["rules"] == RULES
