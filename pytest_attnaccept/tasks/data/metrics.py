"""How answers about real documents are scored: token F1, ROUGE-L, class, paragraph, count and code similarity.

Positions: the best of several references counts. English words are normalised as SQuAD, HotpotQA, MuSiQue and LongBench do.
Chinese is scored by characters and ROUGE-L is the F1 of the longest common subsequence of tokens: no word segmenter and no
ROUGE package, so a score never depends on what is installed. Both differ a little from LongBench's own scripts; a paired
comparison has the same ruler on both sides.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from pytest_attnaccept.tasks.items import Question
from pytest_attnaccept.tasks.scoring import Score

__all__ = ["DATA_METRICS", "common_subsequence", "normalised", "token_f1"]

_PUNCTUATION = set(string.punctuation)
_MOST = 4000  # tokens of a generated text that are compared; the subsequence costs time by their product


def normalised(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces."""
    bare = "".join(c for c in text.lower() if c not in _PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _words(text: str) -> list[str]:
    return normalised(text).split()


def _characters(text: str) -> list[str]:
    """Characters without spaces, punctuation and symbols of any script."""
    return [c for c in text.lower() if not c.isspace() and unicodedata.category(c)[0] not in "PS"]


def token_f1(found: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two bags of tokens."""
    same = sum((Counter(found) & Counter(reference)).values())
    return 2 * same / (len(found) + len(reference)) if same else 0.0


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence.

    A row of the usual table is one integer whose zero bits are the places where the length grows, so that a row costs a
    handful of operations on integers instead of one per token.
    """
    places: dict[str, int] = {}
    for j, y in enumerate(b):
        places[y] = places.get(y, 0) | 1 << j
    full = (1 << len(b)) - 1
    row = full
    for x in a:
        matched = row & places.get(x, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(b) - row.bit_count()


def _best(question: Question, score: Callable[[str], float], parsed: bool) -> Score:
    return Score(value=max(score(reference) for reference in question.expected), parsed=parsed)


def _f1(split: Callable[[str], list[str]]) -> Callable[[Question, str], Score]:
    def score(question: Question, text: str) -> Score:
        found = split(text)
        return _best(question, lambda r: token_f1(found, split(r)), bool(found))

    return score


def _first_line(score: Callable[[Question, str], Score]) -> Callable[[Question, str], Score]:
    return lambda question, text: score(question, text.lstrip("\n").split("\n")[0])


def _exact_match(question: Question, text: str) -> Score:
    found = normalised(text.lstrip().split("\n")[0])
    return _best(question, lambda r: float(bool(found) and found == normalised(r)), bool(found))


def _rouge(split: Callable[[str], list[str]]) -> Callable[[Question, str], Score]:
    def score(question: Question, text: str) -> Score:
        found = split(text)[:_MOST]

        def one(reference: str) -> float:
            tokens = split(reference)[:_MOST]
            same = common_subsequence(found, tokens)
            return 2 * same / (len(found) + len(tokens)) if same else 0.0

        return _best(question, one, bool(found))

    return score


def _class(question: Question, text: str) -> Score:
    """Right class named, divided by how many classes are named (names that are a part of the right one excepted)."""
    names = dict.fromkeys((*question.expected, *(foil.strip() for foil in question.foils)))
    said = [name for name in names if name in text]

    def one(right: str) -> float:
        named = [name for name in said if name == right or name not in right]
        return 1 / len(named) if right in named else 0.0

    return _best(question, one, bool(said))


def _number(question: Question, text: str) -> Score:
    """Share of the numbers in the answer that are the right one ("Paragraph 7", a count)."""
    numbers = re.findall(r"\d+", text)

    def one(reference: str) -> float:
        right = re.findall(r"\d+", reference)[:1]
        return sum([number] == right for number in numbers) / len(numbers) if numbers else 0.0

    return _best(question, one, bool(numbers))


def _code(question: Question, text: str) -> Score:
    """Similarity of the first generated line of code with the right one: twice the common subsequence over both lengths."""
    lines = [line for line in text.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//"))]
    found = lines[0] if lines else ""

    def one(reference: str) -> float:
        total = len(found) + len(reference)
        return 2 * common_subsequence(found, reference) / total if total else 0.0

    return _best(question, one, bool(found.strip()))


def _last_word(question: Question, text: str) -> Score:
    found = re.findall(r"\w+(?:['’-]+\w+)*", text)
    return Score(value=float(bool(found) and found[0] in question.expected), parsed=bool(found))


DATA_METRICS: Final[MappingProxyType[str, Callable[[Question, str], Score]]] = MappingProxyType(
    {
        "qa_f1": _f1(_words),
        "qa_f1_zh": _f1(_characters),
        "qa_f1_line": _first_line(_f1(_words)),
        "exact_match": _exact_match,
        "rouge_l": _rouge(_words),
        "rouge_l_zh": _rouge(_characters),
        "rouge_l_line": _first_line(_rouge(_words)),
        "class": _first_line(_class),
        "number": _number,
        "code": _code,
        "word": _last_word,
    }
)
