"""Nothing that is not proven is green: what a test, a fixture or a conftest can do to a gate, and what becomes of it."""

import pytest
from scripted import GATE, H2O, SMOKE, TWO, N, Project

MARK = '@pytest.mark.approximate(method="h2o", kv_budget=0.25)\n'
ITEM = "test_gate.py::test_h2o"


def body(*lines: str, before: str = "", arguments: str = "accept") -> str:
    """Return a test file whose gated test has the given body."""
    inner = "\n".join(f"    {x}" for x in lines)
    return f"import pytest\n\n{before}{MARK}def test_h2o({arguments}):\n{inner}\n"


def run_body(project: Project, text: str, *args: str):
    project.file("test_gate.py", text)
    return project.run(GATE, *args)


def test_skip_in_the_body(project: Project) -> None:
    out = run_body(project, body("pytest.skip('no gpu')", "accept.model()"))
    assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": N})


def test_skip_after_a_pass_takes_it_back(project: Project) -> None:
    out = run_body(project, body("accept.model()", "pytest.skip('never mind')"))
    assert (out.ret, len(out.records), out.tally) == (1, 2 * N, {"INVALID": N})
    assert out.outcomes == {"skipped": N}


@pytest.mark.parametrize("line", ["assert False, 'tighter than the gate'", "accept.model()", "raise SystemExit(0)"])
def test_xfail_does_not_hide_what_follows_a_pass(project: Project, line: str) -> None:
    out = run_body(project, body("accept.model()", line, before="@pytest.mark.xfail\n"))
    assert (out.ret, out.failed, len(out.records)) == (1, 0, 2 * N)
    assert set(out.tally) <= {"FAIL", "INVALID"}
    assert "took back its PASS" in out.headline(f"{ITEM}[{SMOKE[0]}]")


@pytest.mark.parametrize("mark", ["xfail", "xfail(strict=False, raises=AssertionError)", "xfail(run=False)"])
def test_xfail_marked_failing_item(project: Project, mark: str) -> None:
    project.script(perplexity="fail")
    out = run_body(project, body("accept.model()", before=f"@pytest.mark.{mark}\n"))
    assert out.ret == 1
    assert out.verdicts[f"{ITEM}[perplexity]"] == ("INCOMPLETE" if "run=False" in mark else "FAIL")
    assert len(out.records) == (0 if "run=False" in mark else N)


def test_swallowed_failure_still_fails(project: Project) -> None:
    project.script(footprint="fail")
    out = run_body(project, body("try:", "    accept.model()", "except AssertionError:", "    pass"))
    assert (out.ret, out.failed, len(out.records)) == (1, 1, N)
    assert out.tally == {"PASS": N - 1, "FAIL": 1}


def test_pytest_raises_around_the_gate_still_fails(project: Project) -> None:
    project.script(default="fail")
    out = run_body(project, body("with pytest.raises(AssertionError):", "    accept.model()"))
    assert (out.ret, out.failed, len(out.records), out.tally) == (1, N, N, {"FAIL": N})


def test_accept_called_twice(project: Project) -> None:
    out = run_body(project, body("accept.model()", "accept.model()"))
    assert (out.ret, out.failed, out.tally) == (1, N, {"INVALID": N})
    assert "calls accept twice" in out.text
    out = run_body(project, body("accept.model()", "try:", "    accept.model()", "except BaseException:", "    pass"))
    assert (out.ret, out.failed, out.tally) == (1, N, {"INVALID": N})


def test_accept_never_called(project: Project) -> None:
    out = run_body(project, body("pass"))
    assert (out.ret, out.failed, len(out.records), out.tally) == (1, N, 0, {"INCOMPLETE": N})
    assert "never called accept.model" in out.text
    assert run_body(project, body("return")).ret == 1


def test_accept_never_called_without_profile(project: Project) -> None:
    project.file("test_gate.py", body("pass"))
    assert project.run().ret == 1


