"""A suite file -> cells: model columns, factors with their options, and the stacks that a release ships.

Positions
---------
1. Every shipped stack is a cell on every model column, and so is each lossy member of a stack of several (errors
   compound, and without the single losses nobody can say which member costs what); which further cells follow is
   decided in `rows`.
2. The schema is strict: an unknown key, a factor option that nothing ships, a shipped option that does not exist, a
   stack that cannot be applied and a limit without origin are errors with file:line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.limits import Limit, parse_limits
from pytest_attnaccept.matrix import part_of_id
from pytest_attnaccept.profiles import parse_data, parse_max_tokens
from pytest_attnaccept.protocol import DRAFTED, StackEntry
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.rows import ROWS, Row, combinations, wanted_rows
from pytest_attnaccept.stacking import clash
from pytest_attnaccept.strict_yaml import Node, load
from pytest_attnaccept.suite_logs import LogCell, log_cells

__all__ = ["Suite", "SuiteCell", "load_suite"]

_KEYS = ("schema", "title", "profile", "models", "factors", "ships", "rows", "limits", "data", "max_tokens", "logs")
_MODEL_KEYS = ("spec", "revision", "dtype", "device_map", "attn_implementation", "trust_remote_code", "tokenizer")
_MOST_ROWS = 1024  # policy: nobody waits for more, and a typing mistake should not either


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCell:
    """One stack on one model column.

    Attributes
    ----------
    name
        Id of the cell inside its suite ("gqa.production", "gqa.only-kv8").
    line
        Line of the stack in the file, for annotations.
    """

    name: str
    stack: tuple[StackEntry, ...]
    model: str | Mapping[str, object]
    line: int

    @property
    def checkpoint(self) -> str | None:
        """Checkpoint that the candidate is loaded from; None: the model column itself is changed."""
        return next((e.checkpoint for e in self.stack if e.checkpoint), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The content of one ``*.accept.yaml``."""

    file: Path
    title: str
    profile: str | None
    cells: tuple[SuiteCell, ...]
    logs: tuple[LogCell, ...]
    limits: Mapping[str, Limit]
    data: Mapping[str, str]
    max_tokens: int | None


def load_suite(path: Path, registry: Registry) -> Suite:
    """Read one suite file."""
    node = load(path)
    node.only(_KEYS)
    if (found := node.typed("schema", int, required=True)) != 1:
        raise node.error(f"schema: this version reads schema 1, the file says {found}", "schema")
    logs = log_cells(node, registry)
    cells = _cells(node, registry) if ("models" in node or "ships" in node or not logs) else ()
    return Suite(
        file=path,
        title=node.typed("title", str, ""),
        profile=node.typed("profile", str),
        cells=cells,
        logs=logs,
        limits=parse_limits(node),
        data=parse_data(node),
        max_tokens=parse_max_tokens(node),
    )


def _cells(node: Node, registry: Registry) -> tuple[SuiteCell, ...]:
    models = _models(node)
    factors = _factors(node, registry)
    ships: Node = node.typed("ships", dict, required=True)
    if not ships:
        raise node.error("ships: names no stack; a suite that ships nothing gates nothing", "ships")
    rows = _rows(node)
    stacks = {name: _stack(ships, name, factors) for name in ships}
    if rows == "required":  # the other rows measure every option, shipped or not
        _refuse_unused(node, factors, ships)
    elif (count := combinations(factors)) > _MOST_ROWS:
        raise node.error(f"rows: {rows} over {count} combinations of options; at most {_MOST_ROWS} are allowed", "rows")
    cells: dict[str, SuiteCell] = {}
    for column, model in models.items():
        for row in wanted_rows(rows, factors, stacks):
            if _checkpoints(row.stack) > 1:  # a shipped stack was refused before; the second one would not be loaded
                raise node.error(
                    f"rows: {rows} combines options that name two checkpoints ({row.name}), and a model has one; use rows:"
                    " required, or leave one of them out",
                    "rows",
                )
            if reason := clash(row.stack):  # no shipped stack: those were refused before
                raise node.error(f"rows: {rows} combines {reason} ({row.name}), or use rows: required", "rows")
            line = ships.lines[row.origin] if row.origin else node.lines["rows"]
            name = f"{part_of_id(column)}.{_row_id(row)}"
            cell = SuiteCell(name=name, stack=row.stack, model=model, line=line)
            _add(cells, cell, ships, row)
    return tuple(cells.values())


def _rows(node: Node) -> str:
    rows: str = node.typed("rows", str, "required")
    if rows not in ROWS:
        raise node.error(f"rows: {rows!r} must be one of {', '.join(ROWS)}", "rows")
    return rows


def _row_id(row: Row) -> str:
    """Return the id of a row; the parts of a name are made ids one by one, so that Chinese names stay apart."""
    if row.name == row.origin:
        return part_of_id(row.name)
    for mark in ("row-", "only-"):
        if row.name.startswith(mark):
            return mark + "+".join(part_of_id(part) for part in row.name[len(mark) :].split("+"))
    stack, _, member = row.name.partition("-without-")
    return f"{part_of_id(stack)}-without-{part_of_id(member)}"


