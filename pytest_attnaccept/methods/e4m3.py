"""How attention with E4M3 inputs is computed: rounded Q, K, V and P, float32 products, softmax in float32.

Positions
---------
1. Scales are powers of two (the smallest at which nothing saturates). E4M3 rounds relatively, so such a scale changes no
   rounding above the subnormals, and a scale that is computed per call lets no token see a later one nor a row of the
   batch its neighbour. FlashAttention-3 takes any float32 scale; the error is of the same size.
2. P is rounded as FlashAttention-3 does it: ``exp(s - max)`` times 2**8 in E4M3, while the normaliser is summed from the
   unrounded values. Here the maximum is that of the whole row, there the running one of an online softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLOCK_TOKENS", "attention", "rounded"]

BLOCK_TOKENS = 64  # tokens that share a scale with granularity "block"
_TOP = 448.0  # largest finite E4M3 value
_P_SHIFT = 256.0  # 2**8, the offset of P in FlashAttention-3
_BLOCK_ROWS = 256  # rows of the score matrix that exist at once


def rounded(x: Tensor, granularity: str) -> Tensor:
    """Return `x` (batch, heads, tokens, dim) rounded to E4M3, float32.

    One scale per row of the batch ("tensor"), per head ("head"), or per 64 tokens of a head ("block"); "none": as it is.
    """
    values = x.float()
    if granularity == "none":
        return values
    if granularity == "block":
        batch, heads, tokens, dim = values.shape
        padded = torch.nn.functional.pad(values, (0, 0, 0, -tokens % BLOCK_TOKENS))
        blocks = padded.reshape(batch, heads, -1, BLOCK_TOKENS, dim)
        return _scaled(blocks, (3, 4)).flatten(2, 3)[:, :, :tokens]
    return _scaled(values, (1, 2, 3) if granularity == "tensor" else (2, 3))


def _scaled(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    largest = values.abs().amax(axes, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2(largest / _TOP)))
    scale = torch.where(largest == 0, torch.ones_like(scale), scale)
    return _cast(values / scale) * scale


def _cast(values: Tensor) -> Tensor:
    # clamp: devices and versions disagree about what a cast of larger values gives; NaN passes through
    return values.clamp(-_TOP, _TOP).to(torch.float8_e4m3fn).float()


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, granularity: str
) -> Tensor:
    """Return attention with E4M3 inputs.

    Parameters
    ----------
    query, key, value
        (batch, q_heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, v_dim).
    mask
        Boolean (True: visible) or additive, broadcastable to (batch, q_heads, queries, keys); None: causal, the last query
        sees the last key.

    Returns
    -------
    Tensor
        (batch, q_heads, queries, v_dim), float32; a row that sees nothing is zero.
    """
    batch, heads, queries, dim = query.shape
    kv_heads = key.shape[1]
    q = rounded(query, granularity).reshape(batch, kv_heads, heads // kv_heads, queries, dim)
    k = rounded(key, granularity)[:, :, None].transpose(-1, -2)
    v = rounded(value, granularity)[:, :, None]
    parts: list[Tensor] = []
    for start in range(0, queries, _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, queries))
        scores = (q[..., rows, :] @ k).flatten(1, 2) * scaling
        scores = _masked(scores, mask, rows, queries)
        high = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        p = torch.exp(scores - high)
        total = p.sum(-1, keepdim=True)
        coded = p if granularity == "none" else _cast(p * _P_SHIFT) / _P_SHIFT
        out = (coded.reshape(batch, kv_heads, heads // kv_heads, *coded.shape[2:]) @ v).flatten(1, 2)
        parts.append(torch.where(total > 0, out / total, torch.zeros_like(out)))
    return torch.cat(parts, dim=2)


def _masked(scores: Tensor, mask: Tensor | None, rows: slice, queries: int) -> Tensor:
    keys = scores.shape[-1]
    if mask is None:
        at = torch.arange(keys - queries + rows.start, keys - queries + rows.stop, device=scores.device)[:, None]
        return scores.masked_fill(torch.arange(keys, device=scores.device)[None] > at, -torch.inf)
    part = mask[:, :, rows, :keys]
    if part.dtype == torch.bool:
        return scores.masked_fill(~part, -torch.inf)
    low = torch.finfo(part.dtype).min
    return (scores + part.float()).masked_fill(part <= low, -torch.inf)
