"""A profile is a deployment scenario: lengths, sample sizes, margins and what it may claim, read from YAML.

A profile says how much is measured and where the limit is; *which* checks a kind needs is in `protocol`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_attnaccept.errors import SchemaError, UnknownNameError, suggest
from pytest_attnaccept.limits import Limit, parse_limits
from pytest_attnaccept.profile_checks import MOST_CONTEXTS, parse_benchmark, parse_long_range
from pytest_attnaccept.strict_yaml import Node, load
from pytest_attnaccept.taxonomy import Surface

__all__ = [
    "BUILTIN_PROFILES",
    "Profile",
    "data_dir",
    "load_profile",
    "parse_max_tokens",
]

BUILTIN_PROFILES = ("smoke", "longctx", "serving", "edge", "research", "release")
_CHECKS = {
    "identity": ("tokens", "tier"),
    "equality": ("tokens", "tier", "documents"),
    "footprint": ("tier", "patterns"),
    "divergence": ("documents", "tier", "continuation", "patterns", "screen"),
    "perplexity": ("documents", "tier", "continuation", "patterns", "screen"),
    "needle": ("tiers", "contexts", "questions_per_context", "depths", "patterns", "screen", "question_first"),
    "budget-curve": ("budgets", "tier", "contexts", "questions_per_context"),
    "length-curve": ("lengths", "operating", "contexts", "beyond", "questions_per_context", "documents"),
    "controls": ("tier", "contexts", "questions_per_context"),
}
_OWN_SCHEMA = {"long-range": parse_long_range, "benchmark": parse_benchmark}
_LISTS = ("tiers", "budgets", "lengths")
# Above it nothing can be asked: as many needles as the family has names (a test compares them), a table of as many rows.
_MOST = {"questions_per_context": 64, "depths": 100, "contexts": MOST_CONTEXTS, "beyond": MOST_CONTEXTS,
         "question_first": MOST_CONTEXTS, "screen": MOST_CONTEXTS}  # fmt: skip
_FRACTIONS = ("tier", "tiers", "lengths", "operating", "budgets")  # of the trained length or the context; else: counts
_SURFACES = {
    Surface.KERNEL: ("max_length",),
    Surface.CACHE: ("programs",),
    Surface.PREFIX_CACHE: ("programs",),
}
_PATTERN = re.compile(r"one-shot|token|chunk-[1-9]\d*|warm-prefix|batch(-left|-right)?")
_ONE_ROW = re.compile(r"one-shot|token|chunk-[1-9]\d*|warm-prefix")
_ALL_PATTERNS = "one-shot, chunk-N, token, warm-prefix, batch, batch-left or batch-right"
_PERFORMANCE = ("ttft", "tpot", "throughput", "p99", "peak-memory", "used-kv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One deployment scenario.

    Attributes
    ----------
    claim
        What a PASS under this profile means, in words.
    advice
        Components that this scenario usually ships with; printed in the plan, never part of a verdict.
    alpha
        One-sided error of each PASS.
    discordance
        Share of answers that a harmless change flips, for planning.
    checks
        Settings of the model-level checks that this profile runs.
    surfaces
        Settings of kernel, cache and prefix-cache checks.
    performance
        Performance checks that this scenario requires.
    max_tokens
        Cap of every model-level length, or None.
    """

    name: str
    title: str
    claim: str
    scenario: str
    advice: tuple[str, ...]
    alpha: float
    discordance: float
    checks: Mapping[str, Mapping[str, object]]
    surfaces: Mapping[Surface, Mapping[str, object]]
    limits: Mapping[str, Limit]
    performance: tuple[str, ...] = ()
    max_tokens: int | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    def check_params(self, check: str) -> Mapping[str, object]:
        """Return the settings a model-level check is run with, data source and cap included."""
        params = dict(self.checks.get(check, {}))
        if self.max_tokens is not None:
            params["max_tokens"] = self.max_tokens
        if "text" in self.data and check in ("divergence", "perplexity", "identity", "equality"):
            params["text"] = self.data["text"]
        return params

    def surface_params(self, surface: Surface) -> Mapping[str, object]:
        """Return the settings of a surface other than the model."""
        return self.surfaces.get(surface, {})

    def with_overrides(
        self,
        *,
        limits: Mapping[str, Limit] | None = None,
        data: Mapping[str, str] | None = None,
        max_tokens: int | None = None,
    ) -> Profile:
        """Return the profile with a suite's or mark's limits; a larger limit remembers what it replaced."""
        merged = dict(self.limits)
        for name, limit in (limits or {}).items():
            own = self.limits.get(name)
            loosened = own is not None and limit.max > own.max
            merged[name] = replace(limit, loosened_from=own.max if loosened and own is not None else None)
        return replace(
            self,
            limits=merged,
            data={**self.data, **(data or {})},
            max_tokens=max_tokens if max_tokens is not None else self.max_tokens,
        )

    def digest(self) -> str:
        """Return a hash of everything that a verdict depends on (not the words)."""
        content = {
            "alpha": self.alpha,
            "checks": {k: dict(v) for k, v in self.checks.items()},
            "surfaces": {k.value: dict(v) for k, v in self.surfaces.items()},
            "limits": {k: v.max for k, v in self.limits.items()},
            "performance": list(self.performance),
            "max_tokens": self.max_tokens,
            "data": dict(self.data),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def data_dir(name: str) -> Path:
    """Return the folder ``suites`` or ``models`` that ships with the package, in a wheel or a checkout."""
    inside = Path(__file__).parent / "_data" / name
    if inside.is_dir():
        return inside
    checkout = Path(__file__).parent.parent
    return checkout / "suites" if name == "suites" else checkout / "fixtures" / "models"


def load_profile(name: str, where: str = "--accept-profile") -> Profile:
    """Return the built-in profile `name`, or the one in the YAML file `name`; a file's borrowed name shows the file."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            near = suggest(path.name, [p.name for p in path.parent.glob("*.y*ml")])
            raise SchemaError(f"{where}: profile file {name} does not exist, seen from {Path.cwd()}.{near}")
        own = parse_profile(load(path))
        # "GATE PASS under profile release" must mean the shipped one.
        return replace(own, name=f"{own.name} ({path.name})") if own.name in BUILTIN_PROFILES else own
    if name not in BUILTIN_PROFILES:
        raise UnknownNameError("profile", name, BUILTIN_PROFILES, where)
    return parse_profile(load(data_dir("suites") / "profiles" / f"{name}.yaml"))


def parse_profile(node: Node) -> Profile:
    """Turn a strict YAML mapping into a profile."""
    keys = ("schema", "name", "title", "claim", "scenario", "advice", "alpha", "discordance", "checks", "limits")
    node.only([*keys, "performance", "max_tokens", "data", *(s.value for s in _SURFACES)])
    if (found := node.typed("schema", int, required=True)) != 1:
        raise node.error(f"schema: this version reads schema 1, the file says {found}", "schema")
    checks_node = node.typed("checks", dict, Node(node.file, node.line))
    checks_node.only([*_CHECKS, *_OWN_SCHEMA])
    if "needle" in checks_node and "tiers" not in (checks_node["needle"] or {}):
        raise checks_node.error("needle: needs tiers, the context lengths in trained lengths", "needle")
    performance = _strings(node, "performance")
    for name in performance:
        if name not in _PERFORMANCE:
            raise UnknownNameError("performance check", name, _PERFORMANCE, node.where("performance"))
    return Profile(
        name=node.typed("name", str, required=True),
        title=node.typed("title", str, ""),
        claim=" ".join(node.typed("claim", str, required=True).split()),
        scenario=" ".join(node.typed("scenario", str, "").split()),
        advice=_strings(node, "advice"),
        alpha=_probability(node, "alpha", 0.05),
        discordance=_probability(node, "discordance", 0.04),
        checks={
            name: _OWN_SCHEMA[name](checks_node.typed(name, dict))
            if name in _OWN_SCHEMA
            else _settings(checks_node, name, _CHECKS[name])
            for name in checks_node
        },
        surfaces={s: _settings(node, s.value, allowed) for s, allowed in _SURFACES.items() if s.value in node},
        limits=parse_limits(node),
        performance=performance,
        max_tokens=parse_max_tokens(node),
        data=parse_data(node),
        file=node.file,
    )


def parse_max_tokens(node: Node) -> int | None:
    """Read ``max_tokens:``, the cap of every model-level length."""
    value: int | None = node.typed("max_tokens", int)
    if value is not None and value < 1:
        raise node.error(f"max_tokens: {value!r} must be at least 1", "max_tokens")
    return value


def parse_data(node: Node) -> dict[str, str]:
    """Read ``data: {text: FILE}``; a relative path is taken from the YAML file's folder."""
    if "data" not in node:
        return {}
    data: Node = node.typed("data", dict)
    data.only(("text",))
    text = data.typed("text", str, required=True)
    if text == "builtin":
        return {"text": text}
    path = Path(text).expanduser()
    path = path if path.is_absolute() else Path(node.file).parent / path
    if not path.is_file():
        raise data.error(f"text: {path} does not exist", "text")
    return {"text": str(path)}


def _settings(node: Node, key: str, allowed: tuple[str, ...]) -> dict[str, object]:
    if node[key] is None:
        return {}
    settings: Node = node.typed(key, dict)
    settings.only(allowed)
    for name, value in settings.items():
        if name == "patterns":
            _require_patterns(settings, value, one_row=key == "footprint")
            continue
        many = name in _LISTS
        if many and (not isinstance(value, list) or not value):
            raise settings.error(f"{name}: {value!r} must be a list of positive numbers with at least one entry", name)
        for number in value if many else [value]:
            good = isinstance(number, (int, float) if name in _FRACTIONS else int) and not isinstance(number, bool)
            if not good or not 0 < number < math.inf:
                sort = "number" if name in _FRACTIONS else "whole number"
                raise settings.error(f"{name}: {number!r} must be a positive {sort}", name)
            if number > _MOST.get(name, math.inf):
                raise settings.error(f"{name}: {number!r} must be a whole number from 1 to {_MOST[name]}", name)
    return dict(settings)


def _require_patterns(node: Node, value: object, *, one_row: bool) -> None:
    """Refuse unknown patterns; a check that looks at one row (and at a batch anyway) knows no batches."""
    found = _ONE_ROW if one_row else _PATTERN
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and found.fullmatch(v) for v in value):
        allowed = "one-shot, chunk-N, token or warm-prefix" if one_row else _ALL_PATTERNS
        raise node.error(f"patterns: {value!r} must be a list of {allowed}", "patterns")


def _strings(node: Node, key: str) -> tuple[str, ...]:
    values = node.typed(key, list, [])
    for value in values:
        if not isinstance(value, str):
            raise node.error(f"{key}: {value!r} must be text", key)
    return tuple(values)


def _probability(node: Node, key: str, default: float) -> float:
    value = node.typed(key, float, default)
    if not 0 < value < 0.5:
        raise node.error(f"{key}: {value!r} must lie in (0, 0.5)", key)
    return float(value)
