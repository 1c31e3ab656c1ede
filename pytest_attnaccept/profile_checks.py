"""How a profile names task families and benchmarks: ``long-range: {families: ...}`` and ``benchmark: {tasks: ...}``.

Positions
---------
1. What a family cannot ask is refused here, with the line, by the same declaration by which items are made. So the families
   are imported when a profile names one (they are plain Python), and the package of somebody else's family when it gives
   parameters for it.
2. A file that a family or benchmark reads is hashed when the profile is read: another content is another plan. A profile may
   say which content it means (``sha256``).
"""

from __future__ import annotations

import glob
import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_attnaccept.errors import ContractError, UnknownNameError
from pytest_attnaccept.fingerprint import digest_file, digest_of, digest_tree
from pytest_attnaccept.strict_yaml import Node

__all__ = ["MOST_CONTEXTS", "check_id", "foreign_modules", "parse_benchmark", "parse_long_range"]

HUB = "hub:"
MOST_CONTEXTS = 100_000  # policy: a hundred times what the strictest shipped profile asks
_LONG_RANGE = ("families", "tiers", "contexts", "score", "patterns")
_LONGEST_PATH = 1024  # longer words are no paths, and the system refuses to look for them
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
    if not 1 <= contexts <= MOST_CONTEXTS:
        raise node.error(f"contexts: {contexts!r} must be a whole number from 1 to {MOST_CONTEXTS}", "contexts")
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


def foreign_modules(long_range: Mapping[str, object]) -> tuple[str, ...]:
    """Return the modules of the families that other packages offer: their code decides what is asked."""
    families = long_range.get("families")
    if not isinstance(families, Mapping):
        return ()
    from pytest_attnaccept.tasks.families import offered, task_families

    asked = {str(entry["family"]) for entry in families.values()} - set(task_families())
    points = offered() if asked else ()
    return tuple(sorted({str(point.value).partition(":")[0] for point in points if point.name in asked}))


def _families(node: Node) -> dict[str, dict[str, object]]:
    given = node.need("families")
    if isinstance(given, list):
        if not all(isinstance(name, str) for name in given):
            raise node.error(
                f"families: {given!r} must be a list of names; parameters need a mapping: families: {{kv_recall: {{pairs: 8}}}}",
                "families",
            )
        entries: Mapping[str, object] = dict.fromkeys(given)
        if len(entries) < len(given):
            raise node.error(f"families: {given!r} names one twice; give it another id in a mapping", "families")
    elif isinstance(given, Mapping):
        entries = given
    else:
        raise node.error(
            f"families: {given!r} must be a list of names or a mapping from an id to parameters", "families"
        )
    if not entries:
        raise node.error("families: at least one family is needed", "families")
    place = given if isinstance(given, Node) else node
    result = {name: _entry(place, name, value) for name, value in entries.items()}
    if len({check_id("long-range", name) for name in result}) < len(result):
        raise node.error(f"families: {', '.join(result)}: two ids are the same in lower case", "families")
    return result


def _entry(node: Node, name: str, value: object) -> dict[str, object]:
    """Return one entry of ``families``, at `node`: which family, its parameters, and for real data where it is."""
    from pytest_attnaccept.tasks.data.load import DATA_FAMILIES
    from pytest_attnaccept.tasks.families import offered, task_families

    parameters = {} if value is None else value
    if not isinstance(parameters, Mapping):
        raise node.error(f"families: {name!r}: {value!r} must be a mapping of parameters", name)
    family = parameters.get("family", name)
    where = node.where(name if name in node else "families")
    if not isinstance(family, str):
        raise UnknownNameError("task family", str(family), task_families(), where)
    if family in DATA_FAMILIES:
        return _data(node, name, family, parameters)
    if family not in task_families():
        known = (*task_families(), *DATA_FAMILIES, *(point.name for point in offered()))
        if family not in known:
            raise UnknownNameError("task family", family, known, where)
    rest = {key: each for key, each in parameters.items() if key != "family"}
    if rest:
        _check_parameters(value if isinstance(value, Node) else node, family, rest)
    return {"family": family, "parameters": rest}


def _check_parameters(node: Node, family: str, given: Mapping[str, object]) -> None:
    """Refuse what the family cannot ask, with file and line."""
    from pytest_attnaccept.tasks.families import find_family
    from pytest_attnaccept.tasks.ranges import settle

    try:
        found = find_family(family)
        settled = settle(family, found.defaults, found.ranges, given, where=node.where)
    except ContractError as error:  # of another package: it cannot be loaded, or declares nonsense
        raise node.error(str(error)) from error
    if settled.get("questions") == 0:
        raise node.error(f"{family}: questions=0 asks nothing", "questions")


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
        read = _named_files(Path(str(found["path"])))
        result.update({"include_path": found["path"], "content": digest_of([found["content"], read])})
    return result


def _named_files(folder: Path) -> dict[str, str]:
    """Return the digest of every file that a YAML task of `folder` names: what a task reads is part of the plan.

    Named is a file by its path, several by a pattern (``data/*.jsonl``), all of a folder by the folder's (``./data``, or any
    word behind ``data_dir:``). A folder that holds the working directory is none of data.
    """
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in sorted(folder.rglob("*.y*ml"))]
    words = {word for text in texts for word in re.findall(r"[^\s'\"{}\[\],]+", text) if "/" in word or "." in word}
    folders = {word for text in texts for word in re.findall(r"data_dir:\s*['\"]?([^\s'\"{}\[\],]+)", text)}
    files = {file for word in words | folders if len(word) < _LONGEST_PATH for file in _behind(word, word in folders)}
    return {str(file): digest_file(file) for file in sorted(files)}


def _behind(word: str, is_folder: bool) -> list[Path]:
    path = Path(word)
    if path.is_file():
        return [path]
    first, star, _ = word.partition("*")
    if star:
        below = "/" in first and bool(first.strip("/."))  # else prose with stars would walk through everything here
        found = glob.glob(word, recursive=below)  # noqa: PTH207 (a Path refuses absolute patterns and ``**text``)
        return [Path(name) for name in found if Path(name).is_file()]
    if (is_folder or "/" in word) and path.is_dir() and not Path.cwd().is_relative_to(path.resolve()):
        return [file for file in path.rglob("*") if file.is_file()]
    return []
