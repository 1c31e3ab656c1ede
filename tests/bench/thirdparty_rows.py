"""One row of the table of third-party implementations: whose code, under which mark, and what the gate has to say about it.

What the gate has to say is written down with the row: "honest" code must not be accused (of storage, of seeing the future, of
leaving something behind), whatever its quality is; "refused" code is not what its mark claims, and must not pass. Where the gate
was right against the first guess (a fault of a library), the row has a note that says which.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["HONEST", "REFUSED", "Row", "missing"]

HONEST, REFUSED = "honest", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A candidate and its mark.

    Attributes
    ----------
    build
        Takes the fixture ``accept_model`` and returns what `accept.model` is given.
    expected
        `HONEST` or `REFUSED`.
    words
        What the reason of a refusal has to contain, or of the failure that an honest candidate has by design elsewhere
        (a prompt in chunks).
    needs
        Modules without which the row cannot be run.
    bits
        Not 0: the candidate is a checkpoint folder, named in the mark, whose weights are rounded to so many bits.
    whole
        Whether a refused row is asked about quality too.
    one_shot
        Whether the code is made for a prompt in one call: then `footprint` is asked for that pattern, and for chunks apart.
    """

    name: str
    group: str
    method: str
    knobs: Mapping[str, object]
    build: Callable[[Any], object]
    expected: str = HONEST
    words: str = ""
    needs: tuple[str, ...] = ()
    one_shot: bool = False
    model: str = "toy-gqa"
    kind: str = "approximate"
    bits: int = 0
    whole: bool = False
    note: str = ""

    @property
    def mark(self) -> str:
        """The mark as it stands in a test."""
        arguments = ", ".join([f"method={self.method!r}", *(f"{k}={v!r}" for k, v in self.knobs.items())])
        return f"@pytest.mark.{self.kind}({arguments})"

    def with_checkpoint(self, place: str) -> str:
        """The mark with a checkpoint folder in it."""
        return f"{self.mark[:-1]}, checkpoint={place!r})"


def missing(row: Row) -> list[str]:
    """Return the modules that the row needs and that are not here."""
    return [name for name in row.needs if not _there(name)]


def _there(name: str) -> bool:
    module, _, attribute = name.partition(":")
    if attribute:
        return hasattr(importlib.import_module(module), attribute)
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False
