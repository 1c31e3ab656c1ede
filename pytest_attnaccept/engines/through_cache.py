"""Measure through the cache: prefill in a call pattern, then continue teacher-forced or greedily on what was stored.

A single forward pass never sees KV compression or KV quantization. The continuation therefore starts one token early:
the last context token goes through the changed cache with what follows, and the first scored token depends on it.

Rows of a batch have equal length; only the patterns that are about padding make some of their tokens padding, with a
mask and positions that say so.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.engines.calls import Padding, call
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.storage import tensors_of
from pytest_attnaccept.errors import CandidateError, ContractError

__all__ = [
    *(
        "PATTERNS",
        "CopyError",
        "Pattern",
        "State",
        "extend",
        "first_choice",
        "fork",
        "greedy",
        "padded_away",
        "parse_pattern",
        "prefill",
    ),
    "teacher_forced",
]


PATTERNS = (
    *("one-shot", "chunk-7", "chunk-64", "chunk-128", "token", "warm-prefix", "batch", "batch-left", "batch-right"),
)
# The functions as they were before any candidate was built: greedy decoding runs while a candidate's context is active.
_argmax, _deepcopy = torch.argmax, copy.deepcopy
_ROWS = 4  # rows of a batch where batches are the point


class CopyError(CandidateError):
    """A call pattern that continues a copy of a cache was asked of one that cannot be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How tokens are handed to the model.

    ``prefill`` tokens per call for the context (None: one call), ``step`` tokens per call afterwards. ``multi`` is false
    where a continuation may take one token per call only. ``warm``: the first half is prefilled into a cache of its own,
    which is copied and continued (a prefix cache). ``padding``: "left" or "right". ``rows``: rows per batch (None: the
    session's).
    """

    name: str
    prefill: int | None
    step: int
    multi: bool = True
    warm: bool = False
    padding: str = ""
    rows: int | None = None


@dataclass(slots=True, kw_only=True)
class State:
    """A filled cache: `seen` tokens were given per row, `last` are the logits of the last one, shape (batch, vocab).

    ``source`` holds the tokens (batch, seen), for caches that cannot be copied and have to be filled again: the first `filled`
    of them as the pattern says, the others in further calls of the sizes ``calls``. In a padded
    batch ``mask`` (batch, seen) marks the real tokens and ``real`` (batch,) counts them.
    """

    cache: Any
    seen: int
    last: Tensor | None
    source: Tensor
    pattern: Pattern
    mask: Tensor | None = None
    real: Tensor | None = None
    filled: int = 0
    calls: tuple[int, ...] = ()


def parse_pattern(name: str, step: int) -> Pattern:
    """Return the pattern called `name`; the continuation goes in calls of `step` tokens.

    ``one-shot``, ``token`` (continues token by token too), ``chunk-N``, ``warm-prefix`` (a copied cache is continued),
    ``batch`` (four rows), ``batch-left`` and ``batch-right`` (four rows of different length, padded).
    """
    if step < 1:
        raise ContractError(f"step={step} must be at least 1 token per call")
    if name == "one-shot":
        return Pattern(name=name, prefill=None, step=step)
    if name == "token":
        return Pattern(name=name, prefill=1, step=1, multi=False)
    if name == "warm-prefix":
        return Pattern(name=name, prefill=None, step=step, warm=True)
    if name in ("batch", "batch-left", "batch-right"):
        return Pattern(name=name, prefill=None, step=step, rows=_ROWS, padding=name.partition("-")[2])
    kind, _, size = name.partition("-")
    if kind == "chunk" and size.isdigit() and int(size) > 0:
        return Pattern(name=name, prefill=int(size), step=min(step, int(size)))
    raise ContractError(f"call pattern {name!r} is unknown; use one of {', '.join(PATTERNS)} (a chunk of any size)")


def prefill(side: Side, ids: Tensor, pattern: Pattern) -> State:
    """Fill a fresh cache with `ids` (batch, n) in the pattern; call inside ``side.running()``."""
    if ids.dim() != 2 or ids.numel() == 0:
        raise ContractError(f"a context must be rows of tokens (batch, n), got shape {tuple(ids.shape)}")
    state = State(cache=side.new_cache(), seen=0, last=None, source=ids[:, :0], pattern=pattern)
    with side.filling():
        state = _filled(side, state, ids, pattern)
    state.filled = state.seen
    return state


def _filled(side: Side, state: State, ids: Tensor, pattern: Pattern) -> State:
    if pattern.padding:
        return _padded_prefill(side, state, ids, pattern.padding)
    half = ids.shape[1] // 2
    if pattern.warm and half:
        _advance(side, state, ids[:, :half], last_only=True)
        state = fork(side, state)
        _advance(side, state, ids[:, half:], last_only=True)
        return state
    size = pattern.prefill or ids.shape[1]
    for start in range(0, ids.shape[1], size):
        _advance(side, state, ids[:, start : start + size], last_only=True)
    return state


def padded_away(row: int, width: int) -> int:
    """Return how many first tokens of a row of `width` tokens a padded batch drops: up to a fifth, in turns."""
    return min((5 * row + 3) % 8 * max(1, width // 32), width - 1)


def _padded_prefill(side: Side, state: State, ids: Tensor, where: str) -> State:
    """Prefill rows of different length: each loses some of its first tokens to padding.

    Both sides are measured on the shortened rows, so the comparison stays paired. The padding is what stands in another
    row: whoever ignores the mask reads somebody else's prompt.
    """
    rows, width = ids.shape
    lost = torch.tensor([padded_away(row, width) for row in range(rows)], device=ids.device)
    place = torch.arange(width, device=ids.device)[None]
    junk = ids.roll(1, dims=0).flip(1)
    if where == "left":
        state.mask = (place >= lost[:, None]).long()
        given = ids
    else:
        state.mask = (place < width - lost[:, None]).long()
        given = ids.gather(1, (place + lost[:, None]).clamp(max=width - 1))
    given = torch.where(state.mask.bool(), given, junk)
    state.real = torch.zeros(rows, dtype=torch.long, device=ids.device)
    positions = (state.mask.cumsum(-1) - 1).clamp(min=0)
    _advance(side, state, given, last_only=True, padding=Padding(mask=state.mask, positions=positions))
    state.real = state.mask.sum(-1)
    if where == "right":
        state.last = None  # the last column is padding
    return state


def _advance(
    side: Side, state: State, ids: Tensor, *, last_only: bool = False, padding: Padding | None = None
) -> Tensor:
    if padding is None and state.mask is not None and state.real is not None:
        state.mask = torch.cat([state.mask, torch.ones_like(ids)], dim=1)
        ahead = torch.arange(ids.shape[1], device=ids.device)[None]
        padding = Padding(mask=state.mask, positions=state.real[:, None] + ahead)
        state.real = state.real + ids.shape[1]
    logits, state.cache = call(
        side.model, side.form, ids, state.cache, state.seen, last_only=last_only, side=side.name, padding=padding
    )
    state.seen += ids.shape[1]
    if state.filled:
        state.calls = (*state.calls, ids.shape[1])
    state.source = torch.cat([state.source, ids], dim=1)
    state.last = logits[:, -1].clone()  # not a view: the logits of a long prefill must not stay alive
    return logits


def extend(side: Side, state: State, ids: Tensor, step: int | None = None) -> Tensor:
    """Feed `ids` (batch, n) teacher-forced in calls of the pattern's step; returns (batch, n, vocab). Changes `state`."""
    size = step or state.pattern.step
    # Copies: a model may write every call's logits into one buffer.
    return torch.cat(
        [_advance(side, state, ids[:, at : at + size]).clone() for at in range(0, ids.shape[1], size)], dim=1
    )


def fork(side: Side, state: State) -> State:
    """Return an independent copy, so that several questions see the same context and never one another.

    A cache whose copy fails or still shares storage with the original is filled again from the tokens, in the same calls: a
    question that came after the compression must not come inside it.
    """
    try:
        cache = _deepcopy(state.cache)
    except Exception:  # foreign cache classes may refuse to be copied in any way they like
        cache = None
    if cache is not None:
        mine = {t.untyped_storage().data_ptr() for t in tensors_of(state.cache) if t.numel()}
        if not any(t.untyped_storage().data_ptr() in mine for t in tensors_of(cache) if t.numel()):
            return replace(state, cache=cache)
    if state.pattern.warm or state.pattern.padding:
        raise CopyError(
            f"the cache of the {side.name} cannot be copied (a copy fails or shares storage), which {state.pattern.name} needs"
        )
    again = prefill(side, state.source[:, : state.filled], state.pattern)
    for size in state.calls:
        _advance(side, again, state.source[:, again.seen : again.seen + size], last_only=True)
    return replace(again, last=state.last)


def teacher_forced(side: Side, ids: Tensor, context: int, pattern: Pattern) -> Tensor:
    """Return logits (batch, continuation, vocab) that predict ``ids[:, context:]`` through the cache.

    Prefills ``context - 1`` tokens and feeds the rest but the last, so every scored token passes the changed cache.
    """
    if not 2 <= context < ids.shape[1]:
        raise ContractError(f"a context of {context} tokens leaves nothing to score in a text of {ids.shape[1]}")
    state = prefill(side, ids[:, : context - 1], pattern)
    return extend(side, state, ids[:, context - 1 : -1])


def first_choice(logits: Tensor) -> Tensor:
    """Return the most likely token of logits (..., vocab)."""
    return _argmax(logits, dim=-1)


def greedy(side: Side, state: State, limit: int) -> Tensor:
    """Generate `limit` tokens greedily from `state` (changed); returns (batch, limit)."""
    made: list[Tensor] = []
    while len(made) < limit:
        if state.last is None:
            raise CandidateError("generation needs a filled cache")
        made.append(first_choice(state.last)[:, None])
        if len(made) < limit:
            _advance(side, state, made[-1])
    return torch.cat(made, dim=1)
