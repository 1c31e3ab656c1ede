"""What users of neighbouring tools complained about, one test per lesson of the study, numbered as there."""

import json
import re
import sys

import pytest
from scripted import GATE, H2O, SMOKE, TWO, N, Project, checks_of

from pytest_attnaccept.completeness import judge
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Metric, Record
from pytest_attnaccept.taxonomy import Verdict

ITEM = "test_gate.py::test_h2o"


@pytest.fixture
def gated(project: Project) -> Project:
    project.file("test_gate.py", H2O)
    return project


def test_lesson_01_missing_baseline_is_incomplete_and_says_what_to_pass(gated: Project) -> None:
    gated.script(baseline="needed")
    out = gated.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, N, {"INCOMPLETE": N})
    assert "--accept-model" in out.headline(f"{ITEM}[identity]")


def test_lesson_02_fingerprints_hold_causal_fields_only(gated: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    first = gated.run(GATE)
    monkeypatch.setenv("HOSTNAME", "another-host")
    second = gated.run(GATE)
    assert [r["static"] for r in first.records] == [r["static"] for r in second.records]
    assert [r["fingerprint"] for r in first.records] == [r["fingerprint"] for r in second.records]
    text = json.dumps([r["fingerprint"] for r in first.records]) + json.dumps(
        [i["item"] for i in first.summary["items"]]
    )
    assert str(gated.path) not in text


def test_lesson_03_limits_are_per_metric_and_method(project: Project) -> None:
    project.script(footprint="some", perplexity="paired")
    loose = '{"needle": {"max": 0.3, "origin": "policy: this method only"}}'
    project.file("test_gate.py", TWO.replace('"kv4"', f'"kv4", limits={loose}'))
    out = project.run(GATE)
    limits = {r["methods"][0]: m["limit"] for r in out.records for m in r["metrics"] if r["check"] == "footprint"}
    assert (out.ret, len(out.records), limits) == (1, 2 * N, {"h2o": 0.1, "kv4": 0.3})
    assert out.verdicts["test_gate.py::test_kv4[footprint]"] == "PASS"


def test_lesson_04_the_verdict_can_be_had_offline(gated: Project) -> None:
    for action, status in (("pass", 0), ("fail", 1), ("few", 1)):
        gated.script(footprint=action)
        assert gated.run(GATE).ret == status
        done = gated.pytester.run(sys.executable, "-m", "pytest_attnaccept", "verdict", ".attnaccept")
        assert done.ret == status
    assert gated.pytester.run(sys.executable, "-m", "pytest_attnaccept", "verdict", "nowhere").ret == 2


def test_lesson_05_refusals_are_decided_per_item(gated: Project) -> None:
    gated.script(footprint="engine")
    out = gated.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, N, {"PASS": N - 1, "INCOMPLETE": 1})


def test_lesson_06_and_07_no_performance_limit_without_a_measured_floor(project: Project) -> None:
    limits = '{"ttft": {"max": 0.1, "origin": "policy: x"}}'
    project.file("test_gate.py", H2O.replace("0.25", f"0.25, limits={limits}"))
    out = project.run(GATE)
    assert (out.ret, len(out.records)) == (4, 0)
    assert "unknown limit 'ttft'" in out.text
    project.file("test_gate.py", H2O)
    out = project.run("--accept-profile=serving")
    assert out.ret == 1
    assert {v for i, v in out.verdicts.items() if "[ttft]" in i} == {"INCOMPLETE"}


def test_lesson_08_a_loosened_limit_needs_a_reason_and_is_shown(project: Project) -> None:
    project.script(footprint="some")
    project.file("test_gate.py", H2O.replace("0.25", '0.25, limits={"needle": {"max": 0.3}}'))
    assert project.run(GATE).ret == 4
    project.file("test_gate.py", H2O.replace("0.25", '0.25, limits={"needle": {"max": 0.3, "origin": "policy: demo"}}'))
    out = project.run(GATE)
    assert (out.ret, len(out.records)) == (0, N)
    assert "limit of needle loosened from 0.1 to 0.3 (policy: demo)" in out.text


