"""Can the model find a fact whose key is never said with it? (`aliases`: the fact has one name, the question another)

A table of aliases stands in one half of the context, the facts in the other. Nothing outside the context links the two
names, so matching keywords finds only the alias: the score functions of evictors that look for the question's words keep
the wrong line.
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

__all__ = ["DEFAULTS", "RANGES", "aliases"]

DEFAULTS: Final[dict[str, Parameter]] = {
    "pairs": 6, "questions": 2, "first": "aliases", "alias": "coined", "filler": "varied",
}  # fmt: skip
RANGES: Final[dict[str, Allowed]] = {
    "pairs": Range(low=2, high=28),  # two names each
    "questions": Range(low=1, high="pairs"),
    "first": ("aliases", "facts"),
    "alias": ("coined", "names"),
    "filler": ENGLISH_FILLERS,
}


def aliases(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    pairs: int,
    questions: int,
    first: str,
    alias: str,
    filler: str,
) -> TaskItem:
    """One context with ``pairs`` names, their aliases and their numbers; ``questions`` aliases are asked."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "pairs": pairs, "questions": questions, "first": first, "alias": alias,
        "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "aliases", parameters, index)
    names = stream.sample(NAMES, pairs)
    taken = set(names)
    others = [distinct(stream, maker(alias), taken, "aliases").capitalize() for _ in names]
    numbers = [distinct(stream, maker("digits4"), taken, "aliases") for _ in names]
    early, late = (0.0, 0.6) if first == "aliases" else (0.6, 0.0)
    facts = [
        Fact(text=f"{other} is another name of {name}.", depth=early + 0.4 * stream.unit())
        for name, other in zip(names, others, strict=True)
    ]
    facts += [
        Fact(text=f"The number of {name} is {number}.", depth=late + 0.4 * stream.unit())
        for name, number in zip(names, numbers, strict=True)
    ]
    asked = range(questions)
    texts = [f" What is the number of {others[i]}?" for i in asked]
    prefixes = [f" The number of {others[i]} is" for i in asked]
    endings = [f"{t}{p} {numbers[i]}" for t, p, i in zip(texts, prefixes, asked, strict=True)]
    layout = compose(facts, endings, stream=stream, fit=fit, target=target_tokens, filler=filler)
    return make_item(
        task="aliases",
        context=layout.context,
        questions=tuple(
            Question(
                text=texts[i],
                answer_prefix=prefixes[i],
                answer=f" {numbers[i]}",
                foils=tuple(f" {number}" for number in numbers if number != numbers[i])[:7],
                max_new_tokens=fit(f" {numbers[i]}"),
                depth=min(layout.spans[i].depth, layout.spans[pairs + i].depth),
                form=FORMS["digits4"],
            )
            for i in asked
        ),
        key_spans=tuple(span for i in asked for span in (layout.spans[i], layout.spans[pairs + i])),
        chance=1.0 / pairs,
        parameters=parameters,
    )
