"""`controls`: could these questions, on this model, show a loss at all, and is the method better than chance?

Positions
---------
1. Known-bad controls are run on the contexts of the needle: a window of an eighth of the context without sinks, and two
   bits per token where the stack quantizes the cache. If none is rejected, a pass of the others proves nothing: INVALID.
2. The baseline against itself in another call pattern loses nothing, or the harness is what is measured.
3. An eviction is compared with random eviction at the same budget. Where the random one is rejected and the method is not
   significantly better, it is no better than random: INVALID. Where the random one passes too, the report says that the
   budget is what passed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy import stats as distributions

from pytest_attnaccept.checks.curve_points import Point, plan_of, walk
from pytest_attnaccept.checks.model_answers import Answer, answers
from pytest_attnaccept.checks.model_budgets import budget_in
from pytest_attnaccept.checks.model_data import context_tokens
from pytest_attnaccept.checks.model_evidence import soundness_fact
from pytest_attnaccept.checks.model_needle import DEFAULTS as NEEDLE
from pytest_attnaccept.checks.model_needle import needle_items, paired, score_of
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_sides import with_model
from pytest_attnaccept.engines.calls import NonFiniteError
from pytest_attnaccept.engines.sides import Side, side_of
from pytest_attnaccept.errors import CandidateError, EngineError
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.tasks import TaskItem
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "better_p", "measure"]

DEFAULTS: Mapping[str, object] = {**NEEDLE, "margin": 0.05, "against": "chunk-64"}
_SHARE = 8  # the known-bad window is an eighth of the context
_FEW = 20  # a paired comparison of fewer contexts is not one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A control and what became of it."""

    name: str
    verdict: Verdict
    words: str
    row: Mapping[str, object]

    @property
    def right(self) -> bool:
        return self.verdict is Verdict.FAIL


def measure(session: ModelSession, params: Params) -> Measured:
    """Run the controls of this stack on the model under test."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    length = context_tokens(session, given, tier=given.number("tier", 1.0))
    itself = _against_itself(session, given, length)  # first: a baseline that cannot be asked is no missing control
    try:
        bad = [_found(session, given, side, length, name) for name, side in _known_bad(session, length)]
        random = _random(session, given, length)
    except (EngineError, CandidateError) as error:
        reason = f"the controls cannot be applied to this model: {error}"
        return Measured(refusals=(Refusal(verdict=Verdict.NOT_APPLICABLE, reason=reason),))
    own = None if random is None else _walk(session, given, session.candidate, length, "candidate")
    refusals = [*_blunt(bad), *_no_better(own, random)]
    return Measured(
        gates=(
            Threshold(
                name="baseline_against_itself", value=abs(itself.loss), limit=given.number("margin", 0.05) / 2,
                unit="accuracy", n=len(itself.losses), where=given.text("against", "chunk-64"),
                origin="policy: half of the margin would leave too little for the method", seems="a harness that is measured",
            ),
        ),
        facts=(*_facts(bad, own, random, itself), soundness_fact(session, session.baseline)),
        refusals=tuple(refusals),
        data_digest=itself.digest,
        details={"controls": {f.name: f.row for f in bad} | ({} if random is None else {"random": _row(random)})},
    )  # fmt: skip


def _found(session: ModelSession, given: Params, side: Side, length: int, name: str) -> _Found:
    """Run a known-bad control; one that gives NaN is rejected by that, and is no fault of the candidate."""
    try:
        point = _walk(session, given, side, length, name)
    except NonFiniteError as error:
        if error.side != side.name:  # the baseline's: no control is rejected by that
            raise
        return _Found(
            name=name, verdict=Verdict.FAIL, words=f"FAIL, {error}", row={"verdict": "FAIL", "why": str(error)}
        )
    words = f"{point.verdict.value}, loss {point.loss:+.4f}"
    return _Found(name=name, verdict=point.verdict, words=words, row=_row(point))


def _walk(session: ModelSession, given: Params, side: Side, length: int, name: str) -> Point:
    plan = plan_of(session, given, given.integer("contexts", 50))
    return walk(session, given, side, length, plan, at=float(length), label=name)


def _applied(session: ModelSession, members: Mapping[str, Mapping[str, object]]) -> Side:
    """Return the baseline's model with other methods, called as a candidate."""
    registry = Registry.builtin()
    stack = [
        (registry.get(name), check_knobs(registry.get(name), knobs, "controls")) for name, knobs in members.items()
    ]
    around = apply_stack(session.baseline.model, stack, seed=session.seed).candidate
    return side_of("candidate", with_model(session.baseline.loaded, around, session.device, session.dtype), around)


