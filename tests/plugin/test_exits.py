"""No way out of a gated run ends with exit status 0 unless everything that is required was measured and is green."""

import sys

import pytest
from scripted import GATE, H2O, TWO, N, Project

ITEM = "test_gate.py::test_h2o"
LEAVE = "import os\nimport pytest\n"


@pytest.fixture
def gated(project: Project) -> Project:
    project.file("test_gate.py", H2O)
    return project


def script(project: Project, text: str) -> None:
    """Add something to what the scripted candidates can do."""
    own = (project.path / "conftest.py").read_text(encoding="utf-8")
    project.file("conftest.py", f"{own}\nimport pytest, sys\n{text}\n")


def hook(project: Project, text: str) -> None:
    """Add a plugin that the root conftest loads (its own hooks of the same names stay)."""
    project.file("attacker.py", f"import os, pytest, sys\n{text}\n")
    script(project, "pytest_plugins = ['attacker']")


def leaves_with(project: Project, call: str) -> None:
    """Write a gated test that leaves by `call` at its third check, and one that would come after it."""
    body = f"import os, sys, threading\n    if accept.check == 'divergence':\n        {call}\n    accept.model()"
    project.file("test_gate.py", TWO.replace("accept.model()", body, 1))


# -- the process ends in the middle -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "os._exit(0)",
        "os._exit(256)",
        "os._exit(status=0)",
        "os._exit(type('Zero', (), {'__index__': lambda self: 0})())",
        "__import__('posix')._exit(0)",
        "t = threading.Thread(target=os._exit, args=(0,)); t.start(); t.join()",
        "os.execv(sys.executable, [sys.executable, '-c', ''])",
        "os.execlp(sys.executable, sys.executable, '-c', '')",
    ],
)
def test_a_process_that_is_ended_is_no_success(project: Project, call: str) -> None:
    leaves_with(project, call)
    out = project.run(GATE, apart=True)
    assert out.ret == 1
    assert f"while {ITEM}[divergence] ran" in out.text
    assert f"{2 * N - 2} of {2 * N} items were not measured" in out.text
    assert len(out.records) == 2


def test_a_process_that_leaves_the_rest_to_its_child(project: Project) -> None:
    leaves_with(project, "os.fork() and os._exit(0)")
    out = project.run(GATE, apart=True)
    assert out.ret == 1
    assert f"while {ITEM}[divergence] ran" in out.text


def test_a_candidate_that_ends_the_process(gated: Project) -> None:
    gated.script(footprint="leave")
    script(gated, "ACTIONS['leave'] = lambda c: os._exit(0)")
    out = gated.run(GATE, apart=True)
    assert out.ret == 1
    assert f"while {ITEM}[footprint] ran" in out.text
    assert "os._exit(0)" in out.text


def test_a_function_that_was_imported_before_the_run(gated: Project) -> None:
    hook(gated, "from os import _exit\ndef pytest_runtest_logreport(report):\n    _exit(0)")
    out = gated.run(GATE, apart=True)
    assert (out.ret, "items were not measured" in out.text) == (1, True)


def test_other_statuses_and_other_processes_are_left_alone(project: Project) -> None:
    leaves_with(project, "os._exit(7)")
    out = project.run(GATE, apart=True)
    assert (out.ret, "not measured" in out.text) == (7, False)
    child = "pid = os.fork()\n        if pid == 0: os._exit(0)\n        assert os.waitpid(pid, 0)[1] == 0"
    leaves_with(project, child)
    out = project.run(GATE, apart=True)
    assert (out.ret, out.gate, len(out.records)) == (0, "PASS", 2 * N)
    pool = "import multiprocessing as m; p = m.get_context('fork').Process(target=print); p.start(); p.join(); assert p.exitcode == 0"
    leaves_with(project, pool)
    out = project.run(GATE, apart=True)
    assert (out.ret, out.gate, len(out.records)) == (0, "PASS", 2 * N)


def test_without_a_profile_nothing_is_guarded(project: Project) -> None:
    leaves_with(project, "os._exit(0)")
    assert project.run(apart=True).ret == 0
    project.file(
        "test_gate.py",
        "import os\nAT_IMPORT = os._exit\ndef test_plain():\n    assert AT_IMPORT.__module__ == 'posix'\n",
    )
    assert project.run(apart=True).ret == 0


