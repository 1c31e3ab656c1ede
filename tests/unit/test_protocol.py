"""The decision table: kind, surface and profile decide the depth."""

import pytest

from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.profiles import BUILTIN_PROFILES, load_profile
from pytest_attnaccept.protocol import CHECK_REASONS, StackEntry, required_depth, stack_kind
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Kind, Surface

REGISTRY = Registry.builtin()


def entry(name: str, **knobs: object) -> StackEntry:
    method = REGISTRY.get(name)
    given = {k.name: knobs.get(k.name, 0.5 if k.name == "kv_budget" else 64) for k in method.knobs if k.required}
    return StackEntry(method=method, knobs=check_knobs(method, {**given, **knobs}, "here"))


@pytest.mark.parametrize("profile", BUILTIN_PROFILES)
@pytest.mark.parametrize("name", [m.name for m in REGISTRY])
def test_every_method_has_a_depth_under_every_profile(name: str, profile: str) -> None:
    depth = required_depth([entry(name)], REGISTRY.get(name).surface, load_profile(profile), "here")
    checks = [r.check for r in depth]
    assert checks
    assert len(checks) == len(set(checks))
    assert all(r.reason for r in depth)
    assert all(set(c) <= set("abcdefghijklmnopqrstuvwxyz0123456789._+-") for c in checks)


@pytest.mark.parametrize("profile", BUILTIN_PROFILES)
def test_what_cannot_be_measured_is_named_and_only_where_required(profile: str) -> None:
    loaded = load_profile(profile)
    missing = [r.check for r in required_depth([entry("h2o")], Surface.MODEL, loaded, "here") if not r.exists]
    assert missing == list(loaded.performance)
    architecture = required_depth([entry("mamba")], Surface.MODEL, loaded, "here")
    assert "full-evaluation" in [r.check for r in architecture if not r.exists]


@pytest.mark.parametrize("surface", [s for s in Surface if s.value not in ("model", "logs")])
@pytest.mark.parametrize("name", ["h2o", "kv4", "mamba"])
def test_quality_shows_only_through_a_model(name: str, surface: Surface) -> None:
    with pytest.raises(UsageError, match="accept.model"):
        required_depth([entry(name)], surface, load_profile("smoke"), "here")


def test_the_most_demanding_member_decides() -> None:
    assert stack_kind([entry("gqa")]) is Kind.EXACT
    assert stack_kind([entry("gqa"), entry("kv4")]) is Kind.APPROXIMATE
    assert stack_kind([entry("kv4"), entry("mamba"), entry("gqa")]) is Kind.ARCHITECTURE
    mixed = [
        r.check for r in required_depth([entry("gqa"), entry("kv4")], Surface.MODEL, load_profile("smoke"), "here")
    ]
    assert mixed == [r.check for r in required_depth([entry("kv4")], Surface.MODEL, load_profile("smoke"), "here")]


def test_exact_models_are_compared_for_equality() -> None:
    checks = [r.check for r in required_depth([entry("gqa")], Surface.MODEL, load_profile("smoke"), "here")]
    assert "equality" in checks
    assert "needle-1x" not in checks


@pytest.mark.parametrize("surface", [s for s in Surface if s.value in ("kernel", "cache", "prefix_cache", "decoder")])
def test_exact_surfaces_run_all_their_checks(surface: Surface) -> None:
    checks = [r.check for r in required_depth([entry("gqa")], surface, load_profile("smoke"), "here")]
    assert checks == list(CHECK_REASONS[surface])


def test_needle_tiers_become_items() -> None:
    depth = required_depth([entry("h2o")], Surface.MODEL, load_profile("longctx"), "here")
    needles = [r for r in depth if r.check.startswith("needle-")]
    assert len(needles) > 1
    assert len({r.params["tier"] for r in needles}) == len(needles)


def test_labels() -> None:
    assert entry("h2o", kv_budget=0.25).label == "h2o(kv_budget=0.25, sinks=4)"
    assert entry("gqa").label == "gqa"
