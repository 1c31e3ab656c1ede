"""What a side returns when the questions of a batch of contexts are asked: logits of the answers, and generated tokens.

The context is prefilled alone, once for all of its questions; each question goes on from its own copy of the cache, in one
call, and the answer token by token. Nothing is scored here: what surrounds the candidate's calls (its context manager, what it
replaces meanwhile) must not surround the scoring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_data import encode
from pytest_attnaccept.checks.model_held import note_stored
from pytest_attnaccept.checks.model_read import note_read, same_vocabulary, turn_of
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, first_choice, fork, greedy, prefill
from pytest_attnaccept.tasks import Question

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["Asked", "Heard", "asked_of", "generate_tokens", "hear", "reader_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question per context, in tokens: `prompt` (batch, n), `target` (batch, m), and how many may be generated."""

    prompt: Tensor
    target: Tensor
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What came back: `logits` (batch, m, vocab) of the answer's tokens, teacher-forced, and what was generated (batch, made).

    `made` is None where every token of the answer was the first choice in every row: generation would repeat these calls.
    """

    logits: Tensor
    made: Tensor | None


def reader_of(session: ModelSession, side: Side) -> Any:
    """Return the tokenizer that says what a side has answered: the baseline's, wherever the tokens mean the same."""
    ours, theirs = session.baseline.loaded.tokenizer, side.loaded.tokenizer
    return ours if side is session.baseline or same_vocabulary(session) else theirs


def asked_of(session: ModelSession, side: Side, questions: Sequence[Question], device: torch.device) -> Asked:
    """Return the tokens of one question per context; call outside of ``side.running()``."""
    tokenizer, reader = side.loaded.tokenizer, reader_of(session, side)
    return Asked(
        prompt=torch.tensor([encode(tokenizer, q.prompt) for q in questions], device=device),
        target=torch.tensor([encode(reader, q.answer) for q in questions], device=device),
        limit=max(q.max_new_tokens for q in questions),
    )


def hear(
    session: ModelSession, side: Side, rows: Tensor, how: Pattern, asked: Sequence[Asked], *, to_the_end: bool
) -> list[Heard]:
    """Ask every question behind the contexts `rows` (batch, n).

    `to_the_end`: what comes behind the answer counts too, so an answer that may be longer is always generated, up to the
    end-of-text token.
    """
    turn, heard = turn_of(session, rows, len(asked)), []
    with side.running():
        state = prefill(side, rows, how)
        note_stored(session, side, state)
        for number, each in enumerate(asked):
            copy = fork(side, state)
            if number == turn:
                note_stored(session, side, copy)  # a copy is what is continued, so it is what has to be small
                step = _step(state, each.prompt)
                note_read(session, side, state, rows, each.prompt, step=step, forked=True)
            logits = extend(side, copy, each.prompt, step=_step(state, each.prompt))[:, -1:]
            free = fork(side, copy)
            if number == turn:
                note_stored(session, side, free)  # what is generated from is a copy of the copy
            heard.append(_one(side, copy, free, logits, each, to_the_end=to_the_end))
    return heard


def _step(state: State, prompt: Tensor) -> int:
    """Return how many tokens of a question go into one call."""
    return int(prompt.shape[1]) if state.pattern.multi else 1


def _one(side: Side, state: State, free: State, logits: Tensor, asked: Asked, *, to_the_end: bool) -> Heard:
    """Score the answer behind `state`, whose last `logits` are (batch, 1, vocab), and generate from its copy `free`."""
    if asked.target.shape[1] > 1:
        logits = torch.cat([logits, extend(side, state, asked.target[:, :-1], step=1)], dim=1)
    forced = bool((first_choice(logits) == asked.target).all())
    if forced and not (to_the_end and asked.limit > asked.target.shape[1]):
        return Heard(logits=logits, made=None)
    return Heard(
        logits=logits,
        made=generate_tokens(side, free, asked.limit) if to_the_end else greedy(side, free, asked.limit),
    )


def generate_tokens(side: Side, state: State, limit: int, stop: Callable[[Tensor], bool] | None = None) -> Tensor:
    """Generate greedily up to `limit` tokens and return them (batch, made); `state` is changed.

    Ends early when every row has ended (end-of-text token), or when ``stop(made)`` is true.
    """
    end = getattr(side.loaded.tokenizer, "eos_token_id", None)
    made: list[Tensor] = []
    while True:
        made.append(greedy(side, state, 1))
        done = torch.cat(made, dim=1)
        ended = end is not None and bool((done == end).any(dim=1).all())
        if ended or (stop is not None and stop(done)) or len(made) >= limit:
            return done
        extend(side, state, made[-1], step=1)
