"""How a check reads its parameters: typed, with documented defaults, and with errors that name check and parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_attnaccept.errors import ContractError

__all__ = ["Params"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of one check."""

    check: str
    given: Mapping[str, object]

    def integer(self, name: str, default: int, *, low: int = 1) -> int:
        """Return an int parameter of at least `low`."""
        value = self.given.get(name, default)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ContractError(f"{self.check}: {name}={value!r} must be an int of at least {low}")
        return value

    def optional_integer(self, name: str, *, low: int = 1) -> int | None:
        """Return an int parameter, or None when it is not set."""
        return None if self.given.get(name) is None else self.integer(name, low, low=low)

    def number(self, name: str, default: float, *, low: float = 0.0) -> float:
        """Return a number greater than `low`."""
        value = self.given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value > low and math.isfinite(value)):
            raise ContractError(f"{self.check}: {name}={value!r} must be a number greater than {low:g}")
        return float(value)

    def numbers(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Return a non-empty list of numbers greater than zero."""
        value = self.given.get(name, default)
        if not isinstance(value, (list, tuple)) or not value:
            raise ContractError(f"{self.check}: {name}={value!r} must be a list of numbers")
        return tuple(Params(check=self.check, given={name: each}).number(name, 1.0) for each in value)

    def optional_number(self, name: str) -> float | None:
        """Return a number greater than zero, or None when it is not set."""
        return None if self.given.get(name) is None else self.number(name, 1.0)

    def text(self, name: str, default: str) -> str:
        """Return a text parameter."""
        value = self.given.get(name, default)
        if not isinstance(value, str) or not value:
            raise ContractError(f"{self.check}: {name}={value!r} must be text")
        return value

    def texts(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return a non-empty list of texts; a single text is a list of one."""
        value = self.given.get(name, default)
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(v, str) for v in value):
            raise ContractError(f"{self.check}: {name}={value!r} must be a list of texts")
        return tuple(value)
