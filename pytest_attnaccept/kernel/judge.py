"""Whether one output is right: exact answer, deviation, statistics, rules for every row, and the three known-bad controls.

Positions
---------
1. Sampled rows are compared with the reference; every row, sampled or not, must be finite where it sees a key and must have
   the declared value where it sees none.
2. Zeros, mean(V) and one lost key are judged on the same rows as if a candidate had returned them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, row_sample
from pytest_attnaccept.kernel.guard import Output
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

__all__ = ["CONTROLS", "Judged", "exact_rows", "farthest_key", "is_rejected", "judge_output", "lse_stats", "row_limit"]

CONTROLS = ("zeros", "mean(V)", "a lost key")
_LN2 = math.log(2.0)


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
    return max(16, (64 if kv_len <= 16384 else 16) // batch)


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


def is_rejected(case: Case, output: Output, rows: Rows) -> bool:
    """Say whether `judge_output` fails; large errors are seen before the passes over all keys."""
    written = effective_dtype(output.out, case.call.q.dtype)
    deviation = deviation_of(rows, written, precision_of(case.contract), equal_scores=case.equal_scores)
    error = output.out[:, :, rows.index].double() - rows.out
    stats = error_stats(error, rows, deviation, spread_v=case.spread_v)
    return any(not stat.ratio <= 1.0 for stat in stats) or judge_output(case, output, rows=rows).failed


def lse_stats(case: Case, lse: Tensor, rows: Rows) -> list[Stat]:
    """Compare lse with the exact one in its declared base, in units of the allowed error."""
    value = lse.double() * (_LN2 if case.contract.lse_base == "2" else 1.0)
    finite = torch.isfinite(rows.lse)
    allowed = 2e-6 * (1.0 + rows.lse.abs())
    if case.spec.family == "zero_keys" and case.call.sinks is None and case.call.alibi_slopes is None:
        # All terms are 1: the sum is an exact integer and only the logarithm rounds, by up to 3 ulp.
        allowed = 3.0 * 2.0**-23 * rows.lse.abs().clamp_min(1.0)
    # Equal scores are rounded equally, so their mean rounding does not shrink with the number of keys.
    variance = torch.maximum(rows.lse_variance, rows.score_noise) if case.equal_scores else rows.lse_variance
    allowed = allowed + bound(rows.lse.numel()) * variance.sqrt() + 2.0 * rows.score_noise
    ratio = ((value - rows.lse).abs() / allowed).nan_to_num(math.inf, math.inf)
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
    if not bool((rows.count > 0).any()):
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
