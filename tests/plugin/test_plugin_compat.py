"""Every entry of the compatibility list: exit status, verdicts and the number of records."""

import sys

import pytest
from scripted import GATE, H2O, SMOKE, TWO, N, Project

PYTEST = tuple(int(x) for x in pytest.__version__.split(".")[:2])
needs_9 = pytest.mark.skipif(PYTEST < (9, 0), reason="the ini option 'strict' exists since pytest 9.0")
ITEM = "test_gate.py::test_h2o"


@pytest.fixture
def gated(project: Project) -> Project:
    """Two gated tests of N items each."""
    project.file("test_gate.py", TWO)
    return project


def test_serial(gated: Project) -> None:
    out = gated.run(GATE)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")
    assert list(out.verdicts) == [f"test_gate.py::test_{m}[{c}]" for m in ("h2o", "kv4") for c in SMOKE]
    assert "GATE PASS" in out.text
    assert {r["attempt"] for r in out.records} == {1}


def test_serial_failing_item(gated: Project) -> None:
    gated.script(perplexity="fail")
    out = gated.run(GATE)
    assert (out.ret, out.failed, len(out.records), out.gate) == (1, 2, 2 * N, "FAIL")
    assert out.tally == {"PASS": 2 * N - 2, "FAIL": 2}
    assert (
        f"evidence: .attnaccept/verdict.json; run only what is not green: pytest {GATE} --lf --accept-resume"
        in out.text
    )
    first = out.text.index("GATE FAIL under profile smoke")
    assert first < out.text.index("FAIL test_gate.py::test_h2o[perplexity]", first)


@pytest.mark.parametrize("options", [("-n0",), ("-n2",), ("-n2", "--dist", "loadfile")], ids=" ".join)
def test_xdist_agrees_with_serial(gated: Project, options: tuple[str, ...]) -> None:
    gated.script(footprint="fail")
    out = gated.run(GATE, *options, apart=True)
    assert (out.ret, out.failed, out.passed, len(out.records)) == (1, 2, 2 * N - 2, 2 * N)
    assert out.gate == "FAIL"
    gated.script()
    out = gated.run(GATE, *options, apart=True)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")
    assert len(list(out.folder.glob("plan.*.final.json"))) == 1


def test_xdist_selected_part_is_incomplete(gated: Project) -> None:
    out = gated.run(GATE, "-n2", "-k", "h2o", apart=True)
    assert (out.ret, out.passed, len(out.records)) == (1, N, N)
    assert out.tally == {"PASS": N, "INCOMPLETE": N}


def test_without_xdist(gated: Project) -> None:
    out = gated.run(GATE, "-p", "no:xdist", apart=True)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")


def test_without_any_other_plugin(gated: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    out = gated.run("-p", "pytest_attnaccept.plugin", GATE, apart=True)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")


def test_without_cacheprovider(gated: Project) -> None:
    out = gated.run(GATE, "-p", "no:cacheprovider")
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")


def test_without_terminal(gated: Project) -> None:
    gated.script(identity="nan")
    out = gated.run(GATE, "-p", "no:terminal", apart=True)
    assert (out.ret, len(out.records), out.gate, out.text.strip()) == (1, 2 * N, "FAIL", "")


def test_warnings_are_errors(gated: Project) -> None:
    out = gated.run(GATE, "-W", "error", "--junitxml=out.xml", apart=True)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")


@needs_9
def test_strict(gated: Project) -> None:
    gated.file("pytest.ini", "[pytest]\nstrict = true\naccept_profile = smoke\n")
    out = gated.run()
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")


def test_strict_markers_and_config(gated: Project) -> None:
    gated.file("pytest.ini", "[pytest]\naddopts = --strict-markers --strict-config\naccept_profile = smoke\n")
    out = gated.run()
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N, 2 * N, "PASS")


