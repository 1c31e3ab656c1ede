"""Does the model keep many facts at once? (`kv_recall`: who has which thing, several questions per context)

All names and all things of a context differ, so every foil is a thing that somebody else has; who guesses among them is
right once in ``pairs``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import ENGLISH_FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose, stratified_depths
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import NAMES, THINGS

__all__ = ["DEFAULTS", "RANGES", "kv_recall"]

DEFAULTS: Final[dict[str, Parameter]] = {"pairs": 8, "questions": 4, "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "pairs": Range(low=2, high=len(NAMES)),
    "questions": Range(low=1, high="pairs"),
    "filler": ENGLISH_FILLERS,
}
_FOILS = 7


def kv_recall(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    pairs: int,
    questions: int,
    filler: str,
) -> TaskItem:
    """One context with ``pairs`` facts, of which ``questions`` are asked (spread over the depths)."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "pairs": pairs, "questions": questions, "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "kv_recall", parameters, index)
    names, things = stream.sample(NAMES, pairs), stream.sample(THINGS, pairs)
    facts = [
        Fact(text=f"{name} has the {thing}.", depth=(i + stream.unit()) / pairs)
        for i, (name, thing) in enumerate(zip(names, things, strict=True))
    ]
    asked = sorted(int(depth * pairs) for depth in stratified_depths(stream, questions, index))
    if len(set(asked)) < questions:  # strata are finer than pairs: take any different facts
        asked = sorted(stream.sample(range(pairs), questions))
    asked = stream.shuffled(asked)
    texts = [f" What does {names[i]} have?" for i in asked]
    prefixes = [f" {names[i]} has the" for i in asked]
    endings = [f"{t}{p} {things[i]}" for t, p, i in zip(texts, prefixes, asked, strict=True)]
    layout = compose(facts, endings, stream=stream, fit=fit, target=target_tokens, filler=filler)
    result = tuple(
        Question(
            text=text,
            answer_prefix=prefix,
            answer=f" {things[i]}",
            foils=tuple(
                f" {thing}" for thing in stream.sample([t for t in things if t != things[i]], min(_FOILS, pairs - 1))
            ),
            max_new_tokens=fit(f" {things[i]}"),
            depth=layout.spans[i].depth,
        )
        for text, prefix, i in zip(texts, prefixes, asked, strict=True)
    )
    chance = 1.0 / pairs
    return make_item(
        task="kv_recall",
        context=layout.context,
        questions=result,
        key_spans=layout.spans,
        chance=chance,
        parameters=parameters,
    )
