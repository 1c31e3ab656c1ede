"""Marks of a test function -> its pytest items, one per check, known at collection.

Positions
---------
1. A mark mistake is collected, not raised, while pytest collects: raising there would be a collection error in one file.
   All mistakes are raised together before the first item (exit 4). An xdist worker cannot exit with 4, so there each
   broken item fails in its setup instead, and the mistake travels in the worker's plan.
2. The plan holds every check of every test of which at least one item was collected. It is noted item by item as pytest
   collects, before any hook or option can deselect something.
3. A project's own fixture that happens to be called ``accept`` is left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_attnaccept import plugin
from pytest_attnaccept.errors import AttnAcceptError, UsageError
from pytest_attnaccept.glue import FORCED_RERUNS, gate_of, never_rerun
from pytest_attnaccept.items import ItemSpec, specs_of_test
from pytest_attnaccept.marks import KIND_MARKS, Declared, MarkLike, brings_no_candidate, declared, surface_in_source
from pytest_attnaccept.plugin import BROKEN, SIBLINGS, SPEC
from pytest_attnaccept.stacking import clash
from pytest_attnaccept.taxonomy import Surface

if TYPE_CHECKING:
    import pytest

__all__ = ["attach_specs", "note_required", "parametrize_checks"]


def parametrize_checks(metafunc: pytest.Metafunc) -> None:
    """Parametrize the fixture with the union of checks over all parameter sets; `attach_specs` drops the surplus."""
    definition = metafunc.definition
    if not any(m.name in KIND_MARKS for m in _all_marks(definition)) or not _takes_our_fixture(definition):
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
    """Return the stable name of a test: its node id without the check (a folder's name may hold brackets too)."""
    base = f"{item.parent.nodeid}::{item.name.split('[', 1)[0]}"
    return f"{base}[{parameters}]" if parameters else base


def _takes_our_fixture(item: Any) -> bool:
    """Whether ``accept`` means ours here: the plugin's own, or an override that builds on it."""
    info = getattr(item, "_fixtureinfo", None)
    found = getattr(info, "name2fixturedefs", {}).get("accept", ())
    for fixture in reversed(found):
        if getattr(getattr(fixture, "func", None), "__module__", "") == plugin.__name__:
            return True
        if "accept" not in getattr(fixture, "argnames", ()):
            return False
    return True  # pytest offers no public way to ask; where its internals differ, the fixture counts as ours


def _specs(item: Any, marks: Sequence[MarkLike], cell: str) -> tuple[ItemSpec, ...]:
    gate = gate_of(item.config)
    found = declared(marks, gate.registry, wants_accept=True, where=cell)
    if found is None:  # for the type checker: with wants_accept there is a result or an error
        return ()
    surface = _surface(item, found)
    if surface is Surface.MODEL and (reason := clash(found.stack)) and brings_no_candidate(item.obj):
        raise UsageError(f"{cell}: {reason}, or pass your own candidate: accept.model(candidate=...)")
    return specs_of_test(
        cell=cell,
        stack=found.stack,
        surface=surface,
        profile=gate.profile.with_overrides(limits=found.limits),
        options=gate.options,
        source=Path(item.path),
        where=cell,
        root=gate.options.root,
        base=gate.profile,
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
        if "accept" not in getattr(item, "fixturenames", ()) or not _takes_our_fixture(item):
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
            item.stash[SPEC], item.stash[SIBLINGS] = spec, tuple(specs.values())
            kept.append(item)
    return kept


def _check_of(item: Any) -> str:
    call = getattr(item, "callspec", None)
    return str(call.params.get("accept", "")) if call is not None else ""


def _parameters_without(item: Any, check: str) -> str:
    """Return the item's parameter ids without the check (ours is always the last one)."""
    if "[" not in item.name:
        return ""
    inside = str(item.name).split("[", 1)[1][:-1]
    if inside == check:
        return ""
    return inside[: -len(check) - 1] if check and inside.endswith(f"-{check}") else inside


def note_required(item: pytest.Item) -> None:
    """Add to the plan every check of the item's test; note mark mistakes of tests that do not take the fixture."""
    gate = gate_of(item.config)
    if BROKEN in item.stash:
        return
    if SPEC not in item.stash:
        try:
            declared(list(item.iter_markers()), gate.registry, wants_accept=False, where=item.nodeid)
        except AttnAcceptError as error:
            text = str(error)
            if "accept" in getattr(item, "fixturenames", ()):
                text = (
                    f"{item.nodeid}: is marked for this gate, but its fixture 'accept' is the project's own and does not build"
                    " on the plugin's; rename that fixture"
                )
            gate.usage_errors.append(text)
            item.stash[BROKEN] = text
        return
    siblings: tuple[ItemSpec, ...] = item.stash[SIBLINGS]
    gate.require(s.planned for s in siblings)
    if getattr(item.config.option, "force_reruns", None):
        gate.usage_errors.append(FORCED_RERUNS)
        item.stash[BROKEN] = FORCED_RERUNS
    never_rerun(item)
