"""`random_eviction`: a control; random keys are kept, and a method that is not better is no method.

`kv_budget` counts everything that is kept, sinks included. Keys keep the positions at which they were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.methods.applied import Applied, budget, knob
from pytest_attnaccept.methods.eviction import RandomKeep

__all__ = ["RandomEviction", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomEviction:
    """Settings of the method."""

    kv_budget: float | int
    sinks: int = 4

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="random_eviction", policy=RandomKeep(budget=self.kv_budget, sinks=self.sinks))


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``kv_budget``, ``sinks``)."""
    return RandomEviction(
        kv_budget=budget("random_eviction", knobs), sinks=knob("random_eviction", knobs, "sinks", 4)
    ).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: the whole context is kept."""
    return {**knobs, "kv_budget": 1.0}