def test_wrong_surface_names_the_fix(project: Project) -> None:
    out = run_body(project, body("gate = accept", "gate.cache(object, page_size=16)"))
    assert (out.ret, out.failed, len(out.records), out.tally) == (1, N, N, {"FAIL": N})
    assert "add surface='cache' to the mark" in out.headline(f"{ITEM}[{SMOKE[0]}]")


def test_deselected_by_option_and_by_node_id(project: Project) -> None:
    project.file("test_gate.py", TWO)
    out = project.run(GATE, "--deselect", f"{ITEM}[footprint]")
    assert (out.ret, len(out.records), out.tally) == (1, 2 * N - 1, {"PASS": 2 * N - 1, "INCOMPLETE": 1})
    out = project.run(GATE, f"{ITEM}[footprint]")
    assert (out.ret, len(out.records), out.tally) == (1, 1, {"PASS": 1, "INCOMPLETE": N - 1})
    out = project.run(GATE, ITEM)
    assert (out.ret, len(out.records), out.tally) == (0, N, {"PASS": N})


CLEAR = {
    "plain": "def pytest_collection_modifyitems(items):\n    items[:] = items[:1]\n",
    "first": "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_modifyitems(items):\n    items[:] = items[:1]\n",
    "wrapper": (
        "import pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_collection_modifyitems(items):\n"
        "    items[:] = items[:1]\n    return (yield)\n"
    ),
}


@pytest.mark.parametrize("how", CLEAR)
def test_conftest_that_filters_items(project: Project, how: str) -> None:
    project.file("sub/conftest.py", CLEAR[how])
    project.file("sub/test_gate.py", TWO)
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records)) == (1, 1, 1)
    assert out.tally == {"PASS": 1, "INCOMPLETE": 2 * N - 1}


STATUS = {
    "argument": "def pytest_sessionfinish(session, exitstatus):\n    if exitstatus in (0, 5):\n        session.exitstatus = 0\n",
    "last": (
        "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_sessionfinish(session):\n    session.exitstatus = 0\n"
    ),
    "exit": "import pytest\ndef pytest_sessionfinish(session):\n    pytest.exit('done', returncode=0)\n",
}


@pytest.mark.parametrize("how", STATUS)
def test_conftest_that_sets_the_exit_status(project: Project, how: str) -> None:
    project.file("sub/conftest.py", STATUS[how])
    project.file("sub/test_gate.py", H2O)
    out = project.run(GATE, "-k", "footprint")
    assert (out.ret, len(out.records)) == (1, 1)
    out = project.run(GATE, "-k", "nothing")
    assert (out.ret, len(out.records)) == (1, 0)


