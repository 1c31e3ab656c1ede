"""Can the model find one value that was said once, of any length? (`passkey`: length x depth x kind of value)

One fact per context. The value is a word, 7 digits, 64 digits or a uuid: long values break first under low-bit values
and under eviction that tears holes. ``depth=-1`` rotates through five strata with the index; 0 to 1 fixes it for a grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose, stratified_depths
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, SHARES, distinct, maker

__all__ = ["DEFAULTS", "RANGES", "passkey"]

DEFAULTS: Final[dict[str, Parameter]] = {"value": "digits7", "depth": -1.0, "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "value": ("word", "digits4", "digits7", "digits64", "uuid"),
    "depth": Range(low=0.0, high=1.0, special=(-1.0, "rotating")),
    "filler": FILLERS,
}
_FOILS = 4
# fact, question, answer prefix, what precedes the value, stop
_ENGLISH = ("The pass key is", " What is the pass key?", " The pass key is", " ", ".")
_CHINESE = ("通行口令是", "通行口令是什么？", "通行口令是", "", "。")


def passkey(
    *, fit: Callable[[str], int], target_tokens: int, seed: int, index: int, value: str, depth: float, filler: str
) -> TaskItem:
    """One context with one pass key of the given kind."""
    make = maker(value)
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "value": value, "depth": depth, "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "passkey", parameters, index)
    taken: set[str] = set()
    key, *foils = (distinct(stream, make, taken, "passkey") for _ in range(1 + _FOILS))
    said, text, prefix, gap, stop = _CHINESE if filler == "chinese" else _ENGLISH
    place = depth if depth >= 0 else stratified_depths(stream, 1, index)[0]
    layout = compose(
        [Fact(text=f"{said}{gap}{key}{stop}", depth=place)],
        [f"{text}{prefix}{gap}{key}"],
        stream=stream,
        fit=fit,
        target=target_tokens,
        filler=filler,
        separator="" if filler == "chinese" else " ",
    )
    question = Question(
        text=text,
        answer_prefix=prefix,
        answer=gap + key,
        foils=tuple(gap + foil for foil in foils),
        max_new_tokens=fit(gap + key),
        depth=layout.spans[0].depth,
        form=FORMS[value],
    )
    return make_item(
        task="passkey",
        context=layout.context,
        questions=(question,),
        key_spans=layout.spans,
        chance=SHARES[value],
        parameters=parameters,
    )
