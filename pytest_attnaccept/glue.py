"""What the pytest hooks do once a mark, a suite or a profile is there.

Positions
---------
1. A mark mistake is collected, not raised, while pytest collects: raising there would be a collection error in one file.
   All mistakes are raised together before the first item (exit 4). An xdist worker cannot exit with 4, so there each
   broken item fails in its setup instead.
2. The plan holds every check of every test function of which at least one item was collected, before any deselection.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_attnaccept.accept import Accept
from pytest_attnaccept.errors import AcceptanceFailure, AttnAcceptError, ContractError, UsageError
from pytest_attnaccept.items import ItemSpec, specs_of_test
from pytest_attnaccept.marks import KIND_MARKS, Declared, MarkLike, declared, surface_in_source
from pytest_attnaccept.matrix import PlannedItem
from pytest_attnaccept.options import read_options
from pytest_attnaccept.plugin import BROKEN, GATE, HANDLE, RUN_ID, SPEC
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.reports.junit import properties
from pytest_attnaccept.session import GateSession, new_run_id

# -- start ----------------------------------------------------------------------------------------------------------------


def run_id(config: pytest.Config) -> str:
    """Return the name of this run, made on first use."""
    if not config.stash.get(RUN_ID, ""):
        config.stash[RUN_ID] = new_run_id()
    return config.stash[RUN_ID]


def gate_of(config: pytest.Config) -> GateSession:
    """Return the gate of this session, made on first use."""
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
        raise pytest.UsageError(_FORCED_RERUNS)


_FORCED_RERUNS = (
    "--force-reruns repeats a failed gate until it passes, which multiplies its error rate; gated items are never rerun."
    " Remove the option, or run the gate in its own pytest call."
)


# -- collection -----------------------------------------------------------------------------------------------------------


def parametrize_checks(metafunc: pytest.Metafunc) -> None:
    """Parametrize the fixture with the union of checks over all parameter sets; `attach_specs` drops the surplus."""
    definition = metafunc.definition
    if not any(m.name in KIND_MARKS for m in _all_marks(definition)):
        return
    checks: dict[str, None] = {}
    for extra in _parameter_marks(definition):
        try:
            specs = _specs(definition, [*extra, *definition.iter_markers()], _cell(definition, ""))
        except AttnAcceptError:
            continue  # reported by attach_specs, which sees the complete items
        checks.update(dict.fromkeys(s.planned.check for s in specs))
    if checks:
        names = list(checks)
        metafunc.parametrize("accept", names, indirect=True, ids=names)


def _all_marks(item: Any) -> Iterable[MarkLike]:
    for extra in _parameter_marks(item):
        yield from extra
    yield from item.iter_markers()


def _parameter_marks(item: Any) -> list[list[MarkLike]]:
    """Return the marks of every combination of ``pytest.param(..., marks=...)`` of a test function."""
    per_mark: list[list[list[MarkLike]]] = []
    for mark in item.iter_markers("parametrize"):
        values = mark.args[1] if len(mark.args) > 1 else mark.kwargs.get("argvalues", ())
        sets = [[getattr(m, "mark", m) for m in getattr(v, "marks", ())] for v in values]
        per_mark.append([s for i, s in enumerate(sets) if s not in sets[:i]] or [[]])
    return [list(itertools.chain(*combination)) for combination in itertools.product(*per_mark)]


def _cell(item: Any, parameters: str) -> str:
    """Return the stable name of a test: its node id without the check."""
    base = item.nodeid.split("[", 1)[0] if "[" in item.name else item.nodeid
    return f"{base}[{parameters}]" if parameters else base


def _specs(item: Any, marks: Sequence[MarkLike], cell: str) -> tuple[ItemSpec, ...]:
    gate = gate_of(item.config)
    found = declared(marks, gate.registry, wants_accept=True, where=cell)
    if found is None:  # for the type checker: with wants_accept there is a result or an error
        return ()
    return specs_of_test(
        cell=cell,
        stack=found.stack,
        surface=_surface(item, found),
        profile=gate.profile.with_overrides(limits=found.limits),
        options=gate.options,
        source=Path(item.path),
        where=cell,
        checkpoint=found.checkpoint,
    )


def _surface(item: Any, found: Declared) -> Any:
    """Return the surface: the mark's, else the one named in the source, else the default of the innermost method."""
    return found.surface or surface_in_source(item.obj) or found.stack[-1].method.surface