def _known_bad(session: ModelSession, length: int) -> list[tuple[str, Side]]:
    window = f"window of {max(2, length // _SHARE)} without sinks"
    found = [(window, _applied(session, {"sliding_window": {"window": max(2, length // _SHARE)}}))]
    if session.claim.bits is not None and session.claim.bits > 2:
        found.append(("two bits per token", _applied(session, {"kv2": {}})))
    return found


def _random(session: ModelSession, given: Params, length: int) -> Point | None:
    """Return random eviction at the budget of the stack; None where it has none, or is that control itself."""
    share = session.budget(length)
    names = {method.name for method, _ in session.stack}
    if share is None or share >= 1.0 or "random_eviction" in names:
        return None
    # What else is in the stack stays: only the choice of the entries is exchanged.
    rest = {m.name: k for m, k in session.stack if m.applies and budget_in(k) is None}
    side = _applied(session, {"random_eviction": {"kv_budget": share}, **rest})
    try:
        return _walk(session, given, side, length, "random")
    except NonFiniteError as error:
        if error.side != side.name:
            raise
        return None  # nothing to be better than


def _against_itself(session: ModelSession, given: Params, length: int) -> Point:
    """Return the baseline in another call pattern, compared with the baseline."""
    plan = plan_of(session, given, given.integer("contexts", 50))
    n = next((stop for stop in plan.looks if stop >= _FEW), plan.looks[-1])
    items: list[TaskItem] = []
    base: list[list[Answer]] = []
    other: list[list[Answer]] = []
    for stop in (s for s in plan.looks if s <= n):
        part = Params(check=given.check, given={**given.given, "first": len(items), "contexts": stop - len(items)})
        more = needle_items(session, part, length)
        base += answers(session, session.baseline, more, "one-shot")
        other += answers(session, session.baseline, more, given.text("against", "chunk-64"))
        items += more
    gate = paired(items, base, other, score_of(given), "baseline")
    nll = [sum(a.nll for a in row) / len(row) for row in other]
    return Point(
        at=float(length), label="baseline", gate=gate, verdict=Verdict.PASS, losses=gate.losses, scores=(), base_nll=0.0,
        cand_nll=sum(nll) / len(nll), digest=items[0].digest[:16],
    )  # fmt: skip


def better_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the one-sided p-value that `ours` loses less than `theirs` on the same contexts (paired t)."""
    n = min(len(ours), len(theirs))
    gains = [b - a for a, b in zip(ours[:n], theirs[:n], strict=True)]
    if n < _FEW:
        return 1.0
    mean = sum(gains) / n
    spread = math.sqrt(sum((g - mean) ** 2 for g in gains) / (n - 1))
    if spread == 0.0:
        return 0.0 if mean > 0 else 1.0
    return float(distributions.t.sf(mean / (spread / math.sqrt(n)), n - 1))


def _blunt(bad: Sequence[_Found]) -> list[Refusal]:
    if any(found.right for found in bad):
        return []
    words = "; ".join(f"{f.name}: {f.words}" for f in bad)
    reason = f"no known-bad control is rejected on this model and these contexts ({words}): this gate cannot fail here"
    return [Refusal(verdict=Verdict.INVALID, reason=reason)]


def _no_better(own: Point | None, random: Point | None) -> list[Refusal]:
    if own is None or random is None or random.verdict is not Verdict.FAIL:
        return []
    p = better_p(own.losses, random.losses)
    if p < 0.05:  # the level of every claim of this package
        return []
    reason = (
        f"no better than random eviction at the same budget: loses {own.loss:.3f}, random {random.loss:.3f}"
        f" (p={p:.2g}; below 0.05 it would be shown to lose less)"
    )
    return [Refusal(verdict=Verdict.INVALID, reason=reason)]


def _facts(bad: Sequence[_Found], own: Point | None, random: Point | None, itself: Point) -> list[Fact]:
    facts = [Fact(name=f"known_bad[{f.name}]", value=f.words) for f in bad]
    facts.append(Fact(name="baseline_against_itself", value=round(itself.loss, 6), unit="accuracy"))
    if own is None or random is None:
        return facts
    facts.append(Fact(name="random_eviction_loss", value=round(random.loss, 4), unit="accuracy"))
    facts.append(Fact(name="better_than_random_p", value=round(better_p(own.losses, random.losses), 6)))
    if random.verdict is Verdict.PASS:
        words = "random eviction passes at this budget too: the budget is what passes, not the choice of entries"
        facts.append(Fact(name="random_eviction", value=words))
    return facts


def _row(point: Point) -> dict[str, object]:
    return {"verdict": point.verdict.value, "loss": round(point.loss, 6), "contexts": len(point.gate.losses)}
