"""The plan in words, before anything is spent: items, reasons, sample sizes, power, cost and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.profiles import Profile
from pytest_attnaccept.protocol import CURVES, not_gated_yet
from pytest_attnaccept.taxonomy import Kind, Surface

__all__ = ["BEYOND", "plan_lines"]

BEYOND = 110
"""Contexts at a length that does not ship, where the profile does not say (the default of the check, which loads torch)."""


def plan_lines(plan: Plan, profile: Profile) -> list[str]:
    """Return the lines that ``--accept-plan`` prints."""
    title = f" ({profile.title})" if profile.title else ""
    lines = [
        f"plan under profile {profile.name}{title}: {_items(plan)}, digest {plan.digest()}",
        f"claim of a PASS: {profile.claim}",
    ]
    cells: dict[str, list[PlannedItem]] = {}
    for item in plan.items:
        cells.setdefault(item.cell, []).append(item)
    family = plan.family
    for cell, items in cells.items():
        first = items[0]
        lines.append(f"{cell}: {first.stack} [{first.kind}, accept.{first.surface}]")
        width = max(14, *(len(item.check) for item in items))
        for item in items:
            lines.append(f"  {item.check:<{width}} {item.reason}")
            lines += [f"  {'':<{width}} {text}" for text in (_sample(item, profile, family), _cost(item)) if text]
        missing = not_gated_yet(Kind(first.kind), Surface(first.surface), profile)
        if missing:
            lines.append(f"  not gated yet: {'; '.join(f'{check} ({reason})' for check, reason in missing.items())}")
    if profile.advice:
        lines.append(f"this scenario usually ships with: {'; '.join(profile.advice)} (advice, never part of a verdict)")
    if not profile.performance:
        lines.append("quality gate only: performance is not part of this profile's verdict")
    return lines


def _items(plan: Plan) -> str:
    return "1 item" if len(plan.items) == 1 else f"{len(plan.items)} items"


def _sample(item: PlannedItem, profile: Profile, family: int) -> str:
    """Return sample size, margin and power of one item, in words."""
    if not item.exists:
        return "INCOMPLETE: this version cannot measure it, so this profile cannot pass"
    name = item.check.split("-")[0]
    params: Mapping[str, object] = item.params
    if name in ("needle", "perplexity") and name not in item.limits:
        return f"no limit {name}: cannot pass"
    if name == "needle" and "needle" in item.limits:
        questions = int(str(params.get("questions_per_context", 1)))
        return _needle_power(int(str(params.get("contexts", 0))), questions, item.limits["needle"], profile, family)
    if name in ("perplexity", "divergence"):
        documents = int(str(params.get("documents", 0)))
        limits = {
            k: v for k, v in item.limits.items() if k in (("perplexity",) if name == "perplexity" else ("kl", "top1"))
        }
        shown = ", ".join(f"{k} {v:g}" for k, v in limits.items())
        return f"n={documents} documents, margin {shown}, t({documents - 1}) at alpha {profile.alpha:g}"
    for check, unit in (("long-range", "contexts"), ("benchmark", "documents")):
        if item.check.startswith(f"{check}-"):
            return _paired_power(item, check, unit, profile)
    if item.check in CURVES:
        points = [x for k in ("budgets", "lengths") for x in cast("Sequence[object]", params.get(k) or ())]
        size = params.get("contexts", "?")
        inside, beyond = _lengths(params) if item.check == "length-curve" else (points, [])
        shown = f" at each of {', '.join(map(str, inside))}" if inside else ""
        shown += f" and {_beyond(params)} at each of {', '.join(map(str, beyond))}" if beyond else ""
        margin = f", margin {item.limits['needle']:g}" if "needle" in item.limits else ""
        return f"n={size} contexts{shown}{margin} at alpha {profile.alpha:g}"
    if name == "samples":
        return f"every item of the two logs, margin {item.limits.get('samples', 0):g} at alpha {profile.alpha:g}"
    return "deterministic: no sampling error"


def _paired_power(item: PlannedItem, check: str, unit: str, profile: Profile) -> str:
    """Say what a fixed sample of contexts or documents can show; each cell of a family has its own."""
    from pytest_attnaccept.stats.planning import minimum_detectable_loss, smallest_margin

    size = item.params.get("contexts" if check == "long-range" else "limit")
    cells = [item.params.get(name) for name in ("tiers", "patterns")]
    margin = item.limits.get(check)
    shown = f"margin {margin:g}" if margin is not None else f"no limit {check}: cannot pass"
    if not isinstance(size, int):
        return f"every document, {shown} at alpha {profile.alpha:g}"
    count = math.prod(len(c) for c in cells if isinstance(c, list)) if check == "long-range" else 1
    text = f"n={size} {unit} in each of {count} cells, {shown}" if count > 1 else f"n={size} {unit}, {shown}"
    least = smallest_margin(size, discordance=profile.discordance, alpha=profile.alpha)
    text += f"; smallest margin this n can certify {least:.3f}" if least is not None else ""
    detect = (
        minimum_detectable_loss(size, margin, discordance=profile.discordance, alpha=profile.alpha) if margin else None
    )
    return text + (f"; a loss of {detect:.3f} FAILS with 80 %" if detect is not None else "")


def _needle_power(contexts: int, questions: int, margin: float, profile: Profile, family: int) -> str:
    """Say what the sample can show and what it costs on average, by exact enumeration of the planned looks.

    The mean of k independent answers of one context varies like one answer with a k-th of the discordance.
    """
    from pytest_attnaccept.stats.characteristics import operating_characteristics
    from pytest_attnaccept.stats.planning import items_needed, minimum_detectable_loss, smallest_margin
    from pytest_attnaccept.stats.sequential import INFLATION, plan_looks

    alpha, discordance = profile.alpha, profile.discordance / questions
    plan = plan_looks(contexts, margin, alpha_pass=alpha, alpha_fail=alpha / max(1, family))
    harmless = operating_characteristics(plan, discordance / 2, discordance / 2)
    least = smallest_margin(round(contexts / INFLATION), discordance=discordance, alpha=alpha)
    detect = minimum_detectable_loss(contexts, margin, discordance=discordance, alpha=alpha)
    text = (
        f"at most n={contexts} contexts x {questions} questions in {len(plan.looks)} looks, margin {margin:g}: a harmless change"
        f" ({profile.discordance:.0%} of answers differ, no loss) passes with {harmless.passes:.3f} after"
        f" {harmless.mean_items:.0f} contexts on average"
    )
    if harmless.passes < 0.9:
        need = items_needed(margin, discordance=discordance, alpha=alpha)
        text += f"; UNDERPOWERED: needs n={'more than can be planned' if need is None else round(need * INFLATION)}"
    if least is not None:
        text += f"; smallest margin this n can certify {least:.3f}"
    return text + (f"; a loss of {detect:.3f} FAILS with 80 %" if detect is not None else "")


def _cost(item: PlannedItem) -> str:
    """Return the cost in prefilled tokens per side, in trained lengths as long as the model is not loaded.

    A sample that is decided early costs less.
    """
    params: Mapping[str, object] = item.params
    count = params.get("contexts") or params.get("documents")
    tiers = [params.get("tier")] if "tier" in params else params.get("tiers") or params.get("lengths")
    if not isinstance(count, int) or not isinstance(tiers, Sequence) or isinstance(tiers, str):
        return ""
    lengths = [float(tier) for tier in tiers if isinstance(tier, (int, float))]
    beyond = [float(str(tier)) for tier in _lengths(params)[1]] if item.check == "length-curve" else []
    patterns = params.get("patterns")
    if isinstance(patterns, Sequence) and "screen" not in params:  # screened patterns: the worst one is asked in full
        count *= max(1, len(patterns))
    if not lengths:
        return ""
    cap = params.get("max_tokens")
    more = _beyond(params) - count if beyond else 0  # what is asked beyond, more than inside or less
    shown = (
        f"{(count * len(lengths) + more * len(beyond)) * cap:,}"
        if isinstance(cap, int)
        else f"{count * sum(lengths) + more * sum(beyond):g} x the trained length in"
    )
    shared = ", less what the needle items have asked already" if item.check in CURVES else ""
    return f"cost: about {shown} prefilled tokens per side{shared}"


def _lengths(params: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """Return the lengths of a length curve that ship, and those beyond."""
    lengths = cast("Sequence[object]", params.get("lengths") or ())
    operating = float(str(params.get("operating", 1.0)))
    inside = [n for n in lengths if float(str(n)) <= operating]
    return inside, [n for n in lengths if n not in inside]


def _beyond(params: Mapping[str, object]) -> int:
    return int(str(params.get("beyond", BEYOND)))
