"""A method whose identity setting still drops an entry (used by the identity check's known-bad test)."""

from __future__ import annotations

from pytest_attnaccept.methods.applied import Applied
from pytest_attnaccept.methods.eviction import SinksAndRecent


def apply(model, knobs):
    return Applied(method="leaky", policy=SinksAndRecent(budget=knobs.get("entries", 0.5), sinks=0))


def identity(knobs):
    return {**knobs, "entries": 0.97}
