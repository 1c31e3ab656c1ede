"""How much may be lost: a margin fixed before the data, and where it comes from.

Every limit names its origin; a number without one is refused, because nobody can later say whether it may be loosened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_attnaccept.errors import SchemaError, UnknownNameError
from pytest_attnaccept.strict_yaml import Node

__all__ = ["LIMIT_NAMES", "Limit", "parse_limit", "parse_limits"]

LIMIT_NAMES = ("perplexity", "kl", "top1", "needle", "samples", "long-range", "benchmark", "halving")
_ORIGINS = ("policy", "derived", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The largest loss that may ship, fixed before the data.

    Attributes
    ----------
    max
        Margin in the unit of the metric (fraction of answers, relative perplexity increase, nats).
    origin
        "policy: ...", "derived: ..." or "measured: ...".
    loosened_from
        The profile's own limit when a suite or mark sets a larger one; shown in every report.
    """

    max: float
    origin: str
    loosened_from: float | None = None


def parse_limits(node: Node, key: str = "limits") -> dict[str, Limit]:
    """Read ``limits:``; each is ``{max: 0.05, origin: "policy: ..."}``."""
    if key not in node:
        return {}
    limits: Node = node.typed(key, dict)
    limits.only(LIMIT_NAMES)
    result: dict[str, Limit] = {}
    for name in limits:
        entry = limits[name]
        if not isinstance(entry, dict):
            raise limits.error(
                f'{name}: {entry!r} must be a mapping such as {{max: 0.05, origin: "policy: ..."}}', name
            )
        result[name] = parse_limit(name, entry, limits.where(name))
    return result


def parse_limit(name: str, entry: Mapping[str, object], where: str) -> Limit:
    """Check one limit; used for YAML and for the ``limits=`` of a mark."""
    for key in entry:
        if key not in ("max", "origin"):
            raise UnknownNameError(f"key of limit {name}", str(key), ("max", "origin"), where)
    value = entry.get("max")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise SchemaError(f"{where}: limit {name}: max={value!r} must be a number in (0, 1]")
    origin = entry.get("origin")
    if not isinstance(origin, str) or origin.split(":")[0].strip() not in _ORIGINS:
        raise SchemaError(
            f'{where}: limit {name} needs origin: "policy: ...", "derived: ..." or "measured: ...";'
            " a limit that nobody can trace is refused"
        )
    return Limit(max=float(value), origin=origin)