def attach_specs(made: list[pytest.Item]) -> list[pytest.Item]:
    """Attach to every item what it must run; drop items whose marks do not require their check."""
    kept: list[pytest.Item] = []
    groups: dict[str, list[pytest.Item]] = {}
    for item in made:
        if "accept" not in getattr(item, "fixturenames", ()):
            kept.append(item)
            continue
        check = _check_of(item)
        groups.setdefault(_cell(item, _parameters_without(item, check)), []).append(item)
    for cell, items in groups.items():
        kept.extend(_attach_group(cell, items))
    order = {id(item): i for i, item in enumerate(made)}
    return sorted(kept, key=lambda i: order[id(i)])


def _attach_group(cell: str, items: list[pytest.Item]) -> list[pytest.Item]:
    gate = gate_of(items[0].config)
    try:
        specs = {s.planned.check: s for s in _specs(items[0], list(items[0].iter_markers()), cell)}
        absent = set(specs) - {_check_of(i) for i in items}
        if absent:
            raise UsageError(
                f"{cell}: its marks come from a place that is read too late (metafunc.parametrize with marked parameters);"
                f" checks {', '.join(sorted(absent))} would be lost. Use @pytest.mark.parametrize with pytest.param(...)"
            )
    except AttnAcceptError as error:
        gate.usage_errors.append(str(error))
        for item in items:
            item.stash[BROKEN] = str(error)
        return items
    kept = []
    for item in items:
        spec = specs.get(_check_of(item))
        if spec is not None:
            item.stash[SPEC] = spec
            kept.append(item)
    return kept


def _check_of(item: Any) -> str:
    call = getattr(item, "callspec", None)
    return str(call.params.get("accept", "")) if call is not None else ""


def _parameters_without(item: Any, check: str) -> str:
    """Return the item's parameter ids without the check (ours is always the last one)."""
    if "[" not in item.name:
        return ""
    inside = item.name.split("[", 1)[1][:-1]
    if inside == check:
        return ""
    return inside[: -len(check) - 1] if check and inside.endswith(f"-{check}") else inside


def note_required(config: pytest.Config, items: list[pytest.Item], concerned: list[pytest.Item]) -> None:
    """Add to the plan every check of every concerned test; raise mark mistakes on a process that may raise them."""
    gate = gate_of(config)
    for item in concerned:
        if SPEC not in item.stash and BROKEN not in item.stash:
            _check_foreign(gate, item)
    ours = [i for i in concerned if SPEC in i.stash]
    gate.planned.extend(_whole_tests(ours))
    if ours and getattr(config.option, "force_reruns", None):
        gate.usage_errors.append(_FORCED_RERUNS)
        for item in ours:
            item.stash[BROKEN] = _FORCED_RERUNS
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in ours:
            item.add_marker(pytest.mark.flaky(reruns=0), append=False)
    if gate.usage_errors and not hasattr(config, "workerinput"):
        raise pytest.UsageError("\n".join(dict.fromkeys(gate.usage_errors)))
    if gate.options.time_s is not None:
        _worst_first(items)


def _whole_tests(ours: list[pytest.Item]) -> list[PlannedItem]:
    """Return the planned items of every test of which an item was collected, also of checks that a node id left out."""
    planned: list[PlannedItem] = []
    seen: set[str] = set()
    for item in ours:
        spec: ItemSpec = item.stash[SPEC]
        if spec.planned.cell not in seen:
            seen.add(spec.planned.cell)
            planned.extend(s.planned for s in _siblings(item, spec))
    return planned


