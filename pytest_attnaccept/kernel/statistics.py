"""Whether an output is the exact answer plus rounding: standardised error statistics of sampled rows.

Positions
---------
1. Every statistic is divided by its own predicted deviation, so its limit is 1 (or 6) at every length and dtype.
2. Gain, scale and key scan are taken only on diffuse rows (64 or more effective keys): with one dominating key the output
   lies on the grid of V and its rounding is no longer random.
3. The key scan is a matched filter per key. It names the key that is missing, extra or counted twice, and its own
   deviation says which key weight would still be seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.precision import LOG_UNIFORM_RMS, Precision, take, ulp
from pytest_attnaccept.kernel.reference import Rows, Semantics, blocks, key_limits, per_head, score, score_variance

__all__ = [
    "Deviation",
    "Scan",
    "Stat",
    "bound",
    "deviation_of",
    "edge_scan",
    "error_stats",
    "key_scan",
    "lost_key_error",
    "projection_stats",
    "scan_stats",
]

_ALPHA = 1e-6
_DIFFUSE_KEYS = 64.0
# Projections use many errors at once; 6 deviations are 1e-9 two-sided.
_PROJECTION_LIMIT = 6.0
# Correct kernels reach 1.0 when P is rounded and .35 when it is not (reference statistics 7.2); the limit leaves 25 %.
_Z2_LIMIT = 1.25
# A key whose loss moves the filter by less than a hundredth of a deviation cannot be judged by it.
_NO_SIGNAL = 1e-2
# bfloat16 and float16 outputs stay far below; the square of this times p^2 v^2 is still a float32 number.
_LARGE_INVERSE = 1e15
# Elements of one chunk of the edge scan (16 MB in float64).
_EDGE_ELEMENTS = 2**21
# Filters of one edge scan: 73 offsets at each of two edges.
_EDGE_FILTERS = 146


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One statistic of one case: ``value <= limit`` for a correct kernel."""

    name: str
    value: float
    limit: float
    where: str
    n: int = 1
    offset: int | None = None
    key: int | None = None

    @property
    def ratio(self) -> float:
        """Value in units of the limit; NaN counts as infinite."""
        return math.inf if math.isnan(self.value) else self.value / self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Predicted deviation of every sampled output element, ``(batch, q_heads, rows, v_head_dim)`` float64.

    Attributes
    ----------
    variance
        Variance of the whole error.
    spacing
        Spacing of the output dtype at the exact value.
    sigma_p
        Deviation without the rounding of the output.
    apart
        The part of `variance` that no two elements share: rounding of the output and float32 accumulation.
    """

    variance: Tensor
    spacing: Tensor
    sigma_p: Tensor
    apart: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Result of the pass over all keys, ``(batch, q_heads, keys)`` or ``(batch, q_heads)`` float64.

    Attributes
    ----------
    filtered
        Matched filter per key: negative where a key is missing.
    power
        Its variance from the errors of all other keys; a lost key has the expected value ``-power``.
    own
        Its variance from the rounding of the key's own score and probability.
    gain_variance, scale_variance
        Variance of the two projections from errors that are coherent over the head dimension.
    """

    filtered: Tensor
    power: Tensor
    own: Tensor
    gain_variance: Tensor
    scale_variance: Tensor
    first_key: int


def bound(n: int) -> float:
    """Return the sub-Gaussian bound for the largest of `n` standardised errors at a false alarm of 1e-6."""
    return math.sqrt(2.0 * math.log(2.0 * max(n, 1) / _ALPHA))


def deviation_of(rows: Rows, written: torch.dtype, precision: Precision, *, equal_scores: bool = False) -> Deviation:
    """Predict the deviation of outputs that were written in dtype `written`.

    With `equal_scores` all probabilities may be rounded in the same direction, by up to half an ulp of P.
    """
    spacing = ulp(rows.out, written)
    # float32 accumulation of n keys, one after the other at worst: sums of one sign (the denominator and V of one sign) see
    # partial sums that grow to the end, n / 9 each; sums that cancel see partial sums of half the variance, n / 6.
    pv2 = rows.variance_p / precision.p_relative**2
    count = rows.count[..., None]
    accumulated = 2.0**-48 * ((count / 4.5 + 1.0) * rows.out.square() + count / 6.0 * pv2)
    # Sums that cancel (V around zero) still round at the size of their parts.
    accumulated = accumulated + 2.0**-48 * rows.weight2[..., None] * 0.25
    inner = rows.variance_p + rows.variance_s + accumulated
    if equal_scores:
        inner = inner + (precision.p_relative / LOG_UNIFORM_RMS) ** 2 * rows.out.square()
    rounding = spacing.square() / 12.0
    return Deviation(variance=rounding + inner, spacing=spacing, sigma_p=inner.sqrt(), apart=rounding + accumulated)


