"""Two methods that take the same part of a candidate are refused before anything runs, and only those."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_attnaccept.errors import SchemaError
from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.stacking import clash
from pytest_attnaccept.suites import load_suite

REGISTRY = Registry.builtin()
KNOBS = {"kv_budget": 0.5, "window": 64}


def entry(name: str, checkpoint: str | None = None) -> StackEntry:
    method = REGISTRY.get(name)
    given = {k.name: KNOBS[k.name] for k in method.knobs if k.required}
    return StackEntry(method=method, knobs=check_knobs(method, given, "test"), checkpoint=checkpoint)


APPLIED = [m.name for m in REGISTRY if m.applies.startswith("pytest_attnaccept.methods.")]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("h2o", "tova"), "h2o and tova: two evictions"),
        (("sliding_window", "kv4", "snapkv"), "sliding_window and snapkv: two evictions"),
        (("kv8", "kv4"), "two KV quantizations"),
        (("w4a16", "w8a8"), "two weight quantizations"),
        (("h2o", "kv4", "w4a16", "fp8_attention", "prompt_lookup"), ""),
        (("flash_attention", "paged_attention"), ""),  # not applied by the package at all
    ],
)
def test_one_eviction_one_format_of_entries_one_of_weights(names: tuple[str, ...], words: str) -> None:
    found = clash([entry(n) for n in names])
    assert words in found if words else not found


def test_what_a_checkpoint_carries_and_what_others_bring_is_not_refused() -> None:
    assert not clash([entry("w4a16", "somewhere"), entry("w8a8")])
    mine = replace(entry("h2o"), method=replace(REGISTRY.get("h2o"), name="mine", applies="mine.kv:apply"))
    assert not clash([entry("tova"), mine])


def test_the_words_are_those_of_the_code_that_stacks() -> None:
    """Every pair of methods that this package applies is refused here exactly where it is refused when it is applied."""
    pytest.importorskip("torch")
    from pytest_attnaccept.engines.loading import load
    from pytest_attnaccept.engines.specs import parse_spec
    from pytest_attnaccept.errors import ContractError
    from pytest_attnaccept.methods import stack as stacks

    model = load(parse_spec("toy-gqa")).model
    made = {}
    for name in APPLIED:
        found = entry(name)
        module, function = stacks._module(found.method)
        made[name] = getattr(module, function)(model, found.knobs)
    for pair in itertools.combinations(APPLIED, 2):
        try:
            for field, what in (
                ("policy", "evictions"),
                ("codec", "KV quantizations"),
                ("weights", "weight quantizations"),
            ):
                stacks._single([made[n] for n in pair], field, what)
            refused = ""
        except ContractError as error:
            refused = str(error)
        assert clash([entry(n) for n in pair]) == refused, pair


SUITE = """schema: 1
models: {gqa: toy-gqa}
factors:
  first: {h2o: {method: h2o, kv_budget: 0.5}, off: null}
  second: {tova: {method: tova, kv_budget: 0.5}, four: {method: kv4}}
"""


def test_a_suite_that_ships_two_evictions_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "two.accept.yaml"
    path.write_text(SUITE + "ships:\n  fine: {first: h2o, second: four}\n  both: {first: h2o, second: tova}\n")
    with pytest.raises(SchemaError, match=r"two\.accept\.yaml:8: both: h2o and tova: two evictions"):
        load_suite(path, REGISTRY)


def test_rows_that_combine_two_evictions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.accept.yaml"
    path.write_text(SUITE + "rows: full\nships:\n  a: {first: h2o, second: four}\n  b: {second: tova}\n")
    with pytest.raises(
        SchemaError, match=r":6: rows: full combines h2o and tova: two evictions .* or use rows: required"
    ):
        load_suite(path, REGISTRY)
    path.write_text(SUITE + "ships:\n  a: {first: h2o, second: four}\n  b: {second: tova}\n")
    assert len(load_suite(path, REGISTRY).cells) == 4
