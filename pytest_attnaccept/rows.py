"""Factors and shipped stacks -> the rows of a matrix: shipped stacks, leave-one-outs, single members, further combinations.

Positions
---------
1. Errors compound, so the shipped stacks and each of their lossy members alone are required whatever ``rows`` says; of a
   stack of three or more also every stack without one lossy member, because only those runs name a culprit (of two
   members the singles are these runs).
2. Rows are sorted worst first (most lossy members, hardest knobs): a bad release dies in its first cell.
3. Exact members alone make no row: what speculation over an uncompressed model does is measured inside every cell that
   combines it with lossy members.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.taxonomy import Kind

__all__ = ["ROWS", "Row", "combinations", "lossy_of", "required_rows", "severity", "wanted_rows"]

ROWS = ("required", "pairwise", "full")
Options = Mapping[str, Mapping[str, StackEntry | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stack of the matrix, on whichever column.

    Attributes
    ----------
    name
        What the cell is called behind its column: the name of a shipped stack, ``only-<member>``,
        ``<stack>-without-<member>`` or ``row-<option>+<option>``; not yet an id.
    origin
        The shipped stack that asks for this row; "" for a further combination.
    """

    name: str
    stack: tuple[StackEntry, ...]
    origin: str

    @property
    def key(self) -> frozenset[tuple[str, str | None]]:
        """Return what makes two rows the same measurement: their members, whatever the order."""
        return frozenset((e.label, e.checkpoint) for e in self.stack)


def lossy_of(stack: Sequence[StackEntry]) -> tuple[StackEntry, ...]:
    """Return the members that may cost quality."""
    return tuple(e for e in stack if e.method.kind is not Kind.EXACT)


def required_rows(ships: Mapping[str, tuple[StackEntry, ...]]) -> list[Row]:
    """Return the shipped stacks, their leave-one-outs and their lossy members alone, each kind worst first."""
    whole = [Row(name=name, stack=stack, origin=name) for name, stack in ships.items()]
    known = {lossy_key(row.stack) for row in whole}
    partial: list[Row] = []
    for name, stack in ships.items():
        lossy = lossy_of(stack)
        for entry in lossy if len(lossy) > 2 else ():
            rest = tuple(e for e in lossy if e is not entry)
            if lossy_key(rest) not in known:
                known.add(lossy_key(rest))
                partial.append(Row(name=f"{name}-without-{entry.label}", stack=rest, origin=name))
    singles: dict[frozenset[tuple[str, str | None]], Row] = {}
    named = _names([entry for stack in ships.values() for entry in stack])
    for name, stack in ships.items():
        for entry in lossy_of(stack) if len(stack) > 1 else ():
            row = Row(name=f"only-{named[entry.member]}", stack=(entry,), origin=name)
            singles.setdefault(row.key, row)
    return [*_worst_first(whole), *_worst_first(partial), *_worst_first(list(singles.values()))]


def wanted_rows(rows: str, factors: Options, ships: Mapping[str, tuple[StackEntry, ...]]) -> list[Row]:
    """Return every row of a suite whose ``rows`` is `rows`."""
    required = required_rows(ships)
    if rows == "required":
        return required
    known = {row.key for row in required}
    found: list[Row] = []
    named = _names([entry for options in factors.values() for entry in options.values() if entry is not None])
    for choice in _product(factors) if rows == "full" else _pairs_covered(factors, ships):
        row = _named(choice, factors, named)
        if row is not None and row.key not in known:
            known.add(row.key)
            found.append(row)
    return [*required, *_worst_first(found)]


def lossy_key(stack: Sequence[StackEntry]) -> frozenset[tuple[str, str | None]]:
    """Return what two stacks share that lose the same: their lossy members."""
    return frozenset((e.label, e.checkpoint) for e in lossy_of(stack))


def combinations(factors: Options) -> int:
    """Return how many combinations the options have, off included."""
    return math.prod(len(_with_off(options)) for options in factors.values())


