"""The registry in words: what each method is, how it is set, and which checks it needs under a profile."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.protocol import StackEntry, not_gated_yet, required_depth
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.taxonomy import Kind, Knob, Method, Surface

__all__ = ["depth_lines", "method_lines"]


def method_lines(only: str | None = None) -> list[str]:
    """Return one row per method: name, kind, layer, surface, knobs, hardware, and who applies it to a model."""
    lines = [f"{'method':<22} {'kind':<13} {'layer':<13} {'surface':<13} note"]
    for method in _chosen(only):
        name = method.name
        lines.append(
            f"{name:<22} {method.kind.value:<13} {method.layer.value:<13} {method.surface.value:<13} {method.note}"
        )
        if method.aliases:
            lines.append(f"{'':<22} also called {', '.join(method.aliases)}")
        lines += [f"{'':<22} {_knob(knob)}" for knob in method.knobs]
        if method.surface is Surface.MODEL and method.kind is not Kind.EXACT:
            lines.append(f"{'':<22} {_who(method)}")
        if method.hardware:
            lines.append(f"{'':<22} hardware: {method.hardware}")
    return lines


def depth_lines(profile_name: str, only: str | None = None) -> list[str]:
    """Return, per method, the checks that a profile requires on its default surface, each with its reason."""
    profile = load_profile(profile_name, "--profile")
    lines = [f"profile {profile.name}: {profile.title}", f"claim of a PASS: {profile.claim}"]
    for method in _chosen(only):
        entry = StackEntry(method=method, knobs={})
        lines.append(f"{method.name} [{method.kind.value}, accept.{method.surface.value}]")
        needed = required_depth([entry], method.surface, profile, method.name)
        width = max(16, *(len(requirement.check) for requirement in needed))
        for requirement in needed:
            state = "" if requirement.exists else "(INCOMPLETE: this version cannot measure it) "
            lines.append(f"  {requirement.check:<{width}} {state}{requirement.reason}")
        missing = not_gated_yet(method.kind, method.surface, profile)
        if missing:
            lines.append(f"  not gated yet: {', '.join(missing)}")
    return lines


def _chosen(only: str | None) -> Iterator[Method]:
    registry = Registry.builtin()
    if only is not None:
        yield registry.get(only, "--method")
        return
    yield from registry


def _who(method: Method) -> str:
    if method.applies:
        return "applied by the package: accept.model() without a candidate"
    return "needs a candidate or checkpoint: accept.model(candidate=...)"


def _knob(knob: Knob) -> str:
    kinds = "|".join(t.__name__ for t in knob.types)
    default = "required" if knob.required else f"default {knob.default}"
    worst = f", worse when {knob.worst}" if knob.worst else ""
    return f"{knob.name}: {kinds}, {default}{worst}; {knob.doc}"
