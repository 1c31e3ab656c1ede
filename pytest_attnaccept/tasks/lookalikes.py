"""Can the model tell one fact from hundreds of its kind? (`lookalikes`: the haystack is made of needles)

Every sentence has the form of the fact that is asked for, with another key and another value. ``keys_total=0`` fills the
context with them; a number puts that many into ordinary filler. Only the key tells the facts apart, so eviction without
the question has no way of knowing which one to keep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose, stratified_depths
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import MANY, Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker, supply

__all__ = ["DEFAULTS", "RANGES", "lookalikes"]

DEFAULTS: Final[dict[str, Parameter]] = {
    "keys": "coined", "value": "digits7", "keys_total": 0, "questions": 4, "filler": "varied",
}  # fmt: skip
RANGES: Final[dict[str, Allowed]] = {
    "keys": ("coined", "names", "things", "uuid"),
    "value": ("digits4", "digits7", "uuid"),
    "questions": Range(low=1, high=lambda p: min(64, supply(p["keys"]))),
    "keys_total": Range(
        low=lambda p: max(2, p["questions"]),
        high=lambda p: min(MANY, supply(p["keys"]), supply(p["value"])),
        special=(0, "fill the context"),
    ),
    "filler": FILLERS,
}
_FOILS = 7
# fact with key and value, question, answer prefix, what precedes the value
_ENGLISH = ("The number of {key} is {value}.", " What is the number of {key}?", " The number of {key} is", " ")
_CHINESE = ("{key}的编号是{value}。", "{key}的编号是多少？", "{key}的编号是", "")


def lookalikes(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    keys: str,
    value: str,
    keys_total: int,
    questions: int,
    filler: str,
) -> TaskItem:
    """One context of look-alike facts, of which ``questions`` are asked (spread over the depths)."""
    make_key, make_value = maker(keys), maker(value)
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "keys": keys, "value": value, "keys_total": keys_total, "questions": questions,
        "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "lookalikes", parameters, index)
    said, ask, begin, gap = _CHINESE if filler == "chinese" else _ENGLISH
    taken: set[str] = set()

    def pair() -> tuple[str, str]:
        return distinct(stream, make_key, taken, "lookalikes"), distinct(stream, make_value, taken, "lookalikes")

    asked = [pair() for _ in range(questions)]
    depths = stratified_depths(stream, questions, index)
    others = [pair() for _ in range(max(0, keys_total - questions))]
    facts = [Fact(text=said.format(key=k, value=v), depth=d) for (k, v), d in zip(asked, depths, strict=True)]
    facts += [Fact(text=said.format(key=k, value=v), depth=stream.unit()) for k, v in others]

    def look_alike(_: int) -> str:
        key, number = pair()
        return said.format(key=key, value=number)

    layout = compose(
        facts,
        [f"{ask.format(key=k)}{begin.format(key=k)}{gap}{v}" for k, v in asked],
        stream=stream,
        fit=fit,
        target=target_tokens,
        filler=filler,
        separator="" if filler == "chinese" else " ",
        source=None if keys_total else look_alike,
    )
    pattern = re.escape(said).replace(r"\{key\}", "(.+?)").replace(r"\{value\}", f"({FORMS[value]})")
    values = [match.group(2) for match in re.finditer(pattern, layout.context)]
    if len(values) < 2:
        raise ContractError(f"lookalikes: target_tokens={target_tokens} holds one fact only; nothing looks like it.")
    return make_item(
        task="lookalikes",
        context=layout.context,
        questions=tuple(
            Question(
                text=ask.format(key=key),
                answer_prefix=begin.format(key=key),
                answer=gap + number,
                foils=tuple(
                    gap + foil
                    for foil in stream.sample([v for v in values if v != number], min(_FOILS, len(values) - 1))
                ),
                max_new_tokens=fit(gap + number),
                depth=layout.spans[place].depth,
                form=FORMS[value],
            )
            for place, (key, number) in enumerate(asked)
        ),
        key_spans=layout.spans[:questions],
        chance=1.0 / len(values),
        parameters=parameters,
    )
