"""HTML and JUnit of a run: complete, escaped, and honest about what is missing."""

import dataclasses
from xml.etree import ElementTree as ET

import pytest

from pytest_attnaccept.completeness import judge
from pytest_attnaccept.compounding import Finding
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Metric, Record
from pytest_attnaccept.reports.junit import MOST, properties
from pytest_attnaccept.reports.page import page
from pytest_attnaccept.reports.terminal import summary_lines
from pytest_attnaccept.reports.xml import junit
from pytest_attnaccept.taxonomy import Verdict


def item(check: str, cell: str = "suite::模型.<b>prod</b>") -> PlannedItem:
    return PlannedItem(
        cell=cell, check=check, kind="approximate", surface="model", methods=("h2o",), stack="h2o(kv_budget=0.25)",
        reason='because "it" <matters>', profile="smoke", static="s",
    )  # fmt: skip


def record(planned: PlannedItem, verdict: Verdict, metrics=(), headline="x") -> Record:
    return Record(
        item=planned.id, cell=planned.cell, check=planned.check, kind="approximate", surface="model", stack=planned.stack,
        methods=("h2o",), profile="smoke", verdict=verdict, headline=headline, run_id="r", static="s", metrics=metrics,
        time="1",
    )  # fmt: skip


METRIC = Metric(
    name="needle", verdict="FAIL", effect=0.3, ci_low=0.2, ci_high=0.4, n=100, limit=0.05, unit="accuracy", loosened_from=0.02,
    text="loss <30%> \x07", origin="policy: x",
)  # fmt: skip


@pytest.fixture
def result():
    plan = Plan(items=(item("identity"), item("needle-1x"), item("perplexity")), profile="smoke", claim="a & b")
    records = [
        record(plan.items[0], Verdict.PASS),
        record(plan.items[1], Verdict.FAIL, (METRIC,), "FAIL 针 \x07<script>"),
    ]
    return judge(plan, records, ["a shard is <lost>"])


def test_page_is_escaped_and_names_everything_that_blocks(result):
    text = page(result)
    assert "<script>" not in text
    assert "<b>prod</b>" not in text
    assert "模型" in text
    assert "&lt;lost&gt;" in text
    assert "INCOMPLETE" in text
    assert "loosened from 0.02" in text
    assert "http" not in text, "the report must not load anything"


def test_junit_counts_what_blocks_and_stays_valid_xml(result):
    suite = ET.fromstring(junit(result))[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "3")
    messages = [f.get("message") for f in suite.iter("failure")]
    assert any("针" in m for m in messages)
    assert len(list(suite.iter("testcase"))) == 4


def test_terminal_says_verdict_first_and_notes_a_loosened_limit(result, tmp_path):
    lines = [text for text, _ in summary_lines(result, explicit=True, out=tmp_path, quality_only=True)]
    assert lines[0].startswith("GATE FAIL under profile smoke: 1 of 3 items PASS")
    assert any("loosened from 0.02 to 0.05" in line for line in lines)
    assert not any(line.startswith("claim") for line in lines), "a claim belongs to a PASS"


def test_properties_are_few_plain_and_leave_out_what_was_not_measured():
    metrics = tuple(Metric(name=f"m{i}", verdict="PASS", effect=float("nan"), ci_low=None) for i in range(20))
    pairs = properties(record(item("x"), Verdict.PASS, metrics))
    assert len(pairs) <= MOST == 25
    assert all(type(v) in (str, int, float) for _, v in pairs)
    assert not any(name.endswith(".ci_low") for name, _ in pairs)


def finding(cell: str, check: str, singles: dict[str, float | None]) -> Finding:
    return Finding(
        cell=cell, check=check, metric="needle", full=0.0, singles=singles, without={}, contrast=None, blame=""
    )


def test_a_green_stack_says_which_of_its_members_nobody_measured_alone(result, tmp_path):
    stack = dataclasses.replace(
        result,
        findings=(
            finding("s::two", "perplexity", {"kv8": None, "h2o": None}),
            finding("s::two", "needle-1x", {"kv8": None, "h2o": 0.1}),
            finding("s::whole", "needle-1x", {"kv8": 0.0, "h2o": 0.1}),
        ),
    )
    lines = [text for text, _ in summary_lines(stack, explicit=True, out=tmp_path, quality_only=True)]
    assert [text for text in lines if "singles not measured" in text] == ["  note: s::two: singles not measured: kv8"]


def test_a_curve_that_was_not_asked_is_noted_with_its_reason(tmp_path):
    passed, neutral = item("needle-1x"), item("budget-curve")
    records = [
        record(passed, Verdict.PASS),
        record(
            neutral, Verdict.NOT_APPLICABLE, headline=f"NOT_APPLICABLE {neutral.id}: its factory takes no kv_budget"
        ),
    ]
    found = judge(Plan(items=(passed, neutral), profile="smoke"), records)
    lines = [text for text, _ in summary_lines(found, explicit=True, out=tmp_path, quality_only=True)]
    assert found.verdict is Verdict.PASS
    assert f"  note: NOT_APPLICABLE {neutral.id}: its factory takes no kv_budget" in lines


@pytest.mark.parametrize(("run", "command"), [(3, "pytest x --lf --accept-resume"), (2, "pytest x --accept-resume")])
def test_the_command_to_go_on_starts_what_was_never_run(tmp_path, run, command):
    items = (item("identity"), item("perplexity"), item("needle-1x"))
    records = [
        record(items[0], Verdict.PASS),
        record(items[1], Verdict.FAIL, (METRIC,)),
        record(items[2], Verdict.FAIL, (METRIC,)),
    ]
    found = judge(Plan(items=items, profile="smoke"), records[:run])
    lines = summary_lines(found, explicit=True, out=tmp_path, quality_only=True, again="pytest x --lf --accept-resume")
    (evidence,) = [text for text, _ in lines if text.startswith("evidence")]
    assert evidence.endswith(f"run only what is not green: {command}")
