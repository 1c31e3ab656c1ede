"""A failed stack, its members alone and the stack without each of them -> which member is the culprit, in one sentence.

The loss of a member in company is the loss of the whole minus that of the stack without it. A member is named when it
carries at least half a margin there, or loses a whole margin alone (two members that each destroy everything carry
nothing at the margin), and it is no bystander: its loss is at least a quarter of the worst member's. Beside a member that
loses 40 points, one that loses 5 is not what broke the stack, and 5 points of a small sample are noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_attnaccept.stats.matrix import Suspect, attribute

__all__ = ["blame", "culprits"]

BYSTANDER = 0.25
"""Share of the worst member's loss below which a member is not named (policy: an order of size, not a close call)."""


def culprits(
    full: float, singles: Mapping[str, float], without: Mapping[str, float], margin: float
) -> tuple[Suspect, ...]:
    """Return the members of a failed stack that are held responsible, largest share first."""
    named = [s for s in attribute(full, dict(singles), dict(without), margin) if s.named]
    worst = max((_share(s) for s in named), default=0.0)
    return tuple(s for s in named if _share(s) >= BYSTANDER * worst)


def _share(suspect: Suspect) -> float:
    """Return what a member loses, in company or alone; between two losses without bound there is no difference."""
    return max(suspect.single, -math.inf if math.isnan(suspect.marginal) else suspect.marginal)


def blame(
    full: float,
    singles: Mapping[str, float | None],
    without: Mapping[str, float | None],
    margin: float,
    *,
    shared: tuple[float, Mapping[str, float], Mapping[str, float]] | None = None,
    unit: str = "",
) -> str:
    """Return the sentence that names the culprits, or says which runs are missing for it.

    Parameters
    ----------
    full
        Loss of the whole stack, in the unit of `margin` (a fraction: 0.05 is 5 %).
    singles, without
        By member: its loss alone, and the loss of the stack without it; None: not measured.
    shared
        The same three over the data that all runs share; culprits are chosen there, because samples that stopped at
        different sizes also differ by noise.
    unit
        Unit of the losses; "nats/token" is shown as such, everything else is a share and shown in percent.
    """
    alone = {name: value for name, value in singles.items() if value is not None}
    rest = {name: value for name, value in without.items() if value is not None}
    absent = [f"{name} alone" for name in singles if name not in alone]
    absent += [f"the stack without {name}" for name in without if name not in rest]
    if absent:
        return f"who is to blame is not known: not measured: {', '.join(absent)}"
    judged = shared if shared is not None else (full, alone, rest)
    named = sorted(culprits(*judged, margin), key=lambda s: list(singles).index(s.name))
    if not named:
        return f"no culprit: the loss of {_shown(full, unit)} is spread over {_listed(list(singles))}"
    return _sentence(named, full, alone, rest, margin, unit)


def _sentence(
    named: Sequence[Suspect],
    full: float,
    alone: Mapping[str, float],
    rest: Mapping[str, float],
    margin: float,
    unit: str,
) -> str:
    """Return who is to blame, once that is known."""
    if len(named) == 1:
        return f"{named[0].name} is the culprit: {_numbers(named[0], alone, rest, unit)}"
    if all(s.single < margin / 2 for s in named):
        each = ", ".join(f"{s.name} {_shown(alone[s.name], unit)}" for s in named)
        return f"{_listed([s.name for s in named])} hurt only together: alone {each}, all together {_shown(full, unit)}"
    return f"{_listed([s.name for s in named])} are the culprits: " + "; ".join(
        f"{s.name}: {_numbers(s, alone, rest, unit)}" for s in named
    )


def _numbers(suspect: Suspect, alone: Mapping[str, float], without: Mapping[str, float], unit: str) -> str:
    company = ", it hurts only in company" if suspect.single < suspect.marginal / 2 else ""
    rest, single = (_shown(numbers[suspect.name], unit) for numbers in (without, alone))
    return f"without it the loss is {rest}, alone it loses {single}{company}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _shown(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if unit == "nats/token" else f"{value:.1%}".replace("%", " %")
