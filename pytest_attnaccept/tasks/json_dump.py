"""Can the model look something up in a JSON object? (`json_dump`: by key, by position, or from value to key)

Keys and values are incompressible: whatever keeps fewer entries than there are facts must lose some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.fitting import stratified_depths
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import MANY, Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker, supply

__all__ = ["DEFAULTS", "RANGES", "json_dump"]

DEFAULTS: Final[dict[str, Parameter]] = {
    "pairs": 0, "keys": "uuid", "value": "uuid", "by": "key", "questions": 2, "filler": "varied",
}  # fmt: skip
RANGES: Final[dict[str, Allowed]] = {
    "keys": ("uuid", "coined", "names"),
    "value": ("uuid", "coined", "digits7", "digits4"),
    "by": ("key", "position", "reverse"),
    "questions": Range(low=1, high=16),
    "pairs": Range(
        low=lambda p: max(2, p["questions"]),
        high=lambda p: min(MANY, supply(p["keys"]), supply(p["value"])),
        special=(0, "as many as fit"),
    ),
    "filler": FILLERS,
}
_HEAD = "Here is a JSON object: {"
_FOILS = 7


def _ask(by: str, place: int, key: str, value: str) -> tuple[str, str, str]:
    """Question, answer prefix and answer."""
    if by == "key":
        return f' What is the value of "{key}"?', f' The value of "{key}" is "', value
    if by == "position":
        return f" What is the value of entry {place + 1}?", f' The value of entry {place + 1} is "', value
    return f' Which key has the value "{value}"?', f' The key of "{value}" is "', key


def json_dump(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    pairs: int,
    keys: str,
    value: str,
    by: str,
    questions: int,
    filler: str,
) -> TaskItem:
    """One JSON object of as many pairs as fit (or exactly ``pairs``), of which ``questions`` are asked."""
    make_key, make_value = maker(keys), maker(value)
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "pairs": pairs, "keys": keys, "value": value, "by": by, "questions": questions,
        "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "json_dump", parameters, index)
        taken: set[str] = set()
        asked = sorted({int(d * units) for d in stratified_depths(stream, questions, index)})
        asked = asked if len(asked) == questions else sorted(stream.sample(range(units), questions))
        held = [
            (distinct(stream, make_key, taken, "json_dump"), distinct(stream, make_value, taken, "json_dump"))
            for _ in range(units)
        ]
        body, spans = _HEAD, []
        for place, (key, number) in enumerate(held):
            start = len(body) + (2 if place else 0)
            body += (", " if place else "") + f'"{key}": "{number}"'
            spans.append((start, len(body)))
        made = []
        for place in asked:
            text, prefix, answer = _ask(by, place, *held[place])
            others = [pair[0 if by == "reverse" else 1] for i, pair in enumerate(held) if i != place]
            made.append(
                Question(
                    text=text, answer_prefix=prefix, answer=answer,
                    foils=tuple(others[:_FOILS]), max_new_tokens=fit(answer), depth=0.0,
                    form=FORMS[keys if by == "reverse" else value],
                )
            )  # fmt: skip
        return Draft(
            body=body + "}",
            spans=tuple(spans[place] for place in asked),
            questions=tuple(made),
            deciding=tuple(range(questions)),
        )

    grown = grow(
        draft, stream=Stream(seed, "json_dump filler", parameters, index), fit=fit, target=target_tokens,
        filler=filler, low=pairs or max(2, questions), high=pairs or None,
    )  # fmt: skip
    return make_item(
        task="json_dump",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=1.0 / grown.units,
        parameters=parameters,
    )