def error_stats(error: Tensor, rows: Rows, deviation: Deviation, *, spread_v: bool = True) -> list[Stat]:
    """Maximum, excess and mean square of the standardised error (item 1 to 3).

    Without `spread_v` all columns of a row share their error, which leaves one degree of freedom per row.
    """
    live = (rows.count > 0).expand(error.shape[:3])
    n = int(live.sum()) * error.shape[-1]
    if n == 0:
        return []
    magnitude = torch.where(live[..., None], error.abs(), 0.0).nan_to_num(torch.inf)
    z = magnitude / deviation.variance.sqrt().clamp_min(1e-300)
    excess = (magnitude - deviation.spacing).clamp_min(0.0) / deviation.sigma_p.clamp_min(1e-300)
    effective = torch.where(live, 1.0 / rows.weight2.clamp_min(1e-300), 0.0)
    freedom = effective.clamp(max=float(error.shape[-1]) if spread_v else 1.0)[live].clamp_min(1.0).sum()
    mean_square = z.square().sum() / n
    limit = _Z2_LIMIT + _PROJECTION_LIMIT * math.sqrt(2.0 / float(freedom))
    row_square = z.square().mean(-1)
    return [
        Stat(name="maxz", value=float(z.max()) / bound(n), limit=1.0, where=_place(z, rows), n=n),
        Stat(name="excess", value=float(excess.max()) / bound(n), limit=1.0, where=_place(excess, rows), n=n),
        Stat(name="z2", value=float(mean_square), limit=limit, where=_place(row_square[..., None], rows), n=n),
    ]


def key_scan(
    call: AttentionCall, what: Semantics, rows: Rows, error: Tensor, deviation: Deviation, precision: Precision
) -> Scan | None:
    """Pass over all keys once more with the error as a filter (item 6), on diffuse rows; None when there are none."""
    diffuse = ((1.0 / rows.weight2.clamp_min(1e-300)) >= _DIFFUSE_KEYS) & (rows.count > 0)
    if not bool(diffuse.any()):
        return None
    low, high = key_limits(what, rows.index)
    first, last = int(low.min()), int(high.max())
    inverse = torch.where(diffuse[..., None], 1.0 / deviation.variance, 0.0)
    e, o, slope = error.nan_to_num() * inverse, rows.out * inverse, rows.scale_slope * inverse
    eo, oo, so = ((a * rows.out).sum(-1)[..., None] for a in (e, o, slope))
    # Squares of large inverse variances leave the range of float32, for instance where sinks make outputs tiny.
    kind = torch.float64 if float(inverse.max()) > _LARGE_INVERSE else torch.float32
    stacked = torch.cat([e, o, slope], dim=2).to(kind)
    narrow = inverse.to(kind)
    eo, oo, so = eo.to(kind), oo.to(kind), so.to(kind)
    count = len(rows.index)
    shape = (*rows.lse.shape[:2], last - first)
    filtered, power, own = (torch.zeros(shape, dtype=torch.float64, device=e.device) for _ in range(3))
    gain, scale = (torch.zeros(shape[:2], dtype=torch.float64, device=e.device) for _ in range(2))
    c2 = precision.p_relative**2
    for block in blocks(call, what, rows.index):
        p = torch.exp(block.s - rows.lse[..., None]).nan_to_num(0.0).to(kind) * diffuse[..., None]
        v = block.v.to(kind).transpose(-1, -2)
        products = per_head(stacked, v, what.head_map)
        ev, ov, sv = (products[:, :, at * count : (at + 1) * count] for at in range(3))
        spread = (per_head(narrow, v.square(), what.head_map) - 2.0 * ov + oo).clamp_min(0.0)
        part = slice(block.low - first, block.high - first)
        filtered[:, :, part] = (p * (ev - eo)).sum(2, dtype=torch.float64)
        p2 = p.square()
        noise: Tensor | float = 0.0
        if precision.scores_matter:
            noise = score_variance(call, what, precision, block, rows.index).to(kind)
        signal = p2 * spread
        power[:, :, part] = signal.sum(2, dtype=torch.float64)
        own[:, :, part] = ((c2 + noise) * signal.square()).sum(2, dtype=torch.float64)
        gain += (p2 * (c2 * ov.square() + noise * (ov - oo).square())).sum((2, 3), dtype=torch.float64)
        scale += (p2 * (c2 * sv.square() + noise * (sv - so).square())).sum((2, 3), dtype=torch.float64)
    return Scan(filtered=filtered, power=power, own=own, gain_variance=gain, scale_variance=scale, first_key=first)


