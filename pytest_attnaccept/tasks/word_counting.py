"""Can the model say which words occur most often? (`word_counting`: no single token holds the answer)

``kind="common"``: ``k`` words occur ``often`` times each, all others ``rarely``. ``kind="zeta"``: counts fall with the rank
as ``rank ** -alpha``; the most frequent word is masked and ranks 2 to 4 are asked. Aggregation breaks under any eviction
that is not uniform, while a window may pass: a contrast to retrieval.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker

__all__ = ["DEFAULTS", "RANGES", "word_counting"]

DEFAULTS: Final[dict[str, Parameter]] = {
    "kind": "common", "k": 5, "often": 6, "rarely": 1, "alpha": 2.0, "words": "coined", "filler": "varied",
}  # fmt: skip
RANGES: Final[dict[str, Allowed]] = {
    "kind": ("common", "zeta"),
    "words": ("coined", "word", "names"),
    "k": Range(low=1, high=20),
    "often": Range(low=2, high=10_000),
    "rarely": Range(low=1, high=lambda p: p["often"] - 1),
    "alpha": Range(low=1.0, high=4.0),  # 1 too: the vocabulary is finite, so the weights have a sum
    "filler": FILLERS,
}
_MASK, _RANKS, _VOCABULARY = "xxx", 3, 40
_HEAD = "Here is a list of words:"


def word_counting(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    kind: str,
    k: int,
    often: int,
    rarely: int,
    alpha: float,
    words: str,
    filler: str,
) -> TaskItem:
    """One context that is a list of words; the question asks for the most frequent ones."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "kind": kind, "k": k, "often": often, "rarely": rarely, "alpha": alpha,
        "words": words, "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "word_counting", parameters, index)
        taken: set[str] = set()
        draw = maker(words)

        def new() -> str:
            return distinct(stream, draw, taken, "word_counting")

        if kind == "common":
            frequent = [new() for _ in range(k)]
            said = frequent * often + [new() for _ in range(units)] * rarely
        else:
            frequent, said = _zeta(new, units, alpha)
        said = stream.shuffled(said)
        if kind == "common":
            frequent = sorted(frequent, key=said.index)
        return _written(said, frequent, fit)

    low = 1 if kind == "common" else _smallest(alpha)
    high = None if words == "coined" or kind == "zeta" else 40
    grown = grow(
        draft, stream=Stream(seed, "word_counting filler", parameters, index), fit=fit, target=target_tokens,
        filler=filler, low=low, high=high,
    )  # fmt: skip
    places = k if kind == "common" else _RANKS
    others = k + grown.units if kind == "common" else len(_counts(grown.units, alpha)) - 1
    return make_item(
        task="word_counting",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=places / others,
        parameters=parameters,
    )


def _counts(units: int, alpha: float) -> list[int]:
    """How often each rank occurs in a list of about ``units`` words; words that occur never are left out."""
    weights = [rank**-alpha for rank in range(1, _VOCABULARY + 1)]
    return [count for weight in weights if (count := round(units * weight / sum(weights))) > 0]


def _smallest(alpha: float) -> int:
    """The shortest list in which ranks 1 to 4 differ from their neighbours, and from here on always do."""
    units = 10
    while True:
        counts = _counts(units, alpha)[: _RANKS + 2]
        # A gap of two at every rank: rounding cannot close it in a longer list.
        if len(counts) == _RANKS + 2 and all(a - b >= 2 for a, b in itertools.pairwise(counts)):
            return units
        units += 10


def _zeta(new: Callable[[], str], units: int, alpha: float) -> tuple[list[str], list[str]]:
    counts = _counts(units, alpha)
    names = [_MASK, *(new() for _ in counts[1:])]
    said = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    return names[1 : _RANKS + 1], said


def _written(said: list[str], frequent: list[str], fit: Callable[[str], int]) -> Draft:
    body, spans = _HEAD, []
    for word in said:
        if word in frequent:
            spans.append((len(body) + 1, len(body) + 1 + len(word)))
        body += " " + word
    answer = " " + ", ".join(frequent)
    more = f" besides {_MASK}" if _MASK in said else ""
    question = Question(
        text=f" Which {len(frequent)} words{more} occur most often in the list?",
        answer_prefix=" The most frequent words are",
        answer=answer,
        foils=(),
        max_new_tokens=fit(answer),
        depth=0.0,
        references=tuple(frequent),
        metric="ranked",
        form=FORMS["names"] if frequent[0][0].isupper() else "[a-z]+",
    )
    return Draft(body=body + ".", spans=tuple(spans), questions=(question,), deciding=(0,))
