"""What a generated task item is: one context, several questions, and where the facts stand.

Positions: pieces are joined by plain concatenation (``context + text + answer_prefix + answer``; every piece after the
context starts with its own space), so nobody has to guess a separator; depth is a fraction of the context's characters;
an item is its own evidence, so it carries a digest over everything in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["KeySpan", "Parameter", "Question", "TaskItem", "make_item"]

Parameter = int | float | str

# Left out of the digest where they have these values, so that items without them keep the digest they always had.
_QUIET: Mapping[str, object] = {"references": (), "metric": "contains", "form": "", "label": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpan:
    """A stretch of the context that matters.

    ``start`` and ``end`` are character offsets into the context. ``role`` is "fact" (an answer depends on it) or
    "recall" (a word that can be predicted only from an earlier mention, ``distance`` characters before it).
    """

    start: int
    end: int
    depth: float
    role: str = "fact"
    distance: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question about the context, with its answer and equally plausible wrong answers of the same form.

    ``depth`` is where the deciding fact stands (0 start, 1 end of the context); for chains, the earliest link.
    ``references`` are what a generated answer is compared with (empty: ``answer`` alone), by the ``metric`` of that name in
    `pytest_attnaccept.tasks.scoring`. ``form`` is a regular expression that every well-formed answer matches (empty: any
    text is well-formed); ``label`` says which part of its family the question belongs to.
    """

    text: str
    answer_prefix: str
    answer: str
    foils: tuple[str, ...]
    max_new_tokens: int
    depth: float
    references: tuple[str, ...] = ()
    metric: str = "contains"
    form: str = ""
    label: str = ""

    @property
    def expected(self) -> tuple[str, ...]:
        """What a generated answer is compared with."""
        return self.references or (self.answer.strip(),)

    @property
    def prompt(self) -> str:
        """What is appended to the context before the model answers."""
        return self.text + self.answer_prefix

    @property
    def choice_chance(self) -> float:
        """Share of right picks by somebody who chooses blindly among the answer and its foils."""
        return 1.0 / (1 + len(self.foils))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskItem:
    """One context with its questions.

    ``chance`` is the score of a guesser who knows the form of the answers and the values that occur in the context but
    not which belongs to which key.
    """

    task: str
    context: str
    questions: tuple[Question, ...]
    key_spans: tuple[KeySpan, ...]
    chance: float
    parameters: Mapping[str, Parameter]
    digest: str


def make_item(
    *,
    task: str,
    context: str,
    questions: tuple[Question, ...],
    key_spans: tuple[KeySpan, ...],
    chance: float,
    parameters: Mapping[str, Parameter],
) -> TaskItem:
    """The item with its digest: sha256 (hex) over a canonical JSON form of everything else."""
    body = {
        "task": task,
        "context": context,
        "questions": [
            {k: v for k, v in asdict(question).items() if k not in _QUIET or v != _QUIET[k]} for question in questions
        ],
        "key_spans": [asdict(span) for span in key_spans],
        "chance": chance,
        "parameters": dict(parameters),
    }
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return TaskItem(
        task=task,
        context=context,
        questions=questions,
        key_spans=key_spans,
        chance=chance,
        parameters=dict(parameters),
        digest=hashlib.sha256(text.encode("utf-8")).hexdigest(),
    )
