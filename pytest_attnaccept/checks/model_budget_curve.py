"""`budget-curve`: retrieval at budgets 1, 1/2, 1/4, 1/8 and around the operating point: how far down is it certified?

Positions
---------
1. The operating point carries the gate. Smaller budgets than the one that ships are not asked to pass; they say where the
   cliff is and how far away. With a limit ``halving`` the loss from the operating point to half of it is gated too.
2. The certified range is walked from the easy end and stops at the first budget that does not pass.
3. A candidate of the user's own can be measured at other budgets only when its factory takes ``kv_budget``; otherwise the
   curve is NOT_APPLICABLE and says so: nothing about other budgets is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_attnaccept.checks.curve_points import Point, cliff, plan_of, point_table, walk
from pytest_attnaccept.checks.model_budgets import stored_share
from pytest_attnaccept.checks.model_data import context_tokens, encode, to_row
from pytest_attnaccept.checks.model_evidence import not_evidence, soundness_fact
from pytest_attnaccept.checks.model_held import most_entries
from pytest_attnaccept.checks.model_needle import DEFAULTS as NEEDLE
from pytest_attnaccept.checks.model_needle import needle_items
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.errors import AttnAcceptError, ContractError
from pytest_attnaccept.measurement import Fact, Gate, Measured, PairedScores, Refusal
from pytest_attnaccept.stats.curves import CertifiedRange, certified_range, degradation_area
from pytest_attnaccept.stats.sequential import SequentialPlan
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "measure"]

DEFAULTS: Mapping[str, object] = {
    **NEEDLE,
    "budgets": (1.0, 0.5, 0.25, 0.125),  # shares of the context
    "margin": 0.05,  # the profile's limit on needle
    "halving": None,  # largest drop from the operating point to half of it; None: reported, not gated
}
_ENTRIES = 2  # a share is rounded up to entries, and per layer
_SAME = 0.1  # policy: two budgets within a tenth of each other are one point of the curve


def measure(session: ModelSession, params: Params) -> Measured:
    """Measure every budget on the same contexts."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    length = context_tokens(session, given, tier=given.number("tier", 1.0))
    own = session.budget(length)
    if own is None:
        return _not_applicable("no method of this stack has a budget to vary (kv_budget or window)")
    if session.at_budget(own, length) is None:
        return _not_applicable(
            "the candidate is the user's own and its factory takes no kv_budget, so only the budget that it declares was"
            " measured; give a factory such as `def candidate(kv_budget=0.25)` to have the curve measured"
        )
    plan = plan_of(session, given, given.integer("contexts", 50))
    points, stopped = _walked(session, given, plan, length, own)
    at = next(number for number, point in enumerate(points) if point.at == own)
    claim = certified_range([p.on_curve() for p in points], easy_end="high", unit="of the context")
    edge, steps = cliff(points, given.number("margin", 0.05), given.number("alpha", 0.05), session.seed)
    gates: list[Gate] = [points[at].gate, *_halving(given, plan, points, own)]
    identical = points[at].base_nll == points[at].cand_nll and not any(points[at].losses)
    return Measured(
        gates=tuple(gates),
        facts=(*_facts(points, at, edge, claim, length), soundness_fact(session, session.baseline)),
        refusals=(
            *not_evidence(session, length, identical=identical, params=given),
            *_out_of_order(points, at, claim),
            *_not_followed(session, given, length, points, own),
            *_half_missing(given, points, own, stopped),
        ),
        resolution=f"{claim.text}, at {length} tokens" + (f"; {stopped}" if stopped else ""),
        data_digest=points[at].digest,
        details={
            "points": point_table(points),
            "certified": claim.text,
            "steps": None if steps is None else {"z": list(steps.z), "critical": steps.critical},
            "area": degradation_area([p.at for p in points], [p.loss for p in points]),
        },
    )


def _not_applicable(reason: str) -> Measured:
    return Measured(refusals=(Refusal(verdict=Verdict.NOT_APPLICABLE, reason=reason),))


def _budgets(given: Params, own: float) -> list[float]:
    """Return the shares to measure, easy end first: the grid, the operating point and half of it."""
    chosen = [own, own / 2]
    grid = given.numbers("budgets", (1.0, 0.5, 0.25, 0.125))
    if max(grid) > 1.0:
        raise ContractError(f"{given.check}: budgets={list(grid)!r} are shares of the context, in (0, 1]")
    for share in grid:
        if all(abs(share - other) > _SAME * max(share, other) for other in chosen) or (share == 1.0 and own < 1.0):
            chosen.append(share)
    return sorted(set(chosen), reverse=True)


