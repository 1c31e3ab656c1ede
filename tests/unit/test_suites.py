"""Suites -> cells (the messages of broken files are in tests/plugin/test_plugin_suites.py)."""

from pathlib import Path

import pytest

from pytest_attnaccept.errors import SchemaError
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.suites import Suite, load_suite

HEAD = "schema: 1\nmodels: {gqa: toy-gqa}\n"
FACTORS = "factors: {w: {w4: {method: w4a16, checkpoint: some/model}}, kv: {kv4: {method: kv4}, kv8: {method: kv8}}, d: {spec: {method: prompt_lookup, checkpoint: some/model}}}\n"


def suite(tmp_path: Path, text: str) -> Suite:
    path = tmp_path / "a.accept.yaml"
    path.write_text(text, encoding="utf-8")
    return load_suite(path, Registry.builtin())


def test_shipped_stacks_and_their_lossy_members(tmp_path: Path) -> None:
    found = suite(tmp_path, f"{HEAD}{FACTORS}ships: {{a: {{w: w4, kv: kv4, d: spec}}, b: {{kv: kv8}}}}\n")
    cells = {c.name: [e.method.name for e in c.stack] for c in found.cells}
    assert cells == {
        "gqa.a": ["w4a16", "kv4", "prompt_lookup"],
        "gqa.b": ["kv8"],
        "gqa.only-w4a16": ["w4a16"],
        "gqa.only-kv4-residual-0": ["kv4"],
    }
    assert {c.line for c in found.cells} == {4}


def test_equal_members_of_two_stacks_are_measured_once(tmp_path: Path) -> None:
    text = "ships: {a: {w: w4, kv: kv4}, b: {kv: kv4, d: spec}, c: {kv: kv8}}\n"
    names = [c.name for c in suite(tmp_path, HEAD + FACTORS + text).cells]
    assert len(names) == len(set(names)) == 5


def test_model_columns(tmp_path: Path) -> None:
    head = "schema: 1\nmodels:\n  a: toy-gqa\n  b: {spec: org/model, revision: main, trust_remote_code: true}\n"
    found = suite(tmp_path, f"{head}factors: {{kv: {{kv8: {{method: kv8}}}}}}\nships: {{x: {{kv: kv8}}}}\n")
    assert [c.model for c in found.cells] == [
        "toy-gqa",
        {"spec": "org/model", "revision": "main", "trust_remote_code": True},
    ]


def test_limits_data_and_cap(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("words")
    more = "max_tokens: 512\nlimits: {needle: {max: 1e-2, origin: 'measured: noise floor'}}\ndata: {text: text.txt}\n"
    found = suite(tmp_path, f"{HEAD}{more}factors: {{kv: {{kv8: {{method: kv8}}}}}}\nships: {{x: {{kv: kv8}}}}\n")
    assert (found.max_tokens, found.limits["needle"].max) == (512, 0.01)
    assert found.data == {"text": str(tmp_path / "text.txt")}


def test_names_that_are_not_ascii_stay_apart(tmp_path: Path) -> None:
    head = "schema: 1\nmodels: {小: toy-gqa, 大: toy-mha}\n"
    found = suite(
        tmp_path, f"{head}factors: {{kv: {{kv8: {{method: kv8}}}}}}\nships: {{生产: {{kv: kv8}}, 聊天: {{kv: kv8}}}}\n"
    )
    assert len({c.name for c in found.cells}) == 4


@pytest.mark.parametrize("names", [("A b", "a-b"), ("x!", "x?"), ("only-w4a16", None)], ids=str)
def test_names_of_one_id_are_refused(tmp_path: Path, names: tuple[str, str | None]) -> None:
    first, second = names
    ships = f"  '{first}': {{w: w4, kv: kv4, d: spec}}\n" + (
        f"  '{second}': {{kv: kv8}}\n" if second else "  b: {kv: kv8}\n"
    )
    with pytest.raises(SchemaError, match="exists already"):
        suite(tmp_path, f"{HEAD}{FACTORS}ships:\n{ships}")


def test_recorded_logs(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}\n")
    entry = "{baseline: a.jsonl, candidate: b.jsonl, method: kv8, margin: 0.02, origin: 'policy: x'}"
    single = suite(tmp_path, f"schema: 1\nlogs: {entry}\n")
    several = suite(tmp_path, f"schema: 1\nlogs: {{gsm8k: {entry}, 数学: {entry}}}\n")
    assert ([c.name for c in single.logs], len({c.name for c in several.logs})) == (["logs"], 2)
    assert single.logs[0].limit.max == 0.02


@pytest.mark.parametrize(
    "change",
    [
        ("0.02", "0"),
        ("0.02", "1"),
        ("0.02", "2"),
        ("0.02", "off"),
        ("policy: x", "guess"),
        ("method: kv8, ", ""),
        ("kv8", "kv9"),
        ("margin", "margn"),
    ],
    ids=str,
)
def test_recorded_logs_that_are_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}\n")
    text = "schema: 1\nlogs: {baseline: a.jsonl, candidate: b.jsonl, method: kv8, margin: 0.02, origin: 'policy: x'}\n"
    with pytest.raises(Exception, match="a.accept.yaml:2") as caught:
        suite(tmp_path, text.replace(*change))
    assert type(caught.value).__module__ == "pytest_attnaccept.errors"


def test_shipped_suites_can_be_read() -> None:
    from pytest_attnaccept.profiles import data_dir

    files = sorted(data_dir("suites").glob("*.accept.yaml"))
    assert files
    for path in files:
        assert load_suite(path, Registry.builtin()).cells


@pytest.mark.parametrize("checkpoint", ['""', '" "'])
def test_a_checkpoint_without_a_name_is_refused(tmp_path: Path, checkpoint: str) -> None:
    with pytest.raises(SchemaError, match="names no model"):
        suite(
            tmp_path,
            f"{HEAD}factors: {{w: {{w4: {{method: w4a16, checkpoint: {checkpoint}}}}}}}\nships: {{a: {{w: w4}}}}\n",
        )
