"""Which values a parameter of a task family may have; the same answer when a profile is read and when an item is made.

Positions
---------
1. A family declares its ranges beside its defaults, once. What cannot be asked is refused where it is written, not when the
   model is loaded.
2. A bound may depend on parameters that stand before it in the declaration (as many questions as pairs), so a default can be
   out of range too.
3. What only a length or a tokenizer can refuse (facts that do not fit) stays with whoever makes the item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.errors import AttnAcceptError, ContractError, SchemaError, UnknownNameError, suggest
from pytest_attnaccept.tasks.items import Parameter

__all__ = ["MANY", "Allowed", "Bound", "Range", "settle"]

MANY = 100_000
"""Most facts of a context where nothing else limits them (policy: ten tokens each are more than any context holds)."""
_SHOWN = 40  # characters of a value that a message repeats

Bound = float | str | Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The numbers that a parameter may be.

    Attributes
    ----------
    low, high
        Smallest and largest, both allowed: a number, the name of a parameter that stands before, or a function of all of these.
    special
        One more number and what it means, such as ``(0, "as many as fit")``.
    """

    low: Bound
    high: Bound
    special: tuple[float, str] | None = None

    def bounds(self, before: Mapping[str, Parameter]) -> tuple[float, float]:
        """Return the smallest and the largest number, given the parameters that stand before."""
        low, high = (_bound(bound, before) for bound in (self.low, self.high))
        return low, high

    @property
    def depends(self) -> bool:
        """Whether other parameters move a bound."""
        return not all(isinstance(bound, (int, float)) for bound in (self.low, self.high))


Allowed = Range | tuple[str, ...]


def _bound(bound: Bound, before: Mapping[str, Any]) -> float:
    if isinstance(bound, (int, float)):
        return bound
    found: float = before[bound] if isinstance(bound, str) else bound(before)
    return found


def settle(
    task: str,
    defaults: Mapping[str, Parameter],
    ranges: Mapping[str, Allowed],
    given: Mapping[str, object],
    *,
    where: Callable[[str], str] | None = None,
) -> dict[str, Parameter]:
    """Return all parameters of a family: those that are given, and the defaults of the others.

    Parameters
    ----------
    ranges
        What is allowed; a parameter that is not in it is checked for its type only.
    where
        Gives file and line of a parameter, when a file is read.

    Raises
    ------
    UnknownNameError
        A parameter that the family does not have.
    SchemaError, ContractError
        A value that is not allowed: the first with `where`, the second without.
    """
    for name in given:
        if name not in defaults:
            raise UnknownNameError(f"parameter of {task}", str(name), defaults, where(name) if where else "")
    settled: dict[str, Parameter] = {}
    for name in (*(n for n in defaults if n not in ranges), *ranges):
        value = given.get(name, defaults[name])
        try:
            settled[name] = _checked(value, defaults[name], ranges.get(name), settled)
        except _NotAllowed as wrong:
            own = "" if name in given else " (the default)"
            raise _refusal(f"{task}: {name}={_short(value)}{own} {wrong}", where(name) if where else "") from None
        except Exception as error:  # a bound is a function of whoever wrote the family
            raise ContractError(f"task family {task!r}: the range of {name} raised {_said(error)}") from error
    return settled


class _NotAllowed(Exception):
    """What is wrong with a value, without saying whose it is."""


def _refusal(text: str, place: str) -> AttnAcceptError:
    return SchemaError(f"{place}: {text}") if place else ContractError(text)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _checked(value: object, default: Parameter, allowed: Allowed | None, before: Mapping[str, Parameter]) -> Parameter:
    """Return the value in the type of its default."""
    kind = type(default)
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind or not isinstance(value, (int, float, str)):
        raise _NotAllowed(f"must be of type {kind.__name__}{_offer(allowed, before)}.{_meant(value, kind)}")
    if isinstance(allowed, Range):
        return _number(value, allowed, before)
    if allowed is not None and value not in allowed:
        raise _NotAllowed(f"is unknown. Allowed: {', '.join(allowed)}.{suggest(str(value), allowed)}")
    return value


def _number(value: Parameter, allowed: Range, before: Mapping[str, Parameter]) -> Parameter:
    low, high = allowed.bounds(before)
    if isinstance(value, str) or low <= value <= high or (allowed.special and value == allowed.special[0]):
        return value
    others = ", ".join(f"{name}={_short(other)}" for name, other in before.items()) if allowed.depends else ""
    here = f" ({others})" if others else ""
    nearest = "" if math.isnan(value) else f" The nearest is {_plain(min(max(value, low), high))}."
    if allowed.special:
        special, meaning = allowed.special
        said = f"is neither {_plain(special)} ({meaning}) nor in {_plain(low)}..{_plain(high)}"
    else:
        said = f"is outside {_plain(low)}..{_plain(high)}"
    raise _NotAllowed(f"{said}{here}.{nearest}")


def _offer(allowed: Allowed | None, before: Mapping[str, Parameter]) -> str:
    """Say what is allowed, behind the type."""
    if isinstance(allowed, Range):
        low, high = allowed.bounds(before)
        special = f", or {_plain(allowed.special[0])} ({allowed.special[1]})" if allowed.special else ""
        return f" in {_plain(low)}..{_plain(high)}{special}"
    return f", one of {', '.join(allowed)}" if allowed else ""


def _plain(number: float) -> str:
    return f"{number:.15g}"


def _meant(value: object, kind: type) -> str:
    """Suggest what a number in quotes, or a whole number with a point, was meant to be."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return ""
    try:
        meant = kind(value)
        same = kind is str or float(meant) == float(value)
    except (ValueError, OverflowError):
        return ""
    return f" Did you mean {_short(meant)}?" if same and kind is not str else ""
