"""How the questions of a context are answered: each on its own copy of the cache that the context left.

No question sees another, and the compressor saw none. Every answer is scored twice: teacher-forced (NLL and rank of its
tokens) and generated greedily (contained, exactly equal, or not even of the form of an answer).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_data import batches, encode, to_row
from pytest_attnaccept.checks.model_evidence import pattern_of
from pytest_attnaccept.checks.model_heard import Asked, Heard, asked_of, hear, reader_of
from pytest_attnaccept.checks.stack_memo import shared_key, stack_memo
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern, extend, greedy, prefill
from pytest_attnaccept.tasks import Question, TaskItem

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["Answer", "answers", "answers_in", "right", "share_right_with_question_first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one question was answered.

    Attributes
    ----------
    teacher_forced
        Every token of the answer is the most likely one.
    generated
        The answer is contained in what is generated.
    exact
        What is generated is the answer and nothing else.
    parsed
        What is generated has the form of an answer; a wrong answer without it is a parse failure.
    nll, rank
        Means over the answer's tokens: nats, and the place of the token in the vocabulary (1: most likely).
    """

    teacher_forced: bool
    generated: bool
    exact: bool
    parsed: bool
    nll: float
    rank: float


def right(answer: Answer, score: str) -> bool:
    """Return whether `answer` counts under `score` ("generated" or "teacher_forced")."""
    return answer.generated if score == "generated" else answer.teacher_forced


def answers(session: ModelSession, side: Side, items: Sequence[TaskItem], pattern: str) -> list[list[Answer]]:
    """Answer every question of every item in the call pattern of that name."""
    how = pattern_of(session, side, pattern, 1)
    return answers_in(session, side, items, how, how.rows or session.batch)


def answers_in(
    session: ModelSession, side: Side, items: Sequence[TaskItem], how: Pattern, size: int
) -> list[list[Answer]]:
    """Answer every question of every item; contexts of equal length go through the model together, `size` at once."""
    rows = [to_row(side.loaded, encode(side.loaded.tokenizer, item.context)) for item in items]
    found: dict[int, list[Answer]] = {}
    for group in batches(
        [(row.shape[1], _shape(session, side, item)) for row, item in zip(rows, items, strict=True)], size
    ):
        members = [items[number] for number in group]
        answered = _remembered(session, side, members, torch.cat([rows[number] for number in group]), how)
        found.update(zip(group, answered, strict=True))
    return [found[number] for number in range(len(items))]


def _shape(session: ModelSession, side: Side, item: TaskItem) -> tuple[tuple[int, int], ...]:
    """Return the token counts of every question and answer: only equal ones can share a batch."""
    tokenizer, reader = side.loaded.tokenizer, reader_of(session, side)
    return tuple((len(encode(tokenizer, q.prompt)), len(encode(reader, q.answer))) for q in item.questions)


def _remembered(
    session: ModelSession, side: Side, items: Sequence[TaskItem], rows: Tensor, how: Pattern
) -> list[list[Answer]]:
    """Answer the questions of a batch of contexts, or read it.

    A plain baseline's answers are remembered across sessions, those of a stack for its other cells, those of any other side
    for the life of the session (a curve and the items of its lengths ask the same questions). Batches are remembered as
    they were run: a no-op is found by equal bits, and another batch rounds differently.
    """
    plain = side.name == "baseline" and not side.changes
    asked = ("answers", tuple(item.digest for item in items), how)
    key = (*asked, session.baseline_key)
    held = session.answered.setdefault(id(side), (side, {}))[1]
    stack = None if plain else shared_key(session, side)
    known = baseline_memo.get(key) if plain else held.get(asked)
    if known is None and stack is not None:
        known = stack_memo.get((*asked, stack))
    if known is None:
        by_question = [[item.questions[number] for item in items] for number in range(len(items[0].questions))]
        asked_now = [asked_of(session, side, questions, rows.device) for questions in by_question]
        heard = hear(session, side, rows, how, asked_now, to_the_end=False)
        tokenizer = reader_of(session, side)
        done = [_scored(tokenizer, *each) for each in zip(by_question, asked_now, heard, strict=True)]
        known = torch.stack(done, dim=1)
        if plain:
            baseline_memo.put(key, known)
        else:
            held[asked] = known
            if stack is not None:
                stack_memo.put((*asked, stack), known)
    return [[_read(values) for values in row] for row in known.tolist()]


def share_right_with_question_first(session: ModelSession, side: Side, items: Sequence[TaskItem]) -> float:
    """Return the share of right answers when the compressor has seen the question: the easier problem, for a label.

    Context and question are one text that is compressed; the last token of the question and the answer follow.
    """
    tokenizer, found, asked = side.loaded.tokenizer, 0, 0
    how = pattern_of(session, side, "one-shot", 1)
    for item in items:
        for question in item.questions:
            whole = encode(tokenizer, item.context) + encode(tokenizer, question.prompt)
            row = to_row(side.loaded, whole)
            with side.running():
                state = prefill(side, row[:, :-1], how)
                extend(side, state, row[:, -1:])
                made = greedy(side, state, question.max_new_tokens)
            found += question.answer.strip() in reader_of(session, side).decode(made[0].tolist())
            asked += 1
    return found / asked


def _read(values: Sequence[float]) -> Answer:
    forced, generated, exact, parsed, nll, rank = values
    return Answer(
        teacher_forced=bool(forced),
        generated=bool(generated),
        exact=bool(exact),
        parsed=bool(parsed),
        nll=nll,
        rank=rank,
    )


def _scored(tokenizer: Any, questions: Sequence[Question], asked: Asked, heard: Heard) -> Tensor:
    """Score one question per row; returns (batch, 6), the fields of `Answer`.

    Where every answer token is the most likely one, greedy generation would repeat exactly these calls and give the answer.
    """
    logits, target = heard.logits, asked.target.to(heard.logits.device)
    forced = (logits.argmax(dim=-1) == target).all(dim=1)
    nll = torch.nn.functional.cross_entropy(logits.double().transpose(1, 2), target, reduction="none").mean(dim=1)
    rank = 1.0 + (logits > logits.gather(2, target[..., None])).sum(dim=-1).double().mean(dim=1)
    generated, exact, parsed = forced.clone(), forced.clone(), torch.ones_like(forced)
    for row, question in enumerate(questions):
        if heard.made is not None and not bool(forced[row]):
            text = tokenizer.decode(heard.made[row, : question.max_new_tokens].tolist())
            generated[row] = question.answer.strip() in text
            exact[row] = question.answer.strip() == text.strip()
            parsed[row] = has_form(text, question.answer)
    columns = (forced, generated, exact, parsed, nll, rank)
    return torch.stack([column.double() for column in columns], dim=1).cpu()


def has_form(text: str, answer: str) -> bool:
    """Return whether `text` contains something of the form of `answer`: as many digits, or any word.

    >>> has_form(" about 1234.", " 5678"), has_form(" about 12.", " 5678"), has_form(" Oslo", " Rome"), has_form(" .", "a")
    (True, False, True, False)
    """
    wanted = answer.strip()
    return re.search(rf"\d{{{len(wanted)}}}" if wanted.isdigit() else r"[^\W_]", text) is not None
