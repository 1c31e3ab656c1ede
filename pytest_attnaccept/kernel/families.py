"""Which values q, k and v take: input families, each of which makes one term of attention matter.

Positions
---------
1. N(0, 1) alone is a weak test: at 131072 keys one lost key is 1e-5 of the output. Needles, shifts and codes make faults
   visible at every length.
2. Scores are set through the declared scale: their standard deviation is 1 unless the family says otherwise.
3. Values are drawn on the CPU from an explicit seed and then rounded, so every device sees the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_attnaccept.kernel.contract import KernelContract, Variant

__all__ = ["FAMILIES", "Draw", "Values", "applies", "draw_values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a family knows: sizes, the declared scale, and the position of query 0 and of the edges.

    Attributes
    ----------
    offset
        Position of query 0 in batch row 0.
    edges
        Key positions at tile, page and window edges that lie inside the keys.
    """

    contract: KernelContract
    variant: Variant
    batch: int
    q_len: int
    kv_len: int
    scale: float
    offset: int
    edges: tuple[int, ...]
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        """Draw N(0, 1), float32, on the CPU."""
        return torch.randn(shape, generator=self.generator)

    @property
    def visible(self) -> int:
        """Keys that the last query sees."""
        return max(1, min(self.kv_len, self.variant.window or self.kv_len))


