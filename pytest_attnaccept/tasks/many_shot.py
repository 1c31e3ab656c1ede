"""Does the model still know the first examples? (`many_shot`: random labels for topics, given by examples alone)

Labels mean nothing, so only the examples say which topic has which. No example of an asked topic stands in the last
quarter of the context: a window that keeps the recent examples does not help.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker
from pytest_attnaccept.tasks.words import THINGS

__all__ = ["DEFAULTS", "RANGES", "many_shot"]

DEFAULTS: Final[dict[str, Parameter]] = {"classes": 8, "questions": 3, "labels": "coined", "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "classes": Range(low=3, high=50),
    "questions": Range(low=1, high=lambda p: p["classes"] // 2),
    "labels": ("coined", "names"),
    "filler": FILLERS,
}
_SHOTS = (
    "The {0} is on the table.", "Somebody lost a {0}.", "There is a {0} in the garden.", "A {0} was found here.",
    "This {0} is very old.", "The {0} is still here.",
)  # fmt: skip
_FOILS = 7


def many_shot(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    classes: int,
    questions: int,
    labels: str,
    filler: str,
) -> TaskItem:
    """One context of labelled examples of ``classes`` topics, ``questions`` of which are asked."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "classes": classes, "questions": questions, "labels": labels, "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "many_shot", parameters, index)
        taken: set[str] = set()
        topics = stream.sample(THINGS, classes)
        names = [distinct(stream, maker(labels), taken, "many_shot") for _ in topics]
        first = stream.shuffled(range(classes))  # every class is shown once before any comes again
        late = range(questions, classes)
        spans: dict[int, list[tuple[int, int]]] = {}
        said, length = [], 0
        for number in range(units):
            c = first[number] if number < classes else stream.pick(late if number >= 0.75 * units else range(classes))
            text = f"{stream.pick(_SHOTS).format(topics[c])} Label: {names[c]}."
            spans.setdefault(c, []).append((length, length + len(text)))
            said.append(text)
            length += len(text) + 1
        made = [
            Question(
                text=f" {stream.pick(_SHOTS).format(topics[c])}",
                answer_prefix=" Label:",
                answer=f" {names[c]}",
                foils=tuple(
                    f" {n}" for n in stream.sample([n for n in names if n != names[c]], min(_FOILS, classes - 1))
                ),
                max_new_tokens=fit(f" {names[c]}"),
                depth=0.0,
                metric="exact",
                form=FORMS[labels],
            )
            for c in range(questions)
        ]
        shown = [(c, span) for c in range(questions) for span in spans[c]]
        return Draft(
            body=" ".join(said),
            spans=tuple(span for _, span in shown),
            questions=tuple(made),
            deciding=tuple(next(i for i, (c, _) in enumerate(shown) if c == asked) for asked in range(questions)),
        )

    grown = grow(
        draft, stream=Stream(seed, "many_shot filler", parameters, index), fit=fit, target=target_tokens,
        filler=filler, low=-(-4 * classes // 3) + 1,
    )  # fmt: skip
    return make_item(
        task="many_shot",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=1.0 / classes,
        parameters=parameters,
    )
