"""What a wrong kernel might have computed instead: alternative answers on the rows of one failing case.

Positions
---------
1. A hypothesis is another reading of the same call (no softcap, another window, swapped scales), evaluated by the exact
   reference, so naming a fault needs no access to the kernel.
2. Windows, sinks plus window and top-k are found per row by one cumulative sum, which tries every size at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.judge import Judged
from pytest_attnaccept.kernel.precision import precision_of
from pytest_attnaccept.kernel.reference import Semantics, blocks, reference_rows, semantics_of, with_semantics

__all__ = ["Subset", "alternatives", "subset_of"]

_LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Which keys a row seems to use: kind, number of keys and the mean squared standardised rest."""

    text: str
    keys: int
    rest: float


def alternatives(judged: Judged) -> Iterator[tuple[str, Tensor]]:
    """Yield (description, output it would give on the sampled rows)."""
    rows = judged.rows
    yield "all zeros", torch.zeros_like(rows.out)
    yield "the mean of V (scores are not used)", rows.mean_v.expand_as(rows.out)
    call = judged.case.call
    what = semantics_of(call, judged.case.contract.alignment)
    for text, other in _readings(judged, what):
        yield text, _answer(judged, call, other)
    for text, changed in _rounded(judged):
        yield text, _answer(judged, changed, what)


def _answer(judged: Judged, call: AttentionCall, what: Semantics) -> Tensor:
    return reference_rows(call, what, judged.rows.index, precision_of(judged.case.contract)).out


def _readings(judged: Judged, what: Semantics) -> Iterator[tuple[str, Semantics]]:
    case = judged.case
    yield from _masks(judged, what)
    for factor, text in (
        (_LN2, "scores scaled by ln 2 (exp2 fed with a natural scale)"),
        (1.0 / _LN2, "scores scaled by 1 / ln 2 = 1.44"),
        (0.5, "scores scaled by 1/2"),
        (2.0, "scores scaled by 2"),
        (case.call.q.shape[-1] ** 0.5, "scale applied without 1 / sqrt(head_dim)"),
        (case.call.q.shape[-1] ** -0.5, "scale applied twice"),
        (case.call.q.shape[-1] ** -0.5 / what.scale, "the declared scale ignored (1 / sqrt(head_dim) used)"),
    ):
        if abs(factor - 1.0) > 1e-9:
            yield text, with_semantics(what, scale=what.scale * factor)
    if what.softcap is not None:
        yield "softcap ignored", with_semantics(what, softcap=None)
    if what.sinks is not None:
        yield "sinks ignored", with_semantics(what, sinks=None)
        yield "sinks counted twice", with_semantics(what, sinks=what.sinks + _LN2)
        yield "sinks read in base 2", with_semantics(what, sinks=what.sinks * _LN2)
        yield "sinks multiplied by the scale", with_semantics(what, sinks=what.sinks * what.scale)
    if what.slopes is not None:
        yield "ALiBi ignored", with_semantics(what, slopes=None)
        yield "ALiBi with the wrong sign", with_semantics(what, slopes=-what.slopes)
        yield "ALiBi slopes twice as large", with_semantics(what, slopes=what.slopes * 2.0)
        yield "ALiBi slopes of the next head", with_semantics(what, slopes=what.slopes.roll(-1))
        half = torch.arange(len(what.slopes), device=what.slopes.device) % max(1, len(what.slopes) // 2)
        yield "ALiBi slopes of the first half of the heads", with_semantics(what, slopes=what.slopes[half])
    yield from _heads_and_factors(judged, what)


def _masks(judged: Judged, what: Semantics) -> Iterator[tuple[str, Semantics]]:
    case = judged.case
    if what.causal:
        q_len = case.spec.q_len
        bottom = case.contract.alignment == "bottom_right"
        other = torch.zeros_like(what.lengths) if bottom else what.lengths - q_len
        name = "top-left" if bottom else "bottom-right"
        yield f"causal mask aligned {name}", with_semantics(what, offset=other)
        yield "causal mask ignored", with_semantics(what, causal=False, window=None)
        if what.window is not None:
            yield "window ignored", with_semantics(what, window=None)
            yield "one key too many at the window's left edge", with_semantics(what, window=what.window + 1)
            yield "one key too few at the window's left edge", with_semantics(what, window=max(1, what.window - 1))
            yield "window shifted by one to the right", with_semantics(what, offset=what.offset + 1)
        yield "one future key visible (causal limit one too far)", _led(what, 1)
        yield "the newest key missing (causal limit one too near)", _led(what, -1)
    if case.call.kv_lengths is not None:
        yield "the last valid key of each row missing", with_semantics(what, lengths=(what.lengths - 1).clamp_min(0))
        size = case.variant.page_size
        if size is None:
            full = torch.full_like(what.lengths, case.spec.kv_len)
            same = what.lengths[:1].expand_as(what.lengths)
            for text, lengths in (
                ("kv_lengths ignored", full),
                ("kv_lengths of batch row 0 used for all rows", same),
            ):
                yield text, with_semantics(what, lengths=lengths)
                # The causal limit may follow the wrong lengths.
                yield text, with_semantics(what, lengths=lengths, offset=what.offset + lengths - what.lengths)


def _led(what: Semantics, by: int) -> Semantics:
    """Move the causal limit; a window keeps its left edge, because it grows by as much."""
    window = None if what.window is None else what.window + by
    return with_semantics(what, offset=what.offset + by, window=window)


def _heads_and_factors(judged: Judged, what: Semantics) -> Iterator[tuple[str, Semantics]]:
    heads = len(what.head_map)
    kv_heads = int(what.head_map.max()) + 1
    if 1 < kv_heads < heads:
        index = torch.arange(heads, device=what.head_map.device)
        yield (
            "KV heads tiled (0, 1, 0, 1) instead of repeated (0, 0, 1, 1)",
            with_semantics(what, head_map=index % kv_heads),
        )
    if kv_heads > 1:
        yield "the neighbouring KV head used", with_semantics(what, head_map=(what.head_map + 1) % kv_heads)
        yield "KV head 0 used for every query head", with_semantics(what, head_map=torch.zeros_like(what.head_map))
    if judged.case.call.k_scale is not None:
        yield "k_scale ignored", with_semantics(what, k_factor=1.0)
        yield "v_scale ignored", with_semantics(what, v_factor=1.0)
        yield "k_scale and v_scale ignored", with_semantics(what, k_factor=1.0, v_factor=1.0)
        yield "k_scale used for V", with_semantics(what, v_factor=what.k_factor)
        yield "k_scale and v_scale swapped", with_semantics(what, k_factor=what.v_factor, v_factor=what.k_factor)


def _rounded(judged: Judged) -> Iterator[tuple[str, AttentionCall]]:
    """Yield calls whose K and V went through a quantizer."""
    call = judged.case.call
    if call.block_table is not None or call.k_scale is not None or not call.k.numel():
        return
    quantizers: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("FP8 (e4m3) rounding of K and V", _fp8(None)),
        ("FP8 (e4m3) rounding of K and V with one scale per tensor", _fp8((0, 1, 2, 3))),
        ("FP8 (e4m3) rounding of K and V with one scale per token", _fp8((3,))),
        ("int8 rounding of K and V with one scale per token", _integer(127.0, (3,))),
        ("int8 rounding of K and V with one scale per tensor", _integer(127.0, (0, 1, 2, 3))),
        ("int4 rounding of K and V with one scale per token", _integer(7.0, (3,))),
    ]
    for text, quantize in quantizers:
        yield text, replace(call, k=quantize(call.k), v=quantize(call.v))
    fp8 = _fp8(None)
    scaled = _fp8((0, 1, 2, 3))
    yield "FP8 (e4m3) rounding of Q, K and V", replace(call, q=fp8(call.q), k=fp8(call.k), v=fp8(call.v))
    changed = replace(call, q=scaled(call.q), k=scaled(call.k), v=scaled(call.v))
    yield "FP8 (e4m3) rounding of Q, K and V with one scale per tensor", changed


