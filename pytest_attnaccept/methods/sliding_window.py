"""`sliding_window`: a query sees only the `window` most recent keys, its own included, in every call pattern.

The window is a mask inside a call and an eviction between calls, so one-shot, chunked and token-by-token runs agree;
the cache holds ``window - 1`` entries, which is what the next query needs next to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.methods.applied import Applied, knob
from pytest_attnaccept.methods.eviction import Window

__all__ = ["SlidingWindow", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Settings of the method."""

    window: int

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="sliding_window", policy=Window(size=self.window))


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``window``: most recent keys)."""
    return SlidingWindow(window=knob("sliding_window", knobs, "window", 0) or 2**30).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: a window longer than any text."""
    return {**knobs, "window": 2**30}