def test_the_function_is_put_back(gated: Project) -> None:
    import os

    before = os._exit, os.execv, os.execve
    assert gated.run(GATE).ret == 0
    assert gated.run(GATE, "--no-such-option").ret == 4
    assert gated.run("--accept-profile=nothing").ret == 4
    assert (os._exit, os.execv, os.execve) == before


def test_a_closed_stderr_changes_no_status(project: Project) -> None:
    leaves_with(project, "os.closerange(3, 200); os.close(2); os._exit(0)")
    assert project.run(GATE, apart=True).ret == 1


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL", "SIGABRT", "SIGALRM"])
def test_signals(project: Project, signal: str) -> None:
    leaves_with(project, f"import signal; os.kill(os.getpid(), signal.{signal})")
    out = project.run(GATE, apart=True)
    assert out.ret != 0
    assert not (out.folder / "verdict.json").exists()


def test_a_handler_that_leaves_with_0(project: Project) -> None:
    handler = (
        "import signal; signal.signal(signal.SIGTERM, lambda *a: sys.exit(0)); os.kill(os.getpid(), signal.SIGTERM)"
    )
    leaves_with(project, handler)
    out = project.run(GATE, apart=True)
    assert (out.ret, out.gate) == (1, "INCOMPLETE")


@pytest.mark.parametrize("call", ["os._exit(0)", "sys.exit(0)"])
def test_a_worker_that_ends_with_0(project: Project, call: str) -> None:
    leaves_with(project, call)
    out = project.run(GATE, "-n2", "--max-worker-restart=0", apart=True)
    assert out.ret == 1
    assert out.gate in ("INCOMPLETE", "FAIL")


# -- exceptions and requests that end a run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "sys.exit(0)",
        "raise SystemExit",
        "import pytest; pytest.exit('bye', returncode=0)",
        "import pytest; pytest.exit('bye', returncode=256)",
        "raise KeyboardInterrupt",
    ],
)
@pytest.mark.parametrize("place", ["test", "candidate", "factory"])
def test_exceptions_that_end_a_run(project: Project, call: str, place: str) -> None:
    if place == "test":
        leaves_with(project, call)
    else:
        project.file("test_gate.py", TWO)
        statement = call.rpartition("; ")[2]
        text = f"def leaving(c):\n    {statement}\nACTIONS['leave'] = leaving"
        project.script(divergence="leave")
        script(project, text)
    if place == "factory":
        project.script()
        hook(project, f"@pytest.fixture\ndef built():\n    {call.rpartition('; ')[2]}")
        project.file("test_gate.py", TWO.replace("(accept)", "(accept, built)", 1))
    out = project.run(GATE, apart="Keyboard" in call)
    assert out.ret == (2 if "Keyboard" in call else 1)
    assert out.gate in ("INCOMPLETE", "FAIL")


HOOKS = {
    "configure": "def pytest_configure(config):\n    {}",
    "configure last": "@pytest.hookimpl(trylast=True)\ndef pytest_configure(config):\n    {}",
    "sessionstart": "def pytest_sessionstart(session):\n    {}",
    "cmdline_main": "@pytest.hookimpl(tryfirst=True)\ndef pytest_cmdline_main(config):\n    {}\n    return 0",
    "collection": "@pytest.hookimpl(tryfirst=True)\ndef pytest_collection(session):\n    {}\n    return True",
    "modifyitems": "@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):\n    items[:] = []\n    {}",
    "collection_finish": "def pytest_collection_finish(session):\n    session.items[:] = []\n    {}",
    "runtestloop": "@pytest.hookimpl(tryfirst=True)\ndef pytest_runtestloop(session):\n    {}\n    return True",
    "protocol": "@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_protocol(item, nextitem):\n    {}\n    return True",
    "setup": "@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_setup(item):\n    {}\n    pytest.skip('x')",
    "pyfunc": "@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem):\n    {}\n    return True",
    "logreport": "def pytest_runtest_logreport(report):\n    {}",
    "sessionfinish": "@pytest.hookimpl(tryfirst=True)\ndef pytest_sessionfinish(session):\n    session.exitstatus = 0\n    {}",
    "sessionfinish around": (
        "@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_sessionfinish(session):\n"
        "    try:\n        return (yield)\n    finally:\n        session.exitstatus = 0\n        {}"
    ),
    "summary": "def pytest_terminal_summary(terminalreporter):\n    {}",
    "unconfigure": "def pytest_unconfigure(config):\n    {}",
    "cleanup": "def leave():\n    {}\ndef pytest_configure(config):\n    config.add_cleanup(leave)",
    "conftest": "{}",
}
WAYS = {
    "nothing": "pass",
    "exit": "pytest.exit('bye', returncode=0)",
    "system exit": "raise SystemExit(0)",
    "os exit": "os._exit(0)",
}
QUICK = (
    "sessionstart",
    "protocol",
    "sessionfinish",
    "unconfigure",
    "conftest",
)  # of the slow way, which needs a process


