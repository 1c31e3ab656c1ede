"""Can the model look up one entry of a phone book? (`phone_book`: as many entries as fit, in the order of the alphabet)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.fitting import stratified_depths
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import MANY, Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker
from pytest_attnaccept.tasks.words import NAMES

__all__ = ["DEFAULTS", "RANGES", "phone_book"]

DEFAULTS: Final[dict[str, Parameter]] = {"entries": 0, "questions": 2, "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "questions": Range(low=1, high=16),
    "entries": Range(low=lambda p: max(2, p["questions"]), high=MANY, special=(0, "as many as fit")),
    "filler": FILLERS,
}
_FOILS = 7


def phone_book(
    *, fit: Callable[[str], int], target_tokens: int, seed: int, index: int, entries: int, questions: int, filler: str
) -> TaskItem:
    """One phone book of as many entries as fit (or exactly ``entries``), ``questions`` of them asked."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "entries": entries, "questions": questions, "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "phone_book", parameters, index)
        taken: set[str] = set()
        asked = sorted({int(d * units) for d in stratified_depths(stream, questions, index)})
        asked = asked if len(asked) == questions else sorted(stream.sample(range(units), questions))
        people = sorted(
            f"{distinct(stream, maker('coined'), taken, 'phone_book').capitalize()} {stream.pick(NAMES)}"
            for _ in range(units)
        )
        book = [(person, distinct(stream, maker("digits7"), taken, "phone_book")) for person in people]
        body, spans = "", []
        for person, number in book:
            start = len(body) + (1 if body else 0)
            body += f"{chr(10) if body else ''}{person}: {number}"
            spans.append((start, len(body)))
        made = tuple(
            Question(
                text=f"\nWhat is the number of {book[i][0]}?",
                answer_prefix=f"\n{book[i][0]}:",
                answer=f" {book[i][1]}",
                foils=tuple(f" {n}" for n in stream.sample([n for _, n in book if n != book[i][1]],
                                                           min(_FOILS, units - 1))),
                max_new_tokens=fit(f" {book[i][1]}"),
                depth=0.0,
                form=FORMS["digits7"],
            )
            for i in asked
        )  # fmt: skip
        return Draft(body=body, spans=tuple(spans[i] for i in asked), questions=made, deciding=tuple(range(questions)))

    grown = grow(
        draft, stream=Stream(seed, "phone_book filler", parameters, index), fit=fit, target=target_tokens,
        filler=filler, low=entries or max(2, questions), high=entries or None,
    )  # fmt: skip
    return make_item(
        task="phone_book",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=1.0 / grown.units,
        parameters=parameters,
    )
