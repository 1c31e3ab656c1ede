"""`streaming_llm`: attention sinks and the most recent keys are kept.

`kv_budget` counts everything that is kept, sinks included. Keys keep the positions at which they were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.applied import Applied, budget, knob
from pytest_attnaccept.methods.eviction import SinksAndRecent

__all__ = ["StreamingLLM", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingLLM:
    """Settings of the method."""

    kv_budget: float | int
    sinks: int = 4

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="streaming_llm", policy=SinksAndRecent(budget=self.kv_budget, sinks=self.sinks))


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``kv_budget``, or ``window`` recent keys next to the sinks; ``sinks``)."""
    sinks = knob("streaming_llm", knobs, "sinks", 4)
    window = knob("streaming_llm", knobs, "window", 0)
    if window and knobs.get("kv_budget") is not None:
        raise ContractError("streaming_llm: give kv_budget (sinks included) or window (sinks extra), not both")
    kept = window + sinks if window else budget("streaming_llm", knobs)
    return StreamingLLM(kv_budget=kept, sinks=sinks).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: the whole context is kept."""
    return {**{k: v for k, v in knobs.items() if k != "window"}, "kv_budget": 1.0}
