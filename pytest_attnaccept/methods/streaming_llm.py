"""`streaming_llm`: attention sinks and the most recent keys are kept, at the positions that they have inside the cache.

Xiao et al., 2023 (StreamingLLM): the first `sinks` tokens and a window of recent ones; positions are counted inside the
cache, not in the text, so distances never exceed the cache. As only differences count for rotary embeddings, the recent
entries and the queries stay where they are and the sinks are turned towards them (`rotation`): the same up to rounding.
``positions="text"`` is the variant of kvpress and others: keys keep the positions at which they were computed.

Differences to the paper: `kv_budget` counts everything that is kept, sinks included; a share grows with the text, a number
or `window` (recent ones next to the sinks) does not. A prompt that comes in one call is attended in full and cut after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.applied import Applied, budget, knob
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.rotation import Move, mover

__all__ = ["StreamingLLM", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingLLM:
    """Settings of the method; without `move`, keys keep the positions of the text."""

    kv_budget: float | int
    sinks: int = 4
    move: Move | None = None

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        policy = SinksAndRecent(budget=self.kv_budget, sinks=self.sinks, move=self.move)
        return Applied(method="streaming_llm", policy=policy)


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``kv_budget``, or ``window`` recent keys next to the sinks; ``sinks``, ``positions``)."""
    sinks = knob("streaming_llm", knobs, "sinks", 4)
    window = knob("streaming_llm", knobs, "window", 0)
    if window and knobs.get("kv_budget") is not None:
        raise ContractError("streaming_llm: give kv_budget (sinks included) or window (sinks extra), not both")
    positions = knob("streaming_llm", knobs, "positions", "cache")
    if positions not in ("cache", "text"):
        raise ContractError(f"streaming_llm: positions={positions!r} must be 'cache' or 'text'")
    kept = window + sinks if window else budget("streaming_llm", knobs)
    move = mover(model, "streaming_llm") if positions == "cache" else None
    return StreamingLLM(kv_budget=kept, sinks=sinks, move=move).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: the whole context is kept."""
    return {**{k: v for k, v in knobs.items() if k != "window"}, "kv_budget": 1.0}
