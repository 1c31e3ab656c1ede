"""One point of a curve: retrieval of one side at one length, measured in planned looks and judged at its margin.

The verdict of a point decides how far a curve is certified; the verdict of the item rests on the gates that the curve
hands over. Points of one curve ask the same contexts, so that neighbouring points can be compared item by item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_attnaccept.checks.model_answers import Answer, answers, right
from pytest_attnaccept.checks.model_needle import needle_items, paired, score_of
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.measurement import PairedScores
from pytest_attnaccept.stats.curves import CurvePoint, Steps, adjacent_steps, isotonic_drawing
from pytest_attnaccept.stats.floors import baseline_floor
from pytest_attnaccept.stats.paired import paired_scores
from pytest_attnaccept.stats.sequential import Monitor, SequentialPlan, plan_looks
from pytest_attnaccept.tasks import TaskItem
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["COMMON", "Point", "baseline_void", "cliff", "common_losses", "plan_of", "point_table", "walk"]

COMMON = 24  # contexts that every point has at least: steps between points need 20 common ones (stats.curves)
# policy: a check does not know how many items its plan holds. A wrong FAIL of a point is held below alpha over a hundred
# of them; the verdict applies the exact family on top of it.
_FAMILY = 100
_SLACK = 0.15  # about three standard errors of a baseline's accuracy over 24 contexts of four questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One tested point.

    Attributes
    ----------
    at
        Position on the curve: a share of the context, or a length in tokens.
    gate
        The contexts up to the look that decided, with that look's levels.
    losses
        Loss of every context that was asked, those behind the decision included.
    scores
        Mean score of the candidate in each of these contexts.
    void
        Why the baseline cannot show a loss here; "" where it can.
    digest
        Hash of the contexts that were asked.
    """

    at: float
    label: str
    gate: PairedScores
    verdict: Verdict
    losses: tuple[float, ...]
    scores: tuple[float, ...]
    base_nll: float
    cand_nll: float
    digest: str
    void: str = ""

    @property
    def loss(self) -> float:
        """Mean loss up to the decision."""
        return sum(self.gate.losses) / len(self.gate.losses)

    def on_curve(self) -> CurvePoint:
        """Return the point as `stats.curves` takes it."""
        return CurvePoint(at=self.at, verdict=self.verdict, loss=self.loss)


def plan_of(session: ModelSession, given: Params, contexts: int) -> SequentialPlan:
    """Return looks and levels of a point; the looks are those of the needle items, so that answers are shared."""
    alpha = given.number("alpha", 0.05)
    return plan_looks(
        contexts, given.number("margin", 0.05), alpha_pass=alpha, alpha_fail=alpha / _FAMILY, seed=session.seed
    )


def walk(
    session: ModelSession, given: Params, side: Side, length: int, plan: SequentialPlan, *, at: float, label: str
) -> Point:
    """Ask contexts of `length` tokens look by look until the point is decided and has enough of them for steps."""
    score, pattern = score_of(given), given.text("pattern", "one-shot")
    monitor, asked = Monitor(plan=plan), 0
    base: list[list[Answer]] = []
    cand: list[list[Answer]] = []
    items: list[TaskItem] = []
    for stop in plan.looks:
        if monitor.decided and asked >= min(COMMON, plan.n_max):
            break
        more = needle_items(
            session, replace(given, given={**given.given, "first": asked, "contexts": stop - asked}), length
        )
        base += answers(session, session.baseline, more, pattern)
        cand += answers(session, side, more, pattern)
        items += more
        asked = stop
        so_far = paired(items, base, cand, score, "needle")
        if not monitor.decided:
            monitor = monitor.observe_scores(so_far.losses)
        if asked >= COMMON and _hopeless(so_far, plan.margin):
            break
    decided = monitor.n
    look = max(monitor.look, 1) - 1
    gate = replace(
        paired(items[:decided], base[:decided], cand[:decided], score, f"needle[{label}]"),
        alpha_pass=plan.pass_levels[look],
        alpha_fail=plan.fail_levels[look],
        n_max=plan.n_max,
        where=f"{decided} contexts of {length} tokens, {score}, {pattern}; {monitor.why}",
    )
    verdict, void = _judged(gate, plan.margin)
    return Point(
        at=at,
        label=label,
        gate=gate,
        verdict=verdict,
        losses=paired(items, base, cand, score, "needle").losses,
        scores=tuple(sum(right(a, score) for a in row) / len(row) for row in cand),
        base_nll=_mean_nll(base),
        cand_nll=_mean_nll(cand),
        digest=hashlib.sha256("".join(item.digest for item in items).encode()).hexdigest()[:16],
        void=void,
    )


