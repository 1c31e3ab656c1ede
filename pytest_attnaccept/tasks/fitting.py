"""How a context gets its length: filler is added until context plus longest question and answer fill the target.

Positions: lengths are those of the tested tokenizer (``fit``); the last sentences are chosen by cost so that the target
is met exactly where token counts add up; the whole text is counted once more in the end, because they need not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks.filler import TAILS, filler_sentence
from pytest_attnaccept.tasks.items import KeySpan
from pytest_attnaccept.tasks.stream import Stream

__all__ = ["STRATA", "Fact", "Layout", "Supply", "compose", "stratified_depths", "stretch"]

STRATA = 5
_ATTEMPTS = 12
_SHORTFALL = 0.02  # contract of the task families: never over the target, at most 2 % under it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A sentence that must stand in the context, at about ``depth`` (0 start, 1 end)."""

    text: str
    depth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A fitted context and where each fact stands in it (same order as the facts)."""

    context: str
    spans: tuple[KeySpan, ...]


def stratified_depths(stream: Stream, count: int, index: int) -> list[float]:
    """``count`` depths in [0, 1), each in another stratum; fewer than 5 take turns in 5 strata with ``index``."""
    strata = max(STRATA, count)
    slots = [(index + j * strata // count) % strata for j in range(count)]
    return [(slot + stream.unit()) / strata for slot in stream.shuffled(slots)]


class Supply:
    """A reproducible supply of sentences and their costs; ``source(number)`` is asked once per number, in order."""

    def __init__(
        self, source: Callable[[int], str], tails: Sequence[str], fit: Callable[[str], int], separator: str = " "
    ) -> None:
        self._source, self._fit, self._separator = source, fit, separator
        self._drawn: list[tuple[str, int]] = []
        self._tails: dict[int, list[str]] = {}
        for text in tails:
            self._tails.setdefault(self.cost(text), []).append(text)
        self._longest, self.shortest = max(self._tails), min(self._tails)

    def cost(self, text: str) -> int:
        """Tokens of one sentence with the separator before it."""
        return self._fit(self._separator + text)

    def _sentence(self, number: int) -> tuple[str, int]:
        while number >= len(self._drawn):
            text = self._source(len(self._drawn))
            self._drawn.append((text, self.cost(text)))
        return self._drawn[number]

    def take(self, room: int) -> list[tuple[str, int]]:
        """Sentences that cost ``room`` tokens, or as little less as the short ones allow."""
        taken: list[tuple[str, int]] = []
        while True:
            text, cost = self._sentence(len(taken))
            if room - cost < 2 * self._longest:
                break
            taken.append((text, cost))
            room -= cost
        return taken + self._exact(room)

    def _exact(self, room: int) -> list[tuple[str, int]]:
        """The combination of short sentences with the largest sum that is not above ``room``."""
        if room <= 0:
            return []
        reached: dict[int, tuple[int, ...]] = {0: ()}
        for total in range(room):
            if total in reached:
                for cost in sorted(self._tails, reverse=True):
                    if total + cost <= room and total + cost not in reached:
                        reached[total + cost] = (*reached[total], cost)
        chosen = reached[max(reached)]
        return [(self._tails[cost][i % len(self._tails[cost])], cost) for i, cost in enumerate(chosen, start=room)]


def _assemble(facts: Sequence[Fact], filling: list[tuple[str, int]], separator: str) -> Layout:
    """Put the facts between the filler sentences, each where its depth of the filler tokens is reached."""
    total = sum(cost for _, cost in filling)
    order = sorted(range(len(facts)), key=lambda i: (facts[i].depth, i))
    parts: list[str] = []
    position, passed, length = 0, 0, 0
    starts: dict[int, int] = {}

    def add(text: str) -> int:
        nonlocal length
        start = length + (len(separator) if parts else 0)
        parts.append(text)
        length = start + len(text)
        return start

    for i in order:
        while position < len(filling) and passed + filling[position][1] / 2 <= facts[i].depth * total:
            add(filling[position][0])
            passed += filling[position][1]
            position += 1
        starts[i] = add(facts[i].text)
    for text, _ in filling[position:]:
        add(text)
    context = separator.join(parts)
    spans = tuple(
        KeySpan(start=starts[i], end=starts[i] + len(fact.text), depth=starts[i] / len(context))
        for i, fact in enumerate(facts)
    )
    return Layout(context=context, spans=spans)


def stretch(
    attempt: Callable[[int], str], endings: Sequence[str], *, fit: Callable[[str], int], target: int, grain: int
) -> int:
    """The room for which ``attempt(room)`` plus the longest ending comes closest to the target without passing it.

    Raises
    ------
    ContractError
        When even the smallest text is longer than the target, or none comes within 2 % of it (or within ``grain``, the
        cost of the shortest filler sentence, where that is more).
    """
    costs = {ending: fit(ending) for ending in endings}
    # Alone the longest need not be the longest after the context: try all that come close.
    longest = [ending for ending, cost in costs.items() if cost >= max(costs.values()) - 2]
    room = max(0, target - max(costs.values()))
    best_room, best = -1, -1
    for _ in range(_ATTEMPTS):
        context = attempt(room)
        size = max(fit(context + ending) for ending in longest)
        if best < size <= target:
            best_room, best = room, size
        if size == target or (room == 0 and size > target) or (size < target and best_room > room):
            break
        room = max(0, room + target - size)
    if best < 0:
        raise ContractError(
            f"target_tokens={target} is too short: the facts and the longest question need {size} "
            "tokens of this tokenizer. Use a longer target, or fewer facts."
        )
    if target - best > max(_SHORTFALL * target, grain):
        raise ContractError(
            f"target_tokens={target} cannot be met with this tokenizer: the nearest text below it has {best} tokens."
        )
    return best_room


def compose(
    facts: Sequence[Fact],
    endings: Sequence[str],
    *,
    stream: Stream,
    fit: Callable[[str], int],
    target: int,
    filler: str,
    separator: str = " ",
    source: Callable[[int], str] | None = None,
) -> Layout:
    """A context that holds the facts and, with the longest of the endings, fills ``target`` tokens.

    What stands between the facts is filler, or what ``source(number)`` says (look-alikes of the facts); only the last gap
    is always closed by short sentences of the filler.
    """
    supply = Supply(source or (lambda _: filler_sentence(filler, stream)), TAILS[filler], fit, separator)
    weight = sum(supply.cost(fact.text) for fact in facts)

    def attempt(room: int) -> str:
        return _assemble(facts, supply.take(room - weight), separator).context

    room = stretch(attempt, endings, fit=fit, target=target, grain=supply.shortest)
    return _assemble(facts, supply.take(room - weight), separator)