@needs_9
def test_native_toml(gated: Project) -> None:
    gated.file("pytest.toml", '[pytest]\naccept_profile = "smoke"\naccept_seed = "3"\n')
    out = gated.run()
    assert (out.ret, len(out.records), out.gate) == (0, 2 * N, "PASS")


def test_collect_only(gated: Project) -> None:
    out = gated.run(GATE, "--co", "-q")
    assert out.ret == 0
    assert out.text.count("test_gate.py::test_") == 2 * N
    assert not out.folder.exists()
    assert "GATE" not in out.text


def test_k_selects_and_is_incomplete(gated: Project) -> None:
    out = gated.run(GATE, "-k", "kv4 and footprint")
    assert (out.ret, out.passed, len(out.records)) == (1, 1, 1)
    assert out.tally == {"PASS": 1, "INCOMPLETE": 2 * N - 1}


def test_k_nothing(gated: Project) -> None:
    out = gated.run(GATE, "-k", "no_such_name")
    assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": 2 * N})


def test_m_with_method(gated: Project) -> None:
    out = gated.run(GATE, "-m", "approximate(method='h2o')")
    assert (out.ret, out.passed, len(out.records)) == (1, N, N)
    assert out.tally == {"PASS": N, "INCOMPLETE": N}


def test_m_with_method_and_nothing_else(project: Project) -> None:
    project.file("test_gate.py", H2O + "\ndef test_plain():\n    pass\n")
    out = project.run(GATE, "-m", "approximate(method='h2o')")
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, N, N, "PASS")


def test_x_stops_and_is_incomplete(gated: Project) -> None:
    gated.script(identity="fail")
    out = gated.run(GATE, "-x")
    assert (out.ret, out.failed, len(out.records)) == (1, 1, 1)
    assert out.tally == {"FAIL": 1, "INCOMPLETE": 2 * N - 1}


def test_maxfail(gated: Project) -> None:
    gated.script(default="fail")
    out = gated.run(GATE, "--maxfail=2")
    assert (out.ret, out.failed, len(out.records)) == (1, 2, 2)
    assert out.tally == {"FAIL": 2, "INCOMPLETE": 2 * N - 2}


def test_stepwise(gated: Project) -> None:
    gated.script_items({f"{ITEM}[footprint]": "fail"})
    assert gated.run(GATE, "--sw").ret == 2  # stepwise interrupts the session
    gated.script()
    out = gated.run(GATE, "--sw")
    assert (out.ret, len(out.records)) == (1, 2 * N - 1)
    assert out.tally == {"PASS": 2 * N - 1, "INCOMPLETE": 1}


def test_reruns_do_not_repeat_a_gate(gated: Project) -> None:
    gated.script(perplexity=["fail", "pass"])
    out = gated.run(GATE, "--reruns", "2", "--junitxml=out.xml", apart=True)
    assert (out.ret, out.failed, len(out.records), out.gate) == (1, 2, 2 * N, "FAIL")
    assert "rerun" not in out.outcomes
    assert len(gated.junit().findall(".//testcase")) == 2 * N


@pytest.mark.parametrize("mode", [(), ("-n2",)], ids=["serial", "n2"])
def test_forced_reruns_are_refused(gated: Project, mode: tuple[str, ...]) -> None:
    gated.script(perplexity=["fail", "pass"])
    out = gated.run(GATE, "--force-reruns", "2", *mode, apart=True)
    assert (out.ret, len(out.records)) == (4, 0)
    assert "--force-reruns" in out.text
    out = gated.run("--force-reruns", "2", *mode, apart=True)
    assert out.ret == (1 if mode else 4)
    assert len(out.records) == 0


def test_timeout(project: Project) -> None:
    pytest.importorskip("pytest_timeout")
    project.file("test_gate.py", H2O)
    project.script(footprint="sleep")
    out = project.run(GATE, "--timeout=2", apart=True)
    assert (out.ret, out.failed, len(out.records)) == (1, 1, N - 1)
    assert out.tally == {"PASS": N - 1, "INCOMPLETE": 1}


