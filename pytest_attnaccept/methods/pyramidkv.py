"""`pyramidkv`: SnapKV with a budget that falls linearly with depth; the mean over layers is `kv_budget`.

Cai et al., 2024 (PyramidKV): every layer keeps the window; of what the budget holds beyond it the deepest layer keeps a 20th
of the mean (their beta), the first one as much more.

Differences to the paper: those of `snapkv`; the window counts in `kv_budget`; where the first layer would keep more
than there is, the slope is as large as possible (as in their code). Layers hold different numbers of entries, for which
transformers has no mask: the attention function that reports the scores makes its own one, so continuations of several
tokens are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_attnaccept.methods.applied import Applied
from pytest_attnaccept.methods.snapkv import settings

__all__ = ["STEEPNESS", "apply", "identity"]

STEEPNESS = 20.0


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``kv_budget``, ``sinks``, ``observation``, ``pool``)."""
    return settings("pyramidkv", knobs).applied("pyramidkv", STEEPNESS)


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: the whole context is kept."""
    return {**knobs, "kv_budget": 1.0}
