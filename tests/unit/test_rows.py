"""Which rows follow from factors and shipped stacks, and in which order."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_attnaccept.errors import SchemaError
from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.rows import lossy_key, required_rows, severity, wanted_rows
from pytest_attnaccept.suites import load_suite
from pytest_attnaccept.taxonomy import Kind, Layer, Method, Surface

REGISTRY = Registry.builtin()
HEAD = "schema: 1\nmodels: {mha: toy-mha, gqa: toy-gqa}\n"


def entry(name: str, **knobs: object) -> StackEntry:
    method = REGISTRY.get(name)
    return StackEntry(method=method, knobs=check_knobs(method, knobs, "here"))


W4, KV4, KV8 = entry("w4a16"), entry("kv4"), entry("kv8")
H2O, SPEC = entry("h2o", kv_budget=0.25), entry("prompt_lookup")
FACTORS = {
    "w": {"bf16": None, "w4": W4},
    "kv": {"bf16": None, "kv4": KV4, "kv8": KV8},
    "e": {"h2o": H2O},
    "d": {"off": None, "spec": SPEC},
}


def keys(rows: object) -> list[frozenset[tuple[str, str | None]]]:
    return [row.key for row in rows]  # type: ignore[attr-defined]


def test_a_stack_of_two_needs_its_singles_and_nothing_else() -> None:
    rows = required_rows({"a": (W4, KV4, SPEC)})
    assert [r.name for r in rows] == [
        "a",
        *(f"only-{e.label}" for e in sorted((W4, KV4), key=lambda e: -severity([e]))),
    ]


def test_a_stack_of_three_needs_every_stack_without_one() -> None:
    rows = required_rows({"a": (W4, KV4, H2O, SPEC)})
    partial = [r for r in rows if "-without-" in r.name]
    assert {lossy_key(r.stack) for r in partial} == {lossy_key(s) for s in ((W4, KV4), (W4, H2O), (KV4, H2O))}
    assert len(rows) == 1 + 3 + 3


def test_a_leave_one_out_that_ships_itself_is_not_measured_twice() -> None:
    rows = required_rows({"a": (W4, KV4, H2O), "b": (W4, KV4, SPEC)})
    assert sum(lossy_key(r.stack) == lossy_key((W4, KV4)) for r in rows) == 1
    assert len(rows) == 2 + 2 + 3


def test_worst_first() -> None:
    hard, soft = entry("h2o", kv_budget=0.1), entry("h2o", kv_budget=0.9)
    ships = {"soft": (soft,), "hard": (hard,), "both": (KV4, soft), "kv8": (KV8,), "kv2": (entry("kv2"),)}
    names = [r.name for r in required_rows(ships) if r.name in ships]
    assert names == ["both", "hard", "kv2", "kv8", "soft"]
    assert severity((entry("sliding_window", window=32),)) > severity((entry("sliding_window", window=4096),))


def test_full_is_every_combination_that_is_lossy() -> None:
    rows = wanted_rows("full", FACTORS, {"a": (W4, KV4, SPEC)})
    assert len(set(keys(rows))) == len(rows) == 2 * 3 * 2 * 2 - 2  # neither the baseline nor speculation alone
    assert not [r for r in rows if not lossy_key(r.stack)]
    assert [r for r in rows if len(r.stack) == 4]


def test_pairwise_covers_every_pair_of_options_with_fewer_rows() -> None:
    full = wanted_rows("full", FACTORS, {"a": (W4, KV4, SPEC)})
    some = wanted_rows("pairwise", FACTORS, {"a": (W4, KV4, SPEC)})
    assert set(keys(some)) <= set(keys(full))
    assert len(some) < len(full)
    chosen = [{e.label for e in row.stack} for row in some]
    for one, other in ((W4, KV8), (W4, H2O), (KV4, H2O), (KV8, SPEC), (H2O, SPEC), (W4, SPEC)):
        assert any({one.label, other.label} <= labels for labels in chosen), (one.label, other.label)
    for present, absent in ((W4, SPEC), (KV8, W4), (H2O, SPEC)):
        assert any(present.label in labels and absent.label not in labels for labels in chosen)


def test_required_rows_come_first_and_stay_what_they_are() -> None:
    ships = {"a": (W4, KV4, SPEC)}
    assert wanted_rows("full", FACTORS, ships)[:3] == required_rows(ships) == wanted_rows("required", FACTORS, ships)


def suite(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "a.accept.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return [c.name for c in load_suite(path, REGISTRY).cells]


KV = "factors: {kv: {off: null, kv4: {method: kv4}, kv8: {method: kv8}}, e: {off: null, h: {method: h2o, kv_budget: 0.25}}}\n"
SHIPS = "ships: {a: {kv: kv4, e: h}}\n"


def test_rows_of_a_suite(tmp_path: Path) -> None:
    names = suite(tmp_path, f"rows: full\n{KV}{SHIPS}")
    assert sorted(n for n in names if n.startswith("gqa.")) == [
        "gqa.a",
        "gqa.only-h2o-kv_budget-0.25-sinks-4",
        "gqa.only-kv4-residual-0",
        "gqa.only-kv8-residual-0",
        "gqa.row-kv8+h",
    ]
    assert len(names) == 10
    assert names[0] == "mha.a"


def test_options_that_do_not_ship_are_measured_only_where_rows_ask_for_them(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="kv8.*is in no shipped stack"):
        suite(tmp_path, f"{KV}{SHIPS}")
    with pytest.raises(SchemaError, match="kv8.*is in no shipped stack"):
        suite(tmp_path, f"rows: required\n{KV}{SHIPS}")


@pytest.mark.parametrize("rows", ["all", "3", "[full]", "null"])
def test_a_wrong_value_of_rows_is_refused(tmp_path: Path, rows: str) -> None:
    with pytest.raises(SchemaError, match=r"a.accept.yaml:3.*rows"):
        suite(tmp_path, f"rows: {rows}\n{KV}{SHIPS}")


def test_options_of_one_name_do_not_become_one_cell(tmp_path: Path) -> None:
    text = (
        "rows: full\nfactors: {kv: {'x!': {method: kv4}, 'x?': {method: kv8}}, e: {h: {method: h2o, kv_budget: 0.5}}}\n"
    )
    with pytest.raises(SchemaError, match="exists already"):
        suite(tmp_path, f"{text}ships: {{a: {{kv: 'x!'}}}}\n")


def test_drafts_alone_are_no_stack_of_a_suite(tmp_path: Path) -> None:
    text = (
        "factors: {kv: {kv4: {method: kv4}}, d: {spec: {method: prompt_lookup}}}\nships: {a: {kv: kv4}, b: {d: spec}}\n"
    )
    with pytest.raises(SchemaError, match="drafts alone change nothing"):
        suite(tmp_path, text)


def test_more_combinations_than_anybody_waits_for_are_refused(tmp_path: Path) -> None:
    factors = ", ".join(f"f{i}: {{off: null, a: {{method: kv4}}, b: {{method: kv8}}}}" for i in range(7))
    text = f"rows: pairwise\nfactors: {{{factors}}}\nships: {{a: {{f0: a}}}}\n"
    with pytest.raises(SchemaError, match="2187 combinations"):
        suite(tmp_path, text)


# -- what a name hides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations("wked")), ids="".join)
def test_every_pair_that_can_be_measured_is_measured_also_beside_exact_options(order: tuple[str, ...]) -> None:
    exact = {"off": None, "spec": SPEC, "other": entry("speculative_decoding")}
    every = {"w": {"off": None, "w4": W4}, "k": {"off": None, "kv4": KV4}, "e": {"off": None, "h2o": H2O}, "d": exact}
    factors = {name: every[name] for name in order}

    def pairs(stack: tuple[StackEntry, ...]) -> set[tuple[str, str, str, str]]:
        chosen = [(f, next((n for n, e in options.items() if e in stack), "off")) for f, options in factors.items()]
        return {(*one, *other) for one, other in itertools.combinations(chosen, 2)}

    measured = set().union(*(pairs(row.stack) for row in wanted_rows("pairwise", factors, {"a": (W4,)})))
    assert set().union(*(pairs(row.stack) for row in wanted_rows("full", factors, {"a": (W4,)}))) <= measured


def test_another_checkpoint_of_a_shipped_method_is_not_what_ships() -> None:
    ours, theirs = (replace(W4, checkpoint=name) for name in ("ours", "theirs"))
    factors = {"w": {"off": None, "ours": ours, "theirs": theirs}, "kv": {"off": None, "kv4": KV4}}
    rows = wanted_rows("pairwise", factors, {"a": (ours, KV4)})
    assert {frozenset({("w4a16", "theirs"), (KV4.label, None)})} <= set(keys(rows))


CHECKPOINTS = """factors:
  w: {off: null, ours: {method: w4a16, checkpoint: a}, theirs: {method: w4a16, checkpoint: b}}
  kv: {off: null, kv4: {method: kv4}}