@pytest.mark.parametrize("origin", ["", "paper table 3", "guess: it looked right"])
def test_lesson_09_origin_is_measured_derived_or_policy(project: Project, origin: str) -> None:
    project.file(
        "test_gate.py", H2O.replace("0.25", f'0.25, limits={{"needle": {{"max": 0.05, "origin": "{origin}"}}}}')
    )
    out = project.run(GATE)
    assert (out.ret, len(out.records)) == (4, 0)
    assert "needs origin" in out.text


def test_lesson_10_sample_size_and_power_are_in_the_plan(gated: Project) -> None:
    out = gated.run(GATE, "--accept-plan")
    assert out.ret == 0
    assert re.search(r"n[= ]|contexts|documents", out.text)
    assert "power" in out.text.lower() or "passes with" in out.text.lower()


@pytest.mark.parametrize("action", ["invalid", "nothing"])
def test_lesson_11_an_invalid_measurement_never_passes(gated: Project, action: str) -> None:
    gated.script(default=action)
    out = gated.run(GATE)
    assert (out.ret, out.failed, len(out.records), out.tally) == (1, N, N, {"INVALID": N})


def test_lesson_12_dtype_and_seed_are_part_of_what_was_measured(gated: Project) -> None:
    seen = [
        {r["static"] for r in gated.run(GATE, *o).records}
        for o in ((), ("--accept-dtype=bfloat16",), ("--accept-seed=1",))
    ]
    assert all(len(s) == N for s in seen)
    assert not seen[0] & seen[1] | seen[0] & seen[2]


@pytest.mark.parametrize("knob", ["atol=0.05", "rtol=1e-2", "tolerance=0.1"])
def test_lesson_13_there_is_no_absolute_tolerance_to_set(project: Project, knob: str) -> None:
    project.file("test_gate.py", H2O.replace("0.25", f"0.25, {knob}"))
    out = project.run(GATE)
    assert (out.ret, len(out.records)) == (4, 0)


def test_lesson_14_records_echo_configuration_and_sample_size(gated: Project) -> None:
    gated.script(footprint="paired")
    record = next(r for r in gated.run(GATE).records if r["check"] == "footprint")
    assert (record["stack"], record["profile"], record["kind"]) == (
        "h2o(kv_budget=0.25, sinks=4)",
        "smoke",
        "approximate",
    )
    assert (record["metrics"][0]["n"], record["fingerprint"]["seed"]) == (2000, "0")
    assert record["reason"]


def test_lesson_15_suite_level_properties_survive_xdist(gated: Project) -> None:
    out = gated.run(GATE, "-n2", "--junitxml=out.xml", apart=True)
    suite = gated.junit().find("testsuite")
    found = {p.get("name"): p.get("value") for p in suite.find("properties")}
    assert (out.ret, found["attnaccept.verdict"], found["attnaccept.run_id"]) == (0, "PASS", out.summary["run_id"])
    assert all(c.find("properties") is not None for c in suite.iter("testcase"))


def test_lesson_16_one_pytest_item_per_check(gated: Project) -> None:
    out = gated.run(GATE, "--junitxml=out.xml")
    suite = gated.junit().find("testsuite")
    assert (suite.get("tests"), len(suite.findall("testcase")), out.passed) == (str(N), N, N)


def test_lesson_17_reruns_leave_no_second_chance(gated: Project) -> None:
    gated.script(footprint=["fail", "pass"])
    out = gated.run(GATE, "--reruns=3", apart=True)
    assert (out.ret, out.failed, len(out.records), out.gate) == (1, 1, N, "FAIL")
    marked = H2O.replace("@pytest.mark", "@pytest.mark.flaky(reruns=3)\n@pytest.mark")
    gated.file("test_gate.py", marked)
    for counter in gated.path.glob(".calls-*"):
        counter.unlink()
    out = gated.run(GATE, apart=True)
    assert (out.ret, out.failed, len(out.records), out.gate) == (1, 1, N, "FAIL")


