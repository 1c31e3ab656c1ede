"""How one check runs: builds cases, calls the candidate, judges outputs, and sums it up as one `Measured`.

Positions
---------
1. Of every statistic only the worst case becomes a gate, because each limit already is a false alarm of 1e-6.
2. Every judged case also judges three known-bad outputs on the same inputs: zeros, mean(V) and one lost key. A check that
   rejects one of them on none of its cases is INVALID, whatever the candidate did.
3. Outputs of rows that see no key are compared with the contract, not with the error model.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, CaseSpec, build_case
from pytest_attnaccept.kernel.contract import KernelContract
from pytest_attnaccept.kernel.guard import Guard, Output, Violation
from pytest_attnaccept.kernel.judge import CONTROLS, Judged, exact_rows, farthest_key, judge_output
from pytest_attnaccept.kernel.statistics import Stat, bound
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["EnoughFailures", "NotApplicable", "Session"]

_ENOUGH_FAILURES = 5
_ORIGINS = {
    "maxz": "derived: sub-Gaussian bound of the largest standardised error, false alarm 1e-6",
    "excess": "derived: as maxz, error beyond one output ulp",
    "z2": "measured: correct kernels <= 1.01; 1.25 plus 6 deviations",
    "lse": "derived: float32 logsumexp, 2e-6 (1 + |lse|) plus score rounding",
}


class EnoughFailures(Exception):
    """The item has failed on several cases; more of them would only cost time."""


class NotApplicable(Exception):
    """The contract declares nothing that this check could measure; the text is the reason."""


@dataclass(slots=True)
class Session:
    """State of one check.

    Attributes
    ----------
    worst
        Worst statistic per name with the label of its case.
    rejected
        Controls that some case rejected.
    failures
        The failing outputs, smallest case first when read through `failing`.
    """

    check: str
    contract: KernelContract
    guard: Guard
    max_length: int
    seed: int
    device: str
    worst: dict[str, tuple[Stat, CaseSpec]] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    failures: list[Judged] = field(default_factory=list)
    broken: list[tuple[str, CaseSpec]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    required: tuple[str, ...] = CONTROLS
    resolution: str = ""
    cases: int = 0
    judged_rows: int = 0
    longest: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def build(self, spec: CaseSpec) -> Case:
        """Build a case and make it part of the data digest."""
        case = build_case(self.contract, spec, self.device)
        self._digest.update(case.label.encode() + str(case.spec.seed).encode())
        self.cases += 1
        return case

    def run(self, case: Case, **options: bool) -> Output:
        """Call the candidate on a case; remember where a rule was broken."""
        try:
            return self.guard.run(case, **options)
        except Violation as violation:
            self.broken.append((str(violation), case.spec))
            raise

    def measure(self, spec: CaseSpec, limit: int | None = None) -> Judged:
        """Build, run and judge one case on at most `limit` rows (None: as many as its length allows)."""
        case = self.build(spec)
        return self.judge(case, self.run(case), limit=limit)

    def judge(self, case: Case, output: Output, *, controls: bool = True, limit: int | None = None) -> Judged:
        """Compare an output with the exact answer on sampled rows and keep the worst statistics."""
        rows = exact_rows(case, limit)
        judged = judge_output(case, output, self.rejected if controls else None, self.note_resolution, rows)
        self.record(judged.stats, case)
        self.judged_rows += int(judged.rows.count.numel())
        self.longest = max(self.longest, farthest_key(judged))
        if judged.failed:
            self.failures.append(judged)
            if len(self.failures) >= _ENOUGH_FAILURES:
                self.facts.append(Fact(name="stopped", value=f"after {_ENOUGH_FAILURES} failing cases"))
                raise EnoughFailures
        return judged

    def record(self, stats: tuple[Stat, ...] | list[Stat], case: Case) -> None:
        """Keep the worst of each statistic."""
        for stat in stats:
            known = self.worst.get(stat.name)
            if known is None or not stat.ratio <= known[0].ratio:
                self.worst[stat.name] = (stat, case.spec)

    def expect_equal(self, name: str, first: Output, second: Output, case: Case, rows: Tensor | None = None) -> bool:
        """Record a bitwise comparison; `rows` is a ``(batch, q_len)`` mask of rows that must be equal."""
        changed, where = 0, ""
        for part, left, right in (("out", first.out, second.out), ("lse", first.lse, second.lse)):
            if left is None or right is None:
                continue
            different = left != right
            different &= ~(torch.isnan(left) & torch.isnan(right))
            if left.dim() == 4:
                different = different.any(-1)
            if rows is not None:
                different = different & rows[:, None]
            if bool(different.any()):
                changed += int(different.sum())
                batch, head, row = (int(x) for x in different.nonzero()[0])
                where = where or f"{part} of batch {batch}, head {head}, row {row}"
        self.record([Stat(name=name, value=float(changed), limit=0.5, where=where, n=first.out.numel())], case)
        return changed == 0

    def expect_close(
        self, name: str, base: Judged, second: Output, rows: Tensor | None = None, extra: Tensor | None = None
    ) -> None:
        """Record how far two correct outputs of the same rows lie apart, in units of what rounding allows.

        `extra` is further variance of the second output, ``(batch, q_heads, q_len, v_head_dim)``.
        """
        index = base.rows.index
        apart = (second.out[:, :, index].double() - base.output.out[:, :, index].double()).abs()
        variance = 2.0 * base.deviation.variance + (0.0 if extra is None else extra[:, :, index])
        z = apart / variance.sqrt().clamp_min(1e-300)
        live = (base.rows.count > 0).expand(z.shape[:3])
        if rows is not None:
            live = live & rows[:, None, index]
        z = torch.where(live[..., None], z.nan_to_num(math.inf), 0.0)
        # Both outputs are rounded to the same grid, so two neighbours may differ by a whole ulp.
        z = torch.where(apart <= 1.01 * base.deviation.spacing, 0.0, z)
        if z.numel():
            place = [int(x) for x in (z == z.max()).nonzero()[0]]
            where = f"batch {place[0]}, head {place[1]}, row {int(index[place[2]])}"
            self.record(
                [Stat(name=name, value=float(z.max()) / bound(z.numel()), limit=1.0, where=where, n=z.numel())],
                base.case,
            )

    def expect_same(
        self, name: str, base: Judged, second: Output, rows: Tensor | None = None, *, bitwise: bool = True
    ) -> None:
        """Record a comparison that is bitwise where the contract is deterministic, else within rounding."""
        if bitwise and self.contract.deterministic:
            self.expect_equal(name, base.output, second, base.case, rows)
        else:
            self.expect_close(name, base, second, rows)

    def note_resolution(self, text: str, keys: int) -> None:
        """Keep the resolution that was found at the longest length."""
        if keys >= self.longest:
            self.resolution = text

    def result(self, seems: str = "", reproduce: str = "") -> Measured:
        """Sum up; a check that cannot reject its controls, or judged nothing, is INVALID."""
        refusals = self._refusals()
        facts = (
            Fact(name="certified_to", value=self.longest, unit="keys"),
            Fact(name="cases", value=self.cases),
            Fact(name="candidate_calls", value=self.guard.calls),
            Fact(name="rows_compared", value=self.judged_rows),
        )
        return Measured(
            gates=self._gates(seems),
            facts=(*facts, *self.facts),
            refusals=tuple(refusals),
            seems=seems,
            reproduce=reproduce,
            resolution=self.resolution,
            data_digest=self._digest.hexdigest()[:16],
            seed=self.seed,
        )

    def _gates(self, seems: str) -> tuple[Threshold, ...]:
        return tuple(
            Threshold(
                name=name,
                value=stat.value,
                limit=stat.limit,
                unit="rows" if stat.limit == 0.5 else "x limit" if stat.limit == 1.0 else "sd",
                n=stat.n,
                where=f"{stat.where} of {spec.label}" if stat.where else spec.label,
                origin=_ORIGINS.get(
                    name, "derived: predicted deviation of the statistic, 6 deviations or false alarm 1e-6"
                ),
                seems=seems if not stat.ratio <= 1.0 else "",
            )
            for name, (stat, spec) in self.worst.items()
        )

    def _refusals(self) -> list[Refusal]:
        refusals = [Refusal(verdict=Verdict.FAIL, reason=text) for text, _ in self.broken]
        refusals += [Refusal(verdict=Verdict.INVALID, reason=text) for text in self.invalid]
        missing = [name for name in self.required if name not in self.rejected]
        if not refusals and not self.failures and (missing or not self.judged_rows):
            reason = (
                f"this check cannot reject {', '.join(missing)} on its own inputs"
                if missing
                else "no output row was compared"
            )
            refusals.append(Refusal(verdict=Verdict.INVALID, reason=reason))
        return refusals
