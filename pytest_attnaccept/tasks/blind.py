"""What would somebody score who gives the same answer every time, without having read anything? (`constant_score`)

A family says what a guess among the values of a context is worth. It cannot know how its answers are distributed over many
contexts: where most of them are equal, saying that one again is worth more, and a baseline at that level shows no ability to
lose. So the level that a baseline has to beat is the larger of the two.

Positions: an answer is never tried on the item that it comes from, or every set of different answers would seem to be
guessable once in its size; questions with different labels are different questions, which a constant may answer differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_attnaccept.tasks.items import Question, TaskItem
from pytest_attnaccept.tasks.scoring import score_answer

__all__ = ["constant_score"]

_TRIED = 6  # most frequent answers; what is best on average over many answers is nearly always among the most frequent
_Asked = tuple[int, Question]


def constant_score(items: Sequence[TaskItem], *, generated: bool = True) -> float:
    """Score in [0, 1] of the best constant answer to the questions of `items`.

    Parameters
    ----------
    generated
        Score the constant by the metric of each question; otherwise count how often it is the very answer.
    """
    groups: dict[str, list[_Asked]] = {}
    for number, item in enumerate(items):
        for question in item.questions:
            groups.setdefault(question.label, []).append((number, question))
    total = sum(len(asked) for asked in groups.values())
    return sum(len(asked) * _best(asked, generated) for asked in groups.values()) / total if total else 0.0


def _best(asked: Sequence[_Asked], generated: bool) -> float:
    """Score of the best constant for questions of one kind."""
    counts = Counter(question.answer for _, question in asked)
    best = 0.0
    for answer, _ in counts.most_common(_TRIED):
        origin = next(number for number, question in asked if question.answer == answer)
        values = [_score(question, answer, generated) for number, question in asked if number != origin]
        best = max(best, sum(values) / len(values) if values else 0.0)
    return best


def _score(question: Question, answer: str, generated: bool) -> float:
    return score_answer(question, answer).value if generated else float(question.answer == answer)
