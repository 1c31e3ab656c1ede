"""Rows of a data set -> task items of at most a given length, with a report of what was not used and why."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from pytest_attnaccept.errors import ContractError, UnknownNameError
from pytest_attnaccept.tasks.data.documents import DOCUMENTS
from pytest_attnaccept.tasks.data.examples import DataFamily, Example, RowError
from pytest_attnaccept.tasks.data.longbench import LONGBENCH
from pytest_attnaccept.tasks.data.retrieval import RETRIEVAL
from pytest_attnaccept.tasks.data.rows import Rejected, read_rows
from pytest_attnaccept.tasks.items import KeySpan, TaskItem, make_item
from pytest_attnaccept.tasks.scoring import score_answer, stands_in

__all__ = ["DATA_FAMILIES", "Loaded", "load_items"]

_IDS = ("_id", "id")  # LongBench and HotpotQA, MuSiQue
_LOOKED_UP = ("exact", "contains")  # metrics of answers that are looked up: none of them may be in the question
DATA_FAMILIES: Final[Mapping[str, DataFamily]] = MappingProxyType(
    {family.name: family for family in (*DOCUMENTS, *RETRIEVAL, *LONGBENCH)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The items of a data set.

    Attributes
    ----------
    rows
        Rows of the source, broken ones included.
    rejected
        Rows that are not used, with the reason.
    cut
        Items that lost the middle of their context.
    report
        One line: how many of how many rows, which file.
    """

    items: tuple[TaskItem, ...]
    rows: int
    rejected: tuple[Rejected, ...]
    cut: int
    digest: str
    report: str


def load_items(
    name: str,
    source: str,
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    first: int = 0,
    count: int | None = None,
    writes: Callable[[str], bool] | None = None,
) -> Loaded:
    """Read `source` as the data set `name`.

    Parameters
    ----------
    source
        File, folder written by `datasets`, or ``hub:OWNER/NAME[:CONFIG[:SPLIT]]``.
    fit
        Number of tokens that the tested tokenizer makes of a text.
    target_tokens
        Most tokens of context + question + answer; what the answer may grow to is part of it.
    first, count
        Which of the usable rows, in the order of the source.
    writes
        Whether the tested tokenizer has tokens for a text (None: for every text).
    """
    if name not in DATA_FAMILIES:
        raise UnknownNameError("data set", name, DATA_FAMILIES)
    family, found = DATA_FAMILIES[name], read_rows(source)
    rejected = list(found.rejected)
    items: list[TaskItem] = []
    usable = cut = 0
    seen: set[str] = set()
    named: dict[str, int] = {}
    for number, row in found.rows:
        if count is not None and len(items) == count:
            break
        try:
            _require_new(row, number, named)
            whole = _converted(family, row, fit)
            _require_answerable(whole, writes)
            example, shortened = _fitted(family, whole, fit, target_tokens)
        except RowError as error:
            rejected.append(Rejected(row=number, reason=str(error)))
            continue
        item = _item(name, example, number, target_tokens, whole.context)
        content = item.context + "".join(q.prompt + q.answer for q in item.questions)
        if content in seen:
            rejected.append(Rejected(row=number, reason="the same as an earlier row"))
            continue
        seen.add(content)
        usable += 1
        if usable > first:
            items.append(item)
            cut += shortened
    if not items:
        why = "; ".join(f"row {r.row}: {r.reason}" for r in rejected[:3])
        raise ContractError(
            f"{name}: no row of {source} can be used with {target_tokens} tokens ({why or 'no row left'})"
        )
    total = len(found.rows) + len(found.rejected)
    known = f", {found.known}" if found.known else ""
    of = f" (complete: {family.complete})" if family.complete is not None and total != family.complete else ""
    return Loaded(
        items=tuple(items),
        rows=total,
        rejected=tuple(rejected),
        cut=cut,
        digest=found.digest,
        report=f"{len(items)} of {total} rows{of}, {len(rejected)} rejected, {cut} cut, sha256 {found.digest}{known}",
    )


