"""The matrix as a table: verdict, losses, interaction, certified range and cost per cell."""

from pathlib import Path

import pytest

from pytest_attnaccept.completeness import GateResult, judge
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Metric, Record, RecordWriter
from pytest_attnaccept.reports.matrix import markdown, matrix_lines, matrix_rows, write_markdown
from pytest_attnaccept.taxonomy import Verdict

V = Verdict


def item(cell: str, check: str, *members: str) -> PlannedItem:
    return PlannedItem(
        cell=f"suites/r.accept.yaml::{cell}", check=check, kind="approximate", surface="model", methods=members,
        stack=" + ".join(members), reason="", profile="smoke", static="s",
        context={"members": [[m, "approximate"] for m in members], "suite_model": "toy-gqa"},
    )  # fmt: skip


def record(of: PlannedItem, verdict: Verdict, loss: float = 0.0, **facts: object) -> Record:
    name = of.check.partition("-")[0]
    metric = Metric(
        name=name,
        verdict=verdict.value,
        effect=loss,
        ci_low=loss - 0.01,
        ci_high=loss + 0.01,
        limit=0.1,
        p_pass=0.01,
        n=90,
    )
    return Record(
        item=of.id, cell=of.cell, check=of.check, kind=of.kind, surface=of.surface, stack=of.stack, methods=of.methods,
        profile=of.profile, verdict=verdict, headline=f"{verdict.value} {of.id}: x | y", run_id="r", static="s", time="1",
        metrics=(metric,), facts=facts, seconds=2.0,
    )  # fmt: skip


PAIRS = [
    (item("gqa.ship", "perplexity", "A", "B"), V.PASS, 0.01, {"ppl_baseline": 12.5}),
    (item("gqa.ship", "needle-0.5x", "A", "B"), V.PASS, 0.0, {"length": 128}),
    (item("gqa.ship", "needle-1x", "A", "B"), V.FAIL, 0.3, {"length": 256, "baseline_generated": 0.9}),
    (item("gqa.only-a", "perplexity", "A"), V.PASS, 0.01, {}),
    (item("gqa.only-a", "needle-0.5x", "A"), V.PASS, 0.0, {"length": 128}),
    (item("gqa.only-a", "needle-1x", "A"), V.PASS, 0.02, {"length": 256}),
    (item("gqa.only-b", "perplexity", "B"), V.PASS, 0.01, {}),
    (item("gqa.only-b", "needle-0.5x", "B"), V.PASS, 0.0, {"length": 128}),
    (item("gqa.only-b", "needle-1x", "B"), V.PASS, 0.29, {"length": 256}),
]


def result(leave_out: str = "") -> GateResult:
    plan = Plan(items=tuple(i for i, *_ in PAIRS), profile="smoke", claim="something")
    return judge(
        plan, [record(i, v, loss, **facts) for i, v, loss, facts in PAIRS if not leave_out or leave_out not in i.id]
    )


def test_rows() -> None:
    ship, only_a, _ = matrix_rows(result())
    assert (ship.cell, ship.verdict, ship.deciding, ship.seconds) == ("gqa.ship", V.FAIL, "needle-1x", 6.0)
    assert ship.certified == "0.5x (128)"
    assert only_a.certified == "1x (256)"
    assert ship.retrieval == "+30.0% [+29.0%, +31.0%] of 10% 1x"
    assert ship.perplexity.startswith("+1.0%")


def test_lines_and_markdown_say_the_same(tmp_path: Path) -> None:
    found = result()
    lines, text = "\n".join(matrix_lines(found)), markdown(found)
    for words in ("gqa.ship", "FAIL (needle-1x)", "gqa.only-b", "0.5x (128)", "perplexity 12.5, retrieval 90.0%"):
        assert words in lines
        assert words in text
    assert "B is the culprit" in text
    assert "x \\| y" in text  # a bar inside a cell would break the table
    write_markdown(tmp_path / "m.md", found)
    assert (tmp_path / "m.md").read_text(encoding="utf-8") == text


def test_what_was_not_measured_shows_and_is_not_certified() -> None:
    rows = {r.cell: r for r in matrix_rows(result("gqa.only-a[needle-0.5x]"))}
    assert rows["gqa.only-a"].verdict is V.INCOMPLETE
    assert rows["gqa.only-a"].certified == "nothing"  # a hole below 1x: 1x alone certifies nothing
    empty = matrix_rows(result("gqa"))
    assert {r.verdict for r in empty} == {V.INCOMPLETE}


def test_singles_that_are_missing_show_in_the_table() -> None:
    plan = Plan(items=tuple(i for i, *_ in PAIRS if "only-b" not in i.cell), profile="smoke")
    found = judge(plan, [record(i, v, loss, **f) for i, v, loss, f in PAIRS if "only-b" not in i.cell])
    assert matrix_rows(found)[0].interaction == "singles missing"


def test_one_cell_is_no_matrix() -> None:
    plan = Plan(items=(PAIRS[0][0],), profile="smoke")
    assert matrix_lines(judge(plan, [])) == []


@pytest.mark.parametrize("verdict", [V.PASS, V.FAIL])
def test_command(tmp_path: Path, verdict: Verdict, capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_attnaccept.reports.matrix import _main
    from pytest_attnaccept.shards import Shards

    of = PAIRS[0][0]
    plan = Plan(items=(of,), profile="smoke", claim="something")
    Shards(tmp_path, run_id="r", resume=False).write_plan(plan, "final")
    RecordWriter(tmp_path, "r.main").append(record(of, verdict))
    assert _main([str(tmp_path)]) == (0 if verdict is V.PASS else 1)
    assert f"# Gate {verdict.value}" in capsys.readouterr().out
