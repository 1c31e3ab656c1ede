"""How a side answers questions of any task family: through its cache, each on its own copy of the context's state.

Positions
---------
1. The context is prefilled alone, once for all of its questions: the compressor sees none of them, and no question sees
   another. The question is one call, the answer goes token by token.
2. One pass scores an answer in every way: its tokens' NLL and rank, whether all of them are the first choice, and its
   margin over each foil at the token where the two part.
3. Generation is left out only where it would repeat the teacher-forced calls: every token of the answer was the first
   choice and no further token may be generated.
"""

from __future__ import annotations

import math
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
from pytest_attnaccept.engines.through_cache import Pattern
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks import Question, TaskItem
from pytest_attnaccept.tasks.scoring import score_answer

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["SCORES", "TaskAnswer", "ask"]

SCORES = ("generated", "teacher_forced", "choice")
_COLUMNS = 6  # value, parsed, forced, nll, rank, margin; the scores of parts follow


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """How one question was answered.

    Attributes
    ----------
    value
        Score of the generated answer in [0, 1], by the metric of the question.
    parsed
        Whether the generated text was an answer at all.
    forced
        Every answer token was the model's first choice, teacher-forced.
    nll, rank
        Mean over answer tokens: nats, and the number of tokens that the model preferred.
    margin
        Smallest difference in nats between the answer and a foil at the token where they part; NaN without foils.
    parts
        Scores of the parts of a generated answer (instructions, tenths of a list).
    """

    value: float
    parsed: bool
    forced: bool
    nll: float
    rank: float
    margin: float
    parts: tuple[float, ...]

    def score(self, name: str) -> float:
        """Return the score called `name`, one of `SCORES`."""
        if name == "generated":
            return self.value
        return float(self.forced) if name == "teacher_forced" else float(self.margin > 0)


def ask(session: ModelSession, side: Side, items: Sequence[TaskItem], pattern: str) -> list[list[TaskAnswer]]:
    """Answer every question of every item; contexts of equal length go through the model together."""
    how = pattern_of(session, side, pattern, 1)
    rows = [to_row(side.loaded, encode(side.loaded.tokenizer, item.context)) for item in items]
    keys = [(row.shape[1], _shape(session, side, item)) for row, item in zip(rows, items, strict=True)]
    found: dict[int, list[TaskAnswer]] = {}
    for group in batches(keys, session.batch):
        members = [items[number] for number in group]
        answered = _remembered(session, side, members, torch.cat([rows[number] for number in group]), how)
        found.update(zip(group, answered, strict=True))
    return [found[number] for number in range(len(items))]


def _shape(session: ModelSession, side: Side, item: TaskItem) -> tuple[tuple[int, int, int, int], ...]:
    """Return token counts, limit and number of parts of every question: only equal ones can share a batch."""
    tokenizer, reader = side.loaded.tokenizer, reader_of(session, side)
    shape = []
    for question in item.questions:
        prompt, answer = encode(tokenizer, question.prompt), encode(reader, question.answer)
        if not prompt or not answer:
            raise ContractError(f"{item.task}: a question or its answer is empty for this tokenizer: {question!r}")
        shape.append((len(prompt), len(answer), question.max_new_tokens, _parts(question)))
    return tuple(shape)


def _parts(question: Question) -> int:
    return len(score_answer(question, question.answer).parts)


def _remembered(
    session: ModelSession, side: Side, items: Sequence[TaskItem], rows: Tensor, how: Pattern
) -> list[list[TaskAnswer]]:
    """Answer the questions of a batch of contexts; answers of a plain baseline or of a stack's other cells are read."""
    plain = side.name == "baseline" and not side.changes
    memo, of = (baseline_memo, session.baseline_key) if plain else (stack_memo, shared_key(session, side))
    key = ("task answers", of, tuple(item.digest for item in items), how)
    known = memo.get(key) if of is not None else None
    if known is None:
        known = _answered(session, side, items, rows, how)
        if of is not None:
            memo.put(key, known)
    return [
        [
            TaskAnswer(
                value=value, parsed=bool(parsed), forced=bool(forced), nll=nll, rank=rank, margin=margin,
                parts=tuple(part for part in parts if not math.isnan(part)),
            )
            for value, parsed, forced, nll, rank, margin, *parts in row
        ]
        for row in known.tolist()
    ]  # fmt: skip


def _answered(session: ModelSession, side: Side, items: Sequence[TaskItem], rows: Tensor, how: Pattern) -> Tensor:
    """Return (contexts, questions, columns) for contexts of equal shape."""
    count = len(items[0].questions)
    columns = _COLUMNS + max(_parts(question) for question in items[0].questions)
    answers = torch.full((len(items), count, columns), math.nan, dtype=torch.float64)
    by_question = [[item.questions[number] for item in items] for number in range(count)]
    asked = [asked_of(session, side, questions, rows.device) for questions in by_question]
    heard = hear(session, side, rows, how, asked, to_the_end=True)
    for number, each in enumerate(zip(by_question, asked, heard, strict=True)):
        found = _scored(reader_of(session, side), *each)
        answers[:, number, : found.shape[1]] = found
    return answers


def _scored(tokenizer: Any, questions: Sequence[Question], asked: Asked, heard: Heard) -> Tensor:
    """Score one question per row; returns (batch, columns)."""
    logits = heard.logits.double()
    target = asked.target.to(logits.device)
    chosen = logits.gather(2, target.unsqueeze(2))
    forced = (logits.argmax(dim=-1) == target).all(dim=1).cpu()
    nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none").mean(dim=1)
    rank = (logits > chosen).sum(dim=2).double().mean(dim=1)
    made = (target if heard.made is None else heard.made).cpu()
    rows = []
    for row, question in enumerate(questions):
        score = score_answer(question, _text(tokenizer, made[row, : question.max_new_tokens].tolist()))
        margin = _margin(tokenizer, logits[row], target[row], question.foils)
        measured = (float(forced[row]), float(nll[row]), float(rank[row]), margin)
        rows.append([score.value, float(score.parsed), *measured, *score.parts])
    return torch.tensor(rows, dtype=torch.float64)


def _margin(tokenizer: Any, logits: Tensor, target: Tensor, foils: Sequence[str]) -> float:
    """Return the smallest margin in nats over the foils; both share their context up to the token where they part."""
    wanted, margins = target.tolist(), []
    for foil in foils:
        other = encode(tokenizer, foil)
        place = next((i for i, (a, b) in enumerate(zip(wanted, other, strict=False)) if a != b), None)
        if place is not None:
            margins.append(float(logits[place, wanted[place]] - logits[place, other[place]]))
    return min(margins) if margins else math.nan


def _text(tokenizer: Any, ids: list[int]) -> str:
    """Decode up to the end-of-text token."""
    end = getattr(tokenizer, "eos_token_id", None)
    return str(tokenizer.decode(ids[: ids.index(end)] if end in ids else ids))