@pytest.mark.parametrize(
    ("place", "way"),
    [
        pytest.param(place, way, marks=() if way != "os exit" or place in QUICK else pytest.mark.full)
        for place in HOOKS
        for way in WAYS
    ],
)
def test_hooks_of_a_conftest(gated: Project, place: str, way: str) -> None:
    """Nothing of what a conftest does, at whatever moment, makes a run with a failing item end with 0."""
    gated.script(footprint="fail")
    hook(gated, HOOKS[place].format(WAYS[way]))
    out = gated.run(GATE, apart=way == "os exit")
    assert out.ret != 0
    if (out.folder / "verdict.json").exists():
        assert out.gate != "PASS"


@pytest.mark.parametrize("status", ["None", "False", "0", "256", "5", "pytest.ExitCode.OK"])
@pytest.mark.parametrize("order", ["tryfirst=True", "trylast=True", "wrapper=True, tryfirst=True"])
def test_exit_statuses_that_a_shell_reads_as_success(gated: Project, status: str, order: str) -> None:
    inner = "    try:\n        return (yield)\n    finally:\n    " if "wrapper" in order else ""
    hook(
        gated,
        f"@pytest.hookimpl({order})\ndef pytest_sessionfinish(session):\n{inner}    session.exitstatus = {status}",
    )
    gated.script(footprint="fail")
    out = gated.run(GATE)
    assert out.ret not in (0, 256)
    assert out.gate == "FAIL"


@pytest.mark.parametrize("name", ["shouldstop", "shouldfail"])
def test_a_session_that_is_told_to_stop(gated: Project, name: str) -> None:
    hook(gated, f"def pytest_runtest_logreport(report):\n    SESSION[0].{name} = 'enough'\nSESSION = []\n"
                "def pytest_sessionstart(session):\n    SESSION.append(session)")  # fmt: skip
    out = gated.run(GATE)
    assert out.ret in (1, 2)
    assert out.tally == {"PASS": 1, "INCOMPLETE": N - 1}
    assert "the run ended before it (enough)" in out.headline(f"{ITEM}[divergence]")


@pytest.mark.parametrize("options", [("-x",), ("--maxfail=1",), ("-x", "-n2"), ("--sw",)], ids=" ".join)
def test_stopping_at_the_first_failure(project: Project, options: tuple[str, ...]) -> None:
    project.file("test_gate.py", TWO)
    project.script(identity="fail")
    out = project.run(GATE, *options, apart="-n2" in options)
    assert out.ret in (1, 2)
    assert out.gate == "FAIL"
    assert "INCOMPLETE" in out.tally


# -- runs that only list something ------------------------------------------------------------------------------------------

LISTS = (
    "--co",
    "--collect-only",
    "--fixtures",
    "--fixtures-per-test",
    "--markers",
    "--version",
    "--help",
    "--setup-plan",
    "--setup-only",
)


@pytest.mark.parametrize("option", LISTS)
def test_a_listing_is_no_verdict(gated: Project, option: str) -> None:
    """Asked for on the command line it is a listing (pytest's status); it says nothing of PASS and leaves no verdict."""
    out = gated.run(GATE, option)
    ran = option.startswith("--setup")
    assert (out.ret, len(out.records)) == (1 if ran else 0, 0)
    assert "GATE PASS" not in out.text
    assert ran or not out.folder.exists()


@pytest.mark.parametrize("option", ["--co", "--accept-plan"])
def test_a_listing_may_leave_as_it_likes(gated: Project, option: str) -> None:
    hook(gated, "def pytest_unconfigure(config):\n    sys.stdout.flush()\n    os._exit(0)")
    assert gated.run(GATE, option, apart=True).ret == 0


