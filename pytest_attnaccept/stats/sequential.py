"""A planned run is looked at eight times and may stop at each look, at a total error that stays alpha.

The error budget is spent in small instalments, little at the first looks and most at the last: by information fraction
t a share ``t ** 1.5`` of alpha is spent, separately for PASS and for FAIL (`spending`). Clear cases stop early.

Positions
---------
1. Everything that could be tuned afterwards (margin, alpha, looks, levels, seed, order of the items) is in the
   `SequentialPlan`, whose digest goes into the record before the first answer.
2. A look that cannot pass even without a loss spends nothing on PASS; its instalment moves to the next look.
3. Curtailment is deterministic and adds no error: it stops where every possible rest leads to the same end, or where
   none can pass. The latter is INCONCLUSIVE (and blocks): not being able to pass is no proof of harm beyond the margin.
4. Only an undecided run goes on, only to the planned maximum. A repeated run is another attempt and must be counted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, require_alpha, require_margin
from pytest_attnaccept.stats.floors import items_for_any_pass
from pytest_attnaccept.stats.paired import PairedResult, p_fail, p_pass, paired_binary, paired_scores
from pytest_attnaccept.stats.spending import RHO, increment_levels, joint_levels
from pytest_attnaccept.taxonomy import Verdict

__all__ = [
    "INFLATION",
    "LOOKS",
    "STAGES",
    "Monitor",
    "SequentialPlan",
    "item_order",
    "matrix_plan",
    "order_digest",
    "plan_looks",
]

LOOKS = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 1.0)
"""Information fractions of the recommended design (reference: statistics 2.1)."""

STAGES = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 1.0)
"""Stages n0/2, 3/4 n0, n0, 3/2 n0, 2 n0, 4 n0 of the adaptive matrix.

The study's four stages (statistics, section 4) and two between them. Exact enumeration of a harmless cell at n0 = 980 and
margin 2 %: mean cost 1.34 n0 for four stages with t ** 1.5, 1.19 with linear spending, 1.05 for these six."""

STAGE_RHO = 1.0
"""Linear spending over the stages: a matrix is mostly harmless cells, which should be decided early."""

INFLATION = 1.14
"""n_max over the fixed n of equal power (reference: statistics 2.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """What was fixed before the first answer.

    Attributes
    ----------
    looks
        Planned number of items at each look; the last one is the maximum.
    pass_levels, fail_levels
        Nominal levels of the looks; 0 where a look cannot decide.
    seed
        Seed of the item order.
    order
        Digest of the item order (`order_digest`), "" when the order is not fixed.
    """

    margin: float
    alpha_pass: float
    alpha_fail: float
    looks: tuple[int, ...]
    pass_levels: tuple[float, ...]
    fail_levels: tuple[float, ...]
    seed: int = 0
    order: str = ""

    @property
    def n_max(self) -> int:
        """Planned maximum of items."""
        return self.looks[-1]

    def digest(self) -> str:
        """Hash everything that is fixed, for the record."""
        fields = [
            self.margin,
            self.alpha_pass,
            self.alpha_fail,
            list(self.looks),
            list(self.pass_levels),
            list(self.fail_levels),
            self.seed,
            self.order,
        ]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def plan_looks(
    n_max: int,
    margin: float,
    *,
    alpha_pass: float = DEFAULT_ALPHA,
    alpha_fail: float = DEFAULT_ALPHA,
    fractions: Sequence[float] = LOOKS,
    spending: str = "joint",
    rho: float = RHO,
    seed: int = 0,
    order: str = "",
) -> SequentialPlan:
    """Fix looks and levels for a run of at most n_max items."""
    require_margin(margin), require_alpha(alpha_pass, "alpha_pass")
    if not 0 < alpha_fail <= 0.5:
        raise ContractError(f"alpha_fail = {alpha_fail!r} is not an error probability: allowed are values in (0, 0.5]")
    if n_max < 1 or not fractions or sorted(fractions) != list(fractions) or fractions[-1] != 1 or fractions[0] <= 0:
        raise ContractError(f"looks need n_max >= 1 and increasing fractions that end at 1, not {n_max}, {fractions}")
    if spending not in ("joint", "increments"):
        raise ContractError(f"spending = {spending!r} is unknown; allowed: 'joint', 'increments'")
    levels = joint_levels if spending == "joint" else increment_levels
    looks = tuple(sorted({max(1, math.ceil(round(n_max * fraction, 9))) for fraction in fractions}))

    def passes(n: int, level: float) -> bool:
        return n >= items_for_any_pass(margin, level)

    def fails(n: int, level: float) -> bool:
        return p_fail(n, 0, n, margin) < level

    return SequentialPlan(
        margin=margin,
        alpha_pass=alpha_pass,
        alpha_fail=alpha_fail,
        looks=looks,
        pass_levels=levels(looks, alpha_pass, passes, rho),
        fail_levels=levels(looks, alpha_fail, fails, rho),
        seed=seed,
        order=order,
    )


def matrix_plan(n0: int, margin: float, cells: int, *, alpha: float = DEFAULT_ALPHA, seed: int = 0) -> SequentialPlan:
    """Fix the stages of one cell of an adaptive matrix: PASS at alpha per cell, FAIL at alpha over all cells."""
    if cells < 1:
        raise ContractError(f"a matrix has at least one cell, not {cells}")
    return plan_looks(
        4 * n0, margin, alpha_pass=alpha, alpha_fail=alpha / cells, fractions=STAGES, rho=STAGE_RHO, seed=seed
    )


def item_order(identifiers: Iterable[str], seed: int) -> list[str]:
    """Shuffle items by a hash of seed and identifier: reproducible on every machine, whatever their source order.

    Data sets are often sorted (the first 200 questions of GSM8K are easier), so "the first n" is not a sample.
    """
    items = list(identifiers)
    if len(set(items)) != len(items):
        raise ContractError("item identifiers must be unique to be put into an order")
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}\x1f{item}".encode()).digest())


