"""What a side writes when nobody holds its hand: does it run into a loop, is it shorter, does it end?

Free-running output of a small model often degenerates without any change, so both sides continue the same texts and only
what the candidate does and the baseline does not counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_data import batches
from pytest_attnaccept.checks.model_evidence import pattern_of
from pytest_attnaccept.checks.model_held import note_stored
from pytest_attnaccept.checks.model_read import note_read
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import extend, fork, greedy, prefill

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["FreeRun", "continued", "excess_p", "is_loop", "length_until"]

_PERIOD = 8  # longest loop that is looked for, in tokens
_REPEATS = 4  # policy: a phrase said four times in a row at the end is a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRun:
    """Greedy continuations of some texts.

    Attributes
    ----------
    lengths
        Tokens until the end-of-text token, or all of them.
    loops
        Whether each ends in a loop.
    distinct
        Different token pairs per token pair, in all continuations together: 1 is never a repeat.
    """

    lengths: tuple[int, ...]
    loops: tuple[bool, ...]
    distinct: float


def continued(
    session: ModelSession, side: Side, rows: Sequence[Tensor], scored: int, free: int, pattern: str, step: int
) -> tuple[float, FreeRun]:
    """Let a side continue texts through its cache, as they go on and freely; one prefill serves both.

    Parameters
    ----------
    rows
        Token rows (1, n); the last `scored` tokens of each are predicted, what precedes them is the context.
    free
        Tokens that are generated greedily from the context.

    Returns
    -------
    tuple
        Mean NLL of the scored tokens in nats per token, and the free continuations.
    """
    how = pattern_of(session, side, pattern, step)
    losses: list[Tensor] = []
    made: list[list[int]] = []
    for group in batches([row.shape[1] for row in rows], session.batch):
        ids = torch.cat([rows[number] for number in group])
        context = ids.shape[1] - scored
        with side.running():
            state = prefill(side, ids[:, : context - 1], how)
            note_stored(session, side, state)
            note_read(
                session, side, state, ids[:, : context - 1], ids[:, context - 1 : -1], step=how.step, forked=False
            )
            other = fork(side, state)
            note_stored(session, side, other)
            logits = extend(side, state, ids[:, context - 1 : -1]).double()
            made += greedy(side, other, free).tolist()
        target = ids[:, context:].to(logits.device)
        losses.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none").flatten())
    return float(torch.cat(losses).mean()), _free_run(side, made)


def _free_run(side: Side, made: Sequence[Sequence[int]]) -> FreeRun:
    end = getattr(side.loaded.tokenizer, "eos_token_id", None)
    cut = [row[: length_until(row, end)] for row in made]
    pairs = [pair for row in cut for pair in pairwise(row)]
    return FreeRun(
        lengths=tuple(map(len, cut)),
        loops=tuple(map(is_loop, cut)),
        distinct=len(set(pairs)) / len(pairs) if pairs else 1.0,
    )


def length_until(row: Sequence[int], end: int | None) -> int:
    """Return how many tokens come before the end-of-text token."""
    return row.index(end) if end is not None and end in row else len(row)


def is_loop(row: Sequence[int]) -> bool:
    """Return whether `row` ends in a phrase of at most 8 tokens that is said at least four times in a row.

    >>> is_loop([5, 1, 2, 1, 2, 1, 2, 1, 2]), is_loop([1, 2, 1, 2, 3, 1, 2]), is_loop([7, 7, 7])
    (True, False, False)
    """
    for period in range(1, _PERIOD + 1):
        tail = list(row[-period * _REPEATS :])
        if len(tail) == period * _REPEATS and tail == tail[:period] * _REPEATS:
            return True
    return False


def excess_p(baseline: Sequence[bool], candidate: Sequence[bool]) -> float:
    """Return the one-sided p-value of the sign test: the candidate loops more often than the baseline.

    >>> excess_p([False] * 10, [True] * 10) < 0.001, excess_p([True, False], [True, False])
    (True, 1.0)
    """
    more = sum(c and not b for b, c in zip(baseline, candidate, strict=True))
    fewer = sum(b and not c for b, c in zip(baseline, candidate, strict=True))
    n = more + fewer
    return float(sum(math.comb(n, k) for k in range(more, n + 1)) / 2**n)