def test_pytest_exit_with_returncode_0_in_a_test(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.file("test_a_first.py", "import pytest\ndef test_leave():\n    pytest.exit('bye', returncode=0)\n")
    out = project.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": N})


def test_keyboard_interrupt_in_the_middle(project: Project) -> None:
    project.file("test_gate.py", TWO)
    project.script_items({f"{ITEM}[{SMOKE[2]}]": "interrupt"})
    out = project.run(GATE, apart=True)
    assert (out.ret, len(out.records)) == (2, 2)
    assert out.tally == {"PASS": 2, "INCOMPLETE": 2 * N - 2}


def test_systemexit_of_a_candidate_fails(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(identity="exit")
    out = project.run(GATE)
    assert (out.ret, out.failed) == (1, 1)
    assert out.verdicts[f"{ITEM}[identity]"] == "FAIL"


@pytest.mark.parametrize("what", ["records.*.jsonl", "plan.*.json", "*"])
def test_test_that_deletes_evidence(project: Project, what: str) -> None:
    project.file("test_gate.py", H2O)
    project.file(
        "test_z_last.py",
        f"import pathlib\ndef test_clean():\n    for p in pathlib.Path('.attnaccept').glob('{what}'):\n        p.unlink()\n",
    )
    out = project.run(GATE)
    if what == "plan.*.json":  # the plan of this process is also in memory
        assert (out.ret, len(out.records), out.tally) == (0, N, {"PASS": N})
    else:
        assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": N})


def test_test_that_edits_evidence(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(footprint="fail")
    project.file(
        "test_z_last.py",
        "import pathlib\ndef test_clean():\n    for p in pathlib.Path('.attnaccept').glob('records.*'):\n"
        "        p.write_text(p.read_text().replace('\"FAIL\"', '\"PASS\"'))\n",
    )
    out = project.run(GATE)
    assert out.ret == 1
    assert any("changed or removed" in p for p in out.summary["problems"])
    assert out.gate == "INCOMPLETE"


def test_os_chdir_in_a_test(project: Project) -> None:
    project.file("test_gate.py", body("import os, tempfile", "os.chdir(tempfile.gettempdir())", "accept.model()"))
    out = project.run(GATE, apart=True)
    assert (out.ret, len(out.records), out.gate) == (0, N, "PASS")


def test_output_folder_that_cannot_be_written(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.file("taken", "a file")
    for options in ((GATE,), ()):
        out = project.run(*options, "--accept-out=taken")
        assert (out.ret, out.passed) == (4, 0)
        assert "--accept-out" in out.text
    out = project.run("--accept-out=taken", "-n2", apart=True)
    assert out.ret != 0
    assert out.passed == 0


def test_explicit_profile_without_any_gated_item(project: Project) -> None:
    project.file("test_plain.py", "def test_plain():\n    pass\n")
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records), out.gate) == (1, 1, 0, "INCOMPLETE")
    assert "nothing was planned" in out.text
    out = project.run(GATE, "-n2", apart=True)
    assert (out.ret, out.passed, out.gate) == (1, 1, "INCOMPLETE")


def test_setup_plan_measures_nothing(project: Project) -> None:
    project.file("test_gate.py", H2O)
    out = project.run(GATE, "--setup-plan")
    assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": N})


def test_broken_module_beside_a_passing_gate(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.file("test_broken.py", "import no_such_module\n")
    out = project.run(GATE, "--continue-on-collection-errors")
    assert (out.ret, len(out.records), out.gate) == (1, N, "INCOMPLETE")
    assert any("could not be collected" in p for p in out.summary["problems"])


def test_own_fixture_called_accept_is_left_alone(project: Project) -> None:
    project.file("sub/conftest.py", "import pytest\n@pytest.fixture\ndef accept():\n    return 42\n")
    project.file("sub/test_own.py", "def test_own(accept):\n    assert accept == 42\n")
    out = project.run()
    assert (out.ret, out.passed) == (0, 1)
    assert not out.folder.exists()


def test_own_fixture_called_accept_on_a_gated_test(project: Project) -> None:
    project.file(
        "sub/conftest.py",
        "import pytest\n@pytest.fixture\ndef accept():\n    class A:\n        model = lambda s: 1\n    return A()\n",
    )
    project.file("sub/test_gate.py", H2O)
    out = project.run(GATE)
    assert (out.ret, out.passed) == (4, 0)
    assert "is the project's own" in out.text


def test_override_that_builds_on_the_fixture(project: Project) -> None:
    project.file("sub/conftest.py", "import pytest\n@pytest.fixture\ndef accept(accept):\n    return accept\n")
    project.file("sub/test_gate.py", H2O)
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, N, N, "PASS")


def test_folders_and_ids_with_brackets_stay_apart(project: Project) -> None:
    text = body(
        "accept.model()",
        before="@pytest.mark.parametrize('p', ['a[0]', 'identity', 'b-footprint'])\n",
        arguments="accept, p",
    )
    project.file("t[1]/test_gate.py", text)
    project.file("t[1]/test_other.py", text)
    out = project.run(GATE)
    assert (out.ret, len(out.records), len(out.verdicts)) == (0, 6 * N, 6 * N)
    out = project.run(GATE, "-k", "test_other")
    assert (out.ret, out.tally) == (1, {"PASS": 3 * N, "INCOMPLETE": 3 * N})


def test_function_named_like_a_check(project: Project) -> None:
    project.file("test_gate.py", H2O.replace("test_h2o", "test_identity") + H2O.replace("test_h2o", "test_footprint"))
    out = project.run(GATE)
    assert (out.ret, len(out.records), len(out.verdicts)) == (0, 2 * N, 2 * N)


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        ("nothing", "INVALID"),
        ("few", "INCONCLUSIVE"),
        ("harm", "FAIL"),
        ("invalid", "INVALID"),
        ("engine", "INCOMPLETE"),
        ("contract", "INCOMPLETE"),
        ("raise", "FAIL"),
        ("paired", "PASS"),
        ("neutral", "NOT_APPLICABLE"),
    ],
)
def test_every_kind_of_end(project: Project, action: str, verdict: str) -> None:
    project.file("test_gate.py", H2O)
    project.script(footprint=action)
    out = project.run(GATE)
    green = verdict in ("PASS", "NOT_APPLICABLE")
    assert (out.ret, len(out.records)) == (0 if green else 1, N)
    assert out.verdicts[f"{ITEM}[footprint]"] == verdict
    assert out.gate == ("PASS" if green else verdict)


