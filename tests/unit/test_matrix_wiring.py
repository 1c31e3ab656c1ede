"""The matrix shows at the end of a gated run, and `verdict` and `report` write it as Markdown."""

from pathlib import Path

import pytest
from test_matrix_report import PAIRS, record, result

from pytest_attnaccept.__main__ import main
from pytest_attnaccept.matrix import Plan
from pytest_attnaccept.records import RecordWriter
from pytest_attnaccept.reports.terminal import summary_lines
from pytest_attnaccept.shards import Shards


def test_the_end_of_a_gated_run_shows_the_matrix() -> None:
    def text(*, explicit: bool) -> str:
        lines = summary_lines(result(), explicit=explicit, out=Path("out"), quality_only=True)
        return "\n".join(line for line, _ in lines)

    assert "matrix suites/r.accept.yaml: 3 cells" in text(explicit=True)
    assert "matrix suites" not in text(explicit=False)


@pytest.mark.parametrize("command", ["verdict", "report"])
def test_markdown_of_records(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(items=tuple(i for i, *_ in PAIRS), profile="smoke", claim="something")
    Shards(tmp_path / "out", run_id="r", resume=False).write_plan(plan, "final")
    writer = RecordWriter(tmp_path / "out", "r.main")
    for of, verdict, loss, facts in PAIRS:
        writer.append(record(of, verdict, loss, **facts))
    assert main([command, "out", "--markdown", "m.md"]) == 1
    assert "| gqa.ship | FAIL (needle-1x) |" in (tmp_path / "m.md").read_text(encoding="utf-8")