def _product(factors: Options) -> Iterator[tuple[str, ...]]:
    return itertools.product(*(_with_off(options) for options in factors.values()))


def _with_off(options: Mapping[str, StackEntry | None]) -> list[str]:
    """Return the options of a factor, one of which is off, named or not."""
    off = next((name for name, entry in options.items() if entry is None), "")
    return [off, *(name for name, entry in options.items() if entry is not None)]


def _names(entries: Sequence[StackEntry]) -> dict[str, str]:
    """Return what each member is called in the name of a row: its label, with the checkpoint where two share a label."""
    members: dict[str, set[str]] = {}
    for entry in entries:
        members.setdefault(entry.label, set()).add(entry.member)
    return {entry.member: entry.label if len(members[entry.label]) == 1 else entry.member for entry in entries}


def _chosen(choice: Sequence[str], factors: Options) -> list[tuple[str, StackEntry]]:
    """Return the options of a choice that are not off."""
    return [(name, entry) for name, f in zip(choice, factors.values(), strict=True) if (entry := f.get(name))]


def _named(choice: Sequence[str], factors: Options, named: Mapping[str, str]) -> Row | None:
    """Return the row of one option per factor; None when nothing in it is lossy."""
    chosen = _chosen(choice, factors)
    stack = tuple(entry for _, entry in chosen)
    if not lossy_of(stack):
        return None
    name = f"only-{named[stack[0].member]}" if len(stack) == 1 else "row-" + "+".join(name for name, _ in chosen)
    return Row(name=name, stack=stack, origin="")


def _pairs_covered(factors: Options, ships: Mapping[str, tuple[StackEntry, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield choices until every pair of options of two factors (off included) stands in some row.

    Greedy: the choice that covers most open pairs is next, the first one of them in file order, so a suite always has the
    same rows. Pairs inside shipped stacks count as covered. Only choices that become rows cover anything: an exact option
    alone is none.
    """
    names = list(factors)
    choices = [c for c in _product(factors) if lossy_of([entry for _, entry in _chosen(c, factors)])]
    shipped = {frozenset(e.member for e in stack) for stack in ships.values()}

    def pairs(choice: Sequence[str]) -> set[tuple[str, str, str, str]]:
        return {(names[i], choice[i], names[j], choice[j]) for i, j in itertools.combinations(range(len(names)), 2)}

    def is_shipped(choice: Sequence[str]) -> bool:
        return frozenset(entry.member for _, entry in _chosen(choice, factors)) in shipped

    open_pairs = set().union(*(pairs(c) for c in choices)) if len(names) > 1 else set()
    for choice in choices:
        if is_shipped(choice):
            open_pairs -= pairs(choice)
    while open_pairs:
        best = max(choices, key=lambda c: len(open_pairs & pairs(c)))
        open_pairs -= pairs(best)
        yield best
    if len(names) == 1:
        yield from choices


def _worst_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -severity(row.stack))


def severity(stack: Sequence[StackEntry]) -> float:
    """Return how hard a stack is expected to be, for ordering only: members count most, then how far their knobs go."""
    return sum(1.0 + _hardness(entry) for entry in lossy_of(stack))


def _hardness(entry: StackEntry) -> float:
    """Return 0 (harmless) to just below 1 (hardest) from the knobs whose worse direction the registry knows."""
    bits = entry.knobs.get("bits")
    if isinstance(bits, int):
        return max(0.0, 1 - bits / 16)
    digits = "".join(c for c in entry.method.name.split("a")[0] if c.isdigit())
    hardest = max(0.0, 1 - int(digits) / 16) if digits and entry.method.name[0] in "kw" else 0.0
    for knob in entry.method.knobs:
        value = entry.knobs.get(knob.name)
        if knob.worst != "lower" or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if isinstance(value, float):
            hardest = max(hardest, 1 - min(value, 1.0))
        elif knob.required:
            hardest = max(hardest, 64 / (64 + value))
    return min(hardest, 0.99)
