"""The decision table: which checks a kind requires on a surface under a profile, and why.

`required_depth` is pure: mark and profile in, ordered requirements out. It runs at collection, so nothing heavy is
imported here and check names are listed rather than read from the modules that run them (a test holds the two together).

Positions
---------
1. A check that does not exist yet is never skipped where a profile requires it: it becomes an item that ends INCOMPLETE.
   Where a profile does not require it, it is listed in the plan as "not gated yet" and creates no item.
2. Approximate methods are gated through a model. A kernel or cache test cannot see quality, so it cannot pass one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.profile_checks import check_id
from pytest_attnaccept.profiles import Profile
from pytest_attnaccept.taxonomy import Kind, Method, Surface

__all__ = ["CHECK_REASONS", "Requirement", "StackEntry", "required_depth", "stack_kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEntry:
    """One method of a stack with its complete knob settings, and the checkpoint that carries it, if one does."""

    method: Method
    knobs: Mapping[str, object]
    checkpoint: str | None = None

    @property
    def label(self) -> str:
        """Return ``h2o(kv_budget=0.25)``: the method and the knobs that are not None; bits only where no name says them."""
        said = self.method.name.removeprefix("kv")
        shown = ", ".join(
            f"{k}={v}" for k, v in self.knobs.items() if v is not None and not (k == "bits" and str(v) == said)
        )
        return f"{self.method.name}({shown})" if shown else self.method.name

    @property
    def member(self) -> str:
        """Return the label with the checkpoint that carries it: two checkpoints of one method are two things."""
        return self.label if self.checkpoint is None else f"{self.label} of {self.checkpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One check that a test must pass.

    Attributes
    ----------
    exists
        False for a check that this version cannot measure: its item ends INCOMPLETE.
    params
        Settings from the profile that the check is run with.
    """

    check: str
    reason: str
    exists: bool = True
    params: Mapping[str, object] = field(default_factory=dict)


KERNEL = {
    "selftest": "the checks must reject this contract's own mutants before their pass counts",
    "value": "standardised error against a streamed fp64 reference: the function is equal within rounding",
    "lse": "the normaliser is part of the result that split and cascade kernels merge",
    "poison": "what is masked must not reach the output, bit for bit",
    "relations": "metamorphic relations cover every row, also without a reference",
    "inputs": "input families that make each term of the formula matter",
    "shapes": "tile, page, window and head-group edges, pairwise",
    "long": "index widths and accumulation at the longest context",
    "repeat": "the same call twice gives the declared determinism",
    "backward": "gradients, where the contract declares them",
}
CACHE = {
    "edges": "lengths at and around every page and window edge",
    "programs": "random programs of the declared operations against a plain list of tokens",
    "pressure": "a full pool raises MemoryError and changes nothing",
    "fork": "copy on write: both sides diverge after a fork",
    "reuse": "freed pages are reused without old contents",
    "rollback": "truncated positions never come back",
}
PREFIX_CACHE = {
    "programs": "insert, match, fetch and evict against a plain dictionary of prefixes",
    "identity": "what differs in the identity is never shared",
    "collisions": "a hash is not a proof: colliding and truncated hashes must not share",
    "blocks": "partial blocks and block edges",
    "eviction": "evicted and re-inserted entries, and entries in use",
}
DECODER = {
    "greedy": "greedy output equals the target's up to certified near-ties",
    "distribution": "sampled tokens follow the target's distribution jointly",
    "seeds": "the seed decides the sample, nothing else does",
    "state": "nothing of one request shows in the next",
    "steps": "acceptance length and step factor, where the candidate reports them",
}
MODEL_EXACT = {
    "equality": "logits equal the baseline's within rounding in every call pattern; tokens differ only at near-ties",
}
MODEL_STATE = {
    "chunked": "a prompt in pieces is the prompt in one piece",
    "prefix": "a warm prefix gives what a cold one gives, and copies of it stay apart",
    "batch": "a row of a ragged batch, padded in front, equals the row alone",
    "right-padding": "padding behind a row changes nothing of the row",
    "crop": "what was rolled back was never there",
    "reuse": "nothing of one request is left in the next",
    "window": "sliding caches at and around their window",
    "positions": "rotary positions are relative, also after an eviction",
    "preempt": "a stopped and resumed request, and its neighbours, equal uninterrupted ones",
}
MODEL_APPROXIMATE = {
    "identity": "the identity setting equals the baseline and removal restores it: what is measured is the method alone",
    "footprint": "storage after the last token equals the claim on every call pattern; a no-op is found here",
    "divergence": "KL and top-1 through the cache: the volume of change, cheap and early",
    "perplexity": "language modelling through the cache, by document",
    "needle": "retrieval with the question after compression: the worst case of a lossy cache",
    "long-range": "further task families (multi-hop, aggregation, tracking)",
    "benchmark": "lm-eval tasks paired per document",
    "budget-curve": "retrieval at halved budgets: how far down is it certified, and where is the cliff",
    "length-curve": "retrieval and text below and beyond the trained length: to which length is it certified",
    "controls": "known-bad changes of this very model are rejected, and the method beats random eviction",
}
CURVES = ("budget-curve", "length-curve", "controls")  # they ask the contexts of the needle items
BUDGETS = ("kv_budget", "window")  # knobs that a budget curve varies
MODEL_DECODING = {
    "speculation": "drafts over a lossy stack give that stack's own tokens; acceptance length before and after",
}
DRAFTED = ("speculative_decoding", "prompt_lookup")  # members that ask for MODEL_DECODING beside lossy ones
# Without one of them nothing says what a lossy change costs.
QUALITY = ("perplexity", "needle", "long-range", "benchmark")
LOGS = {"samples": "recorded answers of both sides, paired by document and prompt"}
PERFORMANCE = {
    "ttft": "time to first token against the same engine without the change",
    "tpot": "time per output token",
    "throughput": "requests per second under concurrency",
    "p99": "tail latency: eviction and preemption bring jitter",
    "peak-memory": "peak device memory",
    "used-kv": "KV memory in use, not allocated",
}
FULL_EVALUATION = {"full-evaluation": "another architecture is another model: the complete benchmark evaluation"}
LATER_APPROXIMATE = {
    "budget-curve": "halved budgets, certified range and cliff",
    "length-curve": "beyond the trained length",
    "long-range": "further task families (multi-hop, aggregation, tracking)",
    "benchmark": "lm-eval tasks paired per document",
    "controls": "the method beats random eviction, a known-bad one is caught",
}

