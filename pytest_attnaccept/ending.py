"""How a gated run ends: it is judged, its exit status follows the verdict, and the terminal says so."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_attnaccept.glue import gate_of, runs_tests
from pytest_attnaccept.plugin import GATE, SPEC
from pytest_attnaccept.session import GateSession

__all__ = ["enforced", "finish", "reads_as_success", "summarize"]


def finish(session: pytest.Session, exitstatus: int) -> None:
    """Judge the run and, under an explicit profile, raise the exit status of everything that is not PASS."""
    config = session.config
    if not runs_tests(config) or exitstatus in (3, 4):
        return
    gate = gate_of(config)
    stopped = session.shouldfail or session.shouldstop or gate.stopped
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
    """Return the exit status that the verdict allows; only success and 5 (nothing collected) are ever raised."""
    gate: GateSession | None = config.stash.get(GATE, None)
    if gate is None or gate.result is None or not (status == 5 or reads_as_success(status)):
        return status
    if (gate.options.explicit and gate.result.verdict.value != "PASS") or gate.shards.usage_errors():
        return pytest.ExitCode.TESTS_FAILED
    return status


def reads_as_success(status: object) -> bool:
    """Whether a shell reads this exit status as success: 0, but also None, False and every multiple of 256."""
    return status is None or (isinstance(status, int) and status & 0xFF == 0)


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
    reporter.write_sep("=", "attention acceptance")
    for text, good in lines:
        reporter.write_line(text, **({} if good is None else {"green": True} if good else {"red": True}))


def _again(config: pytest.Config) -> str:
    """Return the command that measures what is not green, with everything that this run was called with."""
    given = [a for a in config.invocation_params.args if str(a) not in ("--lf", "--last-failed", "--accept-resume")]
    return shlex.join(["pytest", *map(str, given), "--lf", "--accept-resume"])
