"""All rows by name, how a test builds the candidate of one, and what is left out."""

from __future__ import annotations

from typing import Any

import thirdparty_attention
import thirdparty_caches
import thirdparty_presses
import thirdparty_weights
from thirdparty_rows import Row

__all__ = ["ROWS", "build", "left_out"]

ROWS: dict[str, Row] = {
    row.name: row
    for part in (thirdparty_presses, thirdparty_caches, thirdparty_attention, thirdparty_weights)
    for row in part.rows()
}
_NO_DEVICE = {
    "DynamicCache(offloading=True)": "needs CUDA streams",
    "torchao Float8DynamicActivationFloat8Weight": "needs CUDA compute capability 8.9",
    "torchao Int4WeightOnly": "needs the package mslk; no CPU kernel in 0.18",
}


def build(name: str, accept_model: Any) -> object:
    """Return the candidate of the row called `name`."""
    return ROWS[name].build(accept_model)


def left_out() -> list[dict[str, object]]:
    """Return what was not run, with the reason."""
    reasons = {**thirdparty_presses.NEEDS_TRAINING, **_NO_DEVICE}
    return [{"what": name, "needs": reason} for name, reason in reasons.items()]
