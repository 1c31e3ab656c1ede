"""Which wrong kernels the gate must reject before a pass counts: the faults of the power study, built on `emulate`.

Each mutant changes one thing in a legal kernel. `mutants_for` returns those that a contract and a case can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.cases import Case
from pytest_attnaccept.kernel.emulate import Habit, TileHook, attend

__all__ = ["Mutant", "mutants_for"]

Mutant = Callable[[AttentionCall, Habit], tuple[Tensor, Tensor]]


def mutants_for(case: Case) -> dict[str, Mutant]:
    """Return the mutants that differ from a correct kernel on this case, by name."""
    keys = case.spec.kv_len
    window = case.variant.window
    # Without a window the middle key; with one, a key that the last query still sees.
    key = keys // 2 if window is None else max(0, keys - max(window // 2, 1))
    found: dict[str, Mutant] = {
        "zero output": lambda call, habit: _scaled(attend(call, habit), 0.0),
        "output off by 1 %": lambda call, habit: _scaled(attend(call, habit), 1.01),
        "scale 2 % too large": lambda call, habit: attend(replace(call, scale=call.scale * 1.02), habit),
        "scale 59 % too large": lambda call, habit: attend(replace(call, scale=call.scale * 1.59), habit),
        "one key lost": lambda call, habit: attend(call, habit, _hide(key, key + 1)),
        "newest key lost": lambda call, habit: attend(call, habit, _hide(keys - 1, keys)),
        "zero-score pad lanes in the denominator": _pad_lanes,
    }
    if window is None:
        found["oldest key lost"] = lambda call, habit: attend(call, habit, _hide(0, 1))
    if min(keys, window or keys) >= 64:
        found["16-key page lost"] = lambda call, habit: attend(call, habit, _hide(key - 8, key + 8))
        found["stale page"] = lambda call, habit: attend(call, habit, _stale(key))
        found["V one page off"] = lambda call, habit: attend(call, habit, _rolled(16))
        found["merge in the wrong base, half and half"] = lambda call, habit: _wrong_base(call, habit, key)
        found["merge in the wrong base, 98 to 2"] = lambda call, habit: _wrong_base(call, habit, keys - max(1, (window or keys) // 50))
        found["accumulator in bfloat16"] = _low_accumulator
    if min(keys, window or keys) >= 512:
        found["128-key block lost"] = lambda call, habit: attend(call, habit, _hide(key - 64, key + 64))
    if case.call.causal and case.spec.q_len > 1 and keys > 1:
        found["one future key seen"] = lambda call, habit: attend(replace(call, window=_more(call.window)), habit, lead=1)
    if window is not None and keys > window:
        found["window one key too wide"] = lambda call, habit: attend(replace(call, window=_more(call.window)), habit)
    if 1 < case.variant.kv_heads < case.variant.q_heads:
        found["KV heads tiled instead of repeated"] = _tiled_heads
    if case.call.sinks is not None:
        found["sinks left out"] = lambda call, habit: attend(replace(call, sinks=None), habit)
    if case.call.softcap is not None:
        found["softcap left out"] = lambda call, habit: attend(replace(call, softcap=None), habit)
    if case.call.alibi_slopes is not None:
        found["ALiBi left out"] = lambda call, habit: attend(replace(call, alibi_slopes=None), habit)
    if case.call.k_scale is not None:
        found["v_scale ignored"] = lambda call, habit: attend(replace(call, v_scale=1.0), habit)
        found["k_scale ignored"] = lambda call, habit: attend(replace(call, k_scale=1.0), habit)
    return found


def _more(window: int | None) -> int | None:
    return None if window is None else window + 1


def _scaled(result: tuple[Tensor, Tensor], factor: float) -> tuple[Tensor, Tensor]:
    return (result[0].float() * factor).to(result[0].dtype), result[1]


def _hide(begin: int, end: int) -> TileHook:
    """Mask keys ``begin <= k < end`` for every query."""

    def hook(s: Tensor, position: Tensor, v: Tensor, low: int) -> tuple[Tensor, Tensor]:
        keys = torch.arange(low, low + s.shape[-1], device=s.device)
        return s.masked_fill((keys >= begin) & (keys < end), -math.inf), v

    return hook


def _stale(key: int) -> TileHook:
    """V of 16 keys is what another page holds."""

    def hook(s: Tensor, position: Tensor, v: Tensor, low: int) -> tuple[Tensor, Tensor]:
        keys = torch.arange(low, low + s.shape[-1], device=s.device)
        inside = (keys >= key - 8) & (keys < key + 8)
        return s, torch.where(inside[:, None], v.roll(3, dims=1).flip(-1), v)

    return hook


def _rolled(by: int) -> TileHook:
    """V is read one page further inside each tile."""
    return lambda s, position, v, low: (s, v.roll(by, dims=1))


def _wrong_base(call: AttentionCall, habit: Habit, cut: int) -> tuple[Tensor, Tensor]:
    """Merge two parts with 2-based weights taken for natural ones."""
    plain = replace(habit, lse_base="e")
    first, first_lse = attend(replace(call, sinks=None), plain, _hide(cut, 2**40))
    second, second_lse = attend(call, plain, _hide(0, cut))
    logs = torch.stack([first_lse, second_lse]) / math.log(2.0)
    weights = torch.softmax(logs.masked_fill(torch.isneginf(logs).all(0), 0.0), dim=0)[..., None]
    out = (torch.stack([first.float(), second.float()]) * weights).sum(0)
    return out.to(first.dtype), torch.logaddexp(first_lse, second_lse)


def _pad_lanes(call: AttentionCall, habit: Habit) -> tuple[Tensor, Tensor]:
    """72 lanes past the end keep score 0 and enter the denominator."""
    out, lse = attend(call, replace(habit, lse_base="e"))
    wrong = torch.logaddexp(lse, torch.full_like(lse, math.log(72.0)))
    factor = torch.exp(lse - wrong)[..., None]
    return (out.float() * factor).to(out.dtype), wrong


def _low_accumulator(call: AttentionCall, habit: Habit) -> tuple[Tensor, Tensor]:
    """The output is accumulated in bfloat16, which `split` tiles of one merged result stand for."""
    if call.q.dtype is torch.float32:
        half = replace(call, q=call.q.bfloat16())
        out, lse = attend(half, habit)
        return out.float(), lse
    total: Tensor | None = None
    mass: Tensor | None = None
    step = 128
    keys = call.k.shape[2] if call.block_table is None else call.k.shape[1] * call.block_table.shape[1]
    keys = keys if call.kv_lengths is None else int(call.kv_lengths.max())
    wide = replace(call, sinks=None)
    for at in range(0, keys, max(step, keys // 16)):
        stop = at + max(step, keys // 16)
        hide = [_hide(0, at), _hide(stop, 2**40)]
        out, lse = attend(wide, replace(habit, lse_base="e", round_p=False), _both(hide))
        if total is None or mass is None:
            total, mass = out.bfloat16().float(), lse
            continue
        new = torch.logaddexp(mass, lse)
        safe = torch.where(torch.isneginf(new), 0.0, new)
        total = total * torch.exp(mass - safe)[..., None] + out.float() * torch.exp(lse - safe)[..., None]
        total = (total.bfloat16() * 1.0).float()
        mass = new
    if total is None or mass is None:
        return attend(call, habit)
    return total.to(call.q.dtype), mass


def _both(hooks: list[TileHook]) -> TileHook:
    def hook(s: Tensor, position: Tensor, v: Tensor, low: int) -> tuple[Tensor, Tensor]:
        for one in hooks:
            s, v = one(s, position, v, low)
        return s, v

    return hook


def _tiled_heads(call: AttentionCall, habit: Habit) -> tuple[Tensor, Tensor]:
    """KV heads 0, 1, 0, 1 instead of 0, 0, 1, 1."""
    axis = 1 if call.block_table is None else 2
    kv_heads = call.k.shape[axis]
    group = call.q.shape[1] // kv_heads
    order = torch.arange(kv_heads).repeat(group).to(call.q.device)
    if call.k_scale is not None:
        k, v = (x.view(torch.uint8).index_select(axis, order).view(x.dtype) for x in (call.k, call.v))
    else:
        k, v = call.k.index_select(axis, order), call.v.index_select(axis, order)
    return attend(replace(call, k=k, v=v), habit)