@pytest.mark.parametrize("option", [o for o in LISTS if "setup" not in o])
@pytest.mark.parametrize("place", ["addopts", "PYTEST_ADDOPTS"])
def test_a_listing_that_nobody_typed_is_refused(
    gated: Project, monkeypatch: pytest.MonkeyPatch, option: str, place: str
) -> None:
    if place == "addopts":
        gated.file("pytest.ini", f"[pytest]\naddopts = {option}\n")
    else:
        monkeypatch.setenv("PYTEST_ADDOPTS", option)
    out = gated.run(GATE)
    assert out.ret == 4
    assert option in out.text
    assert "measures nothing" in out.text


@pytest.mark.parametrize(
    "options",
    [
        ("-p", "no:terminal"),
        ("-p", "no:junitxml"),
        ("-p", "no:logging"),
        ("-p", "no:faulthandler"),
        ("-s",),
        ("-p", "no:capture"),
    ],
    ids=" ".join,
)
def test_plugins_that_are_switched_off(gated: Project, options: tuple[str, ...]) -> None:
    gated.script(footprint="fail")
    out = gated.run(GATE, *options, apart=True)
    assert out.ret == 1
    assert out.gate == "FAIL"


def test_the_plugin_itself_switched_off_in_the_middle(gated: Project) -> None:
    gated.script(footprint="fail")
    text = (
        "def pytest_sessionstart(session):\n    m = session.config.pluginmanager\n    m.unregister(name='attnaccept')"
    )
    hook(gated, text)
    out = gated.run(GATE, apart=True)
    assert out.ret != 0


def test_a_green_run_stays_green_whatever_is_around_it(gated: Project) -> None:
    hook(gated, "def pytest_unconfigure(config):\n    sys.stdout.flush()\n    os._exit(0)")
    out = gated.run(GATE, apart=True)
    assert (out.ret, out.gate, len(out.records)) == (0, "PASS", N)
    assert sys.platform != "win32"


@pytest.mark.parametrize("call", ["os._exit, 0", "lambda: os._exit(0)"])
def test_what_comes_after_pytest_keeps_its_status(gated: Project, call: str) -> None:
    """An idiom against teardowns that hang; the process belongs to this run, so its status does too."""
    gated.script(footprint="fail")
    hook(gated, f"import atexit\natexit.register({call})")
    out = gated.run(GATE, apart=True)
    assert (out.ret, out.gate) == (1, "FAIL")
    gated.script()
    assert gated.run(GATE, apart=True).ret == 0


def test_a_profile_that_a_conftest_chooses(project: Project) -> None:
    leaves_with(project, "os._exit(0)")
    hook(
        project,
        "@pytest.hookimpl(tryfirst=True)\ndef pytest_configure(config):\n    config.option.attnaccept_profile = 'smoke'",
    )
    out = project.run(apart=True)
    assert out.ret == 1
    assert f"while {ITEM}[divergence] ran" in out.text


def test_the_plugin_itself_loaded_by_a_conftest(project: Project) -> None:
    leaves_with(project, "os._exit(0)")
    project.file("pytest.ini", "[pytest]\naccept_profile = smoke\n")
    script(project, "pytest_plugins = ['pytest_attnaccept.plugin']")
    out = project.run("-p", "no:attnaccept", apart=True)
    assert out.ret == 1
    assert f"while {ITEM}[divergence] ran" in out.text


def test_the_end_of_a_run_is_the_reason_for_what_was_not_measured(project: Project) -> None:
    project.file("test_gate.py", TWO)
    hook(project, "def pytest_runtest_logreport(report):\n    pytest.exit('enough seen', returncode=0)")
    out = project.run(GATE)
    assert (out.ret, out.gate) == (1, "INCOMPLETE")
    why = "not measured: the run ended before it (pytest.exit: enough seen)"
    assert why in out.headline("test_gate.py::test_kv4[identity]")


def test_a_green_gate_beside_a_failing_test(gated: Project) -> None:
    gated.file("test_plain.py", "def test_plain():\n    assert False\n")
    hook(gated, "def pytest_unconfigure(config):\n    sys.stdout.flush()\n    os._exit(0)")
    assert gated.run(GATE, apart=True).ret == 1