def _siblings(item: Any, spec: ItemSpec) -> tuple[ItemSpec, ...]:
    """Return all items of the test that `item` belongs to; a suite cell carries them, a marked test recomputes them."""
    from pytest_attnaccept.collect import AcceptItem

    if isinstance(item, AcceptItem):
        return item.siblings
    return _specs(item, list(item.iter_markers()), spec.planned.cell)


def _check_foreign(gate: GateSession, item: pytest.Item) -> None:
    """Report a registered method on a test that does not take the fixture; leave every other mark alone."""
    try:
        declared(list(item.iter_markers()), gate.registry, wants_accept=False, where=item.nodeid)
    except AttnAcceptError as error:
        gate.usage_errors.append(str(error))
        item.stash[BROKEN] = str(error)


def _worst_first(items: list[pytest.Item]) -> None:
    """Order gated items by how much they can reveal per minute: long lengths and stacks of many methods first."""

    def key(item: pytest.Item) -> tuple[int, float, int]:
        if SPEC not in item.stash:
            return (1, 0.0, 0)
        spec: ItemSpec = item.stash[SPEC]
        tier = float(str(spec.requirement.params.get("tier", 0)))
        return (0, -tier, -len(spec.stack))

    items.sort(key=key)


def collected(session: pytest.Session, gate: GateSession) -> None:
    """Write the plan, or print it under --accept-plan."""
    if gate.options.plan_only:
        from pytest_attnaccept.reports.plan import plan_lines

        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            for line in plan_lines(gate.plan(), gate.profile):
                reporter.write_line(line)
    elif not session.config.option.collectonly:
        gate.write_plan()


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
    if handle is not None and handle.record is not None:
        item.user_properties.extend(properties(handle.record))
        item.config.pluginmanager.hook.pytest_attnaccept_report(config=item.config, record=handle.record)
    if raised is not None:
        raise raised
    if handle is None or handle.record is None:
        planned = item.stash[SPEC].planned
        raise AcceptanceFailure(
            f"INCOMPLETE {planned.id}: the test never called accept.{planned.surface}(...), so nothing was measured"
        )
    if handle.failure is not None:
        raise handle.failure
    return result


def shape_report(item: pytest.Item, call: pytest.CallInfo[None], report: Any) -> None:
    """Show a verdict without internal frames, its first line complete; file a bad contract under errors."""
    excinfo = call.excinfo
    if excinfo is None or call.when != "call":
        return
    error = excinfo.value
    if isinstance(error, AttnAcceptError):
        report.longrepr = str(error)
        report.when = "setup"  # JUnit <error>: the user's input was wrong, the candidate was not measured
        return
    if isinstance(error, AcceptanceFailure) and report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            crash.message = str(error)


# -- end ------------------------------------------------------------------------------------------------------------------


def finish(session: pytest.Session, exitstatus: int) -> None:
    """Judge the run and, under an explicit profile, raise the exit status of everything that is not PASS."""
    config = session.config
    if config.option.collectonly or config.getoption("attnaccept_plan") or exitstatus in (3, 4):
        return
    gate = gate_of(config)
    result = gate.finish()
    _global_properties(config, gate)
    if gate.options.html:
        from pytest_attnaccept.reports.page import write_page

        write_page(Path(gate.options.html), result)
    if gate.options.explicit and result.verdict.value != "PASS" and exitstatus in (0, 5):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
    )
    reporter.section("attention acceptance")
    for text, good in lines:
        reporter.write_line(text, **({} if good is None else {"green": True} if good else {"red": True}))


def selftest(config: pytest.Config) -> int:
    """Run the gate's own controls and return an exit status."""
    from pytest_attnaccept.selftest import run_selftest

    return run_selftest(read_options(config))
