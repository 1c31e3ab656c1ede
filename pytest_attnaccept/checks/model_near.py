"""Which scored tokens need the context: those that the baseline predicts only when it sees all of it.

The contrast is the baseline's own (LongPPL, arXiv 2410.23771): its NLL behind the last tokens of the context alone against
its NLL behind the whole. Nothing of the candidate takes part in the choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_data import batches
from pytest_attnaccept.checks.model_evidence import pattern_of
from pytest_attnaccept.checks.model_text import TextPass
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.through_cache import teacher_forced

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["needs_context"]

_NEAR = 32  # tokens that a baseline without the rest of the context sees
_NEEDS_NATS = 1.0  # policy: a token whose likelihood falls by a factor e without the context needs it


def needs_context(session: ModelSession, done: TextPass, step: int) -> list[Tensor]:
    """Return, per document, a bool (scored tokens,) that is true where the context is needed."""
    near = _near_nll(session, done, step)
    return [short - whole > _NEEDS_NATS for short, whole in zip(near, done.patterns[0].base_nll, strict=True)]


def _near_nll(session: ModelSession, done: TextPass, step: int) -> list[Tensor]:
    """Return the baseline's NLL of every scored token behind the last tokens of its context alone, nats."""
    side, scored = session.baseline, done.data.continuation
    # A plain baseline needs no cache for this: one call gives every token, a thirtieth of the work of token by token.
    how = pattern_of(session, side, "one-shot", step if side.changes else scored)
    found: dict[int, Tensor] = {}
    for group in batches([row.shape[1] for row in done.data.rows], session.batch):
        rows = torch.cat([done.data.rows[number][:, -(scored + _NEAR) :] for number in group])
        key = ("near", session.baseline_key, rows.cpu().numpy().tobytes(), rows.shape[0], scored, how)
        nll = baseline_memo.get(key) if not side.changes else None
        if nll is None:
            context = rows.shape[1] - scored
            with side.running():
                logits = teacher_forced(side, rows, context, how).float()
            target = rows[:, context:].to(logits.device)
            nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none")
            if not side.changes:
                baseline_memo.put(key, nll)
        found.update({number: nll[at] for at, number in enumerate(group)})
    return [found[number] for number in range(len(done.data.rows))]
