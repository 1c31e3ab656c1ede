"""What JUnit consumers see: one testcase per item, verdict first, plain properties, errors apart from failures."""

import pytest
from scripted import GATE, H2O, SMOKE, TWO, N, Project

ITEM = "test_gate.py::test_h2o"


def properties(case) -> dict[str, str]:
    return {p.get("name"): p.get("value") for p in case.iter("property")}


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
@pytest.mark.parametrize("mode", [(), ("-n2",)], ids=["serial", "n2"])
def test_one_testcase_per_item(project: Project, family: str, mode: tuple[str, ...]) -> None:
    project.file("test_gate.py", TWO)
    project.script(identity="raise", footprint="fail", divergence="contract", perplexity="engine")
    out = project.run(GATE, "--junitxml=out.xml", "-o", f"junit_family={family}", *mode, "-W", "error", apart=True)
    suite = project.junit().find("testsuite")
    cases = suite.findall("testcase")
    assert (out.ret, len(out.records), len(cases)) == (1, 2 * N, 2 * N)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (str(2 * N), "6", "2")
    by_name = {c.get("name"): c for c in cases}
    assert len(by_name) == 2 * N
    assert (
        by_name["test_h2o[identity]"]
        .find("failure")
        .get("message")
        .startswith(f"FAIL {ITEM}[identity]: the candidate raised")
    )
    assert by_name["test_h2o[footprint]"].find("failure").get("message").startswith(f"FAIL {ITEM}[footprint]: ")
    assert by_name["test_h2o[perplexity]"].find("failure").get("message").startswith(f"INCOMPLETE {ITEM}[perplexity]: ")
    assert by_name["test_h2o[divergence]"].find("failure") is None
    assert "window=0 is not allowed" in by_name["test_h2o[divergence]"].find("error").text
    for case in cases:
        found = properties(case)
        assert 0 < len(found) <= 25
        assert found["attnaccept.verdict"] == out.verdicts[f"{found['attnaccept.cell']}[{found['attnaccept.check']}]"]
    assert properties(suite.find("properties"))["attnaccept.verdict"] == "FAIL"


def test_metric_properties_mirror_the_record(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(footprint="paired", divergence="many", perplexity="nan")
    out = project.run(GATE, "--junitxml=out.xml")
    cases = {c.get("name"): properties(c) for c in project.junit().iter("testcase")}
    metric = next(r for r in out.records if r["check"] == "footprint")["metrics"][0]
    found = cases["test_h2o[footprint]"]
    assert float(found["attnaccept.metric.needle.ci_high"]) == metric["ci_high"]
    assert found["attnaccept.metric.needle.n"] == "2000"
    assert float(found["attnaccept.metric.needle.limit"]) == metric["limit"]
    assert len(cases["test_h2o[divergence]"]) == 25
    assert "attnaccept.metric.perplexity" not in cases["test_h2o[perplexity]"]  # NaN is not a number to report
    assert cases["test_h2o[perplexity]"]["attnaccept.metric.perplexity.verdict"] == "FAIL"


def test_properties_are_primitive_and_match_the_record(project: Project) -> None:
    project.file("test_gate.py", H2O)
    hook = (
        "\ndef pytest_runtest_logreport(report):\n"
        "    for name, value in report.user_properties:\n"
        "        assert type(value) in (str, int, float, bool), (name, value)\n"
    )
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + hook)
    out = project.run(GATE, "-n1", apart=True)
    assert (out.ret, len(out.records)) == (0, N)


def test_first_line_is_complete_whatever_the_candidate_raises(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(identity="lines", footprint="surrogate")
    out = project.run(GATE, "--junitxml=out.xml", "-p", "no:terminal", apart=True)
    assert (out.ret, len(out.records), out.tally) == (1, N, {"PASS": N - 2, "FAIL": 2})
    messages = [f.get("message").splitlines() for f in project.junit().iter("failure")]
    first = next(m for m in messages if "identity" in m[0])[0]
    assert first.startswith(f"FAIL {ITEM}[identity]: the candidate raised RuntimeError: first line second line xxx")
    assert len(first) <= 480
    assert any("bad name" in m[0] for m in messages)
    assert out.verdicts[f"{ITEM}[footprint]"] == "FAIL"


def test_traceback_ends_in_the_users_line(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(footprint="fail")
    project.run(GATE, "--junitxml=out.xml")
    text = next(project.junit().iter("failure")).text
    assert "accept.py" not in text
    assert "test_gate.py:6: AcceptanceFailure" in text


def test_system_out(project: Project) -> None:
    project.file("test_gate.py", H2O.replace("accept.model()", "print('提示 printed')\n    accept.model()"))
    out = project.run(GATE, "--junitxml=out.xml", "-o", "junit_logging=system-out")
    assert (out.ret, len(out.records)) == (0, N)
    assert sum("提示 printed" in (s.text or "") for s in project.junit().iter("system-out")) == N


def test_fixture_error_is_an_error_and_incomplete(project: Project) -> None:
    project.file(
        "test_gate.py",
        "import pytest\n@pytest.fixture\ndef broken():\n    1 / 0\n" + H2O.replace("(accept)", "(accept, broken)"),
    )
    out = project.run(GATE, "--junitxml=out.xml")
    assert (out.ret, out.errors, len(out.records), out.tally) == (1, N, 0, {"INCOMPLETE": N})
    assert len(list(project.junit().iter("error"))) == N


def test_report_hook_sees_every_record(project: Project) -> None:
    project.file("test_gate.py", H2O)
    hook = (
        "\ndef pytest_attnaccept_report(config, record):\n"
        "    with open('seen.txt', 'a', encoding='utf-8') as stream:\n        stream.write(record.item + '\\n')\n"
    )
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + hook)
    assert project.run(GATE).ret == 0
    seen = (project.path / "seen.txt").read_text(encoding="utf-8").splitlines()
    assert seen == [f"{ITEM}[{c}]" for c in SMOKE]
