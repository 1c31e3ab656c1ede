"""Which gate a pytest run has, and what happens before its first item: options are checked, the plan is written.

Loaded once a mark, a suite or a profile is there (making items from marks is in `generate`).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.items import ItemSpec
from pytest_attnaccept.options import read_options
from pytest_attnaccept.plugin import GATE, SPEC, run_id
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.session import GateSession

__all__ = [
    "FORCED_RERUNS",
    "announce",
    "before_run",
    "collected",
    "configure",
    "gate_of",
    "never_rerun",
    "runs_tests",
    "selftest",
]

FORCED_RERUNS = (
    "--force-reruns repeats a failed gate until it passes, which multiplies its error rate; gated items are never rerun."
    " Remove the option, or run the gate in its own pytest call."
)


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
    if gate.options.explicit:
        from pytest_attnaccept import exits

        exits.ensure(config)


def selftest(config: pytest.Config) -> int:
    """Run the gate's own controls and return an exit status."""
    from pytest_attnaccept.selftest import run_selftest

    try:
        return run_selftest(read_options(config))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


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


def runs_tests(config: pytest.Config) -> bool:
    """Whether this call of pytest runs tests at all (and does not only list something)."""
    lists = ("collectonly", "showfixtures", "show_fixtures_per_test", "attnaccept_plan")
    return not any(getattr(config.option, name, False) for name in lists)


def announce(config: pytest.Config, gate: GateSession) -> None:
    """Put on disk that a gate has begun."""
    if gate.options.explicit and runs_tests(config):
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
    elif runs_tests(session.config):
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
