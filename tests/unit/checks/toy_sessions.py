"""What tests of model checks share: stacks of registered methods, sessions on the embedded model, facts by name."""

from __future__ import annotations

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


def session(toy, *members, **sides):
    return open_session(baseline=toy, stack=stack(*members), **sides)


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}
