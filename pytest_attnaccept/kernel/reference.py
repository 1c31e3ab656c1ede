"""What the exact answer is: attention in float64, streamed over keys for a few rows, from the declared contract alone.

Positions
---------
1. Nothing of the candidate is used: masks, positions, pages and dequantization are written down here once.
2. Memory is flat: keys pass in blocks whose size depends on the number of rows, never a dense q_len x kv_len matrix.
3. What is masked never enters a product (it may be NaN), which is why keys past a row's length are replaced by zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.precision import Precision, take

__all__ = [
    "Block",
    "Rows",
    "Semantics",
    "blocks",
    "gather_keys",
    "key_limits",
    "reference_rows",
    "score",
    "score_variance",
    "semantics_of",
    "with_semantics",
]

# Elements of one float64 score block: 4 MB, which stays near the cache and below the size at which memory is mapped anew.
_BLOCK_ELEMENTS = 2**19
# float32 scores: relative unit roundoff of one operation.
_U32 = 2.0**-24


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """What one call means; `diagnose` replaces single fields to ask "what if the function did this instead?".

    Attributes
    ----------
    lengths
        ``(batch,)`` int64, valid keys per batch row.
    offset
        ``(batch,)`` int64, position of query 0 (bottom right: length - q_len; top left: 0).
    head_map
        ``(q_heads,)`` int64, KV head of each query head.
    """

    causal: bool
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    slopes: Tensor | None
    lengths: Tensor
    offset: Tensor
    head_map: Tensor
    k_factor: float = 1.0
    v_factor: float = 1.0


class Block(NamedTuple):
    """Scores of the sampled rows against keys ``[low, high)``.

    Attributes
    ----------
    s
        ``(batch, q_heads, rows, n)`` float64, -inf where masked.
    t
        Same shape, derivative of the score with respect to ln(scale).
    v
        ``(batch, kv_heads, n, v_head_dim)`` float64.
    k_norm
        ``(batch, q_heads, 1, n)`` float64, Euclidean length of each key.
    """

    low: int
    high: int
    s: Tensor
    t: Tensor
    v: Tensor
    k_norm: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The exact answer and its predicted error on sampled rows (all ``(batch, q_heads, rows, ...)``, float64).

    Attributes
    ----------
    index
        ``(rows,)`` int64 query indices.
    out, lse
        Exact output; natural-log denominator (sink included), -inf for an empty row without sink.
    count
        ``(batch, 1, rows)`` int64 visible keys.
    weight2
        Sum of squared probabilities; its inverse is the number of effective keys.
    variance_p, variance_s
        ``(..., v_head_dim)`` error variance from rounding probabilities and scores.
    lse_variance
        Error variance of lse from rounding scores.
    score_noise
        Mean squared rounding of a score, weighted by p.
    scale_slope
        ``(..., v_head_dim)`` derivative of out with respect to ln(scale).
    mean_v
        ``(batch, q_heads, 1, v_head_dim)`` mean of all valid V.
    largest
        Largest absolute visible score.
    """

    index: Tensor
    out: Tensor
    lse: Tensor
    count: Tensor
    weight2: Tensor
    variance_p: Tensor
    variance_s: Tensor
    lse_variance: Tensor
    score_noise: Tensor
    scale_slope: Tensor
    mean_v: Tensor
    largest: float


def semantics_of(call: AttentionCall, alignment: str) -> Semantics:
    """Read what `call` means under the declared causal alignment."""
    batch, q_heads, q_len, _ = call.q.shape
    device = call.q.device
    if call.kv_lengths is not None:
        lengths = call.kv_lengths.to(device=device, dtype=torch.int64)
    else:
        lengths = torch.full((batch,), call.k.shape[2], dtype=torch.int64, device=device)
    kv_heads = call.k.shape[2] if call.block_table is not None else call.k.shape[1]
    heads = torch.arange(q_heads, device=device)
    return Semantics(
        causal=call.causal,
        scale=call.scale,
        window=call.window,
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks.double(),
        slopes=None if call.alibi_slopes is None else call.alibi_slopes.double(),
        lengths=lengths,
        offset=lengths - q_len if alignment == "bottom_right" else torch.zeros_like(lengths),
        head_map=heads // (q_heads // kv_heads),
        k_factor=1.0 if call.k_scale is None else call.k_scale,
        v_factor=1.0 if call.v_scale is None else call.v_scale,
    )