def baseline_void(session: ModelSession, given: Params, length: int, plan: SequentialPlan) -> str:
    """Return why the baseline alone cannot show a loss at this length, or "": then nothing is asked of the candidate."""
    base: list[list[Answer]] = []
    items: list[TaskItem] = []
    for stop in plan.looks:
        part = {**given.given, "first": len(items), "contexts": stop - len(items)}
        more = needle_items(session, replace(given, given=part), length)
        base += answers(session, session.baseline, more, given.text("pattern", "one-shot"))
        items += more
        if len(items) >= COMMON:
            break
    alone = paired(items, base, base, score_of(given), "needle")
    if not _hopeless(alone, plan.margin):
        return ""
    return baseline_floor(alone.base_mean, alone.n_items, plan.margin, alone.chance)


def _hopeless(gate: PairedScores, margin: float) -> bool:
    """Return whether the baseline is too far below what a point needs for more contexts to change that."""
    return bool(baseline_floor(min(1.0, gate.base_mean + _SLACK), gate.n_items, margin, gate.chance))


def _judged(gate: PairedScores, margin: float) -> tuple[Verdict, str]:
    """Return the verdict of a point, and why its baseline is void if it is."""
    result = paired_scores(
        gate.losses,
        margin,
        base_mean=gate.base_mean,
        chance=gate.chance,
        alpha_pass=max(gate.alpha_pass or 0.0, 1e-12),
        alpha_fail=max(gate.alpha_fail or 0.0, 1e-12),
        clusters=gate.n_items > len(gate.losses),
    )
    return result.verdict, result.reason if result.verdict is Verdict.INVALID else ""


def _mean_nll(rows: Sequence[Sequence[Answer]]) -> float:
    flat = [answer.nll for row in rows for answer in row]
    return sum(flat) / len(flat)


def common_losses(points: Sequence[Point]) -> list[list[float]]:
    """Return the losses of the contexts that all points have, shape (n, points)."""
    n = min(len(point.losses) for point in points)
    return [[point.losses[row] for point in points] for row in range(n)]


def cliff(points: Sequence[Point], margin: float, alpha: float, seed: int) -> tuple[int | None, Steps | None]:
    """Return the index of the point above the cliff, and the steps; points are ordered from easy to hard.

    A cliff is a single step that is significant among all steps (sup-t) and larger than the margin: a curve that bends
    slowly has none, however much it loses in the end.
    """
    table = common_losses(points)
    if len(points) < 2 or len(table) < 20:
        return None, None
    steps = adjacent_steps(table, alpha=alpha, seed=seed)
    means = [sum(column) / len(table) for column in zip(*table, strict=True)]
    at = steps.cliff
    if at is None:
        # Identical losses in every context leave no spread to test against; a step of a whole margin is one all the same.
        sizes = [b - a for a, b in pairwise(means)]
        constant = [i for i, (size, z) in enumerate(zip(sizes, steps.z, strict=True)) if z == 0.0 and size > margin]
        at = constant[0] if constant else None
    if at is None or means[at + 1] - means[at] <= margin:
        return None, steps
    return at, steps


def point_table(points: Sequence[Point]) -> list[dict[str, object]]:
    """Return what a report draws: verdict, interval inputs and the isotonic fit (for the picture only)."""
    fitted = isotonic_drawing(range(len(points)), [p.loss for p in points], [len(p.gate.losses) for p in points])
    return [
        {
            "at": p.at,
            "label": p.label,
            "verdict": p.verdict.value,
            "loss": round(p.loss, 6),
            "drawn": round(float(fit), 6),
            "contexts": len(p.gate.losses),
            "asked": len(p.losses),
            "baseline": round(p.gate.base_mean, 4),
            "baseline_answer_nll": round(p.base_nll, 6),
            "candidate_answer_nll": round(p.cand_nll, 6),
            "where": p.gate.where,
            "void": p.void,
        }
        for p, fit in zip(points, fitted, strict=True)
    ]
