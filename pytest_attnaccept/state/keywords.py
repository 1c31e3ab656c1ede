"""Whether the keywords of a contract are usable: known names, right types, allowed ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pytest_attnaccept.errors import ContractError, suggest

__all__ = ["FLOAT_DTYPES", "as_dtype", "as_int", "as_names", "call_as_code", "refuse_missing", "refuse_unknown"]

FLOAT_DTYPES: Mapping[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def refuse_unknown(surface: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ContractError for the first keyword that `surface` does not have."""
    allowed = sorted(known)
    for name in given:
        if name not in allowed:
            raise ContractError(
                f"accept.{surface}: unknown keyword {name!r}.{suggest(name, allowed)} Known: {', '.join(allowed)}."
            )


def refuse_missing(surface: str, given: Mapping[str, object], required: Iterable[str]) -> None:
    """Raise a ContractError that names every required keyword which is absent."""
    missing = [name for name in required if name not in given]
    if missing:
        raise ContractError(f"accept.{surface}: missing keyword(s) {', '.join(missing)}.")


def as_int(surface: str, name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return `value` as an int in [low, high]; a bool, a float or a number outside is a ContractError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise ContractError(f"accept.{surface}: {name} must be an int of at least {low}{upper}, got {value!r}.")
    return value


def as_dtype(surface: str, value: object) -> torch.dtype:
    """Return a float dtype given as a torch.dtype or by name."""
    if isinstance(value, str):
        value = FLOAT_DTYPES.get(value.removeprefix("torch."), value)
    if not isinstance(value, torch.dtype) or value not in FLOAT_DTYPES.values():
        raise ContractError(f"accept.{surface}: dtype must be one of {', '.join(FLOAT_DTYPES)}, got {value!r}.")
    return value


def as_names(surface: str, name: str, value: object, allowed: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return a sequence of distinct strings (each in `allowed`, when given) as a tuple."""
    if isinstance(value, str) or not isinstance(value, (tuple, list, set, frozenset)):
        raise ContractError(f"accept.{surface}: {name} must be a tuple of names, got {value!r}.")
    names = tuple(sorted(value, key=str)) if isinstance(value, (set, frozenset)) else tuple(value)
    known = None if allowed is None else sorted(allowed)
    for item in names:
        if not isinstance(item, str) or not item:
            raise ContractError(f"accept.{surface}: {name} must hold names, got {item!r}.")
        if known is not None and item not in known:
            raise ContractError(
                f"accept.{surface}: unknown entry {item!r} in {name}.{suggest(item, known)} Known: {', '.join(known)}."
            )
    if len(set(names)) != len(names):
        raise ContractError(f"accept.{surface}: {name} names something twice: {names!r}.")
    return names


def call_as_code(callee: str | Callable[..., Any], arguments: Mapping[str, object]) -> str:
    """Return ``callee(a=1, dtype=torch.float32)`` as text."""
    name = callee if isinstance(callee, str) else getattr(callee, "__name__", "factory")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