def key_limits(what: Semantics, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(low, high)``, each ``(batch, rows)`` int64: row r of batch b sees keys low <= k < high."""
    position = index[None, :] + what.offset[:, None]
    high = what.lengths[:, None].expand_as(position)
    low = torch.zeros_like(position)
    if what.causal:
        high = torch.minimum(high, position + 1)
        if what.window is not None:
            low = (position + 1 - what.window).clamp_min(0)
    high = high.clamp_min(0)
    return torch.minimum(low, high), high


def gather_keys(call: AttentionCall, what: Semantics, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return K and V of positions ``[low, high)`` as ``(batch, kv_heads, n, dim)`` float64, zero past each row's length."""
    return _stored(call, what, "k", low, high), _stored(call, what, "v", low, high)


def _stored(call: AttentionCall, what: Semantics, name: str, low: int, high: int) -> Tensor:
    """Return K or V of positions ``[low, high)`` in float64; what is masked by length is replaced, not multiplied."""
    x: Tensor = getattr(call, name)
    if call.block_table is None:
        x = x[:, :, low:high]
    else:
        size = x.shape[1]
        pages = call.block_table[:, low // size : -(-high // size)].to(x.device)
        skip = low - low // size * size
        x = take(x, pages).flatten(1, 2)[:, skip : skip + high - low].transpose(1, 2)
    factor = what.k_factor if name == "k" else what.v_factor
    wide = x.double() if factor == 1.0 else x.double().mul_(factor)
    if wide.data_ptr() == x.data_ptr():
        wide = wide.clone()
    for row, length in enumerate(what.lengths.clamp(low, high).tolist()):
        if length < high:
            wide[row, :, length - low :] = 0.0
    return wide


def score(raw: Tensor, what: Semantics, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Turn ``q . k * scale`` into scores.

    Parameters
    ----------
    raw
        ``(batch, q_heads, rows, n)`` float64.
    distance
        ``(batch, 1, rows, n)`` or broadcastable, key position - query position.

    Returns
    -------
    scores and their derivatives with respect to ln(scale), shapes of `raw`.
    """
    s, t = raw, raw
    if what.softcap is not None:
        s = what.softcap * torch.tanh(raw / what.softcap)
        t = raw * (1.0 - (s / what.softcap) ** 2)
    if what.slopes is not None:
        s = s - what.slopes[None, :, None, None] * distance.abs()
    return s, t


def blocks(call: AttentionCall, what: Semantics, index: Tensor, *, values: bool = True) -> Iterator[Block]:
    """Yield the scores of rows `index` block by block over every key that some row sees; without `values` V is not read."""
    batch, q_heads = call.q.shape[:2]
    low, high = key_limits(what, index)
    begin, end = (int(low.min()), int(high.max())) if low.numel() else (0, 0)
    if begin >= end:
        return
    q = call.q[:, :, index].double() * what.scale
    position = index[None, :] + what.offset[:, None]
    step = max(64, _BLOCK_ELEMENTS // max(1, batch * q_heads * len(index)))
    for start in range(begin, end, step):
        stop = min(start + step, end)
        k = _stored(call, what, "k", start, stop)
        v = _stored(call, what, "v", start, stop) if values else k
        raw = per_head(q, k.transpose(-1, -2), what.head_map)
        keys = torch.arange(start, stop, device=q.device)
        seen = (keys >= low[:, :, None]) & (keys < high[:, :, None])
        distance = (keys - position[:, :, None])[:, None]
        s, t = score(raw, what, distance)
        s = s.masked_fill(~seen[:, None], -torch.inf)
        yield Block(start, stop, s, t, v, k.norm(dim=-1)[:, what.head_map, None, :])


def per_head(left: Tensor, right: Tensor, head_map: Tensor) -> Tensor:
    """Multiply ``left (batch, q_heads, rows, m)`` by ``right (batch, kv_heads, m, n)`` of each head's KV head.

    With the usual map the rows of a group are folded into one product, so that nothing is repeated over the group.
    """
    batch, q_heads, rows, inner = left.shape
    kv_heads = right.shape[1]
    group = q_heads // kv_heads
    usual = torch.arange(q_heads, device=left.device) // max(group, 1)
    if group * kv_heads == q_heads and torch.equal(usual, head_map):
        folded = left.reshape(batch, kv_heads, group * rows, inner) @ right
        return folded.reshape(batch, q_heads, rows, right.shape[3])
    return left @ right[:, head_map]


def reference_rows(call: AttentionCall, what: Semantics, index: Tensor, precision: Precision) -> Rows:
    """Compute the exact answer on rows `index` in two passes over the keys."""
    batch, q_heads = call.q.shape[:2]
    lse, largest = _denominator(call, what, index)
    shape, wide, new = (batch, q_heads, len(index)), (batch, q_heads, len(index), call.v.shape[-1]), lse.new_zeros
    out, pv2, sv, s2v2, s2v = (new(wide) for _ in range(5))
    weight2, s2, tbar, noise, v2 = new(shape), new(shape), new(shape), new(shape), new(wide)
    for block in blocks(call, what, index):
        p = torch.exp(block.s - lse[..., None]).nan_to_num_(0.0)
        out += per_head(p, block.v, what.head_map)
        weight2 += p.square().sum(-1)
        tbar += (p * block.t).sum(-1)
        # Variances and directions need no more than float32.
        values, weights, squares = block.v.float(), p.float(), block.v.float().square()
        pv2 += per_head(weights.square(), squares, what.head_map)
        sv += per_head(weights * block.t.float(), values, what.head_map)
        if precision.p_floor:
            v2 += per_head(torch.isfinite(block.s).float(), squares, what.head_map)
        if precision.scores_matter or largest > 100.0:
            rounding = score_variance(call, what, precision, block, index)
            noise += (p * rounding).sum(-1)
            weighted = rounding.mul_(p.square())
            s2 += weighted.sum(-1)
            s2v += per_head(weighted, block.v, what.head_map)
            s2v2 += per_head(weighted, block.v.square(), what.head_map)
    low, high = key_limits(what, index)
    return Rows(
        index=index,
        out=out,
        lse=lse,
        count=(high - low)[:, None],
        weight2=weight2,
        variance_p=precision.p_relative**2 * pv2 + precision.p_floor**2 * v2,
        variance_s=(s2v2 - 2 * out * s2v + out.square() * s2[..., None]).clamp_min(0.0),
        lse_variance=s2,
        score_noise=noise,
        scale_slope=sv - out * tbar[..., None],
        mean_v=_mean_value(call, what),
        largest=largest,
    )


def with_semantics(what: Semantics, **changes: object) -> Semantics:
    """Return `what` with other fields (a hypothesis about a wrong function)."""
    return replace(what, **changes)  # type: ignore[arg-type]


def _denominator(call: AttentionCall, what: Semantics, index: Tensor) -> tuple[Tensor, float]:
    shape = (*call.q.shape[:2], len(index))
    lse = torch.full(shape, -torch.inf, dtype=torch.float64, device=call.q.device)
    if what.sinks is not None:
        lse = what.sinks[None, :, None].expand(shape).clone()
    largest = 0.0
    for block in blocks(call, what, index, values=False):
        lse = torch.logaddexp(lse, torch.logsumexp(block.s, dim=-1))
        largest = max(largest, float(block.s.masked_fill(torch.isinf(block.s), 0.0).abs().max()))
    return lse, largest


def score_variance(call: AttentionCall, what: Semantics, precision: Precision, block: Block, index: Tensor) -> Tensor:
    """Variance of each score from float32 products (order-free estimate) or from rounding scores to the input dtype."""
    s = block.s.masked_fill(torch.isinf(block.s), 0.0)
    dim = call.q.shape[-1]
    q_norm = call.q[:, :, index].double().norm(dim=-1)[..., None] * what.scale
    products = (q_norm * block.k_norm).square()
    # A float32 dot product of `dim` terms: partial sums walk up to |q||k| when terms cancel, up to s when one dominates.
    variance: Tensor = _U32**2 / 6 * (products + dim * block.t.square() + 12 * s.square())
    if precision.s_relative:
        # Raw and scaled score are rounded; softcap and bias round again; q and k may be rounded after taking the scale in.
        rounds = 2.0 + (3.0 if what.softcap is not None else 0.0) + (2.0 if what.slopes is not None else 0.0)
        largest = torch.maximum(block.t.square(), s.square())
        variance = variance + precision.s_relative**2 * (rounds * largest + 2.0 * products / dim)
    return variance


def _mean_value(call: AttentionCall, what: Semantics) -> Tensor:
    longest = int(what.lengths.max()) if what.lengths.numel() else 0
    kv_heads = call.k.shape[2] if call.block_table is not None else call.k.shape[1]
    total = torch.zeros(call.q.shape[0], kv_heads, 1, call.v.shape[-1], dtype=torch.float64, device=call.q.device)
    step = max(64, _BLOCK_ELEMENTS // max(1, total.numel()))
    for start in range(0, longest, step):
        total += _stored(call, what, "v", start, min(start + step, longest)).sum(2, keepdim=True)
    mean: Tensor = total / what.lengths.clamp_min(1)[:, None, None, None]
    return mean[:, what.head_map]
