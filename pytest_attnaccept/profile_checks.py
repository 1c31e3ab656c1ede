"""How a profile names task families and benchmarks: ``long-range: {families: ...}`` and ``benchmark: {tasks: ...}``.

Positions
---------
1. Names and parameters of built-in families are listed here, because a profile is read before anything that generates is
   imported (a test holds the list and the families together). Families of other packages are known by their entry points.
2. A file that a family or benchmark reads is hashed when the profile is read: another content is another plan. A profile may
   say which content it means (``sha256``).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.fingerprint import digest_tree
from pytest_attnaccept.strict_yaml import Node

__all__ = ["DATA_FAMILIES", "FAMILIES", "check_id", "parse_benchmark", "parse_long_range"]

_PARAMETERS: Mapping[str, str] = {
    "needle": "needles:int digits:int filler:str",
    "kv_recall": "pairs:int questions:int filler:str",
    "variable_tracking": "chains:int hops:int questions:int ask:str filler:str",
    "text": "people:int questions:int",
    "passkey": "value:str depth:float filler:str",
    "lookalikes": "keys:str value:str keys_total:int questions:int filler:str",
    "variable_chains": "chains:int hops:int decoys:int order:str questions:int filler:str",
    "multi_value": "keys:int values:int questions:int filler:str",
    "many_questions": "pairs:int questions:int filler:str",
    "word_counting": "kind:str k:int often:int rarely:int alpha:float words:str filler:str",
    "listops": "depth:int arguments:int values:int shots:int filler:str",
    "multi_hop": "kind:str hops:int questions:int filler:str",
    "json_dump": "pairs:int keys:str value:str by:str questions:int filler:str",
    "mqar": "pairs:int questions:int keys:str value:str filler:str",
    "copy_span": "span:int words:str filler:str",
    "phone_book": "entries:int questions:int filler:str",
    "instructions": "rules:int filler:str",
    "ledger": "kind:str outputs:int filler:str",
    "stories": "ask:str people:int things:int moves:int questions:int filler:str",
    "graph_walk": "ask:str depth:int degree:int nodes:int filler:str",
    "many_shot": "classes:int questions:int labels:str filler:str",
    "aliases": "pairs:int questions:int first:str alias:str filler:str",
}
FAMILIES = tuple(_PARAMETERS)
_KINDS: Mapping[str, tuple[type, ...]] = {"int": (int,), "str": (str,), "float": (int, float)}
# Real data: `path` is a file, a folder written by datasets, or hub:OWNER/NAME[:CONFIG[:SPLIT]].
_LONGBENCH = (
    "narrativeqa qasper multifieldqa_en multifieldqa_zh hotpotqa 2wikimqa musique dureader gov_report "
    "qmsum multi_news vcsum trec triviaqa samsum lsht passage_count passage_retrieval_en passage_retrieval_zh lcc repobench-p"
)
DATA_FAMILIES = (
    "hotpotqa", "musique", "longeval_lines", "kv_retrieval", "passkey_text", "ruler_multikey", "lambada", "listops_text",
    *(f"longbench.{name}" for name in _LONGBENCH.split()),
)  # fmt: skip
HUB = "hub:"
_LONG_RANGE = ("families", "tiers", "contexts", "score", "patterns")
_SCORES = ("generated", "teacher_forced", "choice")
_BENCHMARK = ("tasks", "include_path", "limit", "num_fewshot", "run_code", "metric", "chance")
_PATTERN = re.compile(r"one-shot|token|chunk-[1-9]\d*")


def check_id(prefix: str, name: str) -> str:
    """Return the id of a check that a name of the user's is part of: ``long-range-kv_recall``."""
    return f"{prefix}-{re.sub('[^a-z0-9._+-]+', '-', name.lower())}"


def parse_long_range(node: Node) -> dict[str, object]:
    """Read ``long-range:``; ``families`` is a list of names, or a mapping from an id to parameters."""
    node.only(_LONG_RANGE)
    result: dict[str, object] = {"families": _families(node)}
    tiers = node.typed("tiers", list, [1])
    if not tiers or any(isinstance(t, bool) or not isinstance(t, (int, float)) or not 0 < t < math.inf for t in tiers):
        raise node.error(f"tiers: {tiers!r} must be a list of positive numbers with at least one entry", "tiers")
    result["tiers"] = list(tiers)
    contexts = node.typed("contexts", int, 60)
    if contexts < 1:
        raise node.error(f"contexts: {contexts!r} must be a positive whole number", "contexts")
    result["contexts"] = contexts
    score = node.typed("score", str, "generated")
    if score not in _SCORES:
        raise UnknownNameError("score", score, _SCORES, node.where("score"))
    result["score"] = score
    patterns = node.typed("patterns", list, ["one-shot"])
    if not patterns or not all(isinstance(p, str) and _PATTERN.fullmatch(p) for p in patterns):
        raise node.error(f"patterns: {patterns!r} must be a list of one-shot, token or chunk-N", "patterns")
    result["patterns"] = list(patterns)
    return result


