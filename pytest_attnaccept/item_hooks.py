"""What happens around one item: the fixture object is made, the test is held to its rules, its report is given its place."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_attnaccept.accept import Accept
from pytest_attnaccept.errors import AcceptanceFailure, AttnAcceptError, ContractError
from pytest_attnaccept.glue import gate_of
from pytest_attnaccept.items import ItemSpec
from pytest_attnaccept.plugin import HANDLE, SPEC
from pytest_attnaccept.reports.junit import properties

__all__ = ["around_call", "load_accept_model", "make_accept", "shape_report"]


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
        handle.run.overrule(raised, skipped=isinstance(raised, (pytest.skip.Exception, pytest.xfail.Exception)))
    if raised is not None and (handle is None or handle.run.record is None):
        said = "the test never called accept" if own is None else f"the test raised {type(own).__name__}"
        why = f"{said}: {own}" if own is not None and str(own) else said
        gate_of(item.config).unmeasured[item.stash[SPEC].planned.id] = " ".join(why.split())
    if handle is not None and handle.run.record is not None:
        item.user_properties.extend(properties(handle.run.record))
        item.config.pluginmanager.hook.pytest_attnaccept_report(config=item.config, record=handle.run.record)
    if raised is not None:
        raise raised
    return result


def _missing_call(item: pytest.Function, handle: Accept | None) -> BaseException | None:
    """Return what a test that ended without an exception still has to answer for."""
    if handle is None or handle.run.record is None:
        planned = item.stash[SPEC].planned
        return AcceptanceFailure(
            f"INCOMPLETE {planned.id}: the test never called accept.{planned.surface}(...), so nothing was measured"
        )
    return handle.run.failure


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