def test_lesson_17_a_repeated_item_keeps_its_worst_verdict(gated: Project) -> None:
    gated.script(footprint=["fail", "pass"])
    retry = (
        "\ndef pytest_runtest_protocol(item, nextitem):\n    from _pytest.runner import runtestprotocol\n"
        "    runtestprotocol(item, nextitem=None, log=False)\n    item._initrequest()\n    return None\n"
    )
    gated.file("conftest.py", (gated.path / "conftest.py").read_text(encoding="utf-8") + retry)
    out = gated.run(GATE)
    assert (out.ret, out.passed, len(out.records)) == (1, N, 2 * N)
    assert out.tally == {"PASS": N - 1, "FAIL": 1}


def test_lesson_18_what_is_expensive_is_built_once_per_test(project: Project) -> None:
    from pytest_attnaccept.options import Options
    from pytest_attnaccept.registry import Registry
    from pytest_attnaccept.session import GateSession

    options = Options(
        profile="smoke", explicit=False, model=None, device="cpu", dtype=None, seed=0, out=project.path / "out",
        plan_only=False, time_s=None, selftest=False, resume=False, html=None,
    )  # fmt: skip
    gate = GateSession(options, Registry.builtin(), run_id="r")
    log: list[str] = []

    class Held:
        def __init__(self, name: str) -> None:
            self.name = name
            log.append(f"open {name}")

        def close(self) -> None:
            log.append(f"close {self.name}")

    for key in ("a", "a", "b", "b", "a"):
        assert gate.shared(key, lambda key=key: Held(key)).name == key
    gate.close()
    assert log == ["open a", "close a", "open b", "close b", "open a", "close a"]


def test_lesson_19_records_are_keyed_by_item_not_by_node_id(project: Project) -> None:
    project.file("test_gate.py", TWO.replace("@pytest.mark", '@pytest.mark.xdist_group("gpu")\n@pytest.mark'))
    out = project.run(GATE, "-n2", "--dist", "loadgroup", apart=True)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")
    assert not any("@" in i for i in out.verdicts)


def test_lesson_20_older_evidence_is_reported_not_removed(gated: Project) -> None:
    gated.script(footprint="engine")
    gated.run(GATE)
    gated.file("test_gate.py", H2O + "# changed\n")
    gated.script()
    out = gated.run(GATE, "--accept-resume", "-k", "footprint")
    assert (out.ret, len(out.records), out.tally) == (1, N + 1, {"PASS": 1, "INCOMPLETE": N - 1})
    assert out.text.count("stale record") == N - 1


def test_lesson_21_no_option_rewrites_evidence(gated: Project) -> None:
    out = gated.run("--help")
    assert not re.search(r"--accept-\S*(update|regen|overwrite|force)", out.text)


def test_lesson_22_records_hold_effects_and_intervals_not_hashes_of_outputs(gated: Project) -> None:
    gated.script(default="paired")
    metric = gated.run(GATE).records[0]["metrics"][0]
    assert metric["ci_low"] <= metric["effect"] <= metric["ci_high"] <= metric["limit"]


def test_lesson_23_to_25_idle_is_tested_elsewhere(gated: Project) -> None:
    """See tests/test_import_budget.py and test_plugin_idle.py; here: nothing is written outside of one folder."""
    before = {p.name for p in gated.path.iterdir()}
    out = gated.run(GATE, "-p", "no:cacheprovider")
    new = {p.name for p in gated.path.iterdir()} - before
    assert (out.ret, len(out.records)) == (0, N)
    assert new - {"__pycache__"} == {".attnaccept"}


def test_lesson_26_suite_items_are_functions_with_fixtures(project: Project) -> None:
    project.file(
        "a.accept.yaml",
        "schema: 1\nmodels: {m: toy-gqa}\nfactors: {kv: {four: {method: kv4}}}\nships: {prod: {kv: four}}\n",
    )
    more = (
        "\nimport pytest\n@pytest.fixture(autouse=True)\ndef check(request, tmp_path):\n"
        "    assert isinstance(request.node, pytest.Function)\n"
    )
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + more)
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records)) == (0, N, N)


