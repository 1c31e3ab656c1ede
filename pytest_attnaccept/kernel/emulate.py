"""What correct kernels look like: online softmax over tiles in every legal order and precision, in plain torch.

Positions
---------
1. These are the known-good controls of the gate. They share no code with the reference: limits are computed per row as
   key ranges, and keys are sliced, not masked, where a range allows it.
2. A `Habit` says how a kernel may legally differ: tile, splits, order, lazy rescaling, exp2, truncation, dtypes.
3. Known-bad controls reuse the loop through `Flaw` in `mutants`, which changes one thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.precision import take

__all__ = ["Habit", "attend"]

_LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """A legal way to compute attention.

    Attributes
    ----------
    lazy
        The running maximum is raised only when it grows by more than this (log2), as in lazy rescaling.
    round_p, round_s
        Whether P (scores) are rounded to q's dtype.
    normalise_first
        Divide by the denominator before rounding P (two-pass, eager style).
    truncate
        Products are accumulated with truncation, as some tensor cores do.
    low_accumulator
        Known bad: the output is accumulated in bfloat16.
    """

    tile: int = 64
    splits: int = 1
    reverse: bool = False
    lazy: float = 0.0
    exp2: bool = False
    round_p: bool = True
    round_s: bool = False
    normalise_first: bool = False
    truncate: bool = False
    low_accumulator: bool = False
    lse_base: str = "e"
    alignment: str = "bottom_right"


# Changes one tile: (scores, keys, values, first key) -> (scores, values); used by the known-bad controls.
TileHook = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


def attend(
    call: AttentionCall,
    habit: Habit | None = None,
    hook: TileHook | None = None,
    *,
    lead: int = 0,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute ``(out, lse)``: out ``(batch, q_heads, q_len, v_head_dim)`` in q's dtype, lse float32 in the habit's base.

    `hook` and `lead` (queries sit that many positions too late) make known-bad controls; with `rows` only those query
    indices are computed, the others stay zero.
    """
    habit = habit or Habit()
    batch, heads, q_len, _ = call.q.shape
    dense = [_dense_row(call, row) for row in range(batch)]
    outs, lses = [], []
    index = torch.arange(q_len, device=call.q.device) if rows is None else rows
    for row, (k, v) in enumerate(dense):
        length = k.shape[1]
        first = length - q_len if habit.alignment == "bottom_right" else 0
        out, lse = _row(call, call.q[row][:, index].float(), k, v, index + first + lead, habit, hook)
        if rows is not None:
            whole, whole_lse = out.new_zeros(heads, q_len, out.shape[-1]), lse.new_zeros(heads, q_len)
            whole[:, index], whole_lse[:, index] = out, lse
            out, lse = whole, whole_lse
        outs.append(out)
        lses.append(lse)
    if not outs:
        return call.q.new_empty(0, heads, q_len, call.v.shape[-1]), torch.empty(0, heads, q_len, device=call.q.device)
    lse = torch.stack(lses)
    return torch.stack(outs).to(call.q.dtype), lse / _LN2 if habit.lse_base == "2" else lse


