"""Which wrong kernels the gate must reject before a pass counts: the faults of the power study, built on `emulate`.

Each mutant changes one thing in a legal kernel. `mutants_for` returns those that a contract and a case can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.cases import Case
from pytest_attnaccept.kernel.emulate import Habit, TileHook, attend

__all__ = ["Mutant", "mutants_for"]

Mutant = Callable[[AttentionCall, Habit, Tensor], tuple[Tensor, Tensor]]


def mutants_for(case: Case) -> dict[str, Mutant]:
    """Return the mutants that differ from a correct kernel on this case, by name."""
    return {**_weights(case), **_lost_keys(case), **_masks_and_heads(case), **_left_out(case)}


def _middle(case: Case) -> int:
    """Return the middle key, or with a window one that the last query still sees."""
    keys, window = case.spec.kv_len, case.variant.window
    return keys // 2 if window is None else max(0, keys - max(window // 2, 1))


def _seen(case: Case) -> int:
    """Return how many keys the last query sees."""
    return min(case.spec.kv_len, case.variant.window or case.spec.kv_len)


def _weights(case: Case) -> dict[str, Mutant]:
    """Wrong factors, denominators and accumulators."""
    keys, window, key = case.spec.kv_len, case.variant.window, _middle(case)
    found: dict[str, Mutant] = {
        "zero output": lambda call, habit, rows: _scaled(attend(call, habit, rows=rows), 0.0),
        "output off by 1 %": lambda call, habit, rows: _scaled(attend(call, habit, rows=rows), 1.01),
        "zero-score pad lanes in the denominator": _pad_lanes,
    }
    if window != 1:
        # One visible key has weight 1 at every temperature.
        for text, factor in (("2 %", 1.02), ("59 %", 1.59)):
            found[f"scale {text} too large"] = partial(_rescaled, factor)
    if _seen(case) >= 64:
        found["merge in the wrong base, half and half"] = lambda call, habit, rows: _wrong_base(call, habit, rows, key)
        found["merge in the wrong base, 98 to 2"] = lambda call, habit, rows: _wrong_base(
            call, habit, rows, keys - max(1, (window or keys) // 50)
        )
        if not (case.contract.score_dtype == "input" and case.contract.dtype != "float32"):
            # Scores rounded to 8 bits already cost more than this accumulator.
            found["accumulator in bfloat16"] = _low_accumulator
    return found


def _lost_keys(case: Case) -> dict[str, Mutant]:
    """Keys, pages and blocks that are lost or replaced."""
    keys, key = case.spec.kv_len, _middle(case)
    found: dict[str, Mutant] = {
        "one key lost": partial(_hooked, _hide(key, key + 1)),
        "newest key lost": partial(_hooked, _hide(keys - 1, keys)),
    }
    if case.variant.window is None:
        found["oldest key lost"] = partial(_hooked, _hide(0, 1))
    if _seen(case) >= 64:
        found["16-key page lost"] = partial(_hooked, _hide(key - 8, key + 8))
        found["stale page"] = partial(_hooked, _stale(key))
        found["V one page off"] = partial(_hooked, _rolled(16))
    if _seen(case) >= 512:
        found["128-key block lost"] = partial(_hooked, _hide(key - 64, key + 64))
    return found


def _masks_and_heads(case: Case) -> dict[str, Mutant]:
    """One key too many, and KV heads in the wrong order."""
    keys, window = case.spec.kv_len, case.variant.window
    found: dict[str, Mutant] = {}
    if case.call.causal and case.spec.q_len > 1 and keys > 1:
        found["one future key seen"] = lambda call, habit, rows: attend(
            replace(call, window=_more(call.window)), habit, lead=1, rows=rows
        )
    if window is not None and keys > window:
        found["window one key too wide"] = lambda call, habit, rows: attend(
            replace(call, window=_more(call.window)), habit, rows=rows
        )
    if 1 < case.variant.kv_heads < case.variant.q_heads:
        found["KV heads tiled instead of repeated"] = _tiled_heads
    return found


def _left_out(case: Case) -> dict[str, Mutant]:
    """What a contract declares and a kernel may forget."""
    call = case.call
    found: dict[str, Mutant] = {}
    if call.sinks is not None:
        found["sinks left out"] = lambda call, habit, rows: attend(replace(call, sinks=None), habit, rows=rows)
    if call.softcap is not None:
        found["softcap left out"] = lambda call, habit, rows: attend(replace(call, softcap=None), habit, rows=rows)
    if call.alibi_slopes is not None:
        found["ALiBi left out"] = lambda call, habit, rows: attend(replace(call, alibi_slopes=None), habit, rows=rows)
    if call.k_scale is not None:
        found["v_scale ignored"] = lambda call, habit, rows: attend(replace(call, v_scale=1.0), habit, rows=rows)
        found["k_scale ignored"] = lambda call, habit, rows: attend(replace(call, k_scale=1.0), habit, rows=rows)
    return found


def _hooked(hook: TileHook, call: AttentionCall, habit: Habit, rows: Tensor) -> tuple[Tensor, Tensor]:
    return attend(call, habit, hook, rows=rows)


def _rescaled(factor: float, call: AttentionCall, habit: Habit, rows: Tensor) -> tuple[Tensor, Tensor]:
    return attend(replace(call, scale=call.scale * factor), habit, rows=rows)


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


def _wrong_base(call: AttentionCall, habit: Habit, rows: Tensor, cut: int) -> tuple[Tensor, Tensor]:
    """Merge two parts with 2-based weights taken for natural ones."""
    plain = replace(habit, lse_base="e")
    first, first_lse = attend(replace(call, sinks=None), plain, _hide(cut, 2**40), rows=rows)
    second, second_lse = attend(call, plain, _hide(0, cut), rows=rows)
    logs = torch.stack([first_lse, second_lse]) / math.log(2.0)
    weights = torch.softmax(logs.masked_fill(torch.isneginf(logs).all(0), 0.0), dim=0)[..., None]
    out = (torch.stack([first.float(), second.float()]) * weights).sum(0)
    return out.to(first.dtype), torch.logaddexp(first_lse, second_lse)


def _pad_lanes(call: AttentionCall, habit: Habit, rows: Tensor) -> tuple[Tensor, Tensor]:
    """72 lanes past the end keep score 0 and enter the denominator."""
    out, lse = attend(call, replace(habit, lse_base="e"), rows=rows)
    wrong = torch.logaddexp(lse, torch.full_like(lse, math.log(72.0)))
    factor = torch.exp(lse - wrong)[..., None]
    return (out.float() * factor).to(out.dtype), wrong


def _low_accumulator(call: AttentionCall, habit: Habit, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The output is accumulated in bfloat16, tile by tile."""
    return attend(call, replace(habit, low_accumulator=True, tile=32), rows=rows)


def _tiled_heads(call: AttentionCall, habit: Habit, rows: Tensor) -> tuple[Tensor, Tensor]:
    """KV heads 0, 1, 0, 1 instead of 0, 0, 1, 1."""
    axis = 1 if call.block_table is None else 2
    kv_heads = call.k.shape[axis]
    group = call.q.shape[1] // kv_heads
    order = torch.arange(kv_heads).repeat(group).to(call.q.device)
    if call.k_scale is not None:
        k, v = (x.view(torch.uint8).index_select(axis, order).view(x.dtype) for x in (call.k, call.v))
    else:
        k, v = call.k.index_select(axis, order), call.v.index_select(axis, order)
    return attend(replace(call, k=k, v=v), habit, rows=rows)
