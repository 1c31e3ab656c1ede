"""Can the model still find one number that was said once? (`needle`: length x depth)

Each question is a single needle: one sentence, one lookup, four digits. Several needles may share a context (and its
prefill), each in its own depth stratum; with one needle the stratum rotates with the index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose, stratified_depths
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import NAMES

__all__ = ["DEFAULTS", "RANGES", "needle"]

DEFAULTS: Final[dict[str, Parameter]] = {"needles": 1, "digits": 4, "filler": "varied"}
_FOILS = 4
_NAMES_ZH = ("小红", "小明", "小丽", "小刚", "小芳", "小华", "小军", "小梅")
RANGES: Final[dict[str, Allowed]] = {
    "filler": FILLERS,
    "needles": Range(low=1, high=lambda p: len(_NAMES_ZH if p["filler"] == "chinese" else NAMES)),
    # As many values as needles and foils.
    "digits": Range(low=lambda p: 1 if p["needles"] + _FOILS <= 10 else 2, high=64),
}


def _number(stream: Stream, digits: int, taken: set[str]) -> str:
    while True:
        value = "".join(str(stream.below(10)) for _ in range(digits))
        if value not in taken:
            taken.add(value)
            return value


def _wording(name: str, chinese: bool) -> tuple[str, str, str, str]:
    """Fact, question, answer prefix and what precedes a value."""
    if chinese:
        return f"{name}的密码是", f"{name}的密码是多少？", f"{name}的密码是", ""
    return f"The pass key of {name} is", f" What is the pass key of {name}?", f" The pass key of {name} is", " "


def needle(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    needles: int,
    digits: int,
    filler: str,
) -> TaskItem:
    """One context with ``needles`` pass keys of ``digits`` digits, each asked by one question."""
    chinese = filler == "chinese"
    names_known = _NAMES_ZH if chinese else NAMES
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "needles": needles, "digits": digits, "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "needle", parameters, index)
    names = stream.sample(names_known, needles)
    taken: set[str] = set()
    values = [_number(stream, digits, taken) for _ in names]
    words = [_wording(name, chinese) for name in names]
    stop = "。" if chinese else "."
    depths = stratified_depths(stream, needles, index)
    facts = [
        Fact(text=f"{fact}{gap}{value}{stop}", depth=depth)
        for (fact, _, _, gap), value, depth in zip(words, values, depths, strict=True)
    ]
    endings = [f"{text}{prefix}{gap}{value}" for (_, text, prefix, gap), value in zip(words, values, strict=True)]
    layout = compose(
        facts, endings, stream=stream, fit=fit, target=target_tokens, filler=filler, separator="" if chinese else " "
    )
    questions = []
    for (_, text, prefix, gap), value, span in zip(words, values, layout.spans, strict=True):
        foils = [other for other in values if other != value][:_FOILS]
        foils += [_number(stream, digits, taken) for _ in range(_FOILS - len(foils))]
        questions.append(
            Question(
                text=text,
                answer_prefix=prefix,
                answer=gap + value,
                foils=tuple(gap + foil for foil in foils),
                max_new_tokens=fit(gap + value),
                depth=span.depth,
            )
        )
    chance = 1.0 / needles if needles > 1 else 10.0**-digits
    asked = tuple(questions)
    return make_item(
        task="needle",
        context=layout.context,
        questions=asked,
        key_spans=layout.spans,
        chance=chance,
        parameters=parameters,
    )