def test_lesson_27_a_crash_keeps_what_was_measured(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script_items({f"{ITEM}[{SMOKE[2]}]": "crash"})
    out = project.run(GATE, "-n1", apart=True)
    assert (out.ret, len(out.records), out.tally) == (1, N - 1, {"PASS": N - 1, "INCOMPLETE": 1})


def test_lesson_28_a_record_is_on_disk_before_the_next_item(project: Project) -> None:
    source = H2O.replace(
        "accept.model()", "import os; os.environ['ATTN_LINES'] = str(CHECKS.index(accept.check)); accept.model()"
    )
    project.file("test_gate.py", f"CHECKS = {SMOKE}\n" + source)
    project.script(default="ondisk")
    out = project.run(GATE, apart=True)
    assert (out.ret, out.passed, len(out.records)) == (0, N, N)


def test_lesson_29_the_plan_is_stable_and_complete_after_a_merge(project: Project) -> None:
    project.file("test_gate.py", TWO)
    digests = set()
    for options in ((), ("-k", "h2o"), ("--ff",), ("-n2",)):
        out = project.run(GATE, *options, apart="-n2" in options)
        plan = next(out.folder.glob("plan.*.final.json"))
        digests.add(json.loads(plan.read_text(encoding="utf-8"))["digest"])
        assert len(out.verdicts) == 2 * N
    assert len(digests) == 1


def test_lesson_30_usage_errors_are_visible_under_xdist(gated: Project) -> None:
    out = gated.run("--accept-profile=nope", "-n2", apart=True)
    assert (out.ret, len(out.records)) == (4, 0)
    assert "unknown profile 'nope'" in out.text
    assert "INTERNALERROR" not in out.text


@pytest.mark.parametrize("how", ["pytest.mark.skip", "pytest.mark.skipif(True, reason='no gpu')"])
def test_lesson_31_a_skipped_planned_item_is_incomplete(project: Project, how: str) -> None:
    project.file("test_gate.py", H2O.replace("@pytest.mark", f"@{how}\n@pytest.mark"))
    out = project.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": N})


def test_lesson_31_a_skipped_parameter_is_incomplete(project: Project) -> None:
    param = '@pytest.mark.parametrize("p", [1, pytest.param(2, marks=pytest.mark.skip)])\n@pytest.mark.approx'
    project.file("test_gate.py", H2O.replace("@pytest.mark.approx", param).replace("(accept)", "(accept, p)"))
    out = project.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, N, {"PASS": N, "INCOMPLETE": N})


def test_lesson_32_marks_are_registered(project: Project) -> None:
    for name in ("exact", "approximate", "architecture", "optimization"):
        project.file(f"test_{name}.py", f"import pytest\n@pytest.mark.{name}\ndef test_{name}(): pass\n")
    out = project.run("--strict-markers", "-W", "error")
    assert (out.ret, out.passed) == (0, 4)


def test_lesson_33_fail_is_decided_over_the_family() -> None:
    def item(number: int) -> PlannedItem:
        return PlannedItem(
            cell=f"c{number}", check="needle-1x", kind="approximate", surface="model", methods=("h2o",), stack="h2o",
            reason="", profile="smoke", static="s",
        )  # fmt: skip

    def record(number: int, p_fail: float) -> Record:
        planned = item(number)
        metric = Metric(name="needle", verdict="INCONCLUSIVE", p_fail=p_fail)
        return Record(
            item=planned.id, cell=planned.cell, check=planned.check, kind="approximate", surface="model", stack="h2o",
            methods=("h2o",), profile="smoke", verdict=Verdict.INCONCLUSIVE, headline="INCONCLUSIVE x", run_id="r",
            static="s", metrics=(metric,), time=str(number),
        )  # fmt: skip

    plan = Plan(items=tuple(item(i) for i in range(10)), profile="smoke")
    one_in_ten = judge(plan, [record(i, 0.02 if i == 0 else 0.6) for i in range(10)])
    assert one_in_ten.count(Verdict.FAIL) == 0  # 0.02 > 0.05 / 10
    clear = judge(plan, [record(i, 0.004 if i == 0 else 0.6) for i in range(10)])
    assert clear.count(Verdict.FAIL) == 1
    assert clear.verdict is Verdict.FAIL
    assert "Holm" in clear.results[0].headline


def test_checks_follow_from_the_protocol() -> None:
    assert checks_of("h2o", "smoke", kv_budget=0.5) == SMOKE
    assert N >= 4
