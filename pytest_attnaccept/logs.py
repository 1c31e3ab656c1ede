"""Recorded answers are read from lm-eval ``samples_*.jsonl`` logs, line by line.

Positions
---------
1. A line that cannot be used is an error with file and line, never skipped: a log that was cut off proves nothing.
2. An item is identified by the hashes of document, prompt and target (computed when an old lm-eval did not write them),
   never by its position: two runs with another prompt are two different tests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.errors import RecordError

__all__ = ["SampleLog", "SampleRow", "read_samples"]

_NOT_A_SAMPLE_LOG = 'is no lm-eval sample log (write one with "lm_eval --log_samples --output_path DIR")'


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One answer under one filter.

    Attributes
    ----------
    document, prompt, target
        Hashes that identify the item.
    request
        Digest of how the item was asked beside the prompt: generation settings, or the choices that were scored.
    filter
        Answer filter of lm-eval ("strict-match", "none"): one document has one row per filter.
    values
        Metric values as logged.
    answer
        Digest of the raw responses; "" when the log has none.
    generative
        True for generated text, False for log-likelihoods, None when the log does not say.
    doc
        The document's own fields (for clusters).
    choices
        How many answers were scored against each other; 0 where the answer was generated.
    """

    line: int
    doc_id: str
    document: str
    prompt: str
    target: str
    request: str
    filter: str
    values: Mapping[str, object]
    answer: str
    generative: bool | None
    doc: Mapping[str, object]
    choices: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """What must be equal in both runs."""
        return self.document, self.prompt, self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLog:
    """One sample log: all rows, and the digest of the file."""

    path: Path
    rows: tuple[SampleRow, ...]
    digest: str

    @property
    def filters(self) -> tuple[str, ...]:
        """Filters in order of appearance."""
        return tuple(dict.fromkeys(row.filter for row in self.rows))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metric names in order of appearance."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.values))


def read_samples(path: Path) -> SampleLog:
    """Read one ``samples_*.jsonl``."""
    rows: list[SampleRow] = []
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                digest.update(raw)
                if raw.strip():
                    rows.append(_sample(path, number, raw))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not rows:
        raise RecordError(f"{path}: holds no samples; an empty log proves nothing")
    return SampleLog(path=path, rows=tuple(rows), digest=digest.hexdigest())


def _sample(path: Path, number: int, raw: bytes) -> SampleRow:
    """Turn one line into a row."""
    where = f"{path}:{number}"
    try:
        entry = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))  # editors put a mark in front
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise RecordError(f"{where}: is not JSON ({error}); was the log cut off?") from error
    if not isinstance(entry, dict) or ("doc" not in entry and "doc_hash" not in entry):
        raise RecordError(f"{where}: {_NOT_A_SAMPLE_LOG}")
    names = entry.get("metrics")
    known = (
        [n for n in names if isinstance(n, str)]
        if isinstance(names, list)
        else [k for k in entry if k not in _RESERVED]
    )
    values = {str(name): entry[name] for name in known if name in entry}
    doc = entry.get("doc")
    answers = entry.get("resps", entry.get("filtered_resps"))
    return SampleRow(
        line=number,
        doc_id=str(entry.get("doc_id", "")),
        document=str(entry.get("doc_hash") or _hash(doc)),
        prompt=str(entry.get("prompt_hash") or _hash(_first_prompt(entry.get("arguments"), where))),
        target=str(entry.get("target_hash") or _hash(entry.get("target"))),
        request=_hash([request[1:] for request in _requests(entry.get("arguments"))]),
        filter=str(entry.get("filter", "none")),
        values=values,
        answer="" if answers is None else _hash(answers),
        generative=_generative(entry.get("arguments"), answers),
        doc=doc if isinstance(doc, dict) else {},
        choices=0 if _generative(entry.get("arguments"), answers) else len(_requests(entry.get("arguments"))),
    )


_RESERVED = frozenset(
    "doc_id doc target arguments resps filtered_resps filter metrics doc_hash prompt_hash target_hash".split()  # noqa: SIM905
)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _requests(arguments: object) -> list[list[object]]:
    """Give the arguments of every request of an item, whatever the lm-eval version called them."""
    entries = list(arguments.values()) if isinstance(arguments, dict) else arguments
    if not isinstance(entries, list):
        return []
    return [list(entry.values()) if isinstance(entry, dict) else list(entry) for entry in entries if _listed(entry)]


def _listed(entry: object) -> bool:
    return isinstance(entry, dict | list)


def _first_prompt(arguments: object, where: str) -> object:
    requests = _requests(arguments)
    if not requests or not requests[0]:
        raise RecordError(f"{where}: has neither prompt_hash nor arguments, so nobody knows what was asked")
    return requests[0][0]


def _generative(arguments: object, answers: object) -> bool | None:
    """Tell generated text from log-likelihoods by the second argument, else by the shape of the answers."""
    requests = _requests(arguments)
    seconds = [request[1] for request in requests if len(request) > 1]
    if requests and len(seconds) == len(requests):
        if all(isinstance(second, dict) for second in seconds):
            return True
        if all(isinstance(second, str) for second in seconds):
            return '"until"' in str(seconds[0]) or "'until'" in str(seconds[0])
    return _text_or_score(answers)


def _text_or_score(answers: object) -> bool | None:
    """Look at the first answer: a pair (number, is greedy) or a negative number is a score, other text was generated."""
    leaf = answers
    while isinstance(leaf, list) and leaf:
        if len(leaf) == 2 and str(leaf[1]) in ("True", "False"):
            return False
        leaf = leaf[0]
    if isinstance(leaf, str):
        return not leaf.strip().startswith("-") if _number(leaf) else True
    return False if _number(leaf) else None


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True
