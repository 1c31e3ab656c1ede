"""Which registered methods this package can apply together: one eviction, one KV format and one weight format per stack.

Position: only methods that ship with the package are judged. A method of the user's own may bring what it likes, and so
may a candidate of the user's own; what cannot be stacked there shows when it is applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.taxonomy import Layer, Method

__all__ = ["clash"]


def clash(stack: Sequence[StackEntry]) -> str:
    """Return why the package cannot apply these methods together, or ""; what a checkpoint carries is not applied."""
    acting: dict[str, list[str]] = {}
    for entry in stack:
        if entry.checkpoint is None and (part := _part(entry.method)):
            acting.setdefault(part, []).append(entry.method.name)
    return next(
        (
            f"{' and '.join(names)}: two {part} in one stack act on the same entries; keep one of them"
            for part, names in acting.items()
            if len(names) > 1
        ),
        "",
    )


def _part(method: Method) -> str:
    """Return the part of a candidate that a method takes for itself, in words."""
    if not method.applies.startswith("pytest_attnaccept."):
        return ""
    if method.layer is Layer.CONTENT:
        return "evictions"
    if method.acts_on_kv:
        return "KV quantizations"
    return "weight quantizations" if method.acts_on_weights else ""
