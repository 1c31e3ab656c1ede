"""What stands between the facts: sentences of a small grammar that say nothing about any key.

Positions: ``varied`` (default) draws from templates, ``repeat`` says the same few sentences again and again (the
classic pass-key noise), ``chinese`` is for real models with a multilingual vocabulary. No scraped text.
"""

from __future__ import annotations

from typing import Final

from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import word_list

__all__ = ["ENGLISH_FILLERS", "FILLERS", "TAILS", "filler_sentence"]

ENGLISH_FILLERS = ("varied", "repeat")  # where the facts are English sentences between it
FILLERS = (*ENGLISH_FILLERS, "chinese")

_ADJECTIVES = word_list("calm small quiet warm cold bright dark long deep soft heavy clean")
_PLACES = word_list("river hill garden forest road bridge valley field lake beach station market")
_SUBJECTS = word_list("wind rain snow sun moon cloud tree bird boat train leaf stone")
_VERBS = word_list("moves rests waits shines turns falls stands sleeps sings grows")
_TIMES = word_list("morning evening night summer winter spring")
_WAYS = word_list("slowly often again softly gently")

_REPEATED = (
    "The grass is green.",
    "The sky is wide.",
    "The sun is bright.",
    "Here we go.",
    "There and back again.",
)
_CHINESE_SUBJECTS = ("河水", "山风", "白云", "老树", "小船", "火车", "月光", "落叶")
_CHINESE_VERBS = ("慢慢地流过", "静静地停在", "又一次经过", "轻轻地落在")
_CHINESE_PLACES = ("田野", "桥边", "花园", "车站", "湖面", "山谷")

# Short sentences by which a length is met exactly; several of each length, of 3 to 9 words and stops.
TAILS: Final[dict[str, tuple[str, ...]]] = {
    "varied": (
        "It rains.",
        "It snows.",
        "The sun shines.",
        "Here we go.",
        "A bird sings.",
        "The road is long.",
        "The sky is wide.",
        "The sea is calm.",
        "The lake is very deep.",
        "The valley is very quiet.",
        "The snow falls very softly.",
        "The night is cold and dark.",
        "The summer is warm and bright.",
        "The forest is deep and dark.",
        "The small bridge is still very quiet.",
        "The long road is still very dark.",
        "In the morning the garden is very quiet.",
        "In the winter the field is very cold.",
        "In the evening the station is very dark.",
    ),
    "repeat": (
        "It rains.",
        *_REPEATED,
        "The lake is very deep.",
        "The night is cold and dark.",
        "The small bridge is still very quiet.",
        "In the morning the garden is very quiet.",
    ),
    "chinese": ("下雨。", "天黑了。", "路很长。", "湖水很深。", "夜里又冷又黑。", "老桥边一直很安静。"),
}


def _varied(stream: Stream) -> str:
    adjective, place, subject = stream.pick(_ADJECTIVES), stream.pick(_PLACES), stream.pick(_SUBJECTS)
    verb, time, way = stream.pick(_VERBS), stream.pick(_TIMES), stream.pick(_WAYS)
    other = stream.pick(_ADJECTIVES)
    forms = (
        f"The {subject} {verb}.",
        f"The {adjective} {subject} {verb} {way}.",
        f"The {subject} {verb} near the {adjective} {place}.",
        f"In the {time} the {place} is {adjective}.",
        f"The {place} is {adjective} and {other}.",
        f"A {subject} {verb} over the {place} in the {time}.",
        f"Every {time} the {adjective} {subject} {verb} {way} by the {place}.",
        f"There is a {adjective} {place} behind the {other} {stream.pick(_PLACES)}.",
    )
    return stream.pick(forms)


def filler_sentence(kind: str, stream: Stream) -> str:
    """One sentence of the given filler kind."""
    if kind == "varied":
        return _varied(stream)
    if kind == "repeat":
        return stream.pick(_REPEATED)
    return f"{stream.pick(_CHINESE_SUBJECTS)}{stream.pick(_CHINESE_VERBS)}{stream.pick(_CHINESE_PLACES)}。"