def _families(node: Node) -> dict[str, dict[str, object]]:
    given = node.need("families")
    if isinstance(given, list):
        entries: Mapping[object, object] = {name: None for name in given}
        if len(entries) < len(given):
            raise node.error(f"families: {given!r} names one twice; give it another id in a mapping", "families")
    elif isinstance(given, Mapping):
        entries = dict(given)
    else:
        raise node.error(
            f"families: {given!r} must be a list of names or a mapping from an id to parameters", "families"
        )
    if not entries:
        raise node.error("families: at least one family is needed", "families")
    known = (*FAMILIES, *DATA_FAMILIES, *(e.name for e in entry_points(group="pytest_attnaccept.tasks")))
    result: dict[str, dict[str, object]] = {}
    for name, value in entries.items():
        parameters = {} if value is None else value
        if not isinstance(name, str) or not isinstance(parameters, Mapping):
            raise node.error(f"families: {name!r}: {value!r} must be a mapping of parameters", "families")
        family = parameters.get("family", name)
        if family not in known:
            raise UnknownNameError("task family", str(family), known, node.where("families"))
        place = given if isinstance(given, Node) else node
        if family in DATA_FAMILIES:
            result[name] = _data(place, name, family, parameters)
        else:
            rest = {key: each for key, each in parameters.items() if key != "family"}
            _check_parameters(value if isinstance(value, Node) else place, family, rest)
            result[name] = {"family": family, "parameters": rest}
    if len({check_id("long-range", name) for name in result}) < len(result):
        raise node.error(f"families: {', '.join(result)}: two ids are the same in lower case", "families")
    return result


def _check_parameters(node: Node, family: str, parameters: Mapping[str, object]) -> None:
    """Refuse parameters that a built-in family does not have, and values of another type."""
    if family not in _PARAMETERS:  # of another package, which is not imported to read a profile
        return
    known = dict(entry.split(":") for entry in _PARAMETERS[family].split())
    for key, value in parameters.items():
        if key not in known:
            raise UnknownNameError(f"parameter of {family}", str(key), known, node.where(key))
        if isinstance(value, bool) or not isinstance(value, _KINDS[known[key]]):
            raise node.error(f"{family}: {key}={value!r} must be of type {known[key]}", key)


def _data(node: Node, name: str, family: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """Return what is known about real data: where it is, and which content."""
    unknown = [key for key in parameters if key not in ("family", "path", "sha256")]
    if unknown:
        raise UnknownNameError(f"key of {family}", str(unknown[0]), ("family", "path", "sha256"), node.where(name))
    if "path" not in parameters:
        raise node.error(f"{name}: {family} is real data and needs path: FILE or path: hub:OWNER/NAME", name)
    entry = {"family": family, "parameters": {}, **_file(node, name, parameters["path"])}
    if "sha256" in parameters:
        wanted, path = parameters["sha256"], Path(str(entry["path"]))
        if not isinstance(wanted, str) or not re.fullmatch("[0-9a-f]{16,64}", wanted) or not path.is_file():
            raise node.error(f"{name}: sha256: {wanted!r} must be 16 to 64 hex digits of the digest of a file", name)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if not found.startswith(wanted):
            raise node.error(f"{name}: {path} has sha256 {found}, not {wanted}: it is another file", name)
    return entry


def _file(node: Node, key: str, value: object) -> dict[str, object]:
    """Return an existing path, relative to the YAML file's folder, with the digest of its content."""
    if not isinstance(value, str) or not value:
        raise node.error(f"{key}: path: {value!r} must be text", key)
    if value.startswith(HUB):
        return {"path": value}
    path = Path(value).expanduser()
    path = path if path.is_absolute() else Path(node.file).parent / path
    if path.is_dir():
        return {"path": str(path), "content": digest_tree(path)}
    if not path.is_file():
        raise node.error(f"{key}: {path} does not exist", key)
    return {"path": str(path), "content": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}


def parse_benchmark(node: Node) -> dict[str, object]:
    """Read ``benchmark:``; ``tasks`` are names of lm-eval, of YAML files in ``include_path``, or ``humaneval``."""
    node.only(_BENCHMARK)
    tasks = node.typed("tasks", list, required=True)
    if not tasks or not all(isinstance(t, str) and t for t in tasks):
        raise node.error(f"tasks: {tasks!r} must be a list of names with at least one entry", "tasks")
    if len({check_id("benchmark", t) for t in tasks}) < len(tasks):
        raise node.error(f"tasks: {tasks!r} names one twice", "tasks")
    result: dict[str, object] = {"tasks": list(tasks)}
    for name, low in (("limit", 1), ("num_fewshot", 0)):
        value = node.typed(name, int)
        if value is not None:
            if value < low:
                raise node.error(f"{name}: {value!r} must be a whole number of at least {low}", name)
            result[name] = value
    result["run_code"] = node.typed("run_code", bool, False)
    metric = node.typed("metric", str)
    if metric is not None:
        result["metric"] = metric
    chance = node.typed("chance", (int, float))
    if chance is not None:
        if not 0 < chance < 1:
            raise node.error(f"chance: {chance!r} must be between 0 and 1", "chance")
        result["chance"] = chance
    if "include_path" in node:
        found = _file(node, "include_path", node["include_path"])
        result.update({"include_path": found["path"], "content": found["content"]})
    return result
