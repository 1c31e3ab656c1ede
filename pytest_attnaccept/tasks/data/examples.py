"""What every data set is turned into: a context, its questions, and where the facts stand; or why a row is not used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.tasks.items import Question

__all__ = ["Convert", "DataFamily", "Example", "RowError", "found_at", "need", "question", "texts"]


class RowError(Exception):
    """A row that cannot be used; its text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row, converted: ``spans`` are (start, end) of the facts in the context."""

    context: str
    questions: tuple[Question, ...]
    spans: tuple[tuple[int, int], ...] = ()
    chance: float = 0.0


Convert = Callable[[Mapping[str, Any], Callable[[str], int]], Example]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFamily:
    """A data set.

    Attributes
    ----------
    convert
        Row and token counter in, `Example` out; raises `RowError`.
    complete
        Rows of the complete data set, or None where it has several sizes.
    cut
        Whether a context that is too long may lose its middle; where a fact may stand anywhere, the row is not used.
    """

    name: str
    summary: str
    convert: Convert
    complete: int | None = None
    cut: bool = False


def need(row: Mapping[str, Any], name: str, kind: type | tuple[type, ...] = str) -> Any:
    """Return a field that must be there and not empty."""
    value = row.get(name)
    if not isinstance(value, kind) or value in ("", [], {}):
        raise RowError(f"field {name!r} is missing, empty or of another type")
    return value


def texts(values: Sequence[object], name: str) -> tuple[str, ...]:
    """Return the references of a row as texts; what is neither text nor a whole number would be compared as "None" or "nan"."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise RowError(f"field {name!r} holds {value!r}, which is no answer")
    return tuple(str(value) for value in values)


def found_at(context: str, *texts: str) -> tuple[tuple[int, int], ...]:
    """Return where each text first stands alone in the context; texts that do not occur are left out."""
    spans = []
    for text in texts:
        found = re.search(rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])", context) if text else None
        if found:
            spans.append((found.start(), found.end()))
    return tuple(spans)


def question(
    text: str,
    prefix: str,
    references: tuple[str, ...],
    metric: str,
    limit: int,
    *,
    foils: tuple[str, ...] = (),
    form: str = "",
    space: str = " ",
    label: str = "",
) -> Question:
    """A question whose first reference is what is scored teacher-forced."""
    return Question(
        text=text, answer_prefix=prefix, answer=space + references[0], foils=tuple(space + foil for foil in foils),
        max_new_tokens=limit, depth=0.0, references=references, metric=metric, form=form, label=label,
    )  # fmt: skip
