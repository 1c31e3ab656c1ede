"""Measured values + limits fixed before the run -> one verdict with the sentence that explains it.

Positions
---------
1. Harm is the null hypothesis: a statistical gate passes only when harm beyond its margin is excluded at alpha.
2. NaN and infinity fail. An item without gates is INVALID. Refusals outrank a pass, never a failure.
3. A wrong FAIL is controlled over the whole family: here Bonferroni over the planned statistical items (valid before the
   others are known), in the run's verdict Holm over what was recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_attnaccept.limits import Limit
from pytest_attnaccept.measurement import ClusteredSums, Gate, Measured, PairedCounts, PairedScores, Threshold
from pytest_attnaccept.records import Metric
from pytest_attnaccept.taxonomy import Verdict, worst_of
from pytest_attnaccept.verdict_clusters import clustered_metric
from pytest_attnaccept.verdict_parts import judged

if TYPE_CHECKING:
    from pytest_attnaccept.stats.paired import PairedResult

__all__ = ["Decision", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One item's verdict.

    Attributes
    ----------
    headline
        One line that says everything: verdict, what, how much, limit, n.
    body
        Further lines for the failure text (worst place, what it looks like, how to reproduce).
    """

    verdict: Verdict
    headline: str
    metrics: tuple[Metric, ...]
    body: str = ""


def decide(measured: Measured, limits: Mapping[str, Limit], *, alpha: float = 0.05, family: int = 1) -> Decision:
    """Judge one item.

    Parameters
    ----------
    limits
        Margins by metric name; a statistical gate without one is INVALID, because nobody said what may be lost.
    alpha
        One-sided error of a wrong PASS of this item, and of a wrong FAIL of the whole family.
    family
        How many statistical items the plan holds.
    """
    metrics = tuple(_judge(gate, limits, alpha, max(1, family)) for gate in measured.gates)
    # A refusal says why an item may not pass; one that says PASS is a check that vouches for itself, and does not count.
    verdicts = [Verdict(m.verdict) for m in metrics]
    verdicts += [r.verdict for r in measured.refusals if r.verdict is not Verdict.PASS]
    if not verdicts:
        return Decision(
            verdict=Verdict.INVALID, headline="nothing was compared: the check returned no gate", metrics=()
        )
    verdict = worst_of(verdicts)
    deciding = [r.reason for r in measured.refusals if r.verdict is verdict]
    deciding += [m.text for m in metrics if m.verdict == verdict.value]
    certified = [f"certified to {f.value} {f.unit}" for f in measured.facts if f.name == "certified_to"]
    headline = "; ".join([*(certified if verdict is Verdict.PASS else ()), *deciding[:3]])
    return Decision(verdict=verdict, headline=headline, metrics=metrics, body=_body(measured, metrics, verdict))


def _judge(gate: Gate, limits: Mapping[str, Limit], alpha: float, family: int) -> Metric:
    if isinstance(gate, Threshold):
        return _threshold(gate)
    names = (gate.name, gate.name.split("[")[0], re.split(r"[\[-]", gate.name)[0])  # "needle[chunk-64]" is a needle
    limit = next((limits[name] for name in names if name in limits), None)
    if limit is None:
        return Metric(
            name=gate.name,
            verdict=Verdict.INVALID.value,
            text=f"{gate.name}: the profile has no limit for it, so nothing says how much may be lost",
        )
    if isinstance(gate, ClusteredSums):
        return _clustered(gate, limit, alpha, alpha / family)
    return _paired(gate, limit, alpha, alpha / family)


def _threshold(gate: Threshold) -> Metric:
    good = math.isfinite(gate.value) and math.isfinite(gate.limit) and gate.value <= gate.limit
    relation = "within" if good else "beyond"
    text = f"{gate.name} {gate.value:.4g}{_unit(gate.unit)} is {relation} {gate.limit:.4g}"
    if not good:
        text += f" at {gate.where}" if gate.where else ""
        text += f"; looks like {gate.seems}" if gate.seems else ""
    verdict = Verdict.PASS if good else Verdict.FAIL
    if good and gate.n < 1:
        verdict, text = Verdict.INVALID, f"{gate.name}: nothing was compared"
    return Metric(
        name=gate.name,
        verdict=verdict.value,
        effect=gate.value,
        n=gate.n,
        limit=gate.limit,
        unit=gate.unit,
        origin=gate.origin,
        text=text,
    )


