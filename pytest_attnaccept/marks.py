"""Marks -> the stack, surface and limits of one test, or a usage error that names the fix.

Positions
---------
1. A mark is ours if the test requests ``accept`` or the method is registered; anything else is left alone, because the
   words exact and approximate belong to everybody.
2. All marks up the tree form one stack, outermost first; of the same method the closest mark wins.
3. Marks are duck-typed (``name``, ``args``, ``kwargs``), so this module needs no pytest.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard

from pytest_attnaccept.errors import UnknownNameError, UsageError
from pytest_attnaccept.limits import LIMIT_NAMES, Limit, parse_limit
from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.registry import Registry, check_knobs, check_mark_kind
from pytest_attnaccept.taxonomy import Kind, Surface

__all__ = [
    "KIND_MARKS",
    "RESERVED",
    "Declared",
    "MarkLike",
    "brings_no_candidate",
    "declared",
    "gates_in_source",
    "surface_in_source",
]

KIND_MARKS: Mapping[str, Kind | None] = {
    "exact": Kind.EXACT,
    "approximate": Kind.APPROXIMATE,
    "architecture": Kind.ARCHITECTURE,
    "optimization": None,
}
RESERVED = ("method", "surface", "limits", "checkpoint")


class MarkLike(Protocol):
    """What is read of a pytest mark."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def args(self) -> tuple[Any, ...]: ...  # noqa: D102
    @property
    def kwargs(self) -> Mapping[str, Any]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the marks of one test say."""

    stack: tuple[StackEntry, ...]
    surface: Surface | None
    limits: Mapping[str, Limit]
    checkpoint: str | None


def declared(marks: Iterable[MarkLike], registry: Registry, *, wants_accept: bool, where: str) -> Declared | None:
    """Return what the marks (closest first) declare, or None when none of them is ours.

    Raises
    ------
    UsageError
        For every mark mistake, and for a test that has one of mark and fixture but not the other.
    """
    ours = [m for m in marks if m.name in KIND_MARKS and (wants_accept or registry.find(m.kwargs.get("method")))]
    if not ours:
        if wants_accept:
            raise UsageError(
                f"{where}: requests the fixture 'accept' but carries no mark that says what is under test; add for example"
                " @pytest.mark.approximate(method='h2o', kv_budget=0.25)"
            )
        return None
    if not wants_accept:
        raise UsageError(
            f"{where}: is marked {ours[0].name}(method={ours[0].kwargs.get('method')!r}) but does not take the fixture 'accept';"
            f" add it: def {where.rsplit('::', 1)[-1].split('[')[0]}(accept): accept.model(...)"
        )
    stack: dict[str, StackEntry] = {}
    for mark in ours:
        entry = _entry(mark, registry, where)
        stack.setdefault(entry.method.name, entry)
    checkpoint = _checkpoint(_closest(ours, "checkpoint"), where)
    return Declared(
        stack=tuple(_carried(entry, ours, registry, checkpoint) for entry in reversed(stack.values())),
        surface=_surface(_closest(ours, "surface"), where),
        limits=_limits(_closest(ours, "limits"), where),
        checkpoint=checkpoint,
    )


def _carried(entry: StackEntry, ours: Sequence[MarkLike], registry: Registry, checkpoint: str | None) -> StackEntry:
    """Return the entry with the checkpoint that carries it: its weights are measured, not quantized a second time."""
    own = [m for m in ours if "checkpoint" in m.kwargs and registry.find(m.kwargs.get("method")) is entry.method]
    carried = entry.method.acts_on_weights or not entry.method.applies
    return replace(entry, checkpoint=checkpoint) if own and carried else entry


def _entry(mark: MarkLike, registry: Registry, where: str) -> StackEntry:
    if mark.args or "method" not in mark.kwargs:
        example = mark.args[0] if mark.args and isinstance(mark.args[0], str) else "h2o"
        raise UsageError(
            f"{where}: @pytest.mark.{mark.name} takes keywords only and needs method=, e.g. {mark.name}(method={example!r})"
        )
    method = registry.get(mark.kwargs["method"], where)
    check_mark_kind(method, KIND_MARKS[mark.name], where)
    knobs = {k: v for k, v in mark.kwargs.items() if k not in RESERVED}
    try:
        return StackEntry(method=method, knobs=check_knobs(method, knobs, where))
    except UnknownNameError as error:
        raise UsageError(f"{error} Reserved keywords: {', '.join(RESERVED)}.") from error


def _closest(marks: Sequence[MarkLike], key: str) -> object:
    return next((m.kwargs[key] for m in marks if key in m.kwargs), None)


def _surface(value: object, where: str) -> Surface | None:
    if value is None:
        return None
    names = [s.value for s in Surface]
    if value not in names:
        raise UnknownNameError("surface", str(value), names, where)
    return Surface(value)


def _limits(value: object, where: str) -> dict[str, Limit]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{where}: limits={value!r} must be a mapping such as {{'needle': {{'max': 0.02, 'origin': 'policy: ...'}}}}"
        )
    limits: dict[str, Limit] = {}
    for name, entry in value.items():
        if name not in LIMIT_NAMES:
            raise UnknownNameError("limit", str(name), LIMIT_NAMES, where)
        if not isinstance(entry, Mapping):
            raise UsageError(f"{where}: limits: {name}={entry!r} must be {{'max': NUMBER, 'origin': 'policy: why'}}")
        limits[name] = parse_limit(name, entry, where)
    return limits


def _checkpoint(value: object, where: str) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise UsageError(f"{where}: checkpoint={value!r} must be a model spec (text)")
    return value


def surface_in_source(function: Callable[..., Any], fixture: str = "accept") -> Surface | None:
    """Return the one surface whose ``accept.<surface>`` stands in the function's source, or None.

    Two different surfaces, an alias of the fixture or a source that cannot be read give None: then the registry's
    default holds, and a call of another surface fails with the hint to say ``surface=``.
    """
    names = {s.value for s in Surface}
    found = {n.attr for n in _nodes(function) if _is_of(n, fixture) and n.attr in names}
    return Surface(found.pop()) if len(found) == 1 else None


def brings_no_candidate(function: Callable[..., Any], fixture: str = "accept") -> bool:
    """Whether the source shows ``accept.model(...)`` calls, and none of them hands over a candidate of its own.

    Then the package applies the marked methods itself. Whatever the source leaves open (an alias, ``*args``) is no.
    """
    calls = [
        n for n in _nodes(function) if isinstance(n, ast.Call) and _is_of(n.func, fixture) and n.func.attr == "model"
    ]
    return bool(calls) and not any(
        call.args or any(k.arg in ("candidate", None) for k in call.keywords) for call in calls
    )


def _nodes(function: Callable[..., Any]) -> Iterable[ast.AST]:
    try:
        return ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return ()


def _is_of(node: ast.AST, fixture: str) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == fixture


def gates_in_source(text: str) -> bool:
    """Whether a test file takes the fixture ``accept`` somewhere, or uses one of our marks, as far as its source shows."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return any(
        (isinstance(node, ast.arg) and node.arg == "accept")
        or (
            isinstance(node, ast.Attribute)
            and node.attr in KIND_MARKS
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "mark"
        )
        for node in ast.walk(tree)
    )
