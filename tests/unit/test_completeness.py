"""Plan + records -> verdict: what is missing, stale, repeated or only neutral never becomes green."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_attnaccept.completeness import judge
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Metric, Record
from pytest_attnaccept.taxonomy import Verdict

V = Verdict


def item(check: str = "value", cell: str = "c", static: str = "s", exists: bool = True) -> PlannedItem:
    return PlannedItem(
        cell=cell, check=check, kind="exact", surface="kernel", methods=("gqa",), stack="gqa", reason="", profile="smoke",
        static=static, exists=exists,
    )  # fmt: skip


def record(of: PlannedItem, verdict: Verdict = V.PASS, time: str = "1", **more: object) -> Record:
    fields = {
        "item": of.id, "cell": of.cell, "check": of.check, "kind": "exact", "surface": "kernel", "stack": "gqa",
        "methods": ("gqa",), "profile": "smoke", "verdict": verdict, "headline": f"{verdict.value} {of.id}", "run_id": "r",
        "static": of.static, "time": time,
    }  # fmt: skip
    return Record(**{**fields, **more})  # type: ignore[arg-type]


def plan(*items: PlannedItem) -> Plan:
    return Plan(items=items, profile="smoke")


def test_everything_there_and_green() -> None:
    a, b = item("a"), item("b")
    assert judge(plan(a, b), [record(a), record(b)]).verdict is V.PASS
    assert judge(plan(a, b), [record(a), record(b, V.NOT_APPLICABLE)]).verdict is V.PASS


def test_empty_plan_and_no_records() -> None:
    assert judge(plan(), []).verdict is V.INCOMPLETE
    assert judge(plan(), [record(item())]).verdict is V.INCOMPLETE
    assert judge(plan(item()), []).verdict is V.INCOMPLETE


def test_a_problem_of_the_run_blocks_but_does_not_hide_a_failure() -> None:
    a = item()
    assert judge(plan(a), [record(a)], ["damaged line"]).verdict is V.INCOMPLETE
    assert judge(plan(a), [record(a, V.FAIL)], ["damaged line"]).verdict is V.FAIL


@pytest.mark.parametrize("verdict", [v for v in V if v not in (V.PASS, V.NOT_APPLICABLE)])
def test_one_blocking_item_decides(verdict: Verdict) -> None:
    a, b = item("a"), item("b")
    found = judge(plan(a, b), [record(a), record(b, verdict)])
    assert found.verdict is verdict
    assert [r.item.id for r in found.blocking] == [b.id]


def test_stale_records_count_as_not_measured() -> None:
    a = item()
    found = judge(plan(a), [record(a, static="other")])
    assert found.verdict is V.INCOMPLETE
    assert "stale record" in found.results[0].headline


def test_an_item_that_cannot_be_measured() -> None:
    found = judge(plan(item(exists=False)), [])
    assert "this version cannot measure value" in found.results[0].headline


@pytest.mark.parametrize("key", ["weights", "tokenizer", "candidate", "device", "baseline.weights", "candidate.config"])
def test_records_of_one_cell_belong_to_one_candidate(key: str) -> None:
    a, b = item("a"), item("b")
    old, new = {"fingerprint": {key: "1"}}, {"fingerprint": {key: "2"}}
    found = judge(plan(a, b), [record(a, time="1", **old), record(b, time="2", **new)])
    assert (found.verdict, [r.verdict for r in found.results]) == (V.INCOMPLETE, [V.INCOMPLETE, V.PASS])
    other = item("b", cell="another")
    assert judge(plan(a, other), [record(a, time="1", **old), record(other, time="2", **new)]).verdict is V.PASS


def test_data_may_differ_between_checks_of_a_cell() -> None:
    a, b = item("a"), item("b")
    records = [record(a, fingerprint={"data": "1"}), record(b, time="2", fingerprint={"data": "2"})]
    assert judge(plan(a, b), records).verdict is V.PASS


@pytest.mark.parametrize(("first", "second"), list(itertools.product(V, V)))
def test_repeated_items(first: Verdict, second: Verdict) -> None:
    a, b = item("a"), item("b")
    found = judge(plan(a, b), [record(b), record(a, first, "1"), record(a, second, "2")]).results[0].verdict
    undecided = (V.INCONCLUSIVE, V.INCOMPLETE)
    decided = [v for v in (first, second) if v not in undecided]
    if V.FAIL in decided:
        assert found is V.FAIL
    elif V.INVALID in decided:
        assert found is V.INVALID
    elif V.PASS in decided:
        assert found is V.PASS
    elif decided:
        assert found is V.NOT_APPLICABLE
    else:
        assert found in undecided


def test_a_cell_of_neutral_items_is_invalid_among_green_cells() -> None:
    a, b, c = item("a"), item("b"), item("a", cell="other")
    found = judge(plan(a, b, c), [record(a, V.NOT_APPLICABLE), record(b, V.NOT_APPLICABLE), record(c)])
    assert (found.verdict, found.count(V.INVALID)) == (V.INVALID, 2)


def test_a_neutral_item_beside_a_missing_one_is_incomplete() -> None:
    a, b = item("a"), item("b")
    found = judge(plan(a, b), [record(a, V.NOT_APPLICABLE)])
    assert found.verdict is V.INCOMPLETE


@given(st.lists(st.sampled_from(list(V)), min_size=1, max_size=6), st.data())
def test_green_only_if_every_item_is(verdicts: list[Verdict], data: st.DataObject) -> None:
    items = [item(f"check-{i}") for i in range(len(verdicts))]
    kept = data.draw(st.sets(st.sampled_from(range(len(items)))))
    records = [record(items[i], verdicts[i]) for i in kept]
    found = judge(plan(*items), records)
    green = len(kept) == len(items) and not any(v.blocks for v in verdicts) and V.PASS in verdicts
    assert (found.verdict is V.PASS) == green


@pytest.mark.parametrize(("alpha", "verdict"), [(0.05, V.FAIL), (0.01, V.INCONCLUSIVE)])
def test_holm_uses_the_level_of_the_plan(alpha: float, verdict: Verdict) -> None:
    only = item("needle-1x")
    metric = Metric(name="needle", verdict="INCONCLUSIVE", p_fail=0.03, p_pass=0.9)
    run = replace(plan(only), alpha=alpha)
    found = judge(Plan.from_json(run.to_json(), "here"), [record(only, V.INCONCLUSIVE, metrics=(metric,))])
    assert found.verdict is verdict
