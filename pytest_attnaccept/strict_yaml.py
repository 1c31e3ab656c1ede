"""YAML for people who gate releases by it: every value knows its line, duplicates and surprises are refused.

PyYAML turns ``off`` into False, keeps ``1e-3`` as text, reads ``12:30:00`` as 45000 and lets a duplicate key win in
silence; each of these can change a limit unseen. Here a mapping is a `Node` that remembers the line of each key, a
duplicate key is an error, sexagesimals stay text and ``1e-3`` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_attnaccept.errors import SchemaError, suggest

__all__ = ["Node", "load", "load_text"]


class Node(dict[str, Any]):
    """A YAML mapping that knows where it and its keys stand.

    Attributes
    ----------
    file, line
        File and line of the mapping.
    lines
        Line of each key.
    path
        Dotted path from the top of the document, for messages.
    """

    def __init__(self, file: str, line: int, path: str = "") -> None:
        super().__init__()
        self.file = file
        self.line = line
        self.path = path
        self.lines: dict[str, int] = {}

    def where(self, key: str | None = None) -> str:
        """Return ``file:line`` of `key`, or of the mapping."""
        return f"{self.file}:{self.lines.get(key, self.line) if key is not None else self.line}"

    def error(self, text: str, key: str | None = None) -> SchemaError:
        """Return an error that starts with the place."""
        inside = f" (in {self.path})" if self.path else ""
        return SchemaError(f"{self.where(key)}: {text}{inside}")

    def only(self, allowed: Iterable[str]) -> None:
        """Refuse keys that are not in `allowed`, with a suggestion."""
        names = list(allowed)
        for key in self:
            if key not in names:
                raise self.error(f"unknown key {key!r}.{suggest(key, names)} Allowed: {', '.join(sorted(names))}", key)

    def need(self, key: str) -> Any:
        """Return the value of a key that must be there."""
        if key not in self:
            raise self.error(f"key {key!r} is missing")
        return self[key]

    def typed(self, key: str, types: type | tuple[type, ...], default: Any = None, *, required: bool = False) -> Any:
        """Return the value of `key` after a type check; bool never passes for a number."""
        if key not in self:
            if required:
                raise self.error(f"key {key!r} is missing")
            return default
        value = self[key]
        kinds = types if isinstance(types, tuple) else (types,)
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            names = " or ".join("mapping" if k in (dict, Node) else k.__name__ for k in kinds)
            raise self.error(f"{key}: {value!r} must be {names}, got {type(value).__name__}", key)
        if isinstance(value, float) and value != value:
            raise self.error(f"{key}: NaN is not a value that anything can be compared with", key)
        return value


def load(path: Path) -> Node:
    """Read one strict YAML file whose top level is a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SchemaError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path}: is not UTF-8 ({error.reason} at byte {error.start})") from error
    return load_text(text, str(path))


def load_text(text: str, file: str) -> Node:
    """Read strict YAML from a string; `file` is used in messages."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise SchemaError(f"{file}:{line}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(root, yaml.MappingNode):
        raise SchemaError(f"{file}:1: the file must hold a mapping at its top level")
    value = _build(root, file, "", ())
    if not isinstance(value, Node):  # for the type checker; a MappingNode always becomes a Node
        raise SchemaError(f"{file}:1: the file must hold a mapping at its top level")
    return value


_DEEPEST = 20  # a suite has four levels; this only stops what would recurse without end
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{t}"
    for t in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value")
)
_FLOAT = re.compile(r"[-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+)$")
_INT = re.compile(r"[-+]?(0|[1-9]\d*)$")
_LONGEST_NUMBER = 400  # characters; a longer one stays text, which is no number anywhere (int() refuses 4300 digits)
_WORDS: Mapping[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}


def _scalar(text: str, style: str | None) -> object:
    if style is not None:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.match(text) and len(text) <= _LONGEST_NUMBER:
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    if text.lower() in (".nan", ".inf", "-.inf"):
        return float(text.lower().replace(".", ""))
    return text


def _build(node: Any, file: str, path: str, above: tuple[int, ...]) -> object:
    import yaml

    line = node.start_mark.line + 1
    if id(node) in above or len(above) > _DEEPEST:
        raise SchemaError(f"{file}:{line}: a value that contains itself, or is nested deeper than {_DEEPEST} levels")
    if str(node.tag) not in _PLAIN_TAGS:
        raise SchemaError(f"{file}:{line}: tag {node.tag!r} is not allowed; write the value plainly")
    inside = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        mapping = Node(file, node.start_mark.line + 1, path)
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise SchemaError(f"{file}:{line}: a key must be text")
            key = str(key_node.value)
            if key in mapping:
                raise SchemaError(f"{file}:{line}: key {key!r} stands twice (first at line {mapping.lines[key]})")
            mapping.lines[key] = line
            mapping[key] = _build(value_node, file, f"{path}.{key}" if path else key, inside)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_build(child, file, f"{path}[{i}]", inside) for i, child in enumerate(node.value)]
    return _scalar(str(node.value), node.style)
