"""Does one compressed context serve many questions? (`many_questions`: asked apart, the first one again at the end)

Facts of the form "Alice has the lamp."; every question gets its own copy of the context's state. The last question repeats
the first: its answer must not have moved, or something of the questions in between was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pytest_attnaccept.tasks.filler import ENGLISH_FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import NAMES, THINGS

__all__ = ["DEFAULTS", "RANGES", "many_questions"]

DEFAULTS: Final[dict[str, Parameter]] = {"pairs": 12, "questions": 8, "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "pairs": Range(low=4, high=len(NAMES)),
    "questions": Range(low=2, high=lambda p: min(16, p["pairs"])),
    "filler": ENGLISH_FILLERS,
}
_FOILS = 7


def many_questions(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    pairs: int,
    questions: int,
    filler: str,
) -> TaskItem:
    """One context of ``pairs`` facts, ``questions`` of them asked in random order, the first one twice."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "pairs": pairs, "questions": questions, "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "many_questions", parameters, index)
    names, things = stream.sample(NAMES, pairs), stream.sample(THINGS, pairs)
    facts = [
        Fact(text=f"{name} has the {thing}.", depth=(i + stream.unit()) / pairs)
        for i, (name, thing) in enumerate(zip(names, things, strict=True))
    ]
    asked = stream.sample(range(pairs), questions)
    texts = [f" What does {names[i]} have?" for i in asked]
    prefixes = [f" {names[i]} has the" for i in asked]
    endings = [f"{t}{p} {things[i]}" for t, p, i in zip(texts, prefixes, asked, strict=True)]
    layout = compose(facts, endings, stream=stream, fit=fit, target=target_tokens, filler=filler)
    made = [
        Question(
            text=text,
            answer_prefix=prefix,
            answer=f" {things[i]}",
            foils=tuple(f" {thing}" for thing in stream.sample([t for t in things if t != things[i]], min(_FOILS, 3))),
            max_new_tokens=fit(f" {things[i]}"),
            depth=layout.spans[i].depth,
            label=f"question {number + 1}",
        )
        for number, (text, prefix, i) in enumerate(zip(texts, prefixes, asked, strict=True))
    ]
    return make_item(
        task="many_questions",
        context=layout.context,
        questions=(*made, replace(made[0], label="repeat:0")),
        key_spans=layout.spans,
        chance=1.0 / pairs,
        parameters=parameters,
    )
