"""Which call the candidate gets: from a `CaseSpec` (sizes, family, layout, seed) to one `AttentionCall`.

Positions
---------
1. A case is rebuilt from its spec alone; that is how a failure is reproduced.
2. Everything masked by length is filled with large finite numbers in every case, pages that no table row names with NaN,
   so that reading them is never invisible.
3. Strides vary, the last dimension always has stride 1: that is what kernels are written for.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.contract import KernelContract, Variant
from pytest_attnaccept.kernel.families import Draw, Values, draw_values
from pytest_attnaccept.kernel.precision import as_dtype

__all__ = ["LAYOUTS", "Case", "CaseSpec", "build_case", "key_edges", "poison_value", "row_sample", "with_keys"]

LAYOUTS = ("contiguous", "transposed", "fused", "padded", "cache")
# Scales of stored FP8 values: unequal, not one, and with few mantissa bits, so that dequantizing to bf16 or fp16 is exact.
_K_SCALES = (0.75, 1.5, 0.375)
_V_SCALES = (1.25, 0.3125, 2.5)
_TILES = (16, 32, 64, 128, 256, 512, 1024, 4096, 32768, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSpec:
    """What a case is made of.

    Attributes
    ----------
    variant
        Index into ``contract.variants()``.
    lengths
        ``kv_lengths`` when the contract has them; None: drawn.
    """

    family: str = "diffuse"
    batch: int = 1
    q_len: int = 1
    kv_len: int = 1
    layout: str = "contiguous"
    variant: int = 0
    lengths: tuple[int, ...] | None = None
    seed: int = 0

    @property
    def label(self) -> str:
        """Short name for messages and digests."""
        text = f"{self.family} batch={self.batch} q_len={self.q_len} kv_len={self.kv_len}"
        if self.lengths is not None:
            text += f" kv_lengths={list(self.lengths)}"
        if self.layout != "contiguous":
            text += f" layout={self.layout}"
        return text + (f" variant={self.variant}" if self.variant else "")

    def number(self, salt: str = "") -> int:
        """Return the seed of this case's generator: a hash of the spec, so cases never share random numbers."""
        digest = hashlib.sha256(f"{self.label}|{self.seed}|{salt}".encode()).digest()
        return int.from_bytes(digest[:7], "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call together with where it comes from."""

    spec: CaseSpec
    contract: KernelContract
    variant: Variant
    call: AttentionCall
    spread_v: bool
    equal_scores: bool

    @property
    def label(self) -> str:
        """Short name for messages."""
        return self.spec.label


def build_case(contract: KernelContract, spec: CaseSpec, device: str) -> Case:
    """Make the tensors of one case."""
    variant = contract.variants()[spec.variant % len(contract.variants())]
    generator = torch.Generator().manual_seed(spec.number())
    lengths = _lengths(contract, spec, generator)
    scale = contract.scale if contract.scale is not None else variant.head_dim**-0.5
    first = lengths[0] if lengths else spec.kv_len
    draw = Draw(
        contract=contract,
        variant=variant,
        batch=spec.batch,
        q_len=spec.q_len,
        kv_len=spec.kv_len,
        scale=scale,
        offset=first - spec.q_len if contract.alignment == "bottom_right" else 0,
        edges=key_edges(variant, spec.kv_len),
        generator=generator,
    )
    values = draw_values(spec.family, draw)
    return Case(
        spec=replace(spec, lengths=lengths),
        contract=contract,
        variant=variant,
        call=_keep_strides(_call(draw, values, spec, lengths, device), spec, device),
        spread_v=values.spread_v,
        equal_scores=values.equal_scores,
    )


def _call(draw: Draw, values: Values, spec: CaseSpec, lengths: tuple[int, ...] | None, device: str) -> AttentionCall:
    """Round, lay out and move the drawn values."""
    contract, variant, generator = draw.contract, draw.variant, draw.generator
    q = _laid_out(values.q.to(as_dtype(contract.dtype)), spec.layout)
    k_scale, v_scale = _fp8_scales(contract, spec)
    k, v = _stored(values.k, contract, k_scale), _stored(values.v, contract, v_scale)
    if lengths:
        _poison_tail(k, lengths, contract, generator)
        _poison_tail(v, lengths, contract, generator)
    table = None
    if variant.page_size is not None:
        k, v, table = _paged(k, v, lengths or (), variant.page_size, contract, spec, generator)
    else:
        k, v = _dense(k, v, spec.layout)
    return AttentionCall(
        q=q.to(device),
        k=k.to(device),
        v=v.to(device),
        causal=contract.causal,
        scale=draw.scale,
        window=variant.window,
        softcap=variant.softcap,
        sinks=_sinks(draw, values).to(device) if contract.sinks else None,
        alibi_slopes=_slopes(draw).to(device) if contract.alibi else None,
        kv_lengths=torch.tensor(lengths, dtype=torch.int64, device=device) if lengths else None,
        block_table=None if table is None else table.to(device),
        k_scale=k_scale,
        v_scale=v_scale,
    )


def with_keys(case: Case, **changes: object) -> Case:
    """Return the case with other fields of its call (a poisoned or transformed twin)."""
    return replace(case, call=replace(case.call, **changes))  # type: ignore[arg-type]


def key_edges(variant: Variant, kv_len: int) -> tuple[int, ...]:
    """Return key positions at tile, page, window and index-width edges, all below `kv_len`."""
    steps = {*_TILES, variant.page_size or 16, variant.window or 64}
    found = {0, kv_len - 1, kv_len // 2}
    for step in steps:
        found |= {step - 1, step, kv_len // step * step - 1, kv_len // step * step, kv_len - step, kv_len - step - 1}
    return tuple(sorted(key for key in found if 0 <= key < kv_len))


def row_sample(case: Case, limit: int) -> Tensor:
    """Choose at most `limit` query rows, ``(rows,)`` int64: first, last, edges of tiles, pages and window, then random."""
    q_len = case.spec.q_len
    if q_len <= limit:
        return torch.arange(q_len, device=case.call.q.device)
    lengths = case.spec.lengths or (case.spec.kv_len,)
    wanted: list[int] = [0, q_len - 1, 1, q_len - 2]
    for length in lengths:
        offset = length - q_len if case.contract.alignment == "bottom_right" else 0
        wanted += [-offset, -offset + 1, -offset - 1]
        if case.variant.window:
            wanted += [case.variant.window - offset + step for step in (-1, 0, 1)]
    for tile in (65536, 32768, 128, 64, case.variant.page_size or 16, 16, 256, 32):
        wanted += [tile - 1, tile, q_len // tile * tile - 1, q_len // tile * tile]
    chosen = list(dict.fromkeys(row for row in wanted if 0 <= row < q_len))[: limit * 3 // 4]
    generator = torch.Generator().manual_seed(case.spec.number("rows"))
    for row in torch.randint(q_len, (4 * limit,), generator=generator).tolist():
        if len(chosen) == limit:
            break
        if row not in chosen:
            chosen.append(row)
    return torch.tensor(sorted(chosen), device=case.call.q.device)


def poison_value(contract: KernelContract) -> float:
    """Return the largest finite filler whose scores stay finite in what the kernel rounds."""
    if contract.kv_dtype is not None:
        return 448.0
    if contract.dtype == "float16":
        # In backward dO . V meets the filler, and a function that rounds P passes that through fp16 as well.
        return 100.0 if contract.score_dtype == "input" or contract.backward else 2000.0
    return 1e4


def _lengths(contract: KernelContract, spec: CaseSpec, generator: torch.Generator) -> tuple[int, ...] | None:
    """Valid keys per row: the first row has all of them, the others lie at edges or anywhere."""
    if not contract.has_lengths:
        return None
    if spec.lengths is not None:
        return spec.lengths
    found = [spec.kv_len]
    edges = [1, spec.q_len, spec.kv_len - 1, spec.kv_len // 2 + 1, 0, spec.kv_len // 3, spec.kv_len // 64 * 64]
    for row in range(1, spec.batch):
        pick = edges[int(torch.randint(len(edges), (1,), generator=generator))]
        if row % 2:
            pick = int(torch.randint(spec.kv_len + 1, (1,), generator=generator))
        found.append(contract.fit_kv(max(0, min(pick, spec.kv_len))))
    return tuple(found)


def _fp8_scales(contract: KernelContract, spec: CaseSpec) -> tuple[float | None, float | None]:
    if contract.kv_dtype is None:
        return None, None
    at = spec.number("scales")
    return _K_SCALES[at % 3], _V_SCALES[at // 3 % 3]


def _stored(values: Tensor, contract: KernelContract, factor: float | None) -> Tensor:
    dtype = as_dtype(contract.stored_dtype)
    if factor is None:
        return values.to(dtype)
    return (values / factor).clamp(-448.0, 448.0).to(dtype)


def _poison(shape: tuple[int, ...], contract: KernelContract, generator: torch.Generator, *, nan: bool) -> Tensor:
    """Fillers for masked positions: large finite numbers of both signs, or NaN."""
    dtype = as_dtype(contract.stored_dtype)
    if nan:
        return torch.full(shape, math.nan).to(dtype)
    signs = torch.randint(2, shape, generator=generator).float().mul_(2.0).sub_(1.0)
    return (signs * poison_value(contract)).to(dtype)


def _poison_tail(x: Tensor, lengths: tuple[int, ...], contract: KernelContract, generator: torch.Generator) -> None:
    """Overwrite positions past each row's length, ``x`` being ``(batch, kv_heads, kv_len, dim)``."""
    for row, length in enumerate(lengths):
        rest = x[row, :, length:]
        if rest.numel():
            nan = contract.masked_read == "never"
            x[row, :, length:] = _poison(tuple(rest.shape), contract, generator, nan=nan)


def _sinks(draw: Draw, values: Values) -> Tensor:
    """Sinks beside the logsumexp of the rows, where they matter most, ``(q_heads,)`` float32."""
    level = values.base + math.log(draw.visible) + 0.5
    return level + 0.5 * draw.normal(draw.variant.q_heads)


def _slopes(draw: Draw) -> Tensor:
    """Slopes from 0.5 down to 2 / keys, another one per head, ``(q_heads,)`` float32."""
    heads = draw.variant.q_heads
    ratio = torch.linspace(0.0, 1.0, heads) if heads > 1 else torch.tensor([0.5])
    lowest = 2.0 / max(draw.visible, 8)
    return 0.5 * (lowest / 0.5) ** ratio


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """Return the same values ``(batch, heads, length, dim)`` with other strides; the gaps hold large numbers."""
    batch, heads, length, dim = x.shape
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "padded":
        wide = torch.full((batch, heads, length, dim + 8), 300.0).to(x.dtype)
        wide[..., :dim] = x
        return wide[..., :dim]
    if layout == "cache":
        # The first positions of a buffer that is longer than what is in use.
        wide = torch.full((batch, heads, length + 37, dim), 300.0).to(x.dtype)
        wide[:, :, :length] = x
        return wide[:, :, :length]
    if layout == "fused":
        wide = torch.full((batch, length, heads + 3, dim), 300.0).to(x.dtype)
        wide[:, :, 1 : heads + 1] = x.transpose(1, 2)
        return wide[:, :, 1 : heads + 1].transpose(1, 2)
    return x.contiguous()


def _dense(k: Tensor, v: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Lay out k and v; "fused" takes both from one buffer when their shapes allow it."""
    if layout == "fused" and k.shape == v.shape:
        both = torch.stack([k, v]).permute(1, 3, 0, 2, 4).contiguous()
        return both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
    return _laid_out(k, layout), _laid_out(v, layout)


def _paged(
    k: Tensor,
    v: Tensor,
    lengths: tuple[int, ...],
    size: int,
    contract: KernelContract,
    spec: CaseSpec,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scatter dense tensors into page pools in random order.

    The pool has unnamed pages (NaN), and two filler pages that only spare table entries name.
    """
    batch = k.shape[0]
    width = -(-max(k.shape[2], 1) // size) + 1
    used = [-(-length // size) for length in lengths]
    total = sum(used) + 5
    order = torch.randperm(total, generator=generator).tolist()
    fillers = order[-2:]
    nan = contract.masked_read == "never"
    table = torch.tensor([[fillers[(row + page) % 2] for page in range(width)] for row in range(batch)])
    pools = []
    for x in (k, v):
        pool = _poison((total, size, x.shape[1], x.shape[3]), contract, generator, nan=True)
        for page in fillers:
            pool[page] = _poison(tuple(pool[page].shape), contract, generator, nan=nan)
        pools.append(pool)
    cursor = iter(order)
    for row, pages in enumerate(used):
        names = torch.tensor([next(cursor) for _ in range(pages)], dtype=torch.int64)
        table[row, :pages] = names
        for pool, x in zip(pools, (k, v), strict=True):
            padded = _poison((pages * size, x.shape[1], x.shape[3]), contract, generator, nan=nan)
            padded[: lengths[row]] = x[row, :, : lengths[row]].transpose(0, 1)
            pool[names] = padded.reshape(pages, size, *padded.shape[1:])
    if spec.layout == "fused" and pools[0].shape == pools[1].shape:
        both = torch.stack(pools, dim=1)
        pools = [both[:, 0], both[:, 1]]
    return pools[0], pools[1], table


def _keep_strides(call: AttentionCall, spec: CaseSpec, device: str) -> AttentionCall:
    """Undo the packing that a copy to another device may do."""
    if torch.device(device).type == "cpu" or spec.layout == "contiguous":
        return call
    if call.block_table is not None:
        return replace(call, q=_laid_out(call.q, spec.layout))
    k, v = _dense(call.k, call.v, spec.layout)
    return replace(call, q=_laid_out(call.q, spec.layout), k=k, v=v)
