"""`tova`: the entries that the newest query attends to most are kept; the rest of the layer's budget is dropped.

Oren et al., 2024 (TOVA, "token omission via attention"): weights of the last query, averaged over all heads of a layer,
decide at every step, while decoding too; all heads of a layer drop the same tokens.

Differences to the paper: a prompt that comes in one call is cut once, by its last query, instead of step by step; the
newest entry and `sinks` first ones are always kept (0 sinks: only what the weights say). Keys keep their positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.methods.applied import Applied, budget, knob
from pytest_attnaccept.methods.observed import LastQuery

__all__ = ["TOVA", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TOVA:
    """Settings of the method."""

    kv_budget: float | int
    sinks: int = 4

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="tova", policy=LastQuery(budget=self.kv_budget, sinks=self.sinks))


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``kv_budget``, ``sinks``)."""
    return TOVA(kv_budget=budget("tova", knobs), sinks=knob("tova", knobs, "sinks", 4)).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: the whole context is kept."""
    return {**knobs, "kv_budget": 1.0}