CHECK_REASONS: Mapping[Surface, Mapping[str, str]] = {
    Surface.KERNEL: KERNEL,
    Surface.CACHE: CACHE,
    Surface.PREFIX_CACHE: PREFIX_CACHE,
    Surface.DECODER: DECODER,
    Surface.MODEL: {**MODEL_EXACT, **MODEL_STATE, **MODEL_APPROXIMATE, **MODEL_DECODING},
    Surface.LOGS: LOGS,
}


def stack_kind(stack: Sequence[StackEntry]) -> Kind:
    """Return the kind that decides the depth of a stack: the most demanding of its members."""
    order = (Kind.EXACT, Kind.APPROXIMATE, Kind.ARCHITECTURE)
    return max((entry.method.kind for entry in stack), key=order.index)


def required_depth(
    stack: Sequence[StackEntry], surface: Surface, profile: Profile, where: str
) -> tuple[Requirement, ...]:
    """Return the ordered checks that `stack` must pass on `surface` under `profile`.

    Raises
    ------
    UsageError
        When the surface cannot show what the kind needs.
    """
    kind = stack_kind(stack)
    if surface is Surface.LOGS:
        depth = tuple(Requirement(check=c, reason=r) for c, r in LOGS.items())
    elif surface is not Surface.MODEL:
        if kind is not Kind.EXACT:
            lossy = next(e.method.name for e in stack if e.method.kind is kind)
            raise UsageError(
                f"{where}: {lossy!r} is {kind.value}; its quality shows only through a model: use accept.model(...)"
                f" (surface='model'), not accept.{surface.value}(...)"
            )
        reasons = CHECK_REASONS[surface]
        params = profile.surface_params(surface)
        depth = tuple(Requirement(check=c, reason=r, params=params) for c, r in reasons.items())
    elif kind is Kind.EXACT:
        depth = tuple(
            Requirement(check=c, reason=r, params=profile.check_params(c))
            for c, r in {**MODEL_EXACT, **MODEL_STATE}.items()
        )
    else:
        depth = _model_depth(stack, profile, where)
        if any(e.method.name in DRAFTED for e in stack):
            depth += tuple(
                Requirement(check=c, reason=r, params=profile.check_params(c)) for c, r in MODEL_DECODING.items()
            )
    if kind is Kind.ARCHITECTURE:
        depth += tuple(Requirement(check=c, reason=r, exists=False) for c, r in FULL_EVALUATION.items())
    return depth + _performance(profile)