def _require_new(row: Mapping[str, Any], number: int, named: dict[str, int]) -> None:
    """Refuse a row whose id an earlier row had: one of the two is not the row that it says it is."""
    name = next((row[key] for key in _IDS if isinstance(row.get(key), str) and row[key]), None)
    if name is not None and named.setdefault(name, number) != number:
        raise RowError(f"its id {name!r} is that of row {named[name]}")


def _require_answerable(example: Example, writes: Callable[[str], bool] | None) -> None:
    """Refuse a row that nobody can get right, or that a tokenizer without the needed tokens gets right by saying nothing."""
    for asked in example.questions:
        if score_answer(asked, asked.answer).value <= 0:
            raise RowError(f"the answer {asked.answer.strip()!r} scores nothing by {asked.metric}")
        if asked.metric in _LOOKED_UP and any(stands_in(answer, asked.prompt) for answer in asked.expected):
            raise RowError(f"the question holds the answer {asked.answer.strip()!r}")
        if writes is not None and not writes(asked.answer):
            raise RowError(f"the tokenizer has no tokens for the answer {asked.answer.strip()!r}")


def _converted(family: DataFamily, row: Mapping[str, Any], fit: Callable[[str], int]) -> Example:
    try:
        example = family.convert(row, fit)
        for text in (example.context, *(q.prompt + q.answer for q in example.questions)):
            text.encode("utf-8")  # a lone half of a surrogate pair is no text
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RowError(f"not a row of this data set ({type(error).__name__}: {error})") from error
    if not example.context.strip():
        raise RowError("the context is empty")
    if any(not reference.strip() for question in example.questions for reference in question.expected):
        raise RowError("a reference is empty")  # it would be contained in every answer
    return example


def _fitted(family: DataFamily, example: Example, fit: Callable[[str], int], target: int) -> tuple[Example, int]:
    """Cut the middle of a context that is too long, where the data set allows it."""

    def size(context: str) -> int:
        return max(fit(context + q.prompt) + max(fit(q.answer), q.max_new_tokens) for q in example.questions)

    whole = size(example.context)
    if whole <= target:
        return example, 0
    if not family.cut:
        raise RowError(f"{whole} tokens are more than {target}, and this data set must not be cut")
    low, high = 0, len(example.context)  # characters that are kept, half of them at each end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(_ends(example.context, middle)) <= target else (low, middle)
    if low == 0:
        raise RowError(f"the question alone is longer than {target} tokens")
    start, end = (low + 1) // 2, len(example.context) - low // 2
    shift = end - start
    spans = [(a, b) for a, b in example.spans if b <= start] + [
        (a - shift, b - shift) for a, b in example.spans if a >= end
    ]
    return replace(example, context=_ends(example.context, low), spans=tuple(spans)), 1


def _ends(text: str, kept: int) -> str:
    return text[: (kept + 1) // 2] + (text[len(text) - kept // 2 :] if kept > 1 else "")


def _item(name: str, example: Example, row: int, target: int, text: str) -> TaskItem:
    """Make the item; ``source`` names the text before it was cut: questions about one text are no independent evidence."""
    length = max(1, len(example.context))
    # Who picks something that the question names ("Which is older, A or B?") is right more often than a blind guess.
    named = any(stands_in(answer, q.prompt) for q in example.questions for answer in q.expected)
    depth = example.spans[0][0] / length if example.spans else 0.0
    return make_item(
        task=name,
        context=example.context,
        questions=tuple(replace(q, depth=depth) for q in example.questions),
        key_spans=tuple(KeySpan(start=a, end=b, depth=a / length) for a, b in example.spans),
        chance=max(example.chance, 0.5) if named else example.chance,
        parameters={"row": row, "target_tokens": target, "source": hashlib.sha256(text.encode()).hexdigest()[:12]},
    )
