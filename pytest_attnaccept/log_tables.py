"""A table of document likelihoods (``document,tokens,nll``) is read and paired by document, as llama.cpp users keep them.

Positions
---------
1. Sums over the tokens in nats, or means under a name that says so; values that look like the other kind are refused,
   because reading means as sums shrinks every loss a thousandfold.
2. Both tables hold the same documents with the same numbers of tokens. A likelihood that is not finite fails on the side
   of the candidate and voids the document on the side of the baseline.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.errors import RecordError, suggest
from pytest_attnaccept.log_pairs import PairedLog
from pytest_attnaccept.measurement import ClusteredSums

__all__ = ["NllRow", "NllTable", "is_table", "pair_tables", "read_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NllRow:
    """Total negative log-likelihood of one document, in nats."""

    document: str
    tokens: int
    nll: float
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NllTable:
    """One table of document likelihoods, by document."""

    path: Path
    rows: Mapping[str, NllRow]
    digest: str


def is_table(path: Path) -> bool:
    """Whether a path is read as an NLL table (by its name: .csv or .tsv)."""
    return path.suffix.lower() in (".csv", ".tsv")


_TOTAL, _MEAN = ("nll", "nll_sum"), ("nll_mean", "mean_nll", "nll_per_token")


def read_table(path: Path) -> NllTable:
    """Read ``document,tokens,nll`` (nll: sum over the tokens in nats) or ``document,tokens,nll_mean``."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    lines = csv.DictReader(text.splitlines(), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    header = [str(name).strip() for name in lines.fieldnames or []]
    lines.fieldnames = header
    column = next((name for name in (*_TOTAL, *_MEAN) if name in header), None)
    for needed in ("document", "tokens"):
        if needed not in header:
            raise RecordError(f"{path}:1: needs the columns document, tokens, nll.{suggest(needed, header)}")
    if column is None:
        raise RecordError(f"{path}:1: needs a column nll (sum over the tokens, nats) or nll_mean (per token)")
    rows: dict[str, NllRow] = {}
    for number, entry in enumerate(lines, start=2):
        row = _nll(f"{path}:{number}", number, entry, column)
        if row.document in rows:
            raise RecordError(f"{path}:{number}: document {row.document!r} appears twice")
        rows[row.document] = row
    if not rows:
        raise RecordError(f"{path}: holds no documents; an empty table proves nothing")
    _refuse_means(path, rows, column)
    return NllTable(path=path, rows=rows, digest=hashlib.sha256(text.encode()).hexdigest())


def _nll(where: str, number: int, entry: Mapping[str, str | None], column: str) -> NllRow:
    try:
        document = (entry["document"] or "").strip()
        tokens, value = int(entry["tokens"] or ""), float(entry[column] or "")
    except (TypeError, ValueError) as error:
        raise RecordError(f"{where}: needs a whole number of tokens and a number of nats ({error})") from error
    if value < 0:
        raise RecordError(
            f"{where}: {column} is {value:g}, and a negative log-likelihood is positive; was the sign lost?"
        )
    if not document or tokens < 1:
        raise RecordError(f"{where}: needs a document name and at least one token")
    return NllRow(document=document, tokens=tokens, nll=value * (tokens if column in _MEAN else 1), line=number)


LEAST_NATS = 1e-3
"""Nats per token below which a document is not a text under a language model (policy: a thousandth of usual values)."""
MEANS_NATS = 0.1
"""Half of the documents below this many nats per token: the column holds means (policy: a tenth of the best models)."""


def _refuse_means(path: Path, rows: Mapping[str, NllRow], column: str) -> None:
    """Refuse sums that look like means, or counts that are not of tokens: both shrink every loss a thousandfold."""
    finite = [row for row in rows.values() if math.isfinite(row.nll) and row.tokens >= 20]
    small = [row for row in finite if row.nll < MEANS_NATS * row.tokens]
    looks = finite and (len(small) * 2 >= len(finite) or all(row.nll < 20 for row in finite))
    if column in _TOTAL and looks:
        raise RecordError(
            f"{path}: column {column!r} must hold sums over the tokens, and its values look like means per token; "
            "rename the column nll_mean if they are"
        )
    for row in finite:
        if row.nll < LEAST_NATS * row.tokens:
            raise RecordError(
                f"{path}:{row.line}: document {row.document!r} has {row.nll / row.tokens:.2g} nats per token over"
                f" {row.tokens} tokens, which no text has; is tokens a count of tokens, and nll their sum in nats?"
            )


def pair_tables(base: NllTable, cand: NllTable) -> PairedLog:
    """Pair two tables by document; the same documents with the same token counts are required."""
    missing = [name for name in base.rows if name not in cand.rows]
    if missing:
        raise RecordError(f"{cand.path}: lacks {len(missing)} documents of {base.path}, for example {missing[0]!r}")
    usable = {name: row for name, row in base.rows.items() if math.isfinite(row.nll)}
    if not usable:
        raise RecordError(f"{base.path}: no document has a finite likelihood")
    for name, row in usable.items():
        other = cand.rows[name]
        if other.tokens != row.tokens:
            raise RecordError(
                f"{cand.path}:{other.line}: document {name!r} has {other.tokens} tokens, and {row.tokens} in "
                f"{base.path}:{row.line}; likelihoods under different tokenizations cannot be paired"
            )
    sums = tuple(cand.rows[name].nll - row.nll for name, row in usable.items())
    tokens = tuple(row.tokens for row in usable.values())
    void = len(base.rows) - len(usable) + sum(name not in base.rows for name in cand.rows)
    lost = sum(not math.isfinite(value) for value in sums)
    return PairedLog(
        name="perplexity",
        gate=ClusteredSums(
            name="perplexity",
            sums=sums,
            tokens=tokens,
            base_level=_perplexity(sum(row.nll for row in usable.values()) / sum(tokens)),
        ),
        losses=sum(value > 0 for value in sums),
        gains=sum(value < 0 for value in sums),
        lost_answers=lost,
        void=void,
        items=len(sums),
        identical=all(value == 0 for value in sums),
        constant=None,
        generative=False,
        notes=(f"{void} documents have no usable baseline likelihood and are void",) if void else (),
    )


def _perplexity(mean: float) -> float:
    return math.exp(mean) if mean < 700 else math.inf
