"""Every error that this package raises on purpose, and the did-you-mean that goes with it.

The tree::

    AttnAcceptError                what, where, allowed values, suggestion
    |-- UsageError                 a mark, option, suite or profile is wrong: nothing was measured, a rerun cannot help
    |   |-- UnknownNameError       a name that is in no registry (with a suggestion)
    |   `-- SchemaError            a YAML file that breaks the schema (file:line)
    |-- ContractError              the contract, knobs or data of one item are wrong: JUnit <error>, a rerun cannot help
    |-- CandidateError             the candidate raised or returned something unusable: the item FAILS
    |-- EngineError                the engine or model cannot do what a check needs: INCOMPLETE, names what is missing
    `-- RecordError                a record, shard or log cannot be read

`AcceptanceFailure` (an AssertionError) is how a verdict other than PASS leaves a test; it is not in the tree because it
is not an error of anybody.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AcceptanceFailure",
    "AttnAcceptError",
    "CandidateError",
    "ContractError",
    "EngineError",
    "RecordError",
    "SchemaError",
    "UnknownNameError",
    "UsageError",
    "suggest",
]


class AttnAcceptError(Exception):
    """Base of the tree; its text is what a user reads."""


class UsageError(AttnAcceptError):
    """A mark, option, suite or profile is wrong."""


class UnknownNameError(UsageError):
    """A name that no registry knows.

    Parameters
    ----------
    what
        The sort of name ("method", "profile", "knob of h2o").
    name
        What the user wrote.
    known
        The names that are allowed here.
    where
        File and line, node id or option, when known.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], where: str = "") -> None:
        allowed = sorted(set(known))
        hint = suggest(name, allowed)
        place = f"{where}: " if where else ""
        listing = f" Known: {', '.join(allowed)}." if allowed else " None is known here."
        super().__init__(f"{place}unknown {what} {name!r}.{hint}{listing}")
        self.name = name


class SchemaError(UsageError):
    """A YAML file that breaks the schema; the message starts with file:line."""


class ContractError(AttnAcceptError):
    """The contract, knobs or data that the user gave for one item cannot be used."""


class CandidateError(AttnAcceptError):
    """The candidate raised, or returned something of the wrong type, shape or dtype."""


class EngineError(AttnAcceptError):
    """The engine, model or machine cannot do what the check needs."""


class RecordError(AttnAcceptError):
    """A record, shard or log cannot be read."""


class AcceptanceFailure(AssertionError):
    """Raised in the call phase for every verdict that is not green; the first line is the whole verdict."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest known name, or an empty string.

    >>> suggest("h20", ["h2o", "kv4"])
    " Did you mean 'h2o'?"
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