def _walked(
    session: ModelSession, given: Params, plan: SequentialPlan, length: int, own: float
) -> tuple[list[Point], str]:
    """Measure all budgets, easy end first; the text says where a smaller budget than the operating one could not be run.

    Nothing behind such a budget is measured, so nothing behind it can be claimed.
    """
    points: list[Point] = []
    for share in _budgets(given, own):
        label = f"budget {share:.3g}"
        try:
            side = session.candidate if share == own else session.at_budget(share, length)
            if side is not None:
                points.append(walk(session, given, side, length, plan, at=share, label=label))
        except AttnAcceptError as error:
            if share >= own:
                raise
            return points, f"{label} cannot be run: {error}"
    return points, ""


def _not_followed(
    session: ModelSession, given: Params, length: int, points: Sequence[Point], own: float
) -> tuple[Refusal, ...]:
    """Refuse a curve whose other points do not store what their budget says."""
    item = needle_items(session, replace(given, given={**given.given, "contexts": 1}), length)[0]
    loaded = session.baseline.loaded
    row = to_row(loaded, encode(loaded.tokenizer, item.context))
    for point in points:
        side = None if point.at == own else session.at_budget(point.at, length)
        if side is None:
            continue
        held = max(stored_share(session, side, row), most_entries(session, side) / row.shape[1])
        # A number of entries is a share of the whole length; the row is that without question and answer.
        if held * row.shape[1] > point.at * length + _ENTRIES:
            words = f"asked for {point.label}, the candidate stores {held:.3g} of a context: the curve is not one of budgets"
            return (Refusal(verdict=Verdict.INVALID, reason=words),)
    return ()


def _halving(given: Params, plan: SequentialPlan, points: Sequence[Point], own: float) -> list[Gate]:
    """Return the gate on the drop from the operating point to half of it, where a limit asks for one.

    Where the walk of the half stopped decides how many contexts there are; the level of that look pays for it.
    """
    here = next(p for p in points if p.at == own)
    half = next((p for p in points if p.at == own / 2), None)
    if given.optional_number("halving") is None or half is None:
        return []
    n = min(len(here.losses), len(half.losses))
    look = max(number for number, stop in enumerate(plan.looks) if stop <= n)
    drops = tuple(b - a for a, b in zip(here.losses[:n], half.losses[:n], strict=True))
    gate = PairedScores(
        name="halving",
        losses=drops,
        base_mean=sum(here.scores[:n]) / n,
        n_items=n,
        discordant=sum(d != 0 for d in drops),
        alpha_pass=plan.pass_levels[look],
        alpha_fail=plan.fail_levels[look],
        n_max=plan.n_max,
        where=f"from {here.label} to {half.label}, {n} contexts",
    )
    return [gate]


def _half_missing(given: Params, points: Sequence[Point], own: float, stopped: str) -> tuple[Refusal, ...]:
    """Refuse where a limit asks for half of the operating budget and it could not be run."""
    if given.optional_number("halving") is None or any(p.at == own / 2 for p in points):
        return ()
    return (Refusal(verdict=Verdict.INCOMPLETE, reason=f"half of the operating budget was not measured: {stopped}"),)


def _out_of_order(points: Sequence[Point], at: int, claim: CertifiedRange) -> tuple[Refusal, ...]:
    """Refuse a curve on which the operating point passes and an easier budget does not."""
    if points[at].verdict is not Verdict.PASS or (claim.last is not None and claim.last <= points[at].at):
        return ()
    words = f"{points[at].label} passes and an easier budget does not ({claim.text}): nothing is certified at it"
    return (Refusal(verdict=Verdict.INCONCLUSIVE, reason=words),)


def _facts(points: Sequence[Point], at: int, edge: int | None, claim: CertifiedRange, length: int) -> tuple[Fact, ...]:
    own = points[at].at
    last = "nothing" if claim.last is None else f"budget {claim.last:.3g} at {length} tokens"
    facts = [Fact(name="length", value=length, unit="tokens"), Fact(name="operating_budget", value=round(own, 4))]
    if edge is None:
        cliff_words = f"no cliff down to budget {points[-1].at:.3g}"
    else:
        above, below = points[edge], points[edge + 1]
        facts.append(Fact(name="cliff", value=f"between budget {above.at:.3g} and {below.at:.3g}"))
        away = math.log2(own / below.at)
        facts.append(Fact(name="halvings_to_the_cliff", value=round(away, 2)))
        near = ", within one halving" if own >= above.at and away <= 1 + 1e-9 else ""
        cliff_words = f"cliff between {above.at:.3g} and {below.at:.3g}{near}"
    # The headline of a PASS begins with this fact.
    facts.append(Fact(name="certified_to", value=f"{last} ({cliff_words})"))
    return tuple(facts)
