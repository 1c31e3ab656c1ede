"""What one item measured, as one JSON line that is on disk before the next item starts.

Positions
---------
1. A line is flushed and fsynced: a worker that dies later loses nothing that was measured.
2. JSON has no NaN: a number that is not finite is written as text and was already judged a failure.
3. Reading is strict: a damaged line is reported, and the item it belonged to counts as not measured. The one exception
   is a last line without newline, which is what a killed process leaves.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["Metric", "Record", "RecordWriter", "plain", "read_file", "read_records", "write_atomically"]

RECORD_SCHEMA = 1
RECORD_GLOB = "records.*.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One gated quantity of a record; numbers that were not measured are None and are omitted from JUnit."""

    name: str
    verdict: str
    effect: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    limit: float | None = None
    unit: str = ""
    origin: str = ""
    loosened_from: float | None = None
    p_pass: float | None = None
    p_fail: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One item's evidence.

    Attributes
    ----------
    static
        The plan's digest of the item at the time of measuring; unequal to the plan's own means stale.
    fingerprint
        Weights, tokenizer, data, code, device, dtype, seed as measured.
    attempt
        1 for the first measurement of this item in this output folder, counted on.
    """

    item: str
    cell: str
    check: str
    kind: str
    surface: str
    stack: str
    methods: tuple[str, ...]
    profile: str
    verdict: Verdict
    headline: str
    run_id: str
    static: str
    reason: str = ""
    metrics: tuple[Metric, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    attempt: int = 1
    worker: str = "main"
    time: str = ""

    def to_line(self) -> str:
        """Return the record as one line of JSON."""
        body = {"schema": RECORD_SCHEMA, **asdict(self), "verdict": self.verdict.value}
        return json.dumps(plain(body), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_line(cls, line: str, where: str) -> Record:
        """Read one line."""
        try:
            body = json.loads(line)
            schema = body.pop("schema", None)
            if schema != RECORD_SCHEMA:
                found = "no record schema" if schema is None else f"record schema {schema!r}"
                raise RecordError(f"{where}: {found}; this version reads record schema {RECORD_SCHEMA}: measure again")
            if more := sorted(set(body) - set(cls.__dataclass_fields__)):
                raise TypeError(
                    f"unknown {', '.join(more)} in record schema {RECORD_SCHEMA}; a later version may know them"
                )
            body["verdict"] = Verdict(body["verdict"])
            _check_types(body)
            body["methods"] = tuple(body["methods"])
            body["metrics"] = tuple(_metric(m) for m in body["metrics"])
            record = cls(**body)
            if not record.verdict.blocks and any(Verdict(m.verdict).blocks for m in record.metrics):
                raise RecordError(f"{where}: its verdict {record.verdict.value} contradicts its own metrics")
            return record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{where}: is not a record of this package ({error})") from error


_TEXTS = (
    *("item", "cell", "check", "kind", "surface", "stack", "profile", "headline", "run_id", "static"),
    *("reason", "worker", "time"),
)


def _check_types(body: Mapping[str, object]) -> None:
    """Refuse a line whose fields have the wrong type: what reads it would stop, or compare apples with nothing."""
    wrong = [k for k in _TEXTS if not isinstance(body.get(k, ""), str)]
    wrong += [k for k in ("facts", "details", "fingerprint") if not isinstance(body.get(k, {}), dict)]
    wrong += [k for k in ("methods", "metrics") if not isinstance(body.get(k), list)]
    if wrong:
        raise TypeError(f"wrong type of {', '.join(wrong)}")


_NUMBERS = ("effect", "ci_low", "ci_high", "n", "limit", "loosened_from", "p_pass", "p_fail")
_NOT_FINITE = ("inf", "-inf", "nan")


def _metric(body: Mapping[str, object]) -> Metric:
    """Return a metric; what is not finite stands on disk as text, and anything else that is no number is refused."""
    fields = {k: float(str(v)) if k in _NUMBERS and v in _NOT_FINITE else v for k, v in body.items()}
    wrong = [
        k
        for k in _NUMBERS
        if isinstance(fields.get(k), bool) or not isinstance(fields.get(k, 0.0), (int, float, type(None)))
    ]
    if wrong:
        raise TypeError(f"metric {fields.get('name')!r}: {', '.join(wrong)} must be a number")
    return Metric(**fields)  # type: ignore[arg-type]


class RecordWriter:
    """Appends records to ``records.<worker>.jsonl`` of one output folder."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.path = folder / f"records.{worker}.jsonl"

    def append(self, record: Record) -> None:
        """Write one record so that it survives the death of this process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(record.to_line() + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def read_records(folder: Path, problems: list[str] | None = None) -> list[Record]:
    """Return every record in `folder` (not below it), oldest first; unreadable lines are appended to `problems`."""
    found = [] if problems is None else problems
    records = [r for path in sorted(folder.glob(RECORD_GLOB)) for r in read_file(path, found)]
    return sorted(records, key=lambda r: r.time)


def read_file(path: Path, problems: list[str]) -> list[Record]:
    """Return the records of one file; unreadable lines are appended to `problems`."""
    records: list[Record] = []
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(Record.from_line(line, f"{path}:{number}"))
        except RecordError as error:
            if number < len(lines):  # the last piece has no newline: its process died while writing it
                problems.append(str(error))
    return records


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new content, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:6]}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def plain(value: object) -> object:
    """Return `value` made of str, int, float, bool, None, lists and dicts only (what xdist and JSON can carry)."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")  # a lone surrogate cannot be written as UTF-8
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    item = getattr(value, "item", None)  # numpy and torch scalars
    if callable(item) and getattr(value, "ndim", 1) == 0:
        return plain(item())
    return str(value)