def _fp8(dims: tuple[int, ...] | None) -> Callable[[Tensor], Tensor]:
    def quantize(x: Tensor) -> Tensor:
        wide = x.float()
        factor = wide.abs().amax(dims, keepdim=True).clamp_min(1e-9) / 448.0 if dims else 1.0
        return ((wide / factor).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float() * factor).to(x.dtype)

    return quantize


def _integer(top: float, dims: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    def quantize(x: Tensor) -> Tensor:
        factor = x.float().abs().amax(dims, keepdim=True).clamp_min(1e-9) / top
        return ((x.float() / factor).round() * factor).to(x.dtype)

    return quantize


def subset_of(judged: Judged, batch: int, head: int, row: int) -> Subset | None:
    """Find the subset of keys that explains one row best: a window, first keys plus a window, or the top k."""
    call = judged.case.call
    what = semantics_of(call, judged.case.contract.alignment)
    index = judged.rows.index[row : row + 1]
    scores: list[Tensor] = []
    values: list[Tensor] = []
    for block in blocks(call, what, index):
        scores.append(block.s[batch, head, 0])
        values.append(block.v[batch, int(what.head_map[head])])
    if not scores:
        return None
    s, v = torch.cat(scores), torch.cat(values)
    seen = torch.isfinite(s)
    s, v = s[seen], v[seen]
    if len(s) < 8:
        return None
    weight = torch.exp(s - s.max())
    sink = 0.0 if what.sinks is None else float(torch.exp(what.sinks[head] - s.max()))
    target = judged.output.out[batch, head, int(index[0])].double()
    deviation = judged.deviation.variance[batch, head, row].sqrt()
    found = []
    for kept in (0, 1, 2, 4, 8, 16, 32, 64):
        if kept < len(s):
            size, rest = _best_prefix(
                weight[kept:].flip(0), v[kept:].flip(0), sink, target, deviation, weight[:kept], v[:kept]
            )
            text = f"a sliding window of {size}" if not kept else f"the first {kept} keys plus a window of {size}"
            found.append(Subset(text=text, keys=kept + size, rest=rest * (1.0 + 0.01 * kept)))
    order = s.argsort(descending=True)
    size, rest = _best_prefix(weight[order], v[order], sink, target, deviation, weight[:0], v[:0])
    found.append(Subset(text=f"only the top {size} keys by score", keys=size, rest=rest))
    best = min(found, key=lambda one: one.rest)
    # All but one or two keys is not a subset policy; the key scan names them.
    return best if best.keys <= len(s) - 3 else None


def _best_prefix(
    weight: Tensor, v: Tensor, sink: float, target: Tensor, deviation: Tensor, kept: Tensor, kept_v: Tensor
) -> tuple[int, float]:
    """Return the prefix length whose weighted mean (with the kept keys) is closest to the target, and its mean squared z."""
    above = (weight[:, None] * v).cumsum(0) + (kept[:, None] * kept_v).sum(0)
    below = weight.cumsum(0) + kept.sum() + sink
    rest = (((above / below[:, None]) - target) / deviation).square().mean(-1)
    best = int(rest.argmin())
    return best + 1, float(rest[best])