def _model_depth(stack: Sequence[StackEntry], profile: Profile, where: str) -> tuple[Requirement, ...]:
    kind = stack_kind(stack)
    if not any(check in profile.checks for check in QUALITY):
        raise UsageError(
            f"{where}: profile {profile.name} measures no quality ({' or '.join(QUALITY)} under checks:), so it cannot gate"
            f" {kind.value} methods"
        )
    checks = dict(MODEL_APPROXIMATE)
    if kind is Kind.ARCHITECTURE:
        # Another model has no identity setting and no KV claim; its quality is still compared with what it replaces.
        checks = {k: v for k, v in checks.items() if k in QUALITY}
    if not any(entry.knobs.get(name) is not None for entry in stack for name in BUDGETS):
        checks.pop("budget-curve", None)
    # A window of 4096 cannot act on a prompt of 1k, which is no reason against that item when another one reaches it.
    reach = {"longest_tier": _longest_tier(profile)}
    depth: list[Requirement] = []
    for check, reason in checks.items():
        if check not in profile.checks:
            continue
        params = {**profile.check_params(check), **reach}
        if check in CURVES:
            params = {**_needle_size(profile), **params}
        if check in _EXPANDED:
            depth.extend(_EXPANDED[check](params, reason))
        else:
            depth.append(Requirement(check=check, reason=reason, params=params))
    return tuple(depth)


def _needle_size(profile: Profile) -> dict[str, object]:
    """Return size and margin of the needle items: a curve asks the same contexts, so that their answers are shared."""
    size = {k: v for k, v in profile.checks.get("needle", {}).items() if k in ("contexts", "questions_per_context")}
    margins = {"margin": "needle", "halving": "halving"}
    limits = {name: profile.limits[limit].max for name, limit in margins.items() if limit in profile.limits}
    return {**size, **limits, "alpha": profile.alpha}


def _longest_tier(profile: Profile) -> float:
    """Return the longest context of the whole plan, in trained lengths."""
    tiers = [params.get("tier", 0) for params in profile.checks.values()]
    for check in ("needle", "long-range"):
        tiers += cast("list[object]", profile.checks.get(check, {}).get("tiers", []))
    return max(float(str(t)) for t in tiers)


def _needles(params: Mapping[str, object], reason: str) -> list[Requirement]:
    given = dict(params)
    tiers = cast("list[float]", given.pop("tiers"))
    return [
        Requirement(
            check=f"needle-{tier:g}x",
            reason=f"{reason}; context {tier:g} x the trained length",
            params={**given, "tier": tier},
        )
        for tier in tiers
    ]


def _families(params: Mapping[str, object], reason: str) -> list[Requirement]:
    """Return one requirement per task family; its tiers are cells of one item, and the worst cell decides."""
    given = dict(params)
    families = cast("dict[str, dict[str, object]]", given.pop("families"))
    return [
        Requirement(check=check_id("long-range", name), reason=f"{reason}; {name}", params={**given, **entry})
        for name, entry in families.items()
    ]


def _tasks(params: Mapping[str, object], reason: str) -> list[Requirement]:
    given = dict(params)
    tasks = cast("list[str]", given.pop("tasks"))
    return [
        Requirement(check=check_id("benchmark", task), reason=f"{reason}; {task}", params={**given, "task": task})
        for task in tasks
    ]


_EXPANDED = {"needle": _needles, "long-range": _families, "benchmark": _tasks}


def _performance(profile: Profile) -> tuple[Requirement, ...]:
    return tuple(Requirement(check=c, reason=PERFORMANCE[c], exists=False) for c in profile.performance)


def not_gated_yet(kind: Kind, surface: Surface, profile: Profile) -> Mapping[str, str]:
    """Return what the protocol asks for and this profile does not gate yet, with the reason."""
    missing: dict[str, str] = {}
    if surface is Surface.MODEL and kind is Kind.APPROXIMATE:
        missing.update({c: r for c, r in LATER_APPROXIMATE.items() if c not in profile.checks})
    missing.update({c: r for c, r in PERFORMANCE.items() if c not in profile.performance})
    return missing
