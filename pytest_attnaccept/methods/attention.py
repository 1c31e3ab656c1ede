"""The attention function of a cache with a policy: the model's own one, plus a window mask and attention column sums.

It is registered with transformers under ``attnaccept_BASE`` (process-wide, additive; BASE is what the model used
before) together with BASE's mask function, and selected only while a candidate runs. The cache layer that was updated
last in this thread belongs to the attention call that follows: so the two find each other without editing the model.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from pytest_attnaccept.errors import EngineError

__all__ = ["Observer", "announce", "column_sums", "observing", "take_announced"]

_PREFIX = "attnaccept_"
_BLOCK_ROWS = 256  # rows of the score matrix that exist at once: 256 x 32k keys x 4 bytes = 32 MB per head
_LOCAL = threading.local()


class Observer(Protocol):
    """A cache layer that wants to see attention."""

    @property
    def window(self) -> int | None:
        """Most recent keys a query may see, or None."""

    @property
    def wants_scores(self) -> bool:
        """Whether column sums are needed."""

    @property
    def observes(self) -> int | None:
        """How many of the last queries the sums are over; None: all of them."""

    @property
    def ragged(self) -> bool:
        """Whether the mask that was made for the first layer may be of another length."""

    def observe(self, sums: Tensor, queries: int) -> None:
        """Receive column sums, shape (batch, q_heads, keys), float32, of a call of `queries` tokens."""


def announce(layer: Observer) -> None:
    """Say that `layer` was just updated; the next attention call of this thread is its own."""
    _LOCAL.layer = layer


def take_announced() -> Observer | None:
    """Return the announced layer and forget it."""
    layer: Observer | None = getattr(_LOCAL, "layer", None)
    _LOCAL.layer = None
    return layer


def observing(base: str) -> str:
    """Register the observing variant of the attention function `base` and return its name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if base.startswith(_PREFIX):
        return base
    name = f"{_PREFIX}{base.replace('/', '_').replace('@', '_').replace(':', '_')}"
    masks = AttentionMaskInterface()
    if base in masks.keys():  # noqa: SIM118 - the interface is not a plain dict in every version
        AttentionMaskInterface.register(name, masks[base])
    AttentionInterface.register(name, _observing_function(base))
    return name


def _observing_function(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,  # kvpress wraps every registered function and hands this one on by position
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        layer = take_announced()
        if layer is not None and layer.ragged:
            attention_mask = _own_mask(attention_mask, query, key)
        if layer is not None and layer.window is not None and key.shape[2] > layer.window:
            attention_mask = _windowed(attention_mask, query, key, layer.window)
        output = _base_function(module, base)(module, query, key, value, attention_mask, dropout=dropout, **kwargs)
        if layer is not None and layer.wants_scores:
            scaling = kwargs.get("scaling")
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            layer.observe(_observed(layer, query, key, attention_mask, scale), query.shape[2])
        return output

    return attend


def _base_function(module: Any, base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if base == "eager":  # every model file has its own
        function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if function is None:
            raise EngineError(f"{type(module).__name__} has no eager attention function that can be observed; use sdpa")
    else:
        function = ALL_ATTENTION_FUNCTIONS[base]
    return function  # type: ignore[no-any-return]


def _visible(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Return the bottom-right causal mask, shape (1, 1, queries, keys), True where a query sees a key."""
    queries, keys = query.shape[2], key.shape[2]
    at = torch.arange(keys - queries, keys, device=query.device)[:, None]
    of = torch.arange(keys, device=query.device)[None, :]
    seen = of <= at
    if window is not None:
        seen &= of > at - window
    return seen[None, None]


def _own_mask(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return the mask of a layer whose number of entries is not that of the layer for which `mask` was made."""
    if mask is not None and mask.dim() != 4:
        return mask  # a padding mask of a flash kernel, whose causal mask is bottom-right anyway
    if query.shape[2] == 1:
        return None
    if mask is not None and mask.shape[-1] == key.shape[2]:
        return mask
    seen = _visible(query, key, None)
    if mask is None or mask.dtype == torch.bool:
        return seen
    return torch.zeros_like(seen, dtype=mask.dtype).masked_fill(~seen, torch.finfo(mask.dtype).min)


def _observed(layer: Observer, query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the column sums that the layer asks for."""
    last = layer.observes
    if last is None or last >= query.shape[2]:
        return column_sums(query, key, mask, scale)
    part = mask[:, :, -last:] if mask is not None and mask.dim() == 4 else None
    return column_sums(query[:, :, -last:], key, part, scale)


def _windowed(mask: Tensor | None, query: Tensor, key: Tensor, window: int) -> Tensor:
    seen = _visible(query, key, window)
    if mask is None:
        return seen
    if mask.dtype == torch.bool:
        return mask & seen
    return mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


def column_sums(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Return how much attention each key received, summed over the queries.

    Parameters
    ----------
    query, key
        (batch, q_heads, queries, dim) and (batch, kv_heads, keys, dim); queries are the last positions.
    mask
        Boolean (True: visible) or additive mask, broadcastable to (batch, heads, queries, keys), or None for causal.

    Returns
    -------
    Tensor
        (batch, q_heads, keys), float32; each query contributes a total of 1.
    """
    batch, heads, queries, dim = query.shape
    grouped = query.float().reshape(batch, key.shape[1], heads // key.shape[1], queries, dim)
    keys = key.float()[:, :, None].transpose(-1, -2)
    if mask is None or mask.dim() != 4:  # None, or a padding mask that a flash kernel takes
        mask = _visible(query, key, None)
    total = torch.zeros(batch, heads, key.shape[2], dtype=torch.float32, device=query.device)
    for start in range(0, queries, _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        logits = (grouped[..., rows, :] @ keys).flatten(1, 2) * scaling
        part = mask[:, :, rows, : key.shape[2]]
        if part.dtype == torch.bool:
            logits = logits.masked_fill(~part, -torch.inf)
        else:
            logits = logits + part
        total += torch.softmax(logits, dim=-1).nan_to_num(0.0).sum(dim=2)
    return total
