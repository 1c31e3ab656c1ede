"""Which values the facts carry: numbers, uuids, coined words and names that no filler sentence says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import COLORS, NAMES, THINGS

__all__ = ["FORMS", "SHARES", "Maker", "distinct", "maker", "supply"]

Maker = Callable[[Stream], str]

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_HEX, _LETTERS = "0123456789abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TRIES = 200  # draws before a kind counts as exhausted: with half of its values taken, 200 misses have chance 2 ** -200


def _digits(count: int) -> Maker:
    return lambda stream: "".join(str(stream.below(10)) for _ in range(count))


def _uuid(stream: Stream) -> str:
    text = "".join(_HEX[stream.below(16)] for _ in range(32))
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _coined(stream: Stream) -> str:
    syllables = "".join(stream.pick(_CONSONANTS) + stream.pick(_VOWELS) for _ in range(3))
    return syllables + stream.pick(_CONSONANTS)


def _letters(stream: Stream) -> str:
    return "".join(stream.pick(_LETTERS) for _ in range(5))


_MAKERS: Final[dict[str, Maker]] = {
    "word": lambda stream: stream.pick(THINGS),
    "digits4": _digits(4),
    "digits5": _digits(5),
    "digits7": _digits(7),
    "digits64": _digits(64),
    "uuid": _uuid,
    "coined": _coined,
    "letters5": _letters,
    "names": lambda stream: stream.pick(NAMES),
    "things": lambda stream: f"{stream.pick(COLORS)} {stream.pick(THINGS)}",
}

# What an answer of each kind looks like, and the share of right guesses of somebody who knows only that.
FORMS: Final[dict[str, str]] = {
    "word": "[a-z]+",
    "digits4": r"\d{4}",
    "digits5": r"\d{5}",
    "digits7": r"\d{7}",
    "digits64": r"\d{64}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "coined": "[a-z]{7}",
    "letters5": "[A-Z]{5}",
    "names": "[A-Z][a-z]+",
    "things": "[a-z]+ [a-z]+",
}
SHARES: Final[dict[str, float]] = {
    "word": 1 / len(THINGS),
    "digits4": 1e-4,
    "digits5": 1e-5,
    "digits7": 1e-7,
    "digits64": 1e-64,
    "uuid": 16.0**-32,
    "coined": 1 / (14**4 * 5**3),
    "letters5": 26.0**-5,
    "names": 1 / len(NAMES),
    "things": 1 / (len(THINGS) * len(COLORS)),
}


def maker(kind: str) -> Maker:
    """The function that draws values of a kind."""
    return _MAKERS[kind]


def supply(kind: str) -> int:
    """How many different values of a kind one context may hold, so that the last draw finds one that is left.

    Two are spared: of 64 names the last draw then misses 200 times with chance 7e-5, of more values less often.
    """
    return round(1 / SHARES[kind]) - 2


def distinct(stream: Stream, make: Maker, taken: set[str], where: str) -> str:
    """A value that is not in `taken`; it is added to it.

    Raises
    ------
    ContractError
        When the kind has no unused value left (a list of words, asked for more than it holds).
    """
    for _ in range(_TRIES):
        value = make(stream)
        if value not in taken:
            taken.add(value)
            return value
    raise ContractError(
        f"{where}: no unused value is left after {len(taken)}. Use a kind with more values (coined, uuid, digits7), fewer"
        " facts or a shorter target."
    )
