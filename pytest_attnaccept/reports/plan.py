"""The plan in words, before anything is spent: items, reasons, sample sizes, power, cost and advice."""

from __future__ import annotations

from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.profiles import Profile
from pytest_attnaccept.protocol import not_gated_yet
from pytest_attnaccept.taxonomy import Kind, Surface

__all__ = ["plan_lines"]


def plan_lines(plan: Plan, profile: Profile) -> list[str]:
    """Return the lines that ``--accept-plan`` prints."""
    lines = [
        f"plan under profile {profile.name} ({profile.title}): {len(plan.items)} items, digest {plan.digest()}",
        f"claim of a PASS: {profile.claim}",
    ]
    cells: dict[str, list[PlannedItem]] = {}
    for item in plan.items:
        cells.setdefault(item.cell, []).append(item)
    for cell, items in cells.items():
        first = items[0]
        lines.append(f"{cell}: {first.stack} [{first.kind}, {first.surface}]")
        lines += [f"  {item.check:<14} {_size(item, profile)}{item.reason}" for item in items]
        missing = not_gated_yet(Kind(first.kind), Surface(first.surface), profile)
        lines += [f"  not gated yet: {check} ({reason})" for check, reason in missing.items()]
    if profile.advice:
        lines.append(f"this scenario usually ships with: {'; '.join(profile.advice)} (advice, never part of a verdict)")
    return lines


def _size(item: PlannedItem, profile: Profile) -> str:
    if not item.exists:
        return "INCOMPLETE: cannot be measured by this version; "
    return ""
