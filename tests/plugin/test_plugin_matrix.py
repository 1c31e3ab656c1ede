"""A matrix fails closed: a row that was deselected, skipped, crashed or lost never lets a run exit 0, and blame is told."""

import json

import pytest
from scripted import GATE, N, Project

SUITE = """schema: 1
models: {gqa: toy-gqa}
factors:
  weights: {bf16: null, w4: {method: w4a16}}
  kv: {bf16: null, four: {method: kv4}}
  eviction: {all: null, h2o: {method: h2o, kv_budget: 0.5}}
ships:
  production: {weights: w4, kv: four, eviction: h2o}
"""
CELLS = 1 + 3 + 3  # the stack, its leave-one-outs, its members alone


def release(project: Project, text: str = SUITE) -> None:
    project.file("release.accept.yaml", text)


def test_every_row_green(project: Project) -> None:
    release(project)
    out = project.run(GATE)
    assert (out.ret, out.gate, len(out.records)) == (0, "PASS", CELLS * N)
    assert out.records[0]["cell"].endswith("gqa.production")  # the hardest row first


@pytest.mark.parametrize(
    "selection",
    [
        ("-k", "not only-kv4"),
        ("-k", "not without"),
        ("-k", "production"),
        ("--deselect", "release.accept.yaml::gqa.production[needle-1x]"),
        ("-k", "nothing"),
    ],
    ids=str,
)
def test_a_row_that_was_deselected(project: Project, selection: tuple[str, str]) -> None:
    release(project)
    out = project.run(GATE, *selection)
    assert (out.ret, out.gate) == (1, "INCOMPLETE")
    assert len(out.verdicts) == CELLS * N


@pytest.mark.parametrize("row", ["gqa.production", "gqa.only-kv4-residual-0", "gqa.production-without-w4a16"])
@pytest.mark.parametrize("action", ["skip", "engine", "raise", "invalid", "few", "nan", "fail"])
def test_a_row_that_was_not_measured_or_not_passed(project: Project, row: str, action: str) -> None:
    release(project)
    if action == "skip":
        project.file(
            "conftest.py",
            (project.path / "conftest.py").read_text(encoding="utf-8")
            + "\nimport pytest\n\n\ndef pytest_runtest_setup(item):\n"
            + f"    if item.name.startswith({row + '[needle'!r}):\n        pytest.skip('no time')\n",
        )
    else:
        project.script_items({f"release.accept.yaml::{row}[needle-1x]": action})
    out = project.run(GATE)
    assert out.ret == 1
    assert out.gate != "PASS"


def test_a_row_whose_process_died(project: Project) -> None:
    release(project)
    project.script_items({"release.accept.yaml::gqa.only-kv4-residual-0[needle-1x]": "crash"})
    out = project.run(GATE, apart=True)
    assert out.ret != 0
    verdict = project.run("--accept-plan")  # reading what is left does not turn it green either
    assert verdict.ret == 0
    from pytest_attnaccept.__main__ import main

    assert main(["verdict", str(project.path / ".attnaccept")]) == 1


LOSSES = """

def _text(item, check):
    cell = item.partition("::")[2].partition("[")[0]
    lossy = {"only-w4": 0.002, "only-kv4": 0.003, "only-h2o": 0.002}
    loss = next((v for k, v in lossy.items() if k in cell), 0.004 if "without-" in cell else SCENARIO.get("whole", 0.0))
    if "without-h2o" in cell:  # the stack of w4 and kv4
        loss = SCENARIO.get("pair", loss)
    sums = tuple(32 * (loss + 0.002 * (i % 7 - 3)) for i in range(60))
    gate = ClusteredSums(name="perplexity", sums=sums, tokens=(32,) * 60, base_level=5.0)
    kept = {"unit": "document", "units": [str(i) for i in range(60)], "sums": list(sums), "tokens": [32] * 60}
    return Measured(gates=(gate,), details={"losses": {"perplexity": kept}}, data_digest="d")


SCENARIO = json.loads((HERE / "scenario.json").read_text(encoding="utf-8"))
_measure = Scripted.measure
Scripted.measure = lambda self, check, params: (
    _text(self.item, check) if check == "perplexity" else _measure(self, check, params)
)
"""


@pytest.mark.parametrize(
    ("scenario", "gate", "says"),
    [
        ({"whole": 0.3, "pair": 0.3}, "FAIL", "w4a16 and kv4(residual=0) hurt only together"),
        ({"whole": 0.3}, "FAIL", "w4a16, kv4(residual=0) and h2o(kv_budget=0.5, sinks=4) hurt only together"),
        ({"whole": 0.007}, "PASS", "errors do not compound"),
    ],
    ids=["pair", "all three", "additive"],
)
def test_planted_interactions_from_end_to_end(
    project: Project, scenario: dict[str, float], gate: str, says: str
) -> None:
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + LOSSES)
    project.file("scenario.json", json.dumps(scenario))
    release(project)
    out = project.run(GATE)
    assert (out.gate, out.ret) == (gate, int(gate != "PASS"))
    assert says in out.headline("release.accept.yaml::gqa.production[perplexity]")
    assert (says in out.text) is (gate == "FAIL")


def test_findings_are_the_same_from_the_records_alone(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_attnaccept.reports.matrix import _main

    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + LOSSES)
    project.file("scenario.json", json.dumps({"whole": 0.3, "pair": 0.3}))
    release(project)
    out = project.run(GATE)
    assert _main([str(out.folder)]) == 1
    text = capsys.readouterr().out
    assert "w4a16 and kv4(residual=0) hurt only together" in text
    assert "compounds" in text


def test_marks_know_their_missing_singles(project: Project) -> None:
    project.pytester.makepyfile(
        test_release="""
import pytest

@pytest.mark.approximate(method="kv4")
@pytest.mark.approximate(method="h2o", kv_budget=0.25)
def test_both(accept):
    accept.model()

@pytest.mark.approximate(method="kv4")
def test_kv4(accept):
    accept.model()
"""
    )
    out = project.run(GATE)
    assert out.ret == 0  # the stack passed on its own margin; only a release needs its members alone
    assert "singles not measured: h2o(kv_budget=0.25, sinks=4)" in out.headline("test_release.py::test_both[needle-1x]")


def test_an_additional_row_is_a_gate_too(project: Project) -> None:
    release(project, SUITE.replace("schema: 1\n", "schema: 1\nrows: full\n").replace(", eviction: h2o}", "}"))
    names = ["gqa.row-w4+four+h2o", "gqa.row-w4+h2o", "gqa.row-four+h2o", "gqa.only-h2o-kv_budget-0.5-sinks-4"]
    project.script_items({f"release.accept.yaml::{names[0]}[needle-1x]": "fail"})
    out = project.run(GATE)
    assert (out.ret, out.gate) == (1, "FAIL")
    assert {f"release.accept.yaml::{name}[needle-1x]" for name in names} <= set(out.verdicts)