def test_all_items_not_applicable_is_invalid(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(default="neutral")
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records), out.gate, out.tally) == (1, N, N, "INVALID", {"INVALID": N})


def test_performance_that_cannot_be_measured_is_incomplete(project: Project) -> None:
    project.file("test_gate.py", H2O)
    out = project.run("--accept-profile=serving")
    assert out.ret == 1
    missing = {i.rpartition("[")[2][:-1] for i, v in out.verdicts.items() if v != "PASS"}
    assert missing == {"ttft", "tpot", "throughput", "p99", "used-kv"} | (missing & {"peak-memory"})
    assert len(out.records) == len(out.verdicts)


def test_time_budget_used_up(project: Project) -> None:
    later = "accept._gate._started -= 2000; accept.model()"  # each item takes as long, whatever the machine
    project.file("test_gate.py", H2O.replace("accept.model()", later))
    out = project.run(GATE, "--accept-time=1h")
    assert out.ret == 1
    assert set(out.tally) == {"PASS", "INCONCLUSIVE"}
    assert len(out.records) == N


def test_not_measured_says_why(project: Project) -> None:
    project.file("test_gate.py", TWO)
    out = project.run(GATE, "-k", "test_h2o")
    assert "not measured: deselected" in out.headline("test_gate.py::test_kv4[footprint]")
    project.script(identity="fail")
    out = project.run(GATE, "-x")
    assert "not measured: the run ended before it (stopping after 1 failures)" in out.headline(
        "test_gate.py::test_kv4[footprint]"
    )
    project.script()
    project.file("test_gate.py", H2O.replace("accept.model()", "pytest.skip('no engine today')"))
    assert "not measured: skipped (no engine today)" in project.run(GATE).headline("test_gate.py::test_h2o[footprint]")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raise ValueError('before the gate')", "the test raised ValueError: before the gate"),
        ("accept", "the test never called accept"),
        ("pytest.skip('no engine today')", "skipped (no engine today)"),
    ],
)
def test_a_test_that_measures_nothing_says_why(project: Project, line: str, why: str) -> None:
    project.file("test_gate.py", H2O.replace("accept.model()", line))
    out = project.run(GATE)
    assert (out.ret, out.tally) == (1, {"INCOMPLETE": N})
    assert f"not measured: {why}" in out.headline("test_gate.py::test_h2o[footprint]")


def test_what_is_not_installed_is_not_held_against_the_candidate(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(footprint="core only", perplexity="own module")
    out = project.run(GATE)
    assert (out.ret, out.tally) == (1, {"PASS": N - 2, "INCOMPLETE": 1, "FAIL": 1})
    assert "torch is not installed: pip install 'pytest-attnaccept[hf]'" in out.headline(
        "test_gate.py::test_h2o[footprint]"
    )
    assert "the candidate raised ModuleNotFoundError" in out.headline("test_gate.py::test_h2o[perplexity]")


def test_a_problem_is_said_once(project: Project) -> None:
    project.file("test_gate.py", "import nowhere_at_all\n" + H2O)
    out = project.run(GATE)
    assert (out.ret, out.text.count("files could not be collected")) == (2, 1)
