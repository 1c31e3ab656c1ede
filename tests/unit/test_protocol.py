"""What a profile must hold before it can gate a kind, and which checks no surface may leave out."""

from dataclasses import replace

import pytest

from pytest_attnaccept.errors import SchemaError, UsageError
from pytest_attnaccept.profiles import load_profile, parse_profile
from pytest_attnaccept.protocol import StackEntry, required_depth
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.strict_yaml import load_text
from pytest_attnaccept.taxonomy import Surface

REGISTRY = Registry.builtin()


def depth(method: str, surface: Surface, **profile: object):
    entry = StackEntry(method=REGISTRY.get(method), knobs={})
    return required_depth([entry], surface, replace(load_profile("smoke"), **profile), "here")


@pytest.mark.parametrize("surface", [Surface.MODEL, Surface.LOGS])
def test_another_architecture_always_needs_the_full_evaluation(surface: Surface) -> None:
    assert [r.check for r in depth("mamba", surface) if not r.exists] == ["full-evaluation"]


@pytest.mark.parametrize("method", ["h2o", "mamba"])
@pytest.mark.parametrize("checks", [{}, {"identity": {"tier": 1}, "footprint": {"tier": 1}, "divergence": {"tier": 1}}])
def test_a_profile_without_a_quality_check_gates_nothing_lossy(method: str, checks: dict) -> None:
    with pytest.raises(UsageError, match="measures no quality"):
        depth(method, Surface.MODEL, checks=checks)
    assert depth("gqa", Surface.KERNEL, checks=checks)


BAD = {
    "no tiers": "checks: {needle: {contexts: 60}}",
    "empty tiers": "checks: {needle: {tiers: []}}",
    "one tier": "checks: {needle: {tiers: 1}}",
    "infinite tier": "checks: {needle: {tiers: [.inf]}}",
    "half a context": "checks: {needle: {tiers: [1], contexts: 0.5}}",
    "list of documents": "checks: {perplexity: {documents: [1, 2]}}",
    "half a program": "cache: {programs: 0.5}",
    "setting that nothing reads": "decoder: {samples: 10}",
    "no tokens": "max_tokens: 0",
    "fewer than no tokens": "max_tokens: -8",
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_profile_values_that_measure_nothing_are_refused(line: str) -> None:
    with pytest.raises(UsageError, match=r"mine\.yaml:4"):
        parse_profile(load_text(f"schema: 1\nname: mine\nclaim: c\n{line}\n", "mine.yaml"))


def test_a_suite_cannot_cap_lengths_at_nothing(tmp_path) -> None:
    from pytest_attnaccept.suites import load_suite

    file = tmp_path / "x.accept.yaml"
    file.write_text(
        "schema: 1\nmodels: {a: toy-gqa}\nfactors: {kv: {on: {method: kv8}}}\nships: {all: {kv: on}}\nmax_tokens: 0\n"
    )
    with pytest.raises(SchemaError, match="max_tokens"):
        load_suite(file, REGISTRY)
