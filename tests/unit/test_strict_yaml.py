"""Strict YAML: every surprise of PyYAML that could change a limit unseen is an error or has one meaning."""

from pathlib import Path

import pytest

from pytest_attnaccept.errors import SchemaError
from pytest_attnaccept.strict_yaml import Node, load, load_text


def value(text: str) -> object:
    return load_text(f"a: {text}\n", "f")["a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("+2.5", 2.5),
        (".5", 0.5),
        ("3", 3),
        ("-3", -3),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("017", "017"),
        ("2026-11-29", "2026-11-29"),
        ('"1"', "1"),
        ("'true'", "true"),
        ("[1, 2.0, x]", [1, 2.0, "x"]),
        ("注意力", "注意力"),
        ("-.inf", float("-inf")),
    ],
)
def test_scalars(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_nan_is_never_a_typed_value() -> None:
    node = load_text("a: .nan\n", "f")
    with pytest.raises(SchemaError, match="NaN"):
        node.typed("a", float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"f:2: key 'a' stands twice \(first at line 1\)"),
        ('a: 1\n"a": 2\n', "stands twice"),
        ("b: {x: 1, x: 2}\n", "key 'x' stands twice"),
        ("- a\n", "must hold a mapping"),
        ("", "must hold a mapping"),
        ("text\n", "must hold a mapping"),
        ("a: [1\n", "f:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("a: *nowhere\n", "not valid YAML"),
        ("a: &x {b: *x}\n", "contains itself"),
        ("? [1, 2]\n: 3\n", "a key must be text"),
        ("a: !!python/object/apply:os.system [ls]\n", "tag .* is not allowed"),
        ("a: !mine x\n", "tag '!mine' is not allowed"),
        ("a: " + "[" * 30 + "]" * 30 + "\n", "nested deeper"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        load_text(text, "f")


def test_an_anchor_may_be_used_twice() -> None:
    node = load_text("a: &x {b: 1}\nc: *x\n", "f")
    assert node["a"] == node["c"] == {"b": 1}


def test_a_merge_key_is_an_unknown_key() -> None:
    node = load_text("a: &x {b: 1}\nc:\n  <<: *x\n", "f")
    with pytest.raises(SchemaError, match="unknown key '<<'"):
        node["c"].only(["b"])


def test_lines_paths_and_suggestions() -> None:
    node = load_text("schema: 1\nmodels:\n  gqa:\n    specc: x\n", "f.yaml")
    inner = node["models"]["gqa"]
    assert isinstance(inner, Node)
    assert (inner.where(), inner.where("specc"), inner.path) == ("f.yaml:4", "f.yaml:4", "models.gqa")
    with pytest.raises(SchemaError) as caught:
        inner.only(["spec", "dtype"])
    assert str(caught.value) == (
        "f.yaml:4: unknown key 'specc'. Did you mean 'spec'? Allowed: dtype, spec (in models.gqa)"
    )


@pytest.mark.parametrize(
    ("types", "text"), [(int, "true"), (float, "1"), ((int, float), "true"), (bool, "yes"), (str, "1")]
)
def test_typed_is_strict(types: type, text: str) -> None:
    node = load_text(f"a: {text}\n", "f")
    with pytest.raises(SchemaError, match="f:1: a: .* must be"):
        node.typed("a", types)


def test_typed_defaults_and_missing_keys() -> None:
    node = load_text("a: 1\n", "f")
    assert node.typed("b", int, 7) == 7
    with pytest.raises(SchemaError, match="key 'b' is missing"):
        node.typed("b", int, required=True)
    with pytest.raises(SchemaError, match="key 'b' is missing"):
        node.need("b")


def test_files(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    with pytest.raises(SchemaError, match="cannot be read"):
        load(tmp_path)
    bad = tmp_path / "latin.yaml"
    bad.write_bytes(b"a: caf\xe9\n")
    with pytest.raises(SchemaError, match="is not UTF-8"):
        load(bad)
    good = tmp_path / "bom.yaml"
    good.write_bytes("\ufeffa: 提示\r\nb: 2\r\n".encode())
    assert load(good) == {"a": "提示", "b": 2}