@dataclass(slots=True, kw_only=True)
class Values:
    """Logical tensors before rounding and layout, float32 on the CPU.

    Attributes
    ----------
    base
        Where the scores lie, so that sinks can be set beside them.
    spread_v
        Whether V is random around zero: errors then differ between the output columns (gain, scale and key scan mean something).
    equal_scores
        Whether many scores are (nearly) equal, or equal after rounding: their errors then go in the same direction.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    base: float = 0.0
    spread_v: bool = True
    equal_scores: bool = False


def draw_values(family: str, draw: Draw) -> Values:
    """Draw the tensors of one family."""
    variant = draw.variant
    width = (draw.scale * math.sqrt(variant.head_dim)) ** -0.5
    values = Values(
        q=draw.normal(draw.batch, variant.q_heads, draw.q_len, variant.head_dim).mul_(width),
        k=draw.normal(draw.batch, variant.kv_heads, draw.kv_len, variant.head_dim).mul_(width),
        v=draw.normal(draw.batch, variant.kv_heads, draw.kv_len, variant.v_head_dim),
    )
    FAMILIES[family](draw, values)
    return values


def applies(family: str, contract: KernelContract, variant: Variant) -> bool:
    """Whether the family stays inside what the contract can represent."""
    rounded_scores = contract.score_dtype == "input" and contract.dtype != "float32"
    if family in ("deep", "hot"):
        # Scores of 6e4 rounded to 8 bits are noise, a cap removes them, and FP8 cannot hold the keys.
        return not rounded_scores and variant.softcap is None and contract.kv_dtype is None
    if family == "cap":
        return variant.softcap is not None
    if family == "large_v":
        return contract.kv_dtype is None
    if family in ("shift", "raise", "ramp_up", "ramp_down", "resonant"):
        # The extra feature needs another one beside it.
        return variant.head_dim > 1
    return True


def _diffuse(draw: Draw, values: Values) -> None:
    """N(0, 1) everywhere."""


def _needle(draw: Draw, values: Values) -> None:
    """Each query carries one key at an edge with about half of the mass."""
    if not draw.kv_len or not draw.q_len:
        return
    variant = draw.variant
    level = math.log(draw.visible) + 0.5
    if variant.softcap is not None:
        level = min(level, 0.8 * variant.softcap)
    group = variant.group
    for head in range(variant.q_heads):
        target = torch.tensor([_target(draw, row, head) for row in range(draw.q_len)])
        key = values.k[:, head // group][:, target]
        length = key.square().sum(-1, keepdim=True).clamp_min(1e-6)
        values.q[:, head] = 0.25 * values.q[:, head] + key / length * (level / draw.scale)


def _target(draw: Draw, row: int, head: int) -> int:
    """Choose an edge key that query `row` sees; heads and rows walk through the edges."""
    last = draw.kv_len - 1
    low = 0
    if draw.contract.causal:
        position = draw.offset + row
        last = min(last, max(position, 0))
        low = max(0, position + 1 - draw.variant.window) if draw.variant.window else 0
    wanted = [last, low, last - 1, low + 1, *draw.edges, (low + last) // 2]
    inside = [key for key in wanted if low <= key <= last]
    return inside[(row * 5 + head * 3) % len(inside)] if inside else max(0, min(last, draw.kv_len - 1))


def _feature(draw: Draw, values: Values, level: float | Tensor) -> None:
    """Add `level` to every score through the last feature of q and k."""
    largest = float(torch.as_tensor(level).abs().max())
    size = max(math.sqrt(largest / draw.scale), 1e-3)
    values.q[..., -1] = size
    values.k[..., -1] = torch.as_tensor(level) / (draw.scale * size)


def _level(draw: Draw, wanted: float) -> float:
    cap = draw.variant.softcap
    return wanted if cap is None else math.copysign(min(abs(wanted), 0.7 * cap), wanted)


def _shift(draw: Draw, values: Values) -> None:
    """All true scores near -20: whatever is not masked and has score 0 takes the whole weight."""
    values.base = _level(draw, -20.0)
    _feature(draw, values, values.base)


def _raise(draw: Draw, values: Values) -> None:
    """All scores near +25."""
    values.base = _level(draw, 25.0)
    _feature(draw, values, values.base)


def _deep(draw: Draw, values: Values) -> None:
    """All scores near -6e4, below any finite stand-in for minus infinity."""
    values.base = -6e4
    _feature(draw, values, values.base)
    # float32 spacing is 0.004 there, and equal scores are rounded equally in every row.
    values.equal_scores = True


def _hot(draw: Draw, values: Values) -> None:
    """Q . k above 65504, the largest fp16 number, although the values are moderate."""
    values.base = 1.5e5 * draw.scale
    _feature(draw, values, values.base)
    values.equal_scores = True


def _ramp(direction: float) -> Callable[[Draw, Values], None]:
    def ramp(draw: Draw, values: Values) -> None:
        """Scores climb (or fall) by 12 over the keys: every tile moves the running maximum."""
        if draw.kv_len:
            height = _level(draw, 12.0) * direction
            _feature(draw, values, height * torch.linspace(-0.5, 0.5, draw.kv_len))
            values.base = abs(height) / 2

    return ramp


def _zero_keys(draw: Draw, values: Values) -> None:
    """K = 0: the output is the mean of the visible V and lse counts the visible keys."""
    values.k.zero_()
    values.equal_scores = True


def _ones(draw: Draw, values: Values) -> None:
    """V = 1: the output is the mass of all keys."""
    values.v.fill_(1.0)
    values.spread_v = False


def _same_keys(draw: Draw, values: Values) -> None:
    """All keys equal but not zero: what `zero_keys` shows, out of reach for a function that looks for zeros."""
    values.k.copy_(values.k[:, :, :1].expand_as(values.k).clone())
    values.equal_scores = True


def _same_values(draw: Draw, values: Values) -> None:
    """All V equal, another number per column: what `ones` shows, out of reach for a function that looks for ones."""
    values.v.copy_(values.v[:, :, :1].expand_as(values.v).clone())
    values.spread_v = False


def _codes(draw: Draw, values: Values) -> None:
    """V one-hot per block of keys: output column j is the mass of block j."""
    block = max(1, -(-draw.kv_len // draw.variant.v_head_dim))
    column = torch.arange(draw.kv_len) // block
    values.v.copy_((column[:, None] == torch.arange(draw.variant.v_head_dim)).float())
    values.spread_v = False


def _cap(draw: Draw, values: Values) -> None:
    """Scores as large as the cap."""
    values.q *= draw.variant.softcap or 1.0
    values.base = draw.variant.softcap or 0.0


def _ties(draw: Draw, values: Values) -> None:
    """Every key occurs eight times in a row."""
    if draw.kv_len:
        values.k.copy_(values.k[:, :, torch.arange(draw.kv_len) // 8 * 8])
    values.equal_scores = True


def _resonant(draw: Draw, values: Values) -> None:
    """Biased keys in resonance with the queries: large equal scores, small differences."""
    direction = draw.normal(1, 1, 1, draw.variant.head_dim)
    direction *= math.sqrt(draw.variant.head_dim) / direction.norm().clamp_min(1e-6)
    size = math.sqrt(_level(draw, 64.0) / draw.scale / draw.variant.head_dim)
    if draw.contract.score_dtype == "input" and draw.contract.dtype != "float32":
        size *= 0.25
    values.q += size * direction
    values.k += size * direction
    values.base = size * size * draw.variant.head_dim * draw.scale


def _large_v(draw: Draw, values: Values) -> None:
    """V around 100: sums of unnormalised weights leave the range of fp16."""
    values.v.mul_(10.0).add_(100.0)
    values.k *= 0.1
    values.spread_v, values.equal_scores = False, True


def _tail(draw: Draw, values: Values) -> None:
    """One key holds half of the mass with V = 0, a flat tail holds the rest with V = 1."""
    if not draw.kv_len:
        return
    values.k.mul_(0.02)
    values.v.fill_(1.0)
    values.spread_v, values.equal_scores = False, True
    if draw.variant.window is None and draw.variant.head_dim > 1:
        level = torch.zeros(draw.kv_len)
        level[0] = _level(draw, math.log(max(draw.kv_len, 2)))
        _feature(draw, values, level)
        values.v[:, :, 0] = 0.0


def _fingerprint(draw: Draw, values: Values) -> None:
    """V lies around another number in every batch row and head."""
    number = torch.arange(1, draw.batch * draw.variant.kv_heads + 1).reshape(draw.batch, draw.variant.kv_heads, 1, 1)
    values.v.mul_(0.05).add_(0.25 * number)
    values.spread_v = False


FAMILIES: dict[str, Callable[[Draw, Values], None]] = {
    "diffuse": _diffuse,
    "needle": _needle,
    "shift": _shift,
    "raise": _raise,
    "deep": _deep,
    "hot": _hot,
    "ramp_up": _ramp(1.0),
    "ramp_down": _ramp(-1.0),
    "zero_keys": _zero_keys,
    "ones": _ones,
    "same_keys": _same_keys,
    "same_values": _same_values,
    "codes": _codes,
    "cap": _cap,
    "ties": _ties,
    "resonant": _resonant,
    "large_v": _large_v,
    "tail": _tail,
    "fingerprint": _fingerprint,
}
