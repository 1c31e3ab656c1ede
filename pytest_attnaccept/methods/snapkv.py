"""`snapkv`: the entries that the last queries of the prompt attend to are kept, next to those queries' own.

Li et al., 2024 (SnapKV): the last `observation` queries vote with their attention weights, votes are pooled over `pool`
neighbours so that clusters survive, and every KV head keeps its own best entries next to the window.

Differences to the paper: `kv_budget` counts everything that is kept, window and `sinks` included (the window takes at most
half); the votes of the query heads of one KV head are summed, so grouped heads agree; what the paper does once after the
prompt is repeated after every call, so that chunks and decoded tokens stay within the budget too (votes then fade from
call to call, see `observed`). Keys keep the positions at which they were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.applied import Applied, budget, knob
from pytest_attnaccept.methods.observed import ObservationWindow

__all__ = ["SnapKV", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapKV:
    """Settings of the method."""

    kv_budget: float | int
    sinks: int = 4
    observation: int = 32
    pool: int = 5

    def applied(self, method: str = "snapkv", steepness: float | None = None) -> Applied:
        """Return the contribution to a stack."""
        if self.pool % 2 == 0:
            raise ContractError(f"{method}: pool={self.pool} must be odd, so that a score stays at its entry")
        policy = ObservationWindow(
            budget=self.kv_budget, sinks=self.sinks, observation=self.observation, pool=self.pool, steepness=steepness
        )
        return Applied(method=method, policy=policy)


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``kv_budget``, ``sinks``, ``observation``, ``pool``)."""
    return settings("snapkv", knobs).applied()


def settings(method: str, knobs: Mapping[str, object]) -> SnapKV:
    """Return the settings in `knobs`, for this method or one that shares them."""
    return SnapKV(
        kv_budget=budget(method, knobs),
        sinks=knob(method, knobs, "sinks", 4),
        observation=knob(method, knobs, "observation", 32),
        pool=knob(method, knobs, "pool", 5),
    )


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: the whole context is kept."""
    return {**knobs, "kv_budget": 1.0}
