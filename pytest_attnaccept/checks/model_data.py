"""The texts of the model checks: documents as token rows, built in or from a file, and the length that a tier means."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks import generate

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession
    from pytest_attnaccept.engines.loading import LoadedModel

__all__ = ["Documents", "batches", "context_tokens", "documents", "encode", "split_documents", "to_row"]

_HEADING = re.compile(r"^ = [^=].*[^=] = $")  # first-level heading of WikiText raw: one article


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Independent documents of equal length.

    Attributes
    ----------
    rows
        Token rows (1, n), one per document, the tokens before the text (BOS) included.
    continuation
        How many of their last tokens are scored; what precedes them is context.
    asked
        How many documents were asked for (fewer were long enough: the report says so).
    """

    rows: tuple[Tensor, ...]
    continuation: int
    asked: int
    source: str
    digest: str


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of `text` without special tokens."""
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def to_row(loaded: LoadedModel, ids: Sequence[int]) -> Tensor:
    """Return `ids` with the model's prefix as a batch of one row (1, n) on its device."""
    return torch.tensor([[*loaded.prefix_ids, *ids]], dtype=torch.long, device=next(loaded.model.parameters()).device)


def batches(keys: Sequence[Hashable], size: int) -> list[list[int]]:
    """Return the positions of `keys` in groups of equal keys, at most `size` each, in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]


def context_tokens(session: ModelSession, params: Params, *, tier: float) -> int:
    """Return the length that `tier` (a multiple of the trained length) means, capped by ``max_tokens``.

    ``tokens`` overrides both. A model without a trained length needs one of the two.
    """
    fixed = params.optional_integer("tokens")
    if fixed is not None:
        return fixed
    cap = params.optional_integer("max_tokens")
    trained = session.trained_length
    if trained is None:
        if cap is None:
            spec = session.baseline.loaded.spec
            raise ContractError(f"{params.check}: the trained length of {spec} is not known; give max_tokens or tokens")
        return cap
    length = max(1, round(tier * trained))
    return length if cap is None else min(length, cap)


def documents(session: ModelSession, params: Params, *, count: int, length: int, continuation: int) -> Documents:
    """Return `count` documents of `length` tokens of which the last `continuation` are scored.

    ``text`` names the source: "builtin" (the text family of this package), or a file: WikiText raw is split at its
    first-level headings, any other file at blank lines followed by a form feed, or taken as one document per file.
    ``first`` is the index of the first built-in document; a sample of a file that starts anywhere but at 0 is taken from
    its end, where another sample comes last.
    """
    loaded = session.baseline.loaded
    room = length - len(loaded.prefix_ids)
    if continuation >= room:
        raise ContractError(f"{params.check}: {length} tokens leave no context before {continuation} scored tokens")
    source = params.text("text", "builtin")
    first = params.integer("first", 0, low=0)
    texts = _builtin(session, first, count, room) if source == "builtin" else split_documents(Path(source))
    if source != "builtin" and first:
        texts = texts[::-1]
    rows: list[Tensor] = []
    seen: set[tuple[int, ...]] = set()
    for text in texts:
        ids = encode(loaded.tokenizer, text)[:room]
        if tuple(ids) in seen:
            continue  # the document is the independent unit: the same one again is no further evidence
        seen.add(tuple(ids))
        # Generated documents may fall short by 2 %; a document of a file must fill the length.
        if len(ids) == room or (source == "builtin" and len(ids) > continuation + 1):
            rows.append(to_row(loaded, ids))
        if len(rows) == count:
            break
    if not rows:
        raise ContractError(f"{params.check}: {source} holds no document of {length} tokens")
    digest = hashlib.sha256(repr([row.tolist() for row in rows]).encode()).hexdigest()[:16]
    return Documents(rows=tuple(rows), continuation=continuation, asked=count, source=source, digest=digest)


def _builtin(session: ModelSession, first: int, count: int, room: int) -> list[str]:
    tokenizer = session.baseline.loaded.tokenizer
    return [
        generate(
            "text", fit=lambda t: len(encode(tokenizer, t)), target_tokens=room, seed=session.seed, index=index
        ).context
        for index in range(first, first + count)
    ]


def split_documents(path: Path) -> list[str]:
    """Return the documents of a text file, by WikiText article headings, else by form feeds, else the whole file."""
    if not path.is_file():
        raise ContractError(f"text={str(path)!r} is neither 'builtin' nor a file")
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise ContractError(f"text={str(path)!r} cannot be read as UTF-8 text: {error}") from error
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if _HEADING.match(line)]
    if len(starts) > 1:
        ends = [*starts[1:], len(lines)]
        return ["\n".join(lines[a:b]) for a, b in zip(starts, ends, strict=True)]
    return [part for part in text.split("\f") if part.strip()]
