"""How many associations does a state hold? (`mqar`: pairs of words, a gap, then some of the keys again)

Multi-query associative recall. The pairs stand close together at the front and filler is the gap between them and the
question, so the load (``pairs``) and the distance (the length) can be varied apart: a recurrent state of fixed size shows
a cliff over ``pairs``, attention none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker, supply

__all__ = ["DEFAULTS", "RANGES", "mqar"]

DEFAULTS: Final[dict[str, Parameter]] = {
    "pairs": 16, "questions": 4, "keys": "names", "value": "word", "filler": "varied",
}  # fmt: skip
RANGES: Final[dict[str, Allowed]] = {
    "keys": ("names", "coined"),
    "value": ("word", "coined", "digits4"),
    "pairs": Range(low=2, high=lambda p: min(256, supply(p["keys"]), supply(p["value"]))),
    "questions": Range(low=1, high="pairs"),
    "filler": FILLERS,
}
_FOILS = 7


def mqar(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    pairs: int,
    questions: int,
    keys: str,
    value: str,
    filler: str,
) -> TaskItem:
    """One context with ``pairs`` pairs and a gap, of which ``questions`` are asked."""
    make_key, make_value = maker(keys), maker(value)
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "pairs": pairs, "questions": questions, "keys": keys, "value": value,
        "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "mqar", parameters, index)
        taken: set[str] = set()
        held = [
            (distinct(stream, make_key, taken, "mqar"), distinct(stream, make_value, taken, "mqar"))
            for _ in range(units)
        ]
        body, spans = "", []
        for key, word in held:
            start = len(body) + (1 if body else 0)
            body += f"{' ' if body else ''}{key} has the {word}."
            spans.append((start, len(body)))
        asked = stream.sample(range(units), questions)
        made = [
            Question(
                text=f" What does {held[i][0]} have?",
                answer_prefix=f" {held[i][0]} has the",
                answer=f" {held[i][1]}",
                foils=tuple(f" {word}" for word in stream.sample([w for _, w in held if w != held[i][1]],
                                                                  min(_FOILS, units - 1))),
                max_new_tokens=fit(f" {held[i][1]}"),
                depth=0.0,
                form=FORMS[value],
            )
            for i in asked
        ]  # fmt: skip
        return Draft(body=body, spans=tuple(spans), questions=tuple(made), deciding=tuple(asked))

    grown = grow(
        draft, stream=Stream(seed, "mqar filler", parameters, index), fit=fit, target=target_tokens, filler=filler,
        low=pairs, high=pairs, gap="back",
    )  # fmt: skip
    return make_item(
        task="mqar",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=1.0 / pairs,
        parameters=parameters,
    )
