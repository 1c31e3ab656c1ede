"""Two recorded runs are paired item by item; what cannot be paired honestly is refused or counted against the candidate.

Positions
---------
1. Document, prompt and target hashes must agree. The same document under another prompt is a different test: refused.
2. An answer that the candidate lacks (missing, null, NaN) is a lost item. An item that the baseline lacks is void, which
   is decided before the candidate is looked at.
3. Repeated documents are not independent: they are averaged into one item.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_attnaccept.errors import RecordError, suggest
from pytest_attnaccept.log_metrics import refuse_direction, score_of
from pytest_attnaccept.logs import SampleLog, SampleRow
from pytest_attnaccept.measurement import Gate, PairedCounts, PairedScores

__all__ = ["PairedLog", "pair_samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedLog:
    """One metric of two runs, paired.

    Attributes
    ----------
    gate
        What is compared with the margin.
    losses, gains
        Items that only the baseline (only the candidate) got right; for scores: items that lost (gained).
    lost_answers
        Items without a usable candidate answer, counted as lost.
    void
        Items without a usable baseline answer, left out.
    items
        Independent items in the comparison.
    identical
        Every raw answer is identical in both runs.
    constant
        The one score that every item has in both runs; None when scores differ.
    generative
        Whether the answers are generated text; None when the log does not say.
    """

    name: str
    gate: Gate
    losses: int
    gains: int
    lost_answers: int
    void: int
    items: int
    identical: bool
    constant: float | None
    generative: bool | None
    notes: tuple[str, ...]


def pair_samples(
    base: SampleLog, cand: SampleLog, metric: str, filter_name: str, *, cluster: str | None = None, chance: float = 0.0
) -> PairedLog:
    """Pair one metric under one filter."""
    refuse_direction(metric)
    first, second = _by_key(base, filter_name), _by_key(cand, filter_name)
    _refuse_mismatch(base, cand, first, second)
    values: dict[object, list[tuple[float, float]]] = defaultdict(list)
    lost = void = 0
    same = True
    generative: set[bool | None] = set()
    for key, rows in first.items():
        partners = second.get(key, [])
        _refuse_more_answers(cand, rows, partners)
        for index, row in enumerate(rows):
            partner = partners[index] if index < len(partners) else None
            old = score_of(base, row, metric)
            generative.add(row.generative)
            if old is None:
                void += 1
                continue
            new = None if partner is None else score_of(cand, partner, metric)
            lost += new is None
            same = same and partner is not None and partner.answer == row.answer != ""
            # A lost answer costs a whole item, also where the baseline scored nothing.
            values[_cluster(row, key, cluster, base)].append((old, old - new if new is not None else 1.0))
    void += sum(max(0, len(rows) - len(first.get(key, []))) for key, rows in second.items())
    if not values:
        raise RecordError(f"{base.path}: no item has a usable {metric!r} under filter {filter_name!r}")
    return _paired(
        metric if filter_name == "none" else f"{metric}[{filter_name}]",
        list(values.values()),
        lost,
        void,
        same,
        generative.pop() if len(generative) == 1 else None,
        _notes(base, values, lost, void, first),
        max(chance, _blind_guess(first.values())),
    )


def _paired(
    name: str,
    groups: Sequence[Sequence[tuple[float, float]]],
    lost: int,
    void: int,
    identical: bool,
    generative: bool | None,
    notes: tuple[str, ...],
    chance: float,
) -> PairedLog:
    """Make counts of clean right/wrong answers, and scores of everything else."""
    olds = [sum(old for old, _ in group) / len(group) for group in groups]
    losses = [sum(loss for _, loss in group) / len(group) for group in groups]
    down, up = sum(loss > 0 for loss in losses), sum(loss < 0 for loss in losses)
    binary = lost == 0 and all(x in (0.0, 1.0) for x in olds) and all(x in (-1.0, 0.0, 1.0) for x in losses)
    gate: Gate
    if binary:
        gate = PairedCounts(
            name=name, losses=down, gains=up, n=len(groups), base_correct=round(sum(olds)), chance=chance
        )
    else:
        gate = PairedScores(
            name=name,
            losses=tuple(losses),
            base_mean=sum(olds) / len(olds),
            chance=chance,
            n_items=sum(map(len, groups)),
            discordant=down + up,
            unit="score",
        )
    return PairedLog(
        name=name,
        gate=gate,
        losses=down,
        gains=up,
        lost_answers=lost,
        void=void,
        items=len(groups),
        identical=identical and down == up == 0,
        constant=olds[0] if len(set(olds)) == 1 and down == up == 0 else None,
        generative=generative,
        notes=notes,
    )


def _blind_guess(items: Iterable[Sequence[SampleRow]]) -> float:
    """Return the score of a guess among the choices that were scored; 0 for generated answers and single likelihoods."""
    choices = [row.choices for rows in items for row in rows]
    if not choices or min(choices) < 2:
        return 0.0
    return sum(1 / n for n in choices) / len(choices)


def _by_key(log: SampleLog, filter_name: str) -> dict[tuple[str, str, str], list[SampleRow]]:
    """Collect the rows of a filter by item; a document id that repeats means that two runs were written into one file."""
    rows: dict[tuple[str, str, str], list[SampleRow]] = defaultdict(list)
    seen: dict[str, int] = {}
    for row in log.rows:
        if row.filter != filter_name:
            continue
        if row.doc_id and row.doc_id in seen:
            raise RecordError(
                f"{log.path}:{row.line}: document id {row.doc_id} was already on line {seen[row.doc_id]} (filter "
                f"{filter_name!r}); the log holds more than one run"
            )
        seen[row.doc_id] = row.line
        rows[row.key].append(row)
    if not rows:
        raise RecordError(f"{log.path}: has no rows of filter {filter_name!r}; it has: {', '.join(log.filters)}")
    return rows


def _refuse_mismatch(
    base: SampleLog,
    cand: SampleLog,
    first: Mapping[tuple[str, str, str], Sequence[SampleRow]],
    second: Mapping[tuple[str, str, str], Sequence[SampleRow]],
) -> None:
    """Refuse runs that asked something else: other data, another prompt, another target."""
    by_document = {key[0]: (key, rows[0]) for key, rows in first.items()}
    for key, rows in second.items():
        if key in first or key[0] not in by_document:
            continue
        expected, row = by_document[key[0]]
        what = "prompt" if key[1] != expected[1] else "target"
        raise RecordError(
            f"{cand.path}:{rows[0].line}: the {what} of document {rows[0].doc_id} differs from {base.path}:{row.line}; "
            "runs with another template, few-shot setting or data version cannot be paired"
        )
    for key, rows in second.items():
        if key in first and rows[0].request != first[key][0].request:
            raise RecordError(
                f"{cand.path}:{rows[0].line}: document {rows[0].doc_id} was asked with other generation settings or choices "
                f"than in {base.path}:{first[key][0].line}; both runs need the same --gen_kwargs"
            )
    if not any(key in first for key in second):
        raise RecordError(
            f"{cand.path}: shares no document with {base.path}; these are logs of different tasks or data"
        )


def _refuse_more_answers(cand: SampleLog, rows: Sequence[SampleRow], partners: Sequence[SampleRow]) -> None:
    """Refuse a candidate that answers an unnumbered item more often than the baseline: a second run may follow the first."""
    if len(partners) > len(rows) and not all(row.doc_id for row in partners):
        raise RecordError(
            f"{cand.path}:{partners[len(rows)].line}: answers an item {len(partners)} times that the baseline answers"
            f" {len(rows)} times, and its rows have no doc_id; the log holds more than one run"
        )


def _cluster(row: SampleRow, key: tuple[str, str, str], field: str | None, log: SampleLog) -> object:
    """Give the independent unit of an item: a field of its document, or the document itself."""
    if field is None:
        # One prompt with one target is one question, however many documents ask it.
        return key[1:] if key[1] else key
    if field not in row.doc:
        raise RecordError(f"{log.path}:{row.line}: the document has no field {field!r}.{suggest(field, row.doc)}")
    return json.dumps(row.doc[field], sort_keys=True, default=str)


def _notes(
    base: SampleLog,
    values: Mapping[object, Sequence[object]],
    lost: int,
    void: int,
    first: Mapping[tuple[str, str, str], Sequence[SampleRow]],
) -> tuple[str, ...]:
    """Say what a reader should know beside the verdict."""
    notes = []
    total = sum(map(len, values.values()))
    if lost:
        notes.append(f"{lost} of {total} items have no usable candidate answer and count as lost")
    if void:
        notes.append(f"{void} items have no usable baseline answer and are void")
    if len(values) < total:
        notes.append(f"{total} answers on {len(values)} distinct documents: averaged per document")
    ids = [row.doc_id for rows in first.values() for row in rows]
    if total % 50 == 0 and sorted(ids) == sorted(map(str, range(total))):
        notes.append(f"the items are exactly the first {total}: if that is a --limit, they are no sample of the task")
    return tuple(notes)
