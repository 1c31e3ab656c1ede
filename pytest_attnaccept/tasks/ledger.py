"""Does a long output stay right to its end? (`ledger`: running totals, counts with a rule, a list that is transformed)

The answer has one number per line of the context, up to 2000. Each is checked in its place, so the first error and the
share of right lines per tenth of the output show drift: eviction while decoding, requantization, a wrong rollback.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream

__all__ = ["DEFAULTS", "RANGES", "ledger"]

DEFAULTS: Final[dict[str, Parameter]] = {"kind": "total", "outputs": 24, "filler": "varied"}
_STEP = 7  # what the transformation adds
_ASK = {
    "total": (" Say the total after every entry.", " The totals are"),
    "count": (" Count the entries, and say the same count again where the entry is odd.", " The counts are"),
    "transform": (f" Say every entry plus {_STEP}.", " The numbers are"),
}
RANGES: Final[dict[str, Allowed]] = {
    "kind": tuple(_ASK),
    "outputs": Range(low=4, high=2000),
    "filler": FILLERS,
}


def _outputs(kind: str, entries: list[int]) -> list[int]:
    if kind == "transform":
        return [entry + _STEP for entry in entries]
    made, value = [], 0
    for entry in entries:
        value += entry if kind == "total" else 1 - entry % 2
        made.append(value)
    return made


def ledger(
    *, fit: Callable[[str], int], target_tokens: int, seed: int, index: int, kind: str, outputs: int, filler: str
) -> TaskItem:
    """One ledger of ``outputs`` entries; the target length covers ledger and answer."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "kind": kind, "outputs": outputs, "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "ledger", parameters, index)
    entries = [1 + stream.below(9) for _ in range(outputs)]
    right = [str(value) for value in _outputs(kind, entries)]
    answer = " " + ", ".join(right)
    text, prefix = _ASK[kind]
    head = "The entries are"
    body = f"{head} {', '.join(str(entry) for entry in entries)}."
    question = Question(
        text=text,
        answer_prefix=prefix,
        answer=answer,
        foils=(),
        max_new_tokens=fit(answer),
        depth=0.0,
        references=tuple(right),
        metric="lines",
        form="[0-9]+",
    )

    def draft(_: int) -> Draft:
        return Draft(body=body, spans=((len(head) + 1, len(body) - 1),), questions=(question,), deciding=(0,))

    grown = grow(
        draft, stream=Stream(seed, "ledger filler", parameters, index), fit=fit, target=target_tokens, filler=filler,
        low=1, high=1,
    )  # fmt: skip
    return make_item(
        task="ledger",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=max(Counter(right).most_common(1)[0][1] / outputs, _unread(kind, outputs)),
        parameters=parameters,
    )


def _unread(kind: str, outputs: int) -> float:
    """Share of right places of somebody who never read the entries: the likeliest sum in every place.

    The best constant answer (the most frequent number in every place) is the other blind guess.
    """
    if kind == "transform":
        return 1 / 9
    # The likeliest sum of n independent terms has about 1 / (sd * sqrt(2 pi n)); for n = 1 it is that of one term.
    share, deviation = (1 / 9, math.sqrt(20 / 3)) if kind == "total" else (5 / 9, math.sqrt(20 / 81))
    peaks = (min(share, 1 / (deviation * math.sqrt(2 * math.pi * n))) for n in range(1, outputs + 1))
    return sum(peaks) / outputs
