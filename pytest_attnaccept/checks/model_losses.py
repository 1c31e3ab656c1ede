"""What a record keeps of every independent unit: its loss and a short digest, so that cells can be compared afterwards.

Interaction between methods is a contrast over the *same* documents and contexts. Units are named by their content, not
by their position, because a sample that stopped early holds fewer of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_attnaccept.measurement import ClusteredSums, PairedScores

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["joined", "of_scores", "of_sums", "row_names"]

_DIGITS = 9  # significant digits: float32 sums carry no more


def row_names(rows: Iterable[Tensor]) -> list[str]:
    """Return a short digest per token row."""
    return [hashlib.sha256(row.cpu().numpy().tobytes()).hexdigest()[:12] for row in rows]


def of_sums(gate: ClusteredSums, units: Sequence[str]) -> dict[str, Any]:
    """Return per document: sum of the loss and how many tokens it is over."""
    return {
        "unit": "document",
        "metric": gate.unit,
        "units": list(units),
        "sums": [_short(value) for value in gate.sums],
        "tokens": list(gate.tokens),
    }


def of_scores(gate: PairedScores, units: Sequence[str], **further: Sequence[float]) -> dict[str, Any]:
    """Return per context: loss of the score, and `further` values per context (baseline score, NLL of both sides)."""
    return {
        "unit": "context",
        "metric": gate.unit,
        "units": list(units),
        "losses": [_short(value) for value in gate.losses],
        **{name: [_short(value) for value in values] for name, values in further.items()},
    }


def joined(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the kept losses of a sample that was measured in parts, as if it had been measured at once."""
    total: dict[str, Any] = {}
    for part in parts:
        for gate, kept in part.items():
            if gate not in total:
                total[gate] = {k: list(v) if isinstance(v, list) else v for k, v in kept.items()}
                continue
            for key, value in kept.items():
                if isinstance(value, list):
                    total[gate][key].extend(value)
    return total


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
