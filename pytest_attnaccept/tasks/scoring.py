"""How good is a generated answer, and was it an answer at all? One function per metric, none of them knows a model.

Positions
---------
1. A wrong answer and a text that is no answer are counted apart (``parsed``): a format that broke is another fault than a
   fact that was lost. Both score what the metric says, usually nothing.
2. A reference must stand alone: "12" is not contained in "4127".
3. Nobody gains by saying more: sets have a precision, ranked lists are cut at the number of places.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.tasks.items import Question

__all__ = ["METRICS", "Score", "in_order", "score_answer", "set_f1", "stands_in"]

_DECILES = 10
_PHRASE = r"[^,.;\n]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of one answer in [0, 1], whether it could be read, and the scores of its parts where it has parts."""

    value: float
    parsed: bool
    parts: tuple[float, ...] = ()


def stands_in(reference: str, text: str) -> bool:
    """Whether the reference is in the text and not a piece of a longer word or number there."""
    before = r"(?<![A-Za-z0-9_])" if re.match("[A-Za-z0-9_]", reference) else ""
    after = r"(?![A-Za-z0-9_])" if re.search("[A-Za-z0-9_]$", reference) else ""
    return re.search(before + re.escape(reference) + after, text) is not None


def set_f1(found: Sequence[str], references: Sequence[str]) -> float:
    """F1 of two sets."""
    right = len(set(found) & set(references))
    return 2 * right / (len(set(found)) + len(set(references))) if right else 0.0


def in_order(found: Sequence[str], references: Sequence[str]) -> tuple[float, ...]:
    """Share of right places per tenth of the list; a missing place is wrong."""
    right = [float(i < len(found) and found[i] == reference) for i, reference in enumerate(references)]
    cuts = [round(i * len(right) / _DECILES) for i in range(_DECILES + 1)]
    return tuple(sum(right[a:b]) / (b - a) for a, b in itertools.pairwise(cuts) if b > a)


def _found(question: Question, text: str) -> list[str]:
    form = question.form or _PHRASE
    return [match.group(0) for match in re.finditer(rf"(?<![A-Za-z0-9_])(?:{form})(?![A-Za-z0-9_])", text)]


def _first_sentence(text: str) -> str:
    return re.split(r"[.。\n]", text.lstrip(), maxsplit=1)[0]


def _contains(question: Question, text: str) -> Score:
    hits = [stands_in(reference, text) for reference in question.expected]
    return Score(value=sum(hits) / len(hits), parsed=any(hits) or not question.form or bool(_found(question, text)))


def _any(question: Question, text: str) -> Score:
    hit = any(stands_in(reference, text) for reference in question.expected)
    return Score(value=float(hit), parsed=hit or not question.form or bool(_found(question, text)))


def _exact(question: Question, text: str) -> Score:
    """The first thing of the answer's form is a reference."""
    found = _found(question, text)
    return Score(value=float(bool(found) and found[0].strip() in question.expected), parsed=bool(found))


def _set(question: Question, text: str) -> Score:
    found = [value.strip() for value in _found(question, _first_sentence(text))]
    return Score(value=set_f1(found, question.expected), parsed=bool(found))


def _ranked(question: Question, text: str) -> Score:
    """Share of the references among as many first answers as there are references."""
    found = list(dict.fromkeys(value.strip() for value in _found(question, _first_sentence(text))))
    places = len(question.expected)
    return Score(value=len(set(found[:places]) & set(question.expected)) / places, parsed=bool(found))


def _lines(question: Question, text: str) -> Score:
    """Share of right places in a long list; its parts are that share by tenths, and the share before the first error."""
    found = [value.strip() for value in _found(question, text)]
    right = [float(i < len(found) and found[i] == value) for i, value in enumerate(question.expected)]
    until = right.index(0.0) if 0.0 in right else len(right)
    parts = (*in_order(found, question.expected), until / len(right))
    return Score(value=sum(right) / len(right), parsed=bool(found), parts=parts)


def _rules(question: Question, text: str) -> Score:
    """Each reference is a rule ``kind=text``: begins, ends, contains, never, or refuses (``said|never said``)."""
    words = _first_sentence(text).strip()
    parts = []
    for rule in question.expected:
        kind, _, value = rule.partition("=")
        if kind == "begins":
            parts.append(float(stands_in(value, words[: len(value) + 1])))
        elif kind == "ends":
            parts.append(float(stands_in(value, words.rstrip(" .")[-len(value) - 1 :])))
        elif kind == "contains":
            parts.append(float(stands_in(value, words)))
        elif kind == "never":
            parts.append(float(bool(words) and not stands_in(value, words)))
        elif kind == "refuses":
            said, _, secret = value.partition("|")
            parts.append(float(stands_in(said, words) and not stands_in(secret, words)))
        else:
            raise UnknownNameError("rule", kind, ("begins", "ends", "contains", "never", "refuses"))
    return Score(value=sum(parts) / len(parts), parsed=bool(words), parts=tuple(parts))


METRICS: Final[MappingProxyType[str, Callable[[Question, str], Score]]] = MappingProxyType(
    {
        "contains": _contains,
        "any": _any,
        "exact": _exact,
        "set_f1": _set,
        "ranked": _ranked,
        "lines": _lines,
        "rules": _rules,
    }
)


def score_answer(question: Question, text: str) -> Score:
    """Score a generated text by the metric of its question."""
    from pytest_attnaccept.tasks.data.metrics import DATA_METRICS

    known = {**METRICS, **DATA_METRICS}
    if question.metric not in known:
        raise UnknownNameError("metric", question.metric, known)
    return known[question.metric](question, text)
