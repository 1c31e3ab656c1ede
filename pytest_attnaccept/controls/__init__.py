"""Known-bad and known-good candidates that ship with the package: the gate proves with them that it can fail.

Each module lists `Control` values; ``--accept-selftest`` runs them and compares the verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["Control"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One candidate whose verdict is known beforehand.

    Attributes
    ----------
    name
        What the candidate does ("zeros", "keeps a dropped key").
    check
        The check that is run on it.
    expected
        Verdicts that are right; a known-bad candidate may be caught as FAIL or INVALID, never PASS.
    measure
        Measures it.
    """

    surface: str
    name: str
    check: str
    expected: frozenset[Verdict]
    measure: Callable[[], Measured]
