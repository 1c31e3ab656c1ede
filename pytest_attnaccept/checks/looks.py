"""A sample is measured in planned looks and stops as soon as its verdict is clear, at the error of the whole plan.

The plan (looks, nominal levels, margin, seed) is fixed before the first answer and its digest goes into the record. Items
are generated independently from their index, so "the next ones" are a random sample; nothing is reordered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_attnaccept.checks.model_losses import joined
from pytest_attnaccept.measurement import Fact, Measured, PairedScores
from pytest_attnaccept.stats.sequential import Monitor, SequentialPlan
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["measure_in_looks"]

_MEANS = ("baseline_", "candidate_")  # facts that are means over the answers of a part

Measure = Callable[[Mapping[str, object]], Measured]


def measure_in_looks(measure: Measure, params: Mapping[str, object], plan: SequentialPlan) -> Measured:
    """Measure a check whose sample is ``contexts`` independent clusters, look by look.

    Parameters
    ----------
    measure
        Measures ``contexts`` clusters from index ``first`` on.
    params
        Parameters of the check; ``contexts`` is the planned maximum.
    plan
        Looks and levels.
    """
    monitor = Monitor(plan=plan)
    parts: list[Measured] = []
    while not monitor.decided:
        part = measure({**params, "first": monitor.n, "contexts": monitor.next_n - monitor.n})
        parts.append(part)
        gate = _single_gate(part)
        if gate is None or any(r.verdict.blocks for r in part.refusals):
            break
        together = [loss for p in parts for loss in _losses(p)]
        monitor = monitor.observe_scores(together)
    return _merged(parts, monitor)


def _single_gate(part: Measured) -> PairedScores | None:
    return part.gates[0] if len(part.gates) == 1 and isinstance(part.gates[0], PairedScores) else None


def _losses(part: Measured) -> tuple[float, ...]:
    gate = _single_gate(part)
    return gate.losses if gate is not None else ()


def _merged(parts: list[Measured], monitor: Monitor) -> Measured:
    """Return one measurement with the levels of the look that decided."""
    last = parts[-1]
    gates = [g for g in map(_single_gate, parts) if g is not None]
    if len(gates) != len(parts):
        return last
    items = sum(g.n_items for g in gates)
    look = max(monitor.look, 1) - 1
    gate = replace(
        gates[-1],
        losses=tuple(loss for g in gates for loss in g.losses),
        base_mean=sum(g.base_mean * g.n_items for g in gates) / items if items else gates[-1].base_mean,
        n_items=items,
        discordant=sum(g.discordant for g in gates),
        alpha_pass=monitor.plan.pass_levels[look],
        alpha_fail=monitor.plan.fail_levels[look],
        n_max=monitor.plan.n_max,
        where=f"{gates[-1].where}; {_ended(monitor)}",
    )
    digest = hashlib.sha256("".join(p.data_digest for p in parts).encode()).hexdigest()[:16]
    return replace(
        last,
        gates=(gate,),
        facts=_averaged(parts, [g.n_items for g in gates]),
        data_digest=digest,
        details={
            "plan": monitor.plan.digest(),
            "looks": list(monitor.plan.looks),
            "taken": monitor.look,
            "ended": _ended(monitor),
            "parts": [{k: v for k, v in p.details.items() if k != "losses"} for p in parts],
            "losses": joined(_kept(p) for p in parts),
            "data_digest": digest,
        },
    )


def _averaged(parts: list[Measured], items: list[int]) -> tuple[Fact, ...]:
    """Return the facts of the last part; what is a mean over answers is the mean over all parts."""
    values = [{f.name: f.value for f in part.facts} for part in parts]
    facts: list[Fact] = []
    asked = sum(items)
    named = {f.name for f in parts[-1].facts}
    once = [f for f in parts[0].facts if f.name not in named]  # measured with the first part only
    for fact in (*parts[-1].facts, *once):
        each = [v.get(fact.name) for v in values]
        numbers = [v for v in each if isinstance(v, float)]
        if fact.name.startswith(_MEANS) and len(numbers) == len(items) and asked > 0:
            total = sum(v * n for v, n in zip(numbers, items, strict=True)) / asked
            facts.append(replace(fact, value=round(total, 6)))
        else:
            facts.append(fact)
    return tuple(facts)


def _kept(part: Measured) -> Mapping[str, Any]:
    kept = part.details.get("losses")
    return kept if isinstance(kept, Mapping) else {}


def _ended(monitor: Monitor) -> str:
    if monitor.verdict is None:
        return "stopped by a refusal"
    reached = "" if monitor.verdict is Verdict.INCONCLUSIVE else f", {monitor.n} of at most {monitor.plan.n_max}"
    return f"{monitor.why}{reached}"