"""


def test_two_checkpoints_of_one_method_are_two_members(tmp_path: Path) -> None:
    names = suite(tmp_path, CHECKPOINTS + "ships: {a: {w: ours, kv: kv4}, b: {w: theirs, kv: kv4}}\n")
    assert len(names) == len(set(names)) == 2 * (2 + 3)
    assert {"gqa.only-w4a16-of-a", "gqa.only-w4a16-of-b", "gqa.only-kv4-residual-0"} <= set(names)
    names = suite(tmp_path, "rows: full\n" + CHECKPOINTS + "ships: {a: {w: ours, kv: kv4}}\n")
    assert {"gqa.only-w4a16", "gqa.only-w4a16-of-b", "gqa.row-theirs+kv4"} <= set(names)
    only = suite(
        tmp_path,
        CHECKPOINTS.replace(", theirs: {method: w4a16, checkpoint: b}", "") + "ships: {a: {w: ours, kv: kv4}}\n",
    )
    assert "gqa.only-w4a16" in only  # as long as nothing is confused, a name stays short


@pytest.mark.parametrize("rows", ["full", "pairwise"])
def test_rows_that_would_need_two_checkpoints_are_refused(tmp_path: Path, rows: str) -> None:
    text = "factors:\n  w: {off: null, w4: {method: w4a16, checkpoint: a}}\n  m: {off: null, l: {method: linear_attention, checkpoint: b}}\n"
    with pytest.raises(SchemaError, match="two checkpoints"):
        suite(tmp_path, f"rows: {rows}\n{text}ships: {{a: {{w: w4}}}}\n")
    assert suite(tmp_path, f"{text}ships: {{a: {{w: w4}}, b: {{m: l}}}}\n")


def test_one_method_twice_in_a_stack_is_refused(tmp_path: Path) -> None:
    text = "factors: {kv: {a: {method: kv4}}, more: {b: {method: kv4, residual: 8}}}\nships: {s: {kv: a, more: b}}\n"
    with pytest.raises(SchemaError, match="kv4 twice"):
        suite(tmp_path, text)


def test_bits_that_a_name_does_not_say_are_part_of_the_label() -> None:
    bits = REGISTRY.get("kv4").knob("bits")
    method = Method(
        name="mycache", kind=Kind.APPROXIMATE, layer=Layer.NUMERICS, surface=Surface.MODEL, note="", knobs=(bits,)
    )
    two, eight = (StackEntry(method=method, knobs={"bits": n}) for n in (2, 8))
    assert two.label != eight.label
    assert len(required_rows({"a": (two, W4), "b": (eight, W4)})) == 2 + 3
    assert KV4.label == "kv4(residual=0)"
