"""How a context gets its length when its own content is what fills it: as many units as fit, then filler for the rest.

Positions: a draft is a pure function of its number of units, so the number can be searched for; questions may depend on
everything that the draft holds (the last position, all counts), because they come with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks.filler import TAILS, filler_sentence
from pytest_attnaccept.tasks.fitting import Supply, stretch
from pytest_attnaccept.tasks.items import KeySpan, Question
from pytest_attnaccept.tasks.stream import Stream

__all__ = ["Draft", "Grown", "grow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A context of a given number of units, without padding.

    ``spans`` are (start, end) of the facts in ``body``; ``deciding`` has the position in ``spans`` for each question (their
    ``depth`` is set later).
    """

    body: str
    spans: tuple[tuple[int, int], ...]
    questions: tuple[Question, ...]
    deciding: tuple[int, ...]

    @property
    def endings(self) -> list[str]:
        """What may follow the context."""
        return [question.prompt + question.answer for question in self.questions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A fitted context with its questions and spans."""

    context: str
    questions: tuple[Question, ...]
    spans: tuple[KeySpan, ...]
    units: int


def grow(
    draft: Callable[[int], Draft],
    *,
    stream: Stream,
    fit: Callable[[str], int],
    target: int,
    filler: str = "varied",
    low: int = 1,
    high: int | None = None,
    gap: str = "front",
) -> Grown:
    """Take the largest number of units in ``low..high`` that fits and fill what is left with filler sentences.

    ``gap`` says where the filler stands: "front" of the body, or "back", between the body and the question.
    """

    def size(units: int) -> int:
        made = draft(units)
        longest = sorted(made.endings, key=len)[-3:]
        return max(fit(made.body + ending) for ending in longest)

    if size(low) > target:
        raise ContractError(
            f"target_tokens={target} is too short: the smallest context with its longest question needs {size(low)} tokens"
            " of this tokenizer. Use a longer target, or fewer facts."
        )
    units = low if high == low else _most(size, target, low, high)
    made = draft(units)
    supply = Supply(lambda _: filler_sentence(filler, stream), TAILS[filler], fit, "" if filler == "chinese" else " ")
    weight, separator = fit(made.body), "" if filler == "chinese" else " "

    def attempt(room: int) -> str:
        padding = [text for text, _ in supply.take(room - weight)]
        return separator.join([*padding, made.body] if gap == "front" else [made.body, *padding])

    room = stretch(attempt, made.endings, fit=fit, target=target, grain=supply.shortest)
    context = attempt(room)
    offset = len(context) - len(made.body) if gap == "front" else 0
    spans = tuple(
        KeySpan(start=start + offset, end=end + offset, depth=(start + offset) / len(context))
        for start, end in made.spans
    )
    questions = tuple(
        replace(question, depth=spans[place].depth if spans else 0.0)
        for question, place in zip(made.questions, made.deciding, strict=True)
    )
    return Grown(context=context, questions=questions, spans=spans, units=units)


def _most(size: Callable[[int], int], target: int, low: int, high: int | None) -> int:
    """The largest number of units whose text is not longer than the target."""
    good, step = low, max(1, low)
    while high is None or good < high:
        tried = good + step if high is None else min(good + step, high)
        if size(tried) > target:
            bad = tried
            break
        good, step = tried, step * 2
    else:
        return good
    while bad - good > 1:
        middle = (good + bad) // 2
        if size(middle) <= target:
            good = middle
        else:
            bad = middle
    return good
