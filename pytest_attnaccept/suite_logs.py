"""The ``logs:`` of a suite file: recorded runs that are compared instead of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.errors import SchemaError
from pytest_attnaccept.limits import Limit
from pytest_attnaccept.matrix import part_of_id
from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.strict_yaml import Node

__all__ = ["LogCell", "log_cells"]

_LOG_KEYS = ("baseline", "candidate", "metric", "method", "margin", "origin")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCell:
    """Two recorded lm-eval sample logs (or NLL tables) that are compared instead of a model."""

    name: str
    baseline: Path
    candidate: Path
    metric: str | None
    stack: tuple[StackEntry, ...]
    limit: Limit
    line: int


def log_cells(node: Node, registry: Registry) -> tuple[LogCell, ...]:
    """Read ``logs:``, one comparison or several by name."""
    if "logs" not in node:
        return ()
    logs: Node = node.typed("logs", dict)
    if "baseline" in logs and not isinstance(logs["baseline"], dict):
        single = Node(node.file, node.lines["logs"])
        single["logs"] = logs
        single.lines["logs"] = node.lines["logs"]
        logs = single
    return tuple(_log(logs, name, registry) for name in logs)


def _log(logs: Node, name: str, registry: Registry) -> LogCell:
    entry: Node = logs.typed(name, dict, required=True)
    entry.only(_LOG_KEYS)
    paths = []
    for side in ("baseline", "candidate"):
        path = Path(entry.typed(side, str, required=True)).expanduser()
        path = path if path.is_absolute() else Path(logs.file).parent / path
        if not path.is_file():
            raise entry.error(f"{side}: {path} does not exist", side)
        paths.append(path)
    method = registry.get(entry.typed("method", str, required=True), entry.where("method"))
    margin = entry.typed("margin", (float, int), required=True)
    origin = entry.typed("origin", str, "")
    if not 0 < margin < 1:
        raise entry.error(f"margin: {margin!r} must lie in (0, 1): 2 points are 0.02", "margin")
    if origin.split(":")[0] not in ("policy", "derived", "measured"):
        raise SchemaError(
            f'{entry.where("origin")}: margin needs origin: "policy: ...", "derived: ..." or "measured: ..."'
        )
    return LogCell(
        name=part_of_id(name),
        baseline=paths[0],
        candidate=paths[1],
        metric=entry.typed("metric", str),
        stack=(StackEntry(method=method, knobs={}),),
        limit=Limit(max=float(margin), origin=origin),
        line=logs.lines.get(name, logs.line),
    )
