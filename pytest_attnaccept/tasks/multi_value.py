"""Does the model keep every value of one key? (`multi_value`: several values, among other keys that have as many)

The answer lists the values in the order of the context; a list that misses one loses recall, a longer one precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import ENGLISH_FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker
from pytest_attnaccept.tasks.words import NAMES

__all__ = ["DEFAULTS", "RANGES", "multi_value"]

DEFAULTS: Final[dict[str, Parameter]] = {"keys": 3, "values": 3, "questions": 2, "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "keys": Range(low=2, high=len(NAMES)),
    "values": Range(low=2, high=8),
    "questions": Range(low=1, high="keys"),
    "filler": ENGLISH_FILLERS,
}


def multi_value(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    keys: int,
    values: int,
    questions: int,
    filler: str,
) -> TaskItem:
    """One context in which each of ``keys`` names has ``values`` numbers, anywhere; ``questions`` names are asked."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "keys": keys, "values": values, "questions": questions, "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "multi_value", parameters, index)
    taken: set[str] = set()
    names = stream.sample(NAMES, keys)
    numbers = [[distinct(stream, maker("digits4"), taken, "multi_value") for _ in range(values)] for _ in names]
    facts = []
    for name, own in zip(names, numbers, strict=True):
        depths = sorted((i + stream.unit()) / values for i in range(values))
        facts += [
            Fact(text=f"One number of {name} is {number}.", depth=depth)
            for number, depth in zip(own, depths, strict=True)
        ]
    asked = range(questions)
    texts = [f" What are the {values} numbers of {names[i]}?" for i in asked]
    prefixes = [f" The {values} numbers of {names[i]} are" for i in asked]
    answers = [" " + ", ".join(own) for own in numbers]
    endings = [t + p + answers[i] for t, p, i in zip(texts, prefixes, asked, strict=True)]
    layout = compose(facts, endings, stream=stream, fit=fit, target=target_tokens, filler=filler)
    return make_item(
        task="multi_value",
        context=layout.context,
        questions=tuple(
            Question(
                text=texts[i],
                answer_prefix=prefixes[i],
                answer=answers[i],
                foils=tuple(other for other in answers if other != answers[i]),
                max_new_tokens=fit(answers[i]),
                depth=layout.spans[i * values].depth,
                references=tuple(numbers[i]),
                metric="set_f1",
                form=FORMS["digits4"],
            )
            for i in asked
        ),
        key_spans=layout.spans[: questions * values],
        chance=1.0 / keys,
        parameters=parameters,
    )
