"""How a family refuses a parameter: with its name, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks.filler import FILLERS

__all__ = ["filler_of", "one_of", "within"]


def within(task: str, name: str, value: int, low: int, high: int) -> None:
    """Refuse a number outside ``low..high``."""
    if not low <= value <= high:
        raise ContractError(f"{task}: {name}={value} is outside {low}..{high}.")


def one_of(task: str, name: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a name that is not allowed."""
    if value not in allowed:
        raise ContractError(f"{task}: {name}={value!r} is unknown. Allowed: {', '.join(allowed)}.")


def filler_of(task: str, filler: str, *, chinese: bool = True) -> None:
    """Refuse an unknown filler, or the Chinese one where the facts are English sentences between it."""
    one_of(task, "filler", filler, FILLERS if chinese else tuple(f for f in FILLERS if f != "chinese"))