def order_digest(items: Sequence[str]) -> str:
    """Hash the order of the items for the plan."""
    return hashlib.sha256("\x1e".join(items).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """The state of one planned run; a measuring loop asks it after each look.

    ``while not monitor.decided: answer items up to monitor.next_n; monitor = monitor.observe(...)``

    Attributes
    ----------
    look
        How many looks were taken.
    verdict
        PASS, FAIL, or INCONCLUSIVE when the plan is used up; None while the run goes on.
    n
        Items seen at the last look.
    why
        What decided: "look 3 of 8", "curtailed: ...", "planned maximum reached".
    """

    plan: SequentialPlan
    look: int = 0
    n: int = 0
    verdict: Verdict | None = None
    why: str = ""
    result: PairedResult | None = None

    @property
    def decided(self) -> bool:
        """Whether the run is over."""
        return self.verdict is not None

    @property
    def next_n(self) -> int:
        """How many items the next look wants in total; the current number once decided."""
        return self.n if self.decided else self.plan.looks[self.look]

    def observe(
        self,
        losses: int,
        gains: int,
        n: int | None = None,
        *,
        rest_base_right: int | None = None,
        rest_base_wrong: int | None = None,
    ) -> Monitor:
        """Take one look at right/wrong counts.

        ``rest_base_right`` and ``rest_base_wrong`` count the items not yet answered by the candidate that the baseline
        got right and wrong; with both known the run stops when every possible rest leads to the same end.
        """
        seen = self._check(self.next_n if n is None else n)
        level_pass, level_fail = self._levels()
        result = paired_binary(
            losses, gains, seen, self.plan.margin, alpha_pass=level_pass or 1e-12, alpha_fail=level_fail or 1e-12
        )
        state = self._after(seen, result)
        if state.decided or rest_base_right is None or rest_base_wrong is None:
            return state
        return state._curtail(losses, gains, rest_base_right, rest_base_wrong)

    def observe_scores(self, losses: ArrayLike) -> Monitor:
        """Take one look at bounded losses (all items so far)."""
        level_pass, level_fail = self._levels()
        result = paired_scores(losses, self.plan.margin, alpha_pass=level_pass or 1e-12, alpha_fail=level_fail or 1e-12)
        return self._after(self._check(result.n), result)

    def _check(self, n: int) -> int:
        if self.decided:
            raise ContractError(f"this run ended with {self.verdict}: more looks would spend error that nobody planned")
        if not self.n <= n <= self.plan.n_max or n < 1:
            raise ContractError(
                f"a look at {n} items is not planned: {self.n} were seen, the maximum is {self.plan.n_max}"
            )
        return n

    def _levels(self) -> tuple[float, float]:
        if self.decided:
            return 0.0, 0.0
        return self.plan.pass_levels[self.look], self.plan.fail_levels[self.look]

    def _after(self, n: int, result: PairedResult) -> Monitor:
        """Move to the state after this look; a look without a level cannot decide, however clear it is."""
        look, total = self.look + 1, len(self.plan.looks)
        level = {Verdict.PASS: self.plan.pass_levels, Verdict.FAIL: self.plan.fail_levels}.get(result.verdict)
        verdict, why = None, ""
        if level is not None and level[self.look] > 0:
            verdict, why = result.verdict, f"look {look} of {total}"
        elif look == total:
            verdict, why = Verdict.INCONCLUSIVE, "planned maximum reached"
        return replace(self, look=look, n=n, verdict=verdict, why=why, result=result)

    def _curtail(self, losses: int, gains: int, right: int, wrong: int) -> Monitor:
        """Stop when every possible rest ends in the same verdict, or when none of them can pass."""
        total = self.n + right + wrong
        if total > self.plan.n_max:
            raise ContractError(f"{right + wrong} items are left, but the plan ends at {self.plan.n_max}")
        margin = self.plan.margin
        if p_fail(losses, gains + wrong, total, margin) < self.plan.fail_levels[-1]:
            return replace(self, verdict=Verdict.FAIL, why="curtailed: even perfect remaining answers end in FAIL")
        if p_pass(losses + right, gains, total, margin) < self.plan.pass_levels[-1]:
            return replace(self, verdict=Verdict.PASS, why="curtailed: even losing every remaining answer ends in PASS")
        if not p_pass(losses, gains + wrong, total, margin) < max(self.plan.pass_levels[self.look :]):
            why = "curtailed: even perfect remaining answers cannot pass"
            return replace(self, verdict=Verdict.INCONCLUSIVE, why=why)
        return self
