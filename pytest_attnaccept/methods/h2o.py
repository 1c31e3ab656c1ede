"""`h2o`: the keys that received most attention and the most recent ones are kept, half and half.

`kv_budget` counts everything that is kept, sinks included. Keys keep the positions at which they were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.methods.applied import Applied, budget, knob
from pytest_attnaccept.methods.eviction import HeavyHitters

__all__ = ["H2O", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class H2O:
    """Settings of the method."""

    kv_budget: float | int
    sinks: int = 4

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="h2o", policy=HeavyHitters(budget=self.kv_budget, sinks=self.sinks))


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``kv_budget``, ``sinks``)."""
    return H2O(kv_budget=budget("h2o", knobs), sinks=knob("h2o", knobs, "sinks", 4)).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: the whole context is kept."""
    return {**knobs, "kv_budget": 1.0}
