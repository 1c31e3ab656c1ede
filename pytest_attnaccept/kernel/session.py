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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, CaseSpec, build_case, row_sample
from pytest_attnaccept.kernel.contract import KernelContract
from pytest_attnaccept.kernel.guard import Guard, Output, Violation
from pytest_attnaccept.kernel.precision import effective_dtype, precision_of
from pytest_attnaccept.kernel.reference import Rows, Semantics, key_limits, reference_rows, semantics_of
from pytest_attnaccept.kernel.statistics import (
    Deviation,
    Scan,
    Stat,
    bound,
    deviation_of,
    edge_scan,
    error_stats,
    key_scan,
    lost_key_error,
    projection_stats,
    scan_stats,
)
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.taxonomy import Verdict

__all__ = [
    "CONTROLS",
    "EnoughFailures",
    "Judged",
    "NotApplicable",
    "Session",
    "exact_rows",
    "judge_output",
    "lse_stats",
    "row_limit",
]

CONTROLS = ("zeros", "mean(V)", "a lost key")
_LN2 = math.log(2.0)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One output with its exact answer: what diagnosis and relations need."""

    case: Case
    output: Output
    rows: Rows
    deviation: Deviation
    error: Tensor
    stats: tuple[Stat, ...]
    scan: Scan | None = None

    @property
    def failed(self) -> bool:
        """Whether some statistic is over its limit."""
        return any(not stat.ratio <= 1.0 for stat in self.stats)


def row_limit(kv_len: int, batch: int) -> int:
    """Return how many query rows are compared: 64 up to 16384 keys, 16 above, shared by the batch but never below 16."""
    return max(16, (64 if kv_len <= 16384 else 32) // batch)


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

    def measure(self, spec: CaseSpec) -> Judged:
        """Build, run and judge one case."""
        case = self.build(spec)
        return self.judge(case, self.run(case))

    def judge(self, case: Case, output: Output, *, controls: bool = True) -> Judged:
        """Compare an output with the exact answer on sampled rows and keep the worst statistics."""
        judged = judge_output(case, output, None if controls is False else self.rejected, self.note_resolution)
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
        gates = tuple(
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
        facts = (
            Fact(name="certified_to", value=self.longest, unit="keys"),
            Fact(name="cases", value=self.cases),
            Fact(name="candidate_calls", value=self.guard.calls),
            Fact(name="rows_compared", value=self.judged_rows),
        )
        return Measured(
            gates=gates,
            facts=(*facts, *self.facts),
            refusals=tuple(refusals),
            seems=seems,
            reproduce=reproduce,
            resolution=self.resolution,
            data_digest=self._digest.hexdigest()[:16],
            seed=self.seed,
        )


def farthest_key(judged: Judged) -> int:
    """Return how many keys lie up to the last one that a compared row sees."""
    case, rows = judged.case, judged.rows
    low, high = key_limits(semantics_of(case.call, case.contract.alignment), rows.index)
    return int(torch.where(high > low, high, 0).max()) if high.numel() else 0


def exact_rows(case: Case, limit: int | None = None) -> Rows:
    """Compute the exact answer on the sampled rows of a case."""
    index = row_sample(case, row_limit(case.spec.kv_len, case.spec.batch) if limit is None else limit)
    what = semantics_of(case.call, case.contract.alignment)
    return reference_rows(case.call, what, index, precision_of(case.contract))


def judge_output(
    case: Case,
    output: Output,
    rejected: set[str] | None = None,
    note: Callable[[str, int], None] | None = None,
    rows: Rows | None = None,
) -> Judged:
    """Judge one output; with `rejected`, judge the three controls on the same rows and add the rejected ones."""
    call, contract = case.call, case.contract
    what = semantics_of(call, contract.alignment)
    precision = precision_of(contract)
    rows = exact_rows(case) if rows is None else rows
    index = rows.index
    written = effective_dtype(output.out, call.q.dtype)
    deviation = deviation_of(rows, written, precision, equal_scores=case.equal_scores)
    error = output.out[:, :, index].double() - rows.out
    stats = _row_rules(case, output, what)
    stats += error_stats(error, rows, deviation, spread_v=case.spread_v)
    scan = None
    if case.spread_v and not case.equal_scores:
        scan = key_scan(call, what, rows, error, deviation, precision)
    if scan is not None:
        stats += scan_stats(scan) + projection_stats(rows, error, deviation, scan)
        edge = edge_scan(call, what, rows, error, deviation)
        stats += [edge] if edge is not None else []
        if note is not None:
            note(*_resolution(rows, scan.power))
    if output.lse is not None:
        stats += lse_stats(case, output.lse[:, :, index], rows)
    if rejected is not None:
        rejected |= _rejected_controls(case, rows, deviation, scan)
    return Judged(case=case, output=output, rows=rows, deviation=deviation, error=error, stats=tuple(stats), scan=scan)


def lse_stats(case: Case, lse: Tensor, rows: Rows) -> list[Stat]:
    """Compare lse with the exact one in its declared base, in units of the allowed error."""
    value = lse.double() * (_LN2 if case.contract.lse_base == "2" else 1.0)
    finite = torch.isfinite(rows.lse)
    allowed = 2e-6 * (1.0 + rows.lse.abs())
    if case.spec.family == "zero_keys" and case.call.sinks is None and case.call.alibi_slopes is None:
        # All terms are 1: the sum is an exact integer and only the logarithm rounds, by up to 3 ulp.
        allowed = 3.0 * 2.0**-23 * rows.lse.abs().clamp_min(1.0)
    allowed = allowed + bound(rows.lse.numel()) * rows.lse_variance.sqrt() + 2.0 * rows.score_noise
    ratio = ((value - rows.lse).abs() / allowed).nan_to_num(math.inf)
    ratio = torch.where(finite, ratio, torch.where(value == rows.lse, 0.0, math.inf))
    if not ratio.numel():
        return []
    at = int(ratio.flatten().argmax())
    heads, count = ratio.shape[1:]
    where = f"batch {at // (heads * count)}, head {at // count % heads}, row {int(rows.index[at % count])}"
    found = f"{float(value.flatten()[at]):.6g} instead of {float(rows.lse.flatten()[at]):.6g}"
    return [Stat(name="lse", value=float(ratio.max()), limit=1.0, where=f"{where}: {found}", n=ratio.numel())]


def _row_rules(case: Case, output: Output, what: Semantics) -> list[Stat]:
    """Rules for every row, sampled or not: finite where a key is visible, the declared value where none is."""
    out = output.out
    if not out.numel():
        return []
    index = torch.arange(out.shape[2], device=out.device)
    low, high = key_limits(what, index)
    seen = (high > low)[:, None]
    bad = ~torch.isfinite(out).all(-1) & seen
    wrong = ((out != 0).any(-1)) & ~seen
    if case.contract.empty_rows == "nan":
        wrong &= ~torch.isnan(out).all(-1)
    found = []
    for name, mask in (("not finite", bad), ("empty rows", wrong)):
        if name == "empty rows" and bool(seen.all()):
            continue
        where = ""
        if bool(mask.any()):
            batch, head, row = (int(x) for x in mask.nonzero()[0])
            where = f"batch {batch}, head {head}, row {row}"
        found.append(Stat(name=name, value=float(mask.sum()), limit=0.5, where=where, n=mask.numel()))
    return found


def _rejected_controls(case: Case, rows: Rows, deviation: Deviation, scan: Scan | None) -> set[str]:
    """Judge zeros, mean(V) and one lost key as if a candidate had returned them."""
    found: set[str] = set()
    if not bool((rows.count > 1).any()):
        return found
    fakes = {"zeros": torch.zeros_like(rows.out), "mean(V)": rows.mean_v.expand_as(rows.out)}
    for name, fake in fakes.items():
        stats = error_stats(fake - rows.out, rows, deviation, spread_v=case.spread_v)
        if any(not stat.ratio <= 1.0 for stat in stats):
            found.add(name)
    if scan is not None:
        deviations = (scan.power + scan.own).sqrt().clamp_min(1e-2)
        # The median key: half of all keys are easier to see.
        if float((scan.power / deviations).flatten().median()) > bound(scan.power.numel()):
            found.add("a lost key")
    if "a lost key" not in found:
        lost = lost_key_error(case.call, semantics_of(case.call, case.contract.alignment), rows)
        if any(not stat.ratio <= 1.0 for stat in error_stats(lost, rows, deviation, spread_v=case.spread_v)):
            found.add("a lost key")
    return found


def _resolution(rows: Rows, power: Tensor) -> tuple[str, int]:
    """Say which key weight would still be seen: the filter of a key grows in proportion to its weight."""
    keys = power.shape[-1]
    median = float(power.sum(1).sqrt().median())
    weight = bound(keys) / max(median, 1e-30) / max(int(rows.count.max()), 1)
    visible = int(rows.count.max())
    text = f"a key lost in every sampled row of all heads is seen when it carries more than {weight:.2g} of the mass"
    return f"{text} at {visible} keys", visible