def _dense_row(call: AttentionCall, row: int) -> tuple[Tensor, Tensor]:
    """Return K and V of one batch row, ``(kv_heads, keys, dim)`` float32, dequantized."""
    length = int(call.kv_lengths[row]) if call.kv_lengths is not None else call.k.shape[2]
    found = []
    for x, factor in ((call.k, call.k_scale), (call.v, call.v_scale)):
        if call.block_table is not None:
            pages = call.block_table[row, : -(-length // x.shape[1])]
            x = take(x, pages).reshape(-1, *x.shape[2:])[:length].permute(1, 0, 2)
        else:
            x = x[row, :, :length]
        found.append(x.float() if factor is None else x.float() * factor)
    return found[0], found[1]


def _row(
    call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, position: Tensor, habit: Habit, hook: TileHook | None
) -> tuple[Tensor, Tensor]:
    tiles = _tiles(k.shape[1], habit)
    parts = [_online(call, q, k, v, position, chunk, habit, hook) for chunk in tiles]
    out, peak, total = parts[0]
    for more_out, more_peak, more_total in parts[1:]:
        top = torch.maximum(peak, more_peak)
        safe = torch.where(torch.isinf(top), 0.0, top)
        left, right = torch.exp(peak - safe), torch.exp(more_peak - safe)
        out = out * left[..., None] + more_out * right[..., None]
        total = total * left + more_total * right
        peak = top
    if call.sinks is not None:
        sink = call.sinks.float()[:, None].expand_as(peak)
        top = torch.maximum(peak, sink)
        shrink = torch.exp(peak - top)
        out, total, peak = out * shrink[..., None], total * shrink + torch.exp(sink - top), top
    lse = torch.log(total) + torch.where(torch.isinf(peak), 0.0, peak)
    out = torch.where(total[..., None] > 0, out / total[..., None].clamp_min(1e-38), 0.0)
    return out, lse


def _tiles(keys: int, habit: Habit) -> list[list[tuple[int, int]]]:
    """Cut the keys into tiles, dealt out to splits in contiguous runs."""
    tiles = [(at, min(at + habit.tile, keys)) for at in range(0, keys, habit.tile)]
    if habit.reverse:
        tiles.reverse()
    count = max(1, min(habit.splits, len(tiles)))
    share = -(-len(tiles) // count) if tiles else 1
    return [tiles[at : at + share] for at in range(0, len(tiles), share)] or [[]]


def _online(
    call: AttentionCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    tiles: list[tuple[int, int]],
    habit: Habit,
    hook: TileHook | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one split; returns unnormalised output, running maximum (natural units) and denominator."""
    peak = torch.full(q.shape[:2], -math.inf, device=q.device)
    total = torch.zeros(q.shape[:2], device=q.device)
    out = torch.zeros(*q.shape[:2], v.shape[-1], device=q.device)
    for low, high in tiles:
        s = _scores(call, q, k[:, low:high], position, low, habit)
        value = v[:, low:high]
        if hook is not None:
            s, value = hook(s, position, value, low)
        best = torch.maximum(peak, s.amax(-1))
        if habit.lazy:
            best = torch.where(
                (best - peak) * math.log2(math.e) > habit.lazy, best, torch.maximum(peak, peak.clamp(max=best))
            )
            best = torch.where(torch.isinf(peak), torch.maximum(peak, s.amax(-1)), best)
        safe = torch.where(torch.isinf(best), 0.0, best)
        shrink = torch.exp(peak - safe)
        p = torch.exp2((s - safe[..., None]) / _LN2) if habit.exp2 else torch.exp(s - safe[..., None])
        total = total * shrink + p.sum(-1)
        if habit.round_p:
            p = p.to(call.q.dtype).float()
        out = _accumulate(out * shrink[..., None], _grouped(p, value), habit)
        peak = best
    return out, peak, total


def _grouped(left: Tensor, right: Tensor) -> Tensor:
    """Multiply ``left (q_heads, rows, m)`` by the ``right (kv_heads, m, n)`` of its group."""
    heads, rows, inner = left.shape
    if right.shape[0] == heads:
        return left @ right
    return (left.reshape(right.shape[0], -1, inner) @ right).reshape(heads, rows, right.shape[2])


def _accumulate(old: Tensor, new: Tensor, habit: Habit) -> Tensor:
    total = old + new
    if habit.low_accumulator:
        return total.bfloat16().float()
    if not habit.truncate:
        return total
    # Truncation: step towards zero by up to one float32 ulp, which is what dropping the low bits does on average.
    exact = old.double() + new.double()
    over = total.double().abs() > exact.abs()
    return torch.where(over, torch.nextafter(total, torch.zeros_like(total)), total)


def _scores(call: AttentionCall, q: Tensor, k: Tensor, position: Tensor, low: int, habit: Habit) -> Tensor:
    dtype = call.q.dtype

    def rounded(x: Tensor) -> Tensor:
        return x.to(dtype).float() if habit.round_s else x

    s = rounded(rounded(_grouped(q, k.transpose(-1, -2))) * call.scale)
    if call.softcap is not None:
        s = rounded(torch.tanh(s / call.softcap) * call.softcap)
    keys = torch.arange(low, low + k.shape[1], device=k.device)
    if call.alibi_slopes is not None:
        away = (position[:, None] - keys[None, :]).abs().float()
        s = rounded(s - call.alibi_slopes.float()[:, None, None] * away)
    if not call.causal:
        return s
    bias = torch.zeros(len(position), len(keys), device=k.device)
    bias[keys[None, :] - position[:, None] > 0] = -math.inf
    if call.window is not None:
        bias[position[:, None] - keys[None, :] > call.window - 1] = -math.inf
    return s + bias