def scan_stats(scan: Scan) -> list[Stat]:
    """Largest filtered key, per head and summed over heads."""
    found = []
    for name, filtered, variance in (
        ("scan", scan.filtered, scan.power + scan.own),
        ("scan.heads", scan.filtered.sum(1, keepdim=True), (scan.power + scan.own).sum(1, keepdim=True)),
    ):
        deviation = variance.sqrt().clamp_min(_NO_SIGNAL)
        z = filtered.abs() / deviation
        at = int(z.flatten().argmax())
        batch, head, key = _unravel(at, tuple(z.shape))
        sign = "missing" if float(filtered.flatten()[at]) < 0 else "too heavy"
        head_text = f"head {head}, " if name == "scan" else ""
        where = f"batch {batch}, {head_text}key {key + scan.first_key} ({sign})"
        value = float(z.max()) / bound(z.numel())
        found.append(Stat(name=name, value=value, limit=1.0, where=where, n=z.numel(), key=key + scan.first_key))
    return found


def projection_stats(rows: Rows, error: Tensor, deviation: Deviation, scan: Scan) -> list[Stat]:
    """Gain (wrong normaliser) and scale (wrong temperature), item 4 and 5, over all diffuse rows and per head."""
    diffuse = (((1.0 / rows.weight2.clamp_min(1e-300)) >= _DIFFUSE_KEYS) & (rows.count > 0))[..., None]
    inverse = torch.where(diffuse, 1.0 / deviation.variance, 0.0)
    bias = 2.0**-24 * (float(rows.count.max()) / 16.0 + 8.0)
    # Rounding scores to the input dtype moves p by its square in the mean.
    bias += 2.0 * float(torch.where(diffuse[..., 0], rows.score_noise, 0.0).max())
    found = []
    for name, direction, coherent in (
        ("gain", rows.out, scan.gain_variance),
        ("scale", rows.scale_slope, scan.scale_variance),
    ):
        weight = direction * inverse
        value = (error.nan_to_num() * weight).sum((2, 3))
        variance = (weight.square() * deviation.apart).sum((2, 3)) + coherent
        allowed = bias * (direction * weight).sum((2, 3))
        total, sd = value.sum(), variance.sum().sqrt().clamp_min(_NO_SIGNAL)
        found.append(_projection(name, float(total), float(sd), float(allowed.sum()), "all heads"))
        ratio = value.abs() / (_PROJECTION_LIMIT * variance.sqrt().clamp_min(_NO_SIGNAL) + allowed)
        batch, head = _unravel(int(ratio.flatten().argmax()), tuple(ratio.shape))
        deviations = variance.sqrt().clamp_min(_NO_SIGNAL)
        worst = [float(x[batch, head]) for x in (value, deviations, allowed)]
        found.append(_projection(f"{name}.head", worst[0], worst[1], worst[2], f"batch {batch}, head {head}"))
    return found


