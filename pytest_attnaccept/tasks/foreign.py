"""May an item of somebody else's family be measured? (`require_sound`: what a built-in family keeps by its tests)

An item that breaks these rules does not make an item fail, it makes it pass: a digest that is always the same lets one
answer stand for all, an answer that stands in the question is never lost, a chance level that is too low hides a baseline
that guesses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks.items import KeySpan, Question, TaskItem, make_item
from pytest_attnaccept.tasks.scoring import score_answer, stands_in

__all__ = ["require_sound"]


def require_sound(task: str, make: Callable[[], object], *, fit: Callable[[str], int], target_tokens: int) -> TaskItem:
    """Make an item twice and return it.

    Raises
    ------
    ContractError
        With everything that is wrong with it.
    """
    item = make()
    if not isinstance(item, TaskItem):
        raise ContractError(f"task family {task!r} returned a {type(item).__name__}, not a TaskItem (see make_item)")
    if not isinstance(item.context, str) or not item.context.strip():
        raise ContractError(f"task family {task!r}: the context is empty")
    if not item.questions or not all(isinstance(question, Question) for question in item.questions):
        raise ContractError(f"task family {task!r}: there is no question, or something else among the questions")
    if not isinstance(item.parameters, Mapping):
        raise ContractError(f"task family {task!r}: parameters={item.parameters!r} must be a mapping")
    wrong = [*_of_item(item), *(text for question in item.questions for text in _of_question(question, item.chance))]
    size = max(fit(item.context + question.prompt + question.answer) for question in item.questions)
    if size > target_tokens:
        wrong.append(f"context, question and answer have {size} tokens, {target_tokens} were asked for")
    if make() != item:
        wrong.append("equal arguments gave two different items; all randomness must come from a Stream")
    if wrong:
        raise ContractError(f"task family {task!r}: {'; '.join(dict.fromkeys(wrong))}")
    return item


def _of_item(item: TaskItem) -> Iterator[str]:
    again = make_item(
        task=item.task, context=item.context, questions=item.questions, key_spans=item.key_spans, chance=item.chance,
        parameters=item.parameters,
    )  # fmt: skip
    if item.digest != again.digest:
        yield "the digest is not that of the item; use make_item"
    if not _share(item.chance) or item.chance == 1:
        yield f"chance={item.chance!r} must be in [0, 1)"
    for span in item.key_spans:
        if not isinstance(span, KeySpan) or not 0 <= span.start < span.end <= len(item.context):
            yield f"key span {span!r} is not in the context of {len(item.context)} characters"
        elif not item.context[span.start : span.end].strip():
            yield f"key span {span.start}..{span.end} holds spaces only"


def _of_question(question: Question, chance: float) -> Iterator[str]:
    if not question.prompt.strip() or not question.answer.strip() or not all(r.strip() for r in question.expected):
        yield "a question, its answer or a reference is empty"
        return
    if not _share(question.depth) or not isinstance(question.max_new_tokens, int) or question.max_new_tokens < 1:
        yield f"depth={question.depth!r} must be in [0, 1] and max_new_tokens={question.max_new_tokens!r} at least 1"
    try:
        re.compile(question.form)
    except re.error as error:
        yield f"form {question.form!r} is no regular expression: {error}"
        return
    right = score_answer(question, question.answer)
    if right.value < 1 or not right.parsed:
        yield f"the answer {question.answer!r} scores {right.value:g} by {question.metric}, or does not have its form"
    for foil in question.foils:
        if not foil.strip() or score_answer(question, foil).value >= 1:
            yield f"the foil {foil!r} is empty, or as right as the answer {question.answer!r}"
    if any(stands_in(reference, question.prompt) for reference in question.expected):
        guess = 1 / (1 + sum(stands_in(foil.strip(), question.prompt) for foil in question.foils))
        if chance < guess - 1e-9:
            yield (
                f"the answer {question.answer!r} stands in its question: a guess among the answers named there scores"
                f" {guess:.3g}, more than chance={chance!r}"
            )


def _share(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0.0 <= value <= 1.0
    )