def _add(cells: dict[str, SuiteCell], cell: SuiteCell, ships: Node, row: Row) -> None:
    """Add a cell; two cells of one id would be measured once and counted twice."""
    if cell.name in cells:
        name = row.origin or None
        raise ships.error(
            f"{row.name}: its cell {cell.name!r} exists already (line {cells[cell.name].line}); rename a stack, an option or"
            " a model",
            name,
        )
    cells[cell.name] = cell


def _models(node: Node) -> dict[str, str | Mapping[str, object]]:
    models: Node = node.typed("models", dict, required=True)
    if not models:
        raise node.error("models: names no model", "models")
    result: dict[str, str | Mapping[str, object]] = {}
    for name, entry in models.items():
        if isinstance(entry, str):
            result[name] = entry
        elif isinstance(entry, Node):
            entry.only(_MODEL_KEYS)
            entry.typed("spec", str, required=True)
            entry.typed("trust_remote_code", bool, False)
            result[name] = dict(entry)
        else:
            raise models.error(f"{name}: {entry!r} must be a model spec or {{spec: ..., dtype: ...}}", name)
    return result


def _factors(node: Node, registry: Registry) -> dict[str, dict[str, StackEntry | None]]:
    factors: Node = node.typed("factors", dict, required=True)
    result: dict[str, dict[str, StackEntry | None]] = {}
    for factor in factors:
        options: Node = factors.typed(factor, dict, required=True)
        result[factor] = {name: _option(options, name, registry) for name in options}
    return result


def _option(options: Node, name: str, registry: Registry) -> StackEntry | None:
    entry = options[name]
    if entry is None:
        return None
    if not isinstance(entry, Node):
        raise options.error(f"{name}: {entry!r} must be null (off) or {{method: NAME, knob: value}}", name)
    where = options.where(name)
    method = registry.get(entry.typed("method", str, required=True), where)
    declared = entry.typed("kind", str)
    if declared is not None and declared != method.kind.value:
        raise entry.error(f"kind: {method.name} is {method.kind.value}, not {declared}", "kind")
    checkpoint = entry.typed("checkpoint", str)
    if checkpoint is not None and not checkpoint.strip():
        raise entry.error(f"checkpoint: {checkpoint!r} names no model", "checkpoint")
    if not method.applies and checkpoint is None:
        raise entry.error(
            f"{method.name} cannot be applied to a model by this package, so a suite cannot measure it: name a checkpoint that"
            " has it (checkpoint: PATH), or gate your own candidate with a mark and accept.<surface>(...)",
            "method",
        )
    knobs = {k: v for k, v in entry.items() if k not in ("method", "kind", "checkpoint")}
    return StackEntry(method=method, knobs=check_knobs(method, knobs, where), checkpoint=checkpoint)


def _stack(ships: Node, name: str, factors: Mapping[str, Mapping[str, StackEntry | None]]) -> tuple[StackEntry, ...]:
    choice: Node = ships.typed(name, dict, required=True)
    stack: list[StackEntry] = []
    for factor, option in choice.items():
        if factor not in factors:
            raise UnknownNameError("factor", factor, factors, choice.where(factor))
        if option not in factors[factor]:
            raise UnknownNameError(f"option of factor {factor}", str(option), factors[factor], choice.where(factor))
        entry = factors[factor][option]
        if entry is not None:
            stack.append(entry)
    if not stack:
        raise ships.error(f"{name}: every factor is off; the baseline alone is not a stack", name)
    if all(e.method.name in DRAFTED and e.checkpoint is None for e in stack):
        raise ships.error(
            f"{name}: drafts alone change nothing that a model check could see; ship them with a lossy member, or gate the"
            " decoder with a mark and accept.decoder(...)",
            name,
        )
    methods = [e.method.name for e in stack]
    if twice := next((m for m in methods if methods.count(m) > 1), None):
        raise ships.error(f"{name}: has {twice} twice; its second setting would not be what ships", name)
    if _checkpoints(stack) > 1:
        raise ships.error(f"{name}: its options name two checkpoints, and a model has one", name)
    if reason := clash(stack):
        raise ships.error(f"{name}: {reason}", name)
    return tuple(stack)


def _checkpoints(stack: Sequence[StackEntry]) -> int:
    return len({e.checkpoint for e in stack if e.checkpoint})


def _refuse_unused(node: Node, factors: Mapping[str, Mapping[str, StackEntry | None]], ships: Node) -> None:
    shipped = {(f, str(o)) for choice in ships.values() if isinstance(choice, dict) for f, o in choice.items()}
    for factor, options in factors.items():
        for option, entry in options.items():
            if entry is not None and (factor, option) not in shipped:
                place: Node = node["factors"][factor]
                raise place.error(
                    f"option {option!r} of factor {factor!r} is in no shipped stack, so it would never be measured",
                    option,
                )
