"""Can the model repeat a list word by word? (`copy_span`: 8 to 512 random words, then a gap)

Verbatim copying needs every token of the span; models with a bounded state fall behind as the span grows, and eviction
tears holes. Scored by place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import distinct, maker, supply

__all__ = ["DEFAULTS", "RANGES", "copy_span"]

DEFAULTS: Final[dict[str, Parameter]] = {"span": 16, "words": "word", "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "words": ("word", "names", "coined"),
    "span": Range(low=8, high=lambda p: min(512, supply(p["words"]))),
    "filler": FILLERS,
}
_HEAD = "The list is:"


def copy_span(
    *, fit: Callable[[str], int], target_tokens: int, seed: int, index: int, span: int, words: str, filler: str
) -> TaskItem:
    """One context with a list of ``span`` different words that has to be repeated."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "span": span, "words": words, "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "copy_span", parameters, index)
        taken: set[str] = set()
        said = [distinct(stream, maker(words), taken, "copy_span") for _ in range(units)]
        answer = " " + " ".join(said)
        question = Question(
            text=" Please say the list again.",
            answer_prefix=f" {_HEAD}",
            answer=answer,
            foils=(),
            max_new_tokens=fit(answer),
            depth=0.0,
            references=tuple(said),
            metric="lines",
            form="[A-Za-z]+",
        )
        body = _HEAD + answer + "."
        return Draft(body=body, spans=((len(_HEAD) + 1, len(body) - 1),), questions=(question,), deciding=(0,))

    grown = grow(
        draft, stream=Stream(seed, "copy_span filler", parameters, index), fit=fit, target=target_tokens,
        filler=filler, low=span, high=span, gap="back",
    )  # fmt: skip
    return make_item(
        task="copy_span",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=1.0 / span,
        parameters=parameters,
    )
