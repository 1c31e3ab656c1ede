"""Shards that do not belong together: other sources, another version of this package, another level."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_cli import planned, record, write

from pytest_attnaccept.__main__ import main
from pytest_attnaccept.matrix import Plan, PlannedItem


def item(check: str, cell: str, **context: object) -> PlannedItem:
    return replace(planned(check, cell), context=context)


def judged(folder: Path, first: Plan, second: Plan) -> int:
    for run, plan in (("r1", first), ("r2", second)):
        write(folder / run, plan, [record(i, run) for i in plan.items], run)
    return main(["verdict", str(folder)])


@pytest.mark.parametrize(
    ("then", "now", "says"),
    [
        ({"files": {"conftest.py": "1"}}, {"files": {"conftest.py": "1"}}, ""),
        ({"files": {"conftest.py": "1"}}, {"files": {"conftest.py": "2"}}, "conftest.py differ"),
        ({"files": {"a.py": "1"}}, {"files": {"b.py": "2"}}, ""),
        ({"versions": {"code": "1"}}, {"versions": {"code": "2"}}, "pytest-attnaccept differ"),
        ({"versions": {"torch": "2.5+cpu"}}, {"versions": {"torch": "2.5+cu124"}}, ""),
    ],
    ids=str,
)
def test_shards_of_disjoint_tests_are_of_one_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], then: dict[str, object], now: dict[str, object], says: str
) -> None:
    first = Plan(items=(item("identity", "tests/a.py::test_a", **then),), profile="smoke")
    second = Plan(items=(item("identity", "tests/b.py::test_b", **now),), profile="smoke")
    assert judged(tmp_path, first, second) == bool(says)
    assert says in capsys.readouterr().out


def test_shards_of_one_profile_name_and_two_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = [Plan(items=(item("identity", f"{x}::t"),), profile="mine", alpha=a) for x, a in (("a", 0.05), ("b", 0.01))]
    assert judged(tmp_path, plans[0], plans[1]) == 1
    assert "levels 0.05 and 0.01" in capsys.readouterr().out
