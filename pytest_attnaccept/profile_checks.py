"""How a profile names task families and benchmarks: ``long-range: {families: ...}`` and ``benchmark: {tasks: ...}``.

Positions
---------
1. Names of built-in families are listed here, because a profile is read before anything that generates is imported (a test
   holds the list and the families together). Families of other packages are known by their entry points.
2. A file that a family or benchmark reads is hashed when the profile is read: another content is another plan.
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

FAMILIES = (
    "needle", "kv_recall", "variable_tracking", "text", "passkey", "lookalikes", "variable_chains", "multi_value",
    "many_questions", "word_counting", "listops", "multi_hop", "json_dump", "mqar", "copy_span", "phone_book",
    "instructions", "ledger", "stories", "graph_walk", "many_shot", "aliases",
)  # fmt: skip
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
_BENCHMARK = ("tasks", "include_path", "limit", "num_fewshot", "run_code", "metric")
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
        rest = {k: v for k, v in parameters.items() if k not in ("family", "path")}
        entry: dict[str, object] = {"family": family, "parameters": rest}
        if "path" in parameters:
            entry.update(_file(node, "families", parameters["path"]))
        elif family in DATA_FAMILIES:
            raise node.error(
                f"families: {name}: {family} is real data and needs path: FILE or path: hub:OWNER/NAME", "families"
            )
        result[name] = entry
    if len({check_id("long-range", name) for name in result}) < len(result):
        raise node.error(f"families: {', '.join(result)}: two ids are the same in lower case", "families")
    return result


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
    if "include_path" in node:
        found = _file(node, "include_path", node["include_path"])
        result.update({"include_path": found["path"], "content": found["content"]})
    return result
