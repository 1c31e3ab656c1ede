"""What an attention function under test receives: one `AttentionCall`, the tensors and scalars of a single call.

Positions
---------
1. The fields are the public contract; they never grow without a new major version.
2. What does not change between the calls of one contract (alignment, lse base, value of empty rows) is not in the call:
   the author of the function declared it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AttentionCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One attention call.

    Semantics: ``scores = q . k * scale`` (times k_scale), then softcap, then ALiBi, then the mask; sinks are natural-log
    logits that enter the denominator only. Causal alignment is per row against ``kv_lengths[b]``.

    Attributes
    ----------
    q
        ``(batch, q_heads, q_len, head_dim)``.
    k, v
        ``(batch, kv_heads, kv_len, head_dim)`` and ``(..., v_head_dim)``; with `block_table` page pools
        ``(num_pages, page_size, kv_heads, dim)``.
    causal
        Whether a query sees only keys at or before its own position.
    scale
        Factor of the scores.
    window
        How many most recent keys a query sees, its own position included; None: all.
    softcap
        ``s -> softcap * tanh(s / softcap)`` after scaling; None: none.
    sinks
        ``(q_heads,)`` float32, an extra logit per head in the denominator, or None.
    alibi_slopes
        ``(q_heads,)`` float32, ``-slope * |key position - query position|`` is added to the scores, or None.
    kv_lengths
        ``(batch,)`` int64, valid keys per row, the rest is padding; None: all are valid.
    block_table
        ``(batch, pages)`` int64, page ids; entries beyond a row's length name poisoned pages, never -1.
    k_scale, v_scale
        Factors of the stored FP8 values; None when nothing is quantized.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    kv_lengths: Tensor | None = None
    block_table: Tensor | None = None
    k_scale: float | None = None
    v_scale: float | None = None
