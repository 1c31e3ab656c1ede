"""What the pytest hooks do once a mark, a suite or a profile is there (making items from marks is in `generate`)."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from pytest_attnaccept.accept import Accept
from pytest_attnaccept.errors import AcceptanceFailure, AttnAcceptError, ContractError, UsageError
from pytest_attnaccept.items import ItemSpec
from pytest_attnaccept.marks import gates_in_source
from pytest_attnaccept.options import read_options
from pytest_attnaccept.plugin import GATE, HANDLE, SPEC, SUITE_SUFFIXES, run_id
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.reports.junit import properties
from pytest_attnaccept.session import GateSession

# -- start ----------------------------------------------------------------------------------------------------------------


def gate_of(config: pytest.Config) -> GateSession:
    """Return the gate of a pytest run, made on first use."""
    gate: GateSession | None = config.stash.get(GATE, None)
    if gate is None:
        registry = Registry.builtin()
        config.pluginmanager.hook.pytest_attnaccept_register(registry=registry)
        worker = getattr(config, "workerinput", {}).get("workerid", "main")
        gate = GateSession(
            read_options(config), registry, run_id=run_id(config), worker=worker, partial=_partial(config)
        )
        config.stash[GATE] = gate
    return gate


def _partial(config: pytest.Config) -> str:
    """Say why this run cannot see the whole plan: --lf skips files before they are collected."""
    if not getattr(config.option, "lf", False):
        return ""
    cache = getattr(config, "cache", None)
    if cache is None or not cache.get("cache/lastfailed", {}):
        return ""
    return "--lf selected a part of the tests; add --accept-resume to count earlier records with an equal fingerprint"


def configure(config: pytest.Config) -> None:
    """Check options and profile on the controller; every mistake is a usage error (exit 4)."""
    try:
        gate = gate_of(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    if gate.options.explicit and getattr(config.option, "force_reruns", None):
        raise pytest.UsageError(FORCED_RERUNS)


FORCED_RERUNS = (
    "--force-reruns repeats a failed gate until it passes, which multiplies its error rate; gated items are never rerun."
    " Remove the option, or run the gate in its own pytest call."
)


# -- collection -----------------------------------------------------------------------------------------------------------


def note_skipped(collector: pytest.File | pytest.Directory) -> None:
    """Keep a run from passing when a suite or gated tests skipped themselves (``importorskip`` of the engine under test)."""
    if any(True for _ in _gated_files(collector.config, collector.path)):
        gate_of(collector.config).problems.append(
            f"{collector.nodeid} skipped itself at import; what it requires is unknown and was not measured"
        )


def note_ignored(config: pytest.Config, path: Path) -> None:
    """Keep a run from passing when ``--ignore`` or ``collect_ignore`` hides a suite or a file with gated tests."""
    if path.is_file() and not _is_test_file(config, path):
        return
    environment = any((path / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
    if path.is_dir() and (environment or any(fnmatch(path.name, p) for p in config.getini("norecursedirs"))):
        return  # no folder of tests, whatever it holds
    problems = gate_of(config).problems
    for file in _gated_files(config, path):
        shown = file.relative_to(config.rootpath) if config.rootpath in file.parents else file
        text = f"{shown} was ignored (--ignore or collect_ignore); what it requires was not measured"
        problems += [] if text in problems else [text]


def _gated_files(config: pytest.Config, path: Path) -> Iterator[Path]:
    """Yield suites and test files that gate something: `path` itself, or what lies below the folder `path`."""
    for file in sorted(p for p in path.rglob("*") if _is_test_file(config, p)) if path.is_dir() else [path]:
        if file.suffix == ".py" and not gates_in_source(file.read_text(encoding="utf-8", errors="replace")):
            continue
        if file.suffix == ".py" or file.name.endswith(SUITE_SUFFIXES):
            yield file


def _is_test_file(config: pytest.Config, path: Path) -> bool:
    patterns = [*config.getini("python_files"), *(f"*{suffix}" for suffix in SUITE_SUFFIXES)]
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def never_rerun(item: pytest.Item) -> None:
    """Disarm pytest-rerunfailures: k repetitions multiply the error rate of a gate."""
    if hasattr(item.config.option, "reruns"):
        item.add_marker(pytest.mark.flaky(reruns=0), append=False)


def before_run(config: pytest.Config, gate: GateSession, items: list[pytest.Item]) -> None:
    """Raise mark mistakes on a process that may raise them; under a time budget put the worst cells first."""
    if gate.usage_errors and not hasattr(config, "workerinput"):
        raise pytest.UsageError("\n".join(dict.fromkeys(gate.usage_errors)))
    if gate.options.time_s is not None:
        _worst_first(items)


def _worst_first(items: list[pytest.Item]) -> None:
    """Order gated items by how much they can reveal per minute: long lengths and stacks of many methods first."""

    def key(item: pytest.Item) -> tuple[int, float, int]:
        if SPEC not in item.stash:
            return (1, 0.0, 0)
        spec: ItemSpec = item.stash[SPEC]
        tier = float(str(spec.requirement.params.get("tier", 0)))
        return (0, -tier, -len(spec.stack))

    items.sort(key=key)


def _runs_tests(config: pytest.Config) -> bool:
    """Whether this call of pytest runs tests at all (and does not only list something)."""
    lists = ("collectonly", "showfixtures", "show_fixtures_per_test", "attnaccept_plan")
    return not any(getattr(config.option, name, False) for name in lists)


def announce(config: pytest.Config, gate: GateSession) -> None:
    """Put on disk that a gate has begun."""
    if gate.options.explicit and _runs_tests(config):
        with _writing(config, gate):
            gate.announce()


def collected(session: pytest.Session, gate: GateSession) -> None:
    """Write the plan, or print it under --accept-plan."""
    if session.testsfailed:  # at this moment only collection can have failed
        gate.problems.append(f"{session.testsfailed} files could not be collected; what they require is unknown")
    if gate.options.plan_only:
        from pytest_attnaccept.reports.plan import plan_lines

        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            for line in plan_lines(gate.plan(), gate.profile):
                reporter.write_line(line)
    elif _runs_tests(session.config):
        selected = {item.stash[SPEC].planned.id for item in session.items if SPEC in item.stash}
        for item in gate.plan().items:
            if item.id not in selected:
                gate.unmeasured.setdefault(item.id, "not selected")
        with _writing(session.config, gate):
            gate.write_plan()


@contextmanager
def _writing(config: pytest.Config, gate: GateSession) -> Generator[None, None, None]:
    """Turn an output folder that cannot be written into a usage error; a worker lets it crash the run."""
    try:
        yield
    except OSError as error:
        if hasattr(config, "workerinput"):
            raise
        raise pytest.UsageError(f"--accept-out={gate.options.out}: cannot be written ({error.strerror})") from error


# -- one item -------------------------------------------------------------------------------------------------------------


def make_accept(request: pytest.FixtureRequest) -> Accept:
    """Return the fixture object of one item."""
    item = request.node
    spec: ItemSpec | None = item.stash.get(SPEC, None)
    if spec is None:
        raise pytest.UsageError(
            f"{item.nodeid}: the fixture 'accept' was requested in a way that pytest cannot see at collection"
            " (request.getfixturevalue); take it as an argument of the test"
        )
    handle = Accept(
        gate_of(request.config), spec, lambda: request.getfixturevalue("accept_model"), keep=spec.planned.cell
    )
    item.stash[HANDLE] = handle
    return handle


def load_accept_model(config: pytest.Config) -> Any:
    """Load the baseline that ``--accept-model`` names."""
    options = gate_of(config).options
    if options.model is None:
        raise ContractError(
            "no baseline: pass accept.model(candidate, baseline), override the fixture accept_model, or name one with"
            " --accept-model (an embedded name such as toy-gqa, smollm2-135m, a path or a Hub name)"
        )
    from pytest_attnaccept.engines.loading import load
    from pytest_attnaccept.engines.specs import parse_spec

    return load(parse_spec(options.model, "--accept-model"), device=options.resolve_device(), dtype=options.dtype)


def around_call(item: pytest.Function) -> Generator[None, object, object]:
    """Run the test, then hold it to the rules of the fixture."""
    raised: BaseException | None = None
    result: object = None
    try:
        result = yield
    except BaseException as error:
        raised = error
    handle: Accept | None = item.stash.get(HANDLE, None)
    own = raised
    if raised is None:
        raised = _missing_call(item, handle)
    if raised is not None and handle is not None and not isinstance(raised, (KeyboardInterrupt, pytest.exit.Exception)):
        handle.overrule(raised, skipped=isinstance(raised, (pytest.skip.Exception, pytest.xfail.Exception)))
    if raised is not None and (handle is None or handle.record is None):
        said = "the test never called accept" if own is None else f"the test raised {type(own).__name__}"
        why = f"{said}: {own}" if own is not None and str(own) else said
        gate_of(item.config).unmeasured[item.stash[SPEC].planned.id] = " ".join(why.split())
    if handle is not None and handle.record is not None:
        item.user_properties.extend(properties(handle.record))
        item.config.pluginmanager.hook.pytest_attnaccept_report(config=item.config, record=handle.record)
    if raised is not None:
        raise raised
    return result


def _missing_call(item: pytest.Function, handle: Accept | None) -> BaseException | None:
    """Return what a test that ended without an exception still has to answer for."""
    if handle is None or handle.record is None:
        planned = item.stash[SPEC].planned
        return AcceptanceFailure(
            f"INCOMPLETE {planned.id}: the test never called accept.{planned.surface}(...), so nothing was measured"
        )
    return handle.failure


def shape_report(item: pytest.Item, call: pytest.CallInfo[None], report: Any) -> None:
    """Show a verdict without internal frames, its first line complete; file a bad contract under errors."""
    excinfo = call.excinfo
    if excinfo is not None and report.skipped:
        gate_of(item.config).unmeasured[item.stash[SPEC].planned.id] = f"skipped ({excinfo.value})"
    if excinfo is None or call.when != "call":
        return
    error = excinfo.value
    if isinstance(error, AttnAcceptError):
        report.longrepr = _said_once(item, error)
        report.when = "setup"  # JUnit <error>: the user's input was wrong, the candidate was not measured
        return
    if isinstance(error, AcceptanceFailure) and report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            crash.message = str(error)


def _said_once(item: pytest.Item, error: AttnAcceptError) -> str:
    """Return the message in full the first time; a session fixture that failed raises the same error for every item."""
    said = gate_of(item.config).said
    first = next((where for known, where in said if known is error), "")
    if not first:
        said.append((error, item.nodeid))
        return str(error)
    return f"{str(error).split(':')[0]}, as for {first}"


# -- end ------------------------------------------------------------------------------------------------------------------


def finish(session: pytest.Session, exitstatus: int) -> None:
    """Judge the run and, under an explicit profile, raise the exit status of everything that is not PASS."""
    config = session.config
    if not _runs_tests(config) or exitstatus in (3, 4):
        return
    gate = gate_of(config)
    stopped = session.shouldfail or session.shouldstop
    if stopped:
        for item in session.items:
            if SPEC in item.stash:
                gate.unmeasured.setdefault(item.stash[SPEC].planned.id, f"the run ended before it ({stopped})")
    result = gate.finish()
    _global_properties(config, gate)
    if gate.options.html:
        from pytest_attnaccept.reports.page import write_page

        write_page(Path(gate.options.html), result)
    session.exitstatus = enforced(config, session.exitstatus)


def enforced(config: pytest.Config, status: int | pytest.ExitCode | None) -> Any:
    """Return the exit status that the verdict allows; only 0 and 5 (nothing collected) are ever raised."""
    gate: GateSession | None = config.stash.get(GATE, None)
    if gate is None or gate.result is None or status not in (0, 5):
        return status
    if (gate.options.explicit and gate.result.verdict.value != "PASS") or gate.shards.usage_errors():
        return pytest.ExitCode.TESTS_FAILED
    return status


def _global_properties(config: pytest.Config, gate: GateSession) -> None:
    """Add the run's verdict to the JUnit suite; best effort, because pytest offers no public way under xdist."""
    try:
        from _pytest.junitxml import xml_key
    except ImportError:
        return
    xml = config.stash.get(xml_key, None)
    if xml is not None and gate.result is not None and gate.result.results:
        xml.add_global_property("attnaccept.verdict", gate.result.verdict.value)
        xml.add_global_property("attnaccept.profile", gate.result.profile)
        xml.add_global_property("attnaccept.run_id", gate.run_id)


def summarize(reporter: Any, gate: GateSession) -> None:
    """Write the section of the terminal summary."""
    from pytest_attnaccept.reports.terminal import summary_lines

    result = gate.result
    if result is None or (not result.results and not gate.options.explicit):
        return
    lines = summary_lines(
        result,
        explicit=gate.options.explicit,
        out=gate.options.out,
        quality_only=not gate.profile.performance,
        again=_again(reporter.config),
    )
    reporter.section("attention acceptance")
    for text, good in lines:
        reporter.write_line(text, **({} if good is None else {"green": True} if good else {"red": True}))


def _again(config: pytest.Config) -> str:
    """Return the command that measures what is not green, with everything that this run was called with."""
    given = [a for a in config.invocation_params.args if str(a) not in ("--lf", "--last-failed", "--accept-resume")]
    return shlex.join(["pytest", *map(str, given), "--lf", "--accept-resume"])


def selftest(config: pytest.Config) -> int:
    """Run the gate's own controls and return an exit status."""
    from pytest_attnaccept.selftest import run_selftest

    try:
        return run_selftest(read_options(config))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