def _paired(gate: PairedCounts | PairedScores, limit: Limit, alpha_pass: float, alpha_fail: float) -> Metric:
    at_pass, at_fail = _level(gate.alpha_pass, alpha_pass), _level(gate.alpha_fail, alpha_fail)
    result: PairedResult
    if isinstance(gate, PairedCounts):
        result = _counted(gate, limit.max, at_pass, at_fail)
        discordant = f"{gate.losses} lost, {gate.gains} gained"
    elif all(math.isfinite(x) for x in gate.losses):
        result = _scored(gate, limit.max, at_pass, at_fail)
        discordant = f"{gate.discordant} of {gate.n_items} answers differ"
    else:
        return _not_finite(gate.name, limit)
    text = (
        f"{gate.name}: {gate.unit} loss {result.loss:+.4f} [{result.lower:+.4f}, {result.upper:+.4f}] against margin"
        f" {limit.max:g}, n={result.n}, {discordant}"
    )
    return judged(
        gate.name,
        result,
        limit,
        interval=(result.loss, result.lower, result.upper),
        n=result.n,
        unit=gate.unit,
        text=text,
        costs=result.measurable,
        needs=lambda: _needs(gate, result.upper, limit.max, alpha_pass),
    )


def _counted(gate: PairedCounts, margin: float, alpha_pass: float, alpha_fail: float) -> PairedResult:
    from pytest_attnaccept.stats import paired_binary

    return paired_binary(
        gate.losses,
        gate.gains,
        gate.n,
        margin,
        base_correct=gate.base_correct,
        chance=gate.chance,
        alpha_pass=alpha_pass,
        alpha_fail=alpha_fail,
    )


def _scored(gate: PairedScores, margin: float, alpha_pass: float, alpha_fail: float) -> PairedResult:
    from pytest_attnaccept.stats import paired_scores

    return paired_scores(
        list(gate.losses),
        margin,
        base_mean=gate.base_mean,
        chance=gate.chance,
        alpha_pass=alpha_pass,
        alpha_fail=alpha_fail,
        clusters=gate.n_items > len(gate.losses),
    )


def _needs(gate: PairedCounts | PairedScores, upper: float, margin: float, alpha: float) -> str:
    """Say what would decide an undecided item, or that more of the same will not.

    Numbers are sample sizes to plan: a plan that looks early needs more than one that looks once.
    """
    from pytest_attnaccept.stats import hopeless, items_to_decide, items_to_decide_scores
    from pytest_attnaccept.stats.sequential import INFLATION

    looks = 1.0 if gate.alpha_pass is None else INFLATION
    if isinstance(gate, PairedCounts):
        need = items_to_decide(gate.losses, gate.gains, gate.n, margin, alpha=alpha)
        if need is None or hopeless(gate.losses, gate.gains, gate.n, max(need, gate.n), margin, alpha=alpha):
            return "more items at these rates will not make it pass"
        return f"needs n={math.ceil(looks * need)} for PASS with 80 % probability if the rest shows no loss"
    mean = sum(gate.losses) / len(gate.losses)
    if mean >= margin:
        return "the estimate is not below the margin: more items will not make it pass"
    need = items_to_decide_scores(gate.losses, margin, upper=upper, alpha=alpha)
    if need is None:
        return "no practical number of items decides this at the observed difference"
    text = f"needs n={math.ceil(looks * need)} for PASS with 80 % probability if the rest shows no loss"
    if mean <= 0:
        return text
    same = items_to_decide_scores(gate.losses, margin, upper=upper, further_loss=mean, alpha=alpha)
    more = "beyond reach" if same is None else f"n={math.ceil(looks * same)}"
    return f"{text}, {more} if it loses as much as these"


def _level(planned: float | None, full: float) -> float:
    """Return the nominal level: the look's, which may be zero (no decision there) and never exceeds the full one."""
    return full if planned is None else min(max(planned, 1e-12), full)


def _clustered(gate: ClusteredSums, limit: Limit, alpha_pass: float, alpha_fail: float) -> Metric:
    if not all(math.isfinite(s) for s in gate.sums):
        return _not_finite(gate.name, limit)
    return clustered_metric(gate, limit, alpha_pass, alpha_fail)


def _not_finite(name: str, limit: Limit) -> Metric:
    return Metric(
        name=name,
        verdict=Verdict.FAIL.value,
        limit=limit.max,
        origin=limit.origin,
        text=f"{name}: a measured value is not finite (NaN or infinity)",
    )


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def _body(measured: Measured, metrics: tuple[Metric, ...], verdict: Verdict) -> str:
    lines = [f"  {m.verdict:<13} {m.text}" for m in metrics]
    lines += [f"  {r.verdict.value:<13} {r.reason}" for r in measured.refusals]
    lines += [
        f"  limit of {m.name} was loosened from {m.loosened_from:g} to {m.limit:g} ({m.origin})"
        for m in metrics
        if m.loosened_from is not None
    ]
    if measured.seems and verdict is not Verdict.PASS:
        lines.append(f"  looks like: {measured.seems}")
    if measured.resolution:
        lines.append(f"  resolution: {measured.resolution}")
    if measured.reproduce and verdict is not Verdict.PASS:
        lines += ["  reproduce:", *("    " + line for line in measured.reproduce.splitlines())]
    return "\n".join(lines)
