"""What attention over a list of tokens gives in float64, how far rounding may move it, and which queries look where.

Positions
---------
1. Every token has its own random key and value row, so a missing, extra, foreign or stale row moves an output.
2. All query heads but the first are aimed at one token each, such that this token carries about half of the weight; the
   tokens aimed at include those that must *not* be visible any more.
3. The bound is Hoeffding's for independent roundings of at most one unit roundoff each: scores, probabilities and
   output in the declared dtype, accumulation in float32; it is the loosest model of a correct kernel. Where few
   roundings decide, twice their plain sum is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from pytest_attnaccept.state.cache_contract import CacheContract

__all__ = ["BANK_TOKENS", "LAMBDA", "ORIGIN", "Attended", "Bank", "View", "aimed_queries", "attend64", "visible"]

BANK_TOKENS = 4096
# Hoeffding: sqrt(2 ln(2N / alpha)) is 7.8 for N = 1e7 compared outputs and alpha = 1e-6.
LAMBDA = 8.0
ORIGIN = "derived: the smaller of 8 sqrt(sum of squared roundings) (alarm < 1e-6 per 1e7 outputs) and twice their sum"
_LOUD_KEY, _LOUD_VALUE = 6.0, 60.0
_EXACT_SHIFT = 2**18
_UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How queries see a list of tokens.

    Attributes
    ----------
    window, sinks
        As in the contract; None: no window.
    tiled_heads
        Group map ``head % kv_heads`` in place of ``head // group`` (a fault, used for naming one).
    scale
        Factor on the contract's ``head_dim ** -0.5``.
    offset
        Added to the position of every query before masking.
    stored
        Keys and values pass through this dtype first.
    """

    window: int | None
    sinks: int
    tiled_heads: bool = False
    scale: float = 1.0
    offset: int = 0
    stored: torch.dtype | None = None


class Attended(NamedTuple):
    """Float64 output and allowed deviation, both ``(q_heads, n, head_dim)``."""

    out: torch.Tensor
    bound: torch.Tensor