def edge_scan(call: AttentionCall, what: Semantics, rows: Rows, error: Tensor, deviation: Deviation) -> Stat | None:
    """Matched filter at fixed distances from each row's two mask edges: one key too many or too few at an edge.

    Offset 0 is the newest visible key, +1 the first masked one; at the left edge -1 is the first key that is masked.
    """
    diffuse = ((1.0 / rows.weight2.clamp_min(1e-300)) >= _DIFFUSE_KEYS) & (rows.count > 0)
    if not bool(diffuse.any()) or not what.causal:
        return None
    low, high = key_limits(what, rows.index)
    group = max(1, call.q.shape[1] // (int(what.head_map.max()) + 1))
    best: Stat | None = None
    for edge, anchor, inside, outside in (
        ("right", high - 1, range(-8, 1), range(1, 65)),
        ("left", low, range(0, 8), range(-64, 0)),
    ):
        offsets = torch.tensor([*inside, *outside], device=anchor.device)
        for chunk in torch.split(offsets, max(1, _EDGE_ELEMENTS * group // max(1, error.numel()))):
            values, counts = _offset_filter(call, what, rows, error, deviation, diffuse, anchor[..., None] + chunk)
            for offset, value, n in zip(chunk.tolist(), values.tolist(), counts.tolist(), strict=True):
                if n and (best is None or value > best.value):
                    text = "masked key leaks in" if offset in outside else "visible key is wrong"
                    where = f"{edge} mask edge, offset {offset} ({text})"
                    best = Stat(name="edge", value=value, limit=1.0, where=where, n=n, offset=offset)
    return best


def lost_key_error(call: AttentionCall, what: Semantics, rows: Rows) -> Tensor:
    """Return the error of a kernel that loses the middle visible key of every row, shape of ``rows.out``.

    A row that loses its only key returns zero.
    """
    low, high = key_limits(what, rows.index)
    key = ((low + high) // 2)[..., None]
    p, _, v = _weight(call, what, rows, key, (rows.count > 1).expand_as(rows.lse))
    v = v[:, what.head_map][..., 0, :]
    lost = -(p / (1.0 - p).clamp_min(1e-9)) * (v - rows.out)
    return torch.where((rows.count == 1)[..., None], -rows.out, lost)


def _weight(
    call: AttentionCall, what: Semantics, rows: Rows, key: Tensor, use: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weight that ``key[batch, row, n]`` has (or would have, when masked), and its K and V.

    Returns
    -------
    p, k, v
        ``(batch, q_heads, rows, n)`` and ``(batch, kv_heads, rows, n, dim)``, float64.
    """
    ok = (key >= 0) & (key < what.lengths[:, None, None])
    k, v = _take(call, what, key.clamp(min=0))
    q = call.q[:, :, rows.index].double() * what.scale
    position = rows.index[None, :] + what.offset[:, None]
    s, _ = score(_dots(q, k), what, (key - position[..., None])[:, None])
    weight = torch.exp(s - rows.lse[..., None])
    return torch.where(ok[:, None] & use[..., None], weight, 0.0).nan_to_num(0.0).clamp_max(1.0), k, v


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Multiply ``left (batch, q_heads, rows, dim)`` by ``right (batch, kv_heads, rows, n, dim)``: ``(..., rows, n)``."""
    batch, heads, count, dim = left.shape
    folded = left.reshape(batch, right.shape[1], -1, count, dim).transpose(2, 3)
    product = folded @ right.transpose(-1, -2)
    return product.transpose(2, 3).reshape(batch, heads, count, right.shape[3])


def _offset_filter(
    call: AttentionCall, what: Semantics, rows: Rows, error: Tensor, deviation: Deviation, use: Tensor, key: Tensor
) -> tuple[Tensor, Tensor]:
    """Return per offset the filter of ``key[batch, row, offset]`` in units of its bound, and how many rows have that key."""
    p, _, v = _weight(call, what, rows, key, use)
    inverse = 1.0 / deviation.variance
    e, o = error.nan_to_num() * inverse, rows.out * inverse
    filtered = (_dots(e, v) - (e * rows.out).sum(-1, keepdim=True)) * p
    spread = _dots(inverse, v.square()) - 2.0 * _dots(o, v) + (o * rows.out).sum(-1, keepdim=True)
    power = spread.clamp_min(0.0) * p.square()
    # The key's own score and probability are rounded.
    own = (4e-6 + rows.score_noise[..., None]) * power.square()
    total = (power + own).sum((0, 1, 2)).sqrt().clamp_min(_NO_SIGNAL)
    return filtered.sum((0, 1, 2)).abs() / total / bound(_EDGE_FILTERS), (p > 0).sum((0, 1, 2))


def _take(call: AttentionCall, what: Semantics, key: Tensor) -> tuple[Tensor, Tensor]:
    """Gather K and V of keys ``(batch, rows, n)``: ``(batch, kv_heads, rows, n, dim)`` float64."""
    flat = key.flatten(1)
    batch = torch.arange(key.shape[0], device=key.device)[:, None]
    if call.block_table is None:
        last = max(call.k.shape[2] - 1, 0)
        k, v = (take(x.transpose(1, 2), batch, flat.clamp(max=last)) for x in (call.k, call.v))
    else:
        size = call.k.shape[1]
        table = call.block_table.to(key.device)
        page = torch.gather(table, 1, (flat // size).clamp(max=table.shape[1] - 1))
        k, v = (take(x, page, flat % size) for x in (call.k, call.v))
    k, v = (x.transpose(1, 2).double().nan_to_num_() for x in (k, v))
    k, v = (x.reshape(*x.shape[:2], *key.shape[1:], x.shape[-1]) for x in (k, v))
    return k.mul_(what.k_factor), v.mul_(what.v_factor)


def _projection(name: str, value: float, deviation: float, allowed: float, where: str) -> Stat:
    limit = _PROJECTION_LIMIT + allowed / deviation
    direction = "too large" if value > 0 else "too small"
    return Stat(name=name, value=abs(value) / deviation, limit=limit, where=f"{where} ({direction})")


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        place.append(flat % size)
        flat //= size
    return tuple(reversed(place))


def _place(z: Tensor, rows: Rows) -> str:
    batch, head, row, _ = _unravel(int(z.flatten().argmax()), tuple(z.shape))
    return f"batch {batch}, head {head}, row {int(rows.index[row])}"