def test_worker_crash_keeps_what_was_measured(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script_items({f"{ITEM}[{SMOKE[-1]}]": "crash"})
    out = project.run(GATE, "-n1", "--max-worker-restart=0", apart=True)
    assert (out.ret, out.failed, len(out.records)) == (1, 1, N - 1)
    assert out.tally == {"PASS": N - 1, "INCOMPLETE": 1}


def test_crash_of_a_serial_run_outdates_the_verdict_before_it(project: Project) -> None:
    project.file("test_gate.py", H2O)
    assert project.run(GATE).gate == "PASS"
    project.script_items({f"{ITEM}[{SMOKE[1]}]": "crash"})
    out = project.run(GATE, apart=True)
    assert out.ret == 3
    verdict = project.pytester.run(sys.executable, "-m", "pytest_attnaccept", "verdict", ".attnaccept")
    assert verdict.ret == 1
    assert f"{N - 1} INCOMPLETE" in verdict.stdout.str()


def test_nested_pytester_session(gated: Project) -> None:
    gated.file(
        "test_nested.py",
        "pytest_plugins = ['pytester']\n"
        "def test_inner(pytester):\n"
        "    pytester.makepyfile('import pytest\\n"
        '@pytest.mark.approximate(method="kv2")\\n'
        "def test_kv2(accept):\\n    raise RuntimeError\\n')\n"
        "    assert pytester.runpytest_inprocess('-q').ret == 1\n",
    )
    gated.file("conftest.py", (gated.path / "conftest.py").read_text() + "\npytest_plugins = ['pytester']\n")
    out = gated.run(GATE, apart=True)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, 2 * N + 1, 2 * N, "PASS")


def test_all_skipped(project: Project) -> None:
    project.file("test_gate.py", H2O.replace("@pytest.mark", "@pytest.mark.skip\n@pytest.mark"))
    out = project.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": N})
    assert out.outcomes["skipped"] == N


def test_nan_metric(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(footprint="nan", perplexity="inf")
    out = project.run(GATE)
    assert (out.ret, out.failed, len(out.records), out.gate) == (1, 2, N, "FAIL")
    assert "nan is beyond 1" in out.text


def test_chinese_everything(project: Project) -> None:
    name = "test_注意力_缓存"
    source = H2O.replace("test_h2o", name).replace(
        "@pytest.mark", '@pytest.mark.parametrize("p", ["提示", "b"])\n@pytest.mark'
    )
    project.file("测试目录/test_内核.py", source.replace("(accept)", "(accept, p)"))
    project.script(identity="chinese", footprint="fail")
    out = project.run(GATE, "--junitxml=out.xml", apart=True)
    assert (out.ret, out.failed, len(out.records), out.gate) == (1, 4, 2 * N, "FAIL")
    cell = "测试目录/test_内核.py::test_注意力_缓存[b]"
    assert f"{cell}[perplexity]" in out.verdicts
    assert "内核越界" in out.headline(f"{cell}[identity]")
    texts = [f.get("message") for f in project.junit().iter("failure")]
    assert sum("内核越界" in t for t in texts) == 2
    assert any(case.get("name", "").startswith(name) for case in project.junit().iter("testcase"))


def test_ini_profile_is_explicit(gated: Project) -> None:
    gated.file("pytest.ini", "[pytest]\naccept_profile = smoke\n")
    out = gated.run("-k", "h2o")
    assert (out.ret, len(out.records), out.gate) == (1, N, "INCOMPLETE")


def test_without_profile_the_exit_status_is_pytests_own(gated: Project) -> None:
    out = gated.run("-k", "h2o")
    assert (out.ret, out.passed, len(out.records)) == (0, N, N)
    assert f"no gate: {N} of {2 * N} items not run" in out.text
    gated.script(footprint="fail")
    assert gated.run("-k", "h2o").ret == 1
