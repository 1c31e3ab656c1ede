"""The command line without pytest and without torch."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_attnaccept.__main__ import COMMANDS, main
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Metric, Record, RecordWriter
from pytest_attnaccept.shards import Shards
from pytest_attnaccept.taxonomy import Verdict


def planned(check: str, cell: str = "suite::gqa.prod") -> PlannedItem:
    return PlannedItem(
        cell=cell, check=check, kind="approximate", surface="model", methods=("kv8",), stack="kv8", reason="r",
        profile="smoke", static=f"s-{check}",
    )  # fmt: skip


def record(item: PlannedItem, run: str, verdict: Verdict = Verdict.PASS) -> Record:
    return Record(
        item=item.id, cell=item.cell, check=item.check, kind=item.kind, surface=item.surface, stack=item.stack,
        methods=item.methods, profile=item.profile, verdict=verdict, headline=f"{verdict.value} {item.id}: 好", run_id=run,
        static=item.static, time="2026-01-01T00:00:00",
        metrics=(Metric(name="needle", verdict=verdict.value, effect=0.01, ci_low=-0.01, ci_high=0.03, n=100, limit=0.05),),
    )  # fmt: skip


def write(folder: Path, plan: Plan, records: list[Record], run: str) -> None:
    Shards(folder, run_id=run, resume=False).write_plan(plan, "main")
    writer = RecordWriter(folder, f"{run}.main")
    for entry in records:
        writer.append(entry)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    a, b = planned("identity"), planned("needle-1x")
    write(tmp_path / "one", Plan(items=(a,), profile="smoke"), [record(a, "r1")], "r1")
    write(tmp_path / "two", Plan(items=(b,), profile="smoke"), [record(b, "r2")], "r2")
    return tmp_path


def test_shards_are_judged_together(shards, capsys):
    assert main(["verdict", str(shards), "--html", str(shards / "g.html"), "--junit", str(shards / "j.xml")]) == 0
    assert "GATE PASS under profile smoke: 2 of 2 items PASS" in capsys.readouterr().out
    suite = ET.parse(shards / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")
    assert "needle-1x" in (shards / "g.html").read_text(encoding="utf-8")


def test_a_lost_record_is_incomplete(shards, capsys):
    next((shards / "two").glob("records.*")).unlink()
    assert main(["verdict", str(shards), "--junit", str(shards / "j.xml")]) == 1
    assert "INCOMPLETE suite::gqa.prod[needle-1x]: not measured" in capsys.readouterr().out
    assert ET.parse(shards / "j.xml").getroot()[0].get("failures") == "1"


def test_a_lost_plan_is_an_error(shards, capsys):
    next((shards / "two").glob("plan.*")).unlink()
    assert main(["verdict", str(shards)]) == 1
    assert "records without a plan" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "status"), [("1", 1), ("2", 0), ("3", 1)])
def test_a_shard_that_left_nothing_is_missed_when_their_number_is_known(shards, capsys, count, status):
    assert main(["verdict", str(shards), "--shards", count]) == status
    assert ("GATE PASS" in capsys.readouterr().out) is (status == 0)


def test_a_failing_record_fails(shards, capsys):
    item = planned("needle-1x")
    RecordWriter(shards / "two", "r2.gw0").append(record(item, "r2", Verdict.FAIL))
    assert main(["verdict", str(shards)]) == 1
    assert "FAIL suite::gqa.prod[needle-1x]" in capsys.readouterr().out


def test_merge_then_verdict(shards, tmp_path, capsys):
    out = tmp_path / "all"
    assert main(["merge", str(shards / "one"), str(shards / "two"), "--out", str(out)]) == 0
    assert main(["verdict", str(out)]) == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["merge", str(shards / "one"), str(empty), "--out", str(tmp_path / "x")]) == 2
    assert "measured nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["verdict", "nowhere"], ["verdikt"], [], ["plan", "nowhere.accept.yaml"], ["methods", "--method", "h20"]]
)
def test_bad_input_is_two(argv, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2


def test_an_empty_folder_is_two(tmp_path):
    assert main(["verdict", str(tmp_path)]) == 2


def test_methods_lists_every_method_with_its_checks(capsys):
    assert main(["methods", "--profile", "release"]) == 0
    out = capsys.readouterr().out
    for name in ("flash_attention", "h2o", "kv4", "mamba", "prefix_cache", "w4a16"):
        assert name in out
    assert "INCOMPLETE: this version cannot measure it" in out


def test_no_command_imports_torch(shards):
    code = (
        "import sys; from pytest_attnaccept.__main__ import main\n"
        f"main(['methods']); main(['verdict', {str(shards)!r}])\n"
        "main(['budget', '--weights-gb', '13', '--kv-gb', '2', '--bandwidth-gbs', '2000'])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def with_closed_pipe(*argv: str) -> subprocess.CompletedProcess[bytes]:
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "pytest_attnaccept", *argv]
        return subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)


def test_a_reader_who_leaves_early_changes_nothing(shards, tmp_path):
    done = with_closed_pipe("methods")
    assert (done.returncode, done.stderr) == (0, b"")
    done = with_closed_pipe("verdict", str(shards), "--junit", str(tmp_path / "a.xml"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "a.xml").is_file()
    next((tmp_path / "one").glob("records.*")).unlink()
    done = with_closed_pipe("verdict", str(shards))  # nobody reads the verdict, and it is still not PASS
    assert (done.returncode, done.stderr) == (1, b"")
    done = with_closed_pipe("methods", "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    done = with_closed_pipe("nothing")
    assert (done.returncode, done.stderr[:6]) == (2, b"error:")


def test_every_command_is_described():
    assert list(COMMANDS) == ["methods", "plan", "merge", "verdict", "report", "compare", "budget"]
    assert all(c.__doc__ for c in COMMANDS.values())


def test_plan_of_a_shipped_suite_shows_power(capsys):
    suite = Path(__file__).parents[2] / "suites" / "longctx.accept.yaml"
    assert main(["plan", str(suite), "--profile", "longctx"]) == 0
    out = capsys.readouterr().out
    assert "needle-1x" in out
    assert "at most n=220 contexts x 4 questions in 8 looks, margin 0.05" in out
    assert "passes with 0.99" in out


def test_a_report_says_where_it_is_and_where_the_evidence_is(shards, capsys, monkeypatch):
    monkeypatch.chdir(shards)
    item = planned("needle-1x")
    RecordWriter(shards / "two", "r2.gw0").append(record(item, "r2", Verdict.FAIL))
    assert main(["report", str(shards), "--markdown", "m.md"]) == 1
    out = capsys.readouterr().out
    assert "written: attnaccept.html" in out
    assert "written: m.md" in out
    assert (shards / "attnaccept.html").is_file()
    assert "verdict.json" not in out  # a folder of several shards has none
    assert "evidence: the records under ." in out


def test_the_usage_of_a_command_can_be_typed(capsys):
    for name in [c for c in COMMANDS if c != "compare"]:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert f"usage: python -m pytest_attnaccept {name}" in capsys.readouterr().out


LOGS = "schema: 1\nlogs:\n  gsm8k: {baseline: a.jsonl, candidate: b.jsonl, method: kv4, metric: m, margin: 0.02, origin: 'policy: p'}\n"


def test_the_plan_of_a_suite_holds_its_recorded_logs_and_names_it_as_pytest_does(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "suites"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.jsonl").write_text("{}\n")
    (folder / "l.accept.yaml").write_text(LOGS)
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "suites/l.accept.yaml"]) == 0
    out = capsys.readouterr().out
    assert ": 1 item, digest" in out
    assert "suites/l.accept.yaml::gsm8k: kv4 [approximate, accept.logs]" in out
    assert "every item of the two logs, margin 0.02" in out


def test_the_plan_says_which_item_has_no_limit_and_cannot_pass(tmp_path, capsys):
    profile = tmp_path / "mine.yaml"
    checks = "perplexity: {documents: 20, tier: 1}, needle: {tiers: [1], contexts: 20}"
    profile.write_text(f"schema: 1\nname: mine\nclaim: c\nchecks: {{{checks}}}\n", encoding="utf-8")
    suite = tmp_path / "kv.accept.yaml"
    suite.write_text(
        "schema: 1\nmodels: {a: toy-gqa}\nfactors: {kv: {kv8: {method: kv8}}}\nships: {s: {kv: kv8}}\n",
        encoding="utf-8",
    )
    assert main(["plan", str(suite), "--profile", str(profile)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("plan under profile mine: 2 items")
    assert "no limit perplexity: cannot pass" in text
    assert "no limit needle: cannot pass" in text
    assert "deterministic" not in text


def test_the_plan_says_what_each_sample_costs(capsys):
    suite = Path(__file__).parents[2] / "suites" / "longctx.accept.yaml"
    assert main(["plan", str(suite)]) == 0
    lines = capsys.readouterr().out.splitlines()
    sampled = [i for i, line in enumerate(lines) if " n=" in line]
    assert len(sampled) >= 8
    for i in sampled:
        assert "cost: about " in lines[i + 1], lines[i]


@pytest.mark.parametrize(
    ("profile", "says", "cost"),
    [
        ("longctx", "n=220 contexts at each of 0.25, 0.5, 1 and 110 at each of 2, 4", 220 * 1.75 + 110 * 6),
        ("release", "n=830 contexts at each of 0.25, 0.5, 1 and 415 at each of 2, 4", 830 * 1.75 + 415 * 6),
    ],
)
def test_the_plan_counts_lengths_beyond_the_shipped_one_with_their_own_sample(capsys, profile, says, cost):
    suite = Path(__file__).parents[2] / "suites" / "longctx.accept.yaml"
    assert main(["plan", str(suite), "--profile", profile]) == 0
    out = capsys.readouterr().out
    assert says in out
    assert f"cost: about {cost:g} x the trained length in prefilled tokens per side, less what" in out


def test_the_default_beyond_the_shipped_length_is_that_of_the_check():
    pytest.importorskip("torch")
    from pytest_attnaccept.checks import model_length_curve
    from pytest_attnaccept.reports.plan import BEYOND

    assert model_length_curve.DEFAULTS["beyond"] == BEYOND


def test_a_method_that_plan_does_not_know_may_be_one_of_a_conftest(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    body = "schema: 1\nmodels: {gqa: toy-gqa}\nfactors: {e: {m: {method: mykv}}}\nships: {p: {e: m}}\n"
    Path("s.accept.yaml").write_text(body)
    assert main(["plan", "s.accept.yaml"]) == 2
    said = capsys.readouterr().err
    assert "s.accept.yaml:3: unknown method 'mykv'" in said
    assert "pytest s.accept.yaml --accept-plan" in said
    Path("s.accept.yaml").write_text(body.replace("method: mykv", "method: kv8, bit: 8"))
    assert main(["plan", "s.accept.yaml"]) == 2
    said = capsys.readouterr().err
    assert "unknown knob of kv8 'bit'" in said
    assert "conftest" not in said
