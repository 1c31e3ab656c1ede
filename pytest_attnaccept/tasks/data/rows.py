"""Where the rows of a data set come from: a file, a folder written by `datasets`, or the Hub; broken rows are named.

Positions
---------
1. JSON lines and tables are read line by line here, so that one broken row is reported and not the whole file; everything
   else goes through `datasets`.
2. A file has a digest. Files whose digest is known are named in the report, so that a record says which data it used.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_attnaccept.errors import ContractError, EngineError

__all__ = ["HUB", "KNOWN", "Rejected", "Rows", "read_rows"]

HUB = "hub:"  # hub:OWNER/NAME, hub:OWNER/NAME:CONFIG or hub:OWNER/NAME:CONFIG:SPLIT
_TABLES = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}

# SHA-256 of well-known files (first 16 digits), and what they are.
KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "173c87a53759e020": "WikiText-2 raw test",
        "411bfbe5b9054346": "LAMBADA test, OpenAI preprocessing (5153 passages)",
        "e5b4fd1a437c53c1": "LongBench v1 multifieldqa_zh, complete (200)",
        "d71c1f71f9fee4c2": "LongBench v1 passage_retrieval_zh, complete (200)",
        "511141cbd1316a87": "LongEval lines, 200 lines (50)",
        "4a361050a88005c6": "LongEval lines, 400 lines (50)",
        "eb6d61fc3473349f": "key-value retrieval, 75 keys (500)",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A row that is not used, by its number from 1, and why."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a source, each with its number from 1; ``digest`` is of the content (16 hex digits)."""

    rows: tuple[tuple[int, Mapping[str, Any]], ...]
    rejected: tuple[Rejected, ...]
    digest: str
    known: str


def read_rows(source: str) -> Rows:
    """Read every row of a source.

    Raises
    ------
    ContractError
        When there is no such file, or it holds no row.
    EngineError
        When `datasets` is missing or the Hub cannot be reached.
    """
    if source.startswith(HUB):
        return _collected(_from_hub(source.removeprefix(HUB)), source)
    path = Path(source)
    if path.is_dir():
        return _collected(_with_datasets(source, lambda d: d.load_from_disk(source)), source)
    if not path.is_file():
        raise ContractError(f"data: {source} is neither a file, a folder nor hub:OWNER/NAME")
    if path.suffix in _TABLES:
        kind = _TABLES[path.suffix]
        found = _with_datasets(source, lambda d: d.load_dataset(kind, data_files=source, split="train"))
        return _collected(found, source)
    try:
        content = path.read_bytes()
        plain = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ContractError(f"data: {source} cannot be read: {type(error).__name__}: {error}") from error
    digest = hashlib.sha256(content).hexdigest()[:16]
    table = path.name.removesuffix(".gz").endswith(".tsv")
    rows, rejected = _lines(plain, table=table)
    if not rows:
        raise ContractError(f"data: {source} holds no readable row ({len(rejected)} broken ones)")
    return Rows(rows=tuple(rows), rejected=tuple(rejected), digest=digest, known=KNOWN.get(digest, ""))


def _lines(text: str, *, table: bool) -> tuple[list[tuple[int, Mapping[str, Any]]], list[Rejected]]:
    """Rows of JSON lines, of one JSON list, or of a table with tabs (columns "0", "1", ...)."""
    rows: list[tuple[int, Mapping[str, Any]]] = []
    rejected: list[Rejected] = []
    if not table and text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"data: not valid JSON: {error}") from error
        numbered = list(enumerate(values, start=1))
    else:
        numbered = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    for number, value in numbered:
        if table:
            rows.append((number, {str(i): cell for i, cell in enumerate(value.split("\t"))}))
            continue
        try:
            row = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            rejected.append(Rejected(row=number, reason=f"not valid JSON: {getattr(error, 'msg', error)}"))
            continue
        if isinstance(row, Mapping):
            rows.append((number, row))
        else:
            rejected.append(Rejected(row=number, reason=f"not a mapping: {type(row).__name__}"))
    return rows, rejected


def _collected(found: Iterable[Any], source: str) -> Rows:
    if isinstance(found, Mapping):
        raise ContractError(f"data: {source} holds the splits {', '.join(map(str, found))}; name one of them")
    rows = tuple(enumerate((dict(row) for row in found), start=1))
    if not rows:
        raise ContractError(f"data: {source} holds no row")
    text = json.dumps([row for _, row in rows], sort_keys=True, ensure_ascii=False, default=str)
    return Rows(rows=rows, rejected=(), digest=hashlib.sha256(text.encode("utf-8")).hexdigest()[:16], known="")


def _from_hub(name: str) -> Iterable[Mapping[str, Any]]:
    place, _, rest = name.partition(":")
    config, _, split = rest.partition(":")
    return _with_datasets(HUB + name, lambda d: d.load_dataset(place, config or None, split=split or "test"))


def _with_datasets(source: str, read: Any) -> Iterable[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise EngineError(f"data: {source} needs datasets: pip install 'pytest-attnaccept[hf]'") from error
    try:
        rows: Iterable[Mapping[str, Any]] = read(datasets)
    except Exception as error:  # datasets raises the errors of a dozen libraries
        reason = str(error).splitlines()[0][:200] if str(error) else ""
        raise EngineError(f"data: {source} cannot be had ({type(error).__name__}: {reason})") from error
    return rows