class Bank:
    """Keys and values of every token number, the same ones whenever the seed and the contract are the same."""

    def __init__(self, contract: CacheContract, seed: int) -> None:
        self.contract = contract
        self._quiet = _tables(contract.kv_heads, contract.head_dim, contract.dtype)
        self._offset = int(np.random.default_rng([seed, 0xC0FFEE]).integers(BANK_TOKENS))
        self.loud: set[int] = set()

    def rows(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of the tokens, each ``(kv_heads, n, head_dim)`` in the contract's dtype.

        Loud tokens have the same rows, larger: an attention that meets one by mistake follows it.
        """
        index = torch.tensor([(token + self._offset) % BANK_TOKENS for token in tokens], dtype=torch.long)
        loud = torch.tensor([token in self.loud for token in tokens])
        gains = ((loud * (gain - 1) + 1)[None, :, None].to(torch.float64) for gain in (_LOUD_KEY, _LOUD_VALUE))
        keys, values = (
            (table[:, index].to(torch.float64) * gain).to(self.contract.dtype)
            for table, gain in zip(self._quiet, gains, strict=True)
        )
        return keys, values


@lru_cache(maxsize=4)
def _tables(kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    # One table for all seeds: drawing 4096 rows per program would cost more than the program.
    rng = np.random.default_rng([kv_heads, head_dim])
    shape = (kv_heads, BANK_TOKENS, head_dim)
    keys, values = (torch.from_numpy(rng.standard_normal(shape)).to(dtype) for _ in range(2))
    return keys, values


def attend64(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, dtype: torch.dtype
) -> Attended:
    """Attend with the last n positions of a list, in float64.

    Parameters
    ----------
    queries
        ``(q_heads, n, head_dim)``, any float dtype.
    keys, values
        ``(kv_heads, length, head_dim)``; an empty list gives zeros.
    view
        Window, sinks and, for diagnosis, deviations from the contract.
    dtype
        What the candidate rounds to.
    """
    heads, count, dim = queries.shape
    if view.stored is not None:
        keys, values = keys.to(view.stored), values.to(view.stored)
    q, k, v = (tensor.to(torch.float64) for tensor in (queries, keys, values))
    group = torch.arange(heads)
    group = group % k.shape[0] if view.tiled_heads else group // (heads // k.shape[0])
    k, v = k[group], v[group]
    scale = view.scale * dim**-0.5
    scores = torch.einsum("hnd,hld->hnl", q, k) * scale
    scores = scores.masked_fill(~visible(count, k.shape[1], view), -math.inf)
    top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0) if k.shape[1] else torch.zeros(heads, count, 1).double()
    weights = torch.exp(scores - top)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
    out = weights @ v
    size = torch.einsum("hnd,hld->hnl", q.abs(), k.abs()) * scale
    return Attended(out, _bound(weights, scores, top, size, v, out, dtype))


def visible(count: int, length: int, view: View) -> torch.Tensor:
    """Return the mask ``(count, length)`` of the last `count` positions."""
    rows = torch.arange(length - count, length)[:, None] + view.offset
    columns = torch.arange(length)[None]
    seen = columns <= rows
    if view.window is not None:
        seen &= (columns > rows - view.window) | (columns < view.sinks)
    return seen


def _bound(
    p: torch.Tensor,
    s: torch.Tensor,
    top: torch.Tensor,
    size: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    u = _UNIT[dtype]
    u_sum = min(2.0**-24, u) if dtype is torch.float64 else 2.0**-24
    length, dim = p.shape[-1], v.shape[-1]
    # A score is rounded up to twice (product, scaling) and once more after the maximum is subtracted; p itself once.
    score = u * (2 * s.abs() + top.abs() + 1).nan_to_num(posinf=0.0) + u_sum * math.sqrt(dim) * size
    rounding = (u * u) * ((p * p) @ (v * v) + 2 * o * o)
    d2 = (p * score) ** 2
    shift = d2 @ (v * v) - 2 * o * (d2 @ v) + o * o * d2.sum(-1, keepdim=True)
    running = u_sum * u_sum * (length + dim) * (p @ v.abs()) ** 2
    floor = 2.0**-25 * v.norm(dim=1, keepdim=True) if dtype is torch.float16 else 0.0
    random = LAMBDA * (rounding + shift.clamp_min(0.0) + running).sqrt()
    # Few roundings cannot conspire to eight deviations: where one token dominates, twice their plain sum is tighter.
    plain = u * (p @ v.abs() + 2 * o.abs()) + _plain_shift(p * score, v, o)
    return torch.minimum(random, 2 * plain + LAMBDA * running.sqrt()) + floor + 1e-30


def _plain_shift(moved: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """Return ``sum_k moved_k |v_k - o|``, or for large tensors its bound by the triangle inequality."""
    if moved.numel() * v.shape[-1] <= _EXACT_SHIFT:
        return (moved[..., None] * (v[:, None] - o[:, :, None]).abs()).sum(2)
    return moved @ v.abs() + o.abs() * moved.sum(-1, keepdim=True)


def aimed_queries(
    bank: Bank, own: Sequence[int], foreign: Sequence[int], count: int, rng: np.random.Generator
) -> torch.Tensor:
    """Return queries ``(q_heads, n, head_dim)`` in the contract's dtype, each head of each row aimed at one token.

    Parameters
    ----------
    bank
        Gives the keys that are aimed at.
    own
        Tokens of the sequence; ends, page and window edges are aimed at more often than the rest.
    foreign
        Tokens that must not be visible (removed ones, neighbours').
    count
        Number of query rows n.
    rng
        Chooses the targets.
    """
    contract = bank.contract
    heads, dim = contract.q_heads, contract.head_dim
    pool = [own[place] for place in _edges(contract, len(own), count)] + list(foreign)
    chosen = np.array(pool)[rng.integers(len(pool), size=(heads, count))]
    tokens, inverse = np.unique(chosen, return_inverse=True)
    keys = bank.rows([int(token) for token in tokens])[0].to(torch.float64)
    group = torch.arange(heads)[:, None].expand(heads, count) // (heads // contract.kv_heads)
    aim = keys[group, torch.from_numpy(inverse.reshape(heads, count))]
    # exp(score) = e * length: the token aimed at takes about 0.6 of the weight, the rest stays visible.
    score = min(9.0, 1.0 + math.log(max(1, len(own))))
    queries = aim * (score * math.sqrt(dim)) / (aim * aim).sum(-1, keepdim=True)
    if heads > 1:  # one head stays diffuse: it sees all tokens at once
        queries[0] = torch.from_numpy(rng.standard_normal((count, dim)))
    return queries.to(contract.dtype)


def _edges(contract: CacheContract, length: int, count: int) -> list[int]:
    """Return positions worth looking at, all inside [0, length)."""
    page, last = contract.page_size, length - 1
    places = [0, last, last, last - 1, last - count, last - count + 1, length // 2]
    places += [last // page * page, last // page * page - 1, page - 1, page]
    if contract.window is not None:
        places += [length - contract.window + step for step in (-2, -1, -1, 0, 0, 1)]
        places += [contract.sink_tokens - 1, contract.sink_tokens, contract.sink_tokens + 1]
    return [place for place in places if 0 <= place < length]
