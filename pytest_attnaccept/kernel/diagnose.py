"""What a failing kernel looks like, and the smallest call that shows it.

Positions
---------
1. The text names where it is wrong (heads, batch rows), what it looks like (the hypothesis that explains the error), and
   only then the statistic. A hypothesis counts when it leaves at most a twentieth of the squared error.
2. Shrinking makes at most a dozen further calls and never changes what was measured.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.kernel.cases import CaseSpec, build_case
from pytest_attnaccept.kernel.contract import KernelContract
from pytest_attnaccept.kernel.guard import Violation
from pytest_attnaccept.kernel.hypotheses import alternatives, subset_of
from pytest_attnaccept.kernel.judge import Judged, judge_output
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.kernel.statistics import Stat, bound

__all__ = ["describe", "describe_pairs", "shrink", "snippet", "telling"]

_LN2 = math.log(2.0)
_EXPLAINED = 0.05
_SHRINK_CALLS = 12
_TELLING_KEYS = 1100
_KEY_SHARE = 0.05
# Beyond this no storage format in use explains the error as rounding.
_ROUNDING_BITS = 6.0

_PAIRS = {
    "future": "a key after the causal limit is read (mask one too far, or the tail of a tile)",
    "window": "a key left of the window is read (window one too wide, or its tile not masked)",
    "padding": "keys past kv_lengths are read",
    "page tails": "slots past the last token in the last page are read",
    "unnamed pages": "pages that no block table row names are read",
    "spare entries": "block table entries past a row's length are read",
    "page renaming": "the answer depends on physical page ids (page index, stride or width of an index)",
    "repeat": "run-to-run differences: a race, or state kept between calls",
    "repeat under load": "differences under load: a race",
    "refilled buffers": "state kept between calls (a cache keyed by address)",
    "repeat after other calls": "state kept between calls (a cache keyed by shape, a stale buffer)",
    "row alone": "the answer of a row depends on the batch around it",
    "batch order": "the answer of a row depends on its place in the batch",
    "merge of parts": "lse and output do not belong together (base, scale or empty parts)",
    "score shift": "a constant added to all scores changes the output (pad lanes, or a finite mask value)",
    "score shift lse": "lse does not move with the scores",
    "last rows alone": "decode and prefill disagree",
    "first rows alone": "a prefix and the whole disagree",
    "head order": "heads are not independent (head index or stride)",
    "future in backward": "the gradient depends on a key after the causal limit",
    "window in backward": "the gradient depends on a key left of the window",
    "padding in backward": "the gradient depends on keys past kv_lengths",
    "gradient of unseen keys": "keys that no row sees have a gradient",
    "GQA = expanded MHA": "shared KV heads and one KV head per query head disagree",
    "MLA absorbed = expanded": "the absorbed (latent) form and the expanded form disagree",
    "key order": "the order of keys matters without positions",
    "empty rows": "rows that see no key return neither 0 nor what the contract declares",
    "not finite": "NaN or infinity in rows that see keys (overflow, or 0 times NaN from a masked read)",
}


def describe(judged: Judged) -> str:
    """Return the fault family in words."""
    names = {stat.name for stat in judged.stats if not stat.ratio <= 1.0}
    if names <= {"not finite", "empty rows"}:
        return describe_pairs(sorted(names))
    if names == {"lse"}:
        return _lse_fault(judged)
    finite = torch.isfinite(judged.error).all(-1) & (judged.rows.count > 0)
    z2 = (judged.error.square() / judged.deviation.variance).mean(-1)
    bad = finite & (z2 > 2.5)
    where = _location(bad, finite)
    look = _looks_like(judged, bad if bool(bad.any()) else finite) if bool(finite.any()) else ""
    spoiled = describe_pairs(["not finite"]) if "not finite" in names else ""
    if spoiled and not bool(bad.any()):
        return spoiled
    return "; ".join(text for text in (spoiled, f"{where}{look}") if text)


def telling(failures: list[Judged]) -> Judged:
    """Return the failure that says most: many rows and keys, but few enough for trying every hypothesis quickly."""
    small = [one for one in failures if one.case.spec.kv_len <= _TELLING_KEYS]
    if not small:
        return min(failures, key=lambda one: _size(one.case.spec))
    return max(small, key=lambda one: (one.case.spread_v, _size(one.case.spec)))


def describe_pairs(names: list[str]) -> str:
    """Return what failed comparisons of two calls look like."""
    found = [_PAIRS[name.removesuffix(" (NaN)")] for name in names if name.removesuffix(" (NaN)") in _PAIRS]
    return "; ".join(dict.fromkeys(found))


def shrink(session: Session, plan: Planner) -> Judged:
    """Return a failing output with few rows and keys: the smallest measured one, shrunk while it fails."""
    best = min(session.failures, key=lambda one: _size(one.case.spec))
    calls = 0
    progress = True
    while progress and calls < _SHRINK_CALLS:
        progress = False
        for spec in _smaller(best.case.spec, plan):
            calls += 1
            trial = _try(session, spec)
            if trial is not None and trial.failed:
                best, progress = trial, True
                break
            if calls >= _SHRINK_CALLS:
                break
    return best


def snippet(contract: KernelContract, spec: CaseSpec) -> str:
    """Return code that repeats one case."""
    fields: dict[str, object] = {
        "family": spec.family,
        "batch": spec.batch,
        "q_len": spec.q_len,
        "kv_len": spec.kv_len,
        "seed": spec.seed,
    }
    if spec.layout != "contiguous":
        fields["layout"] = spec.layout
    if spec.variant:
        fields["variant"] = spec.variant
    if spec.lengths is not None:
        fields["lengths"] = spec.lengths
    keywords = "".join(f", {name}={value!r}" for name, value in contract.keywords)
    return f"from pytest_attnaccept.kernel.run import replay\nreplay(fn, case={fields!r}{keywords})"


def _size(spec: CaseSpec) -> int:
    return max(spec.kv_len, 1) * max(spec.q_len, 1) * spec.batch


def _smaller(spec: CaseSpec, plan: Planner) -> list[CaseSpec]:
    free = replace(spec, lengths=None)
    wanted = [
        replace(free, batch=1),
        replace(free, q_len=1),
        replace(free, q_len=max(1, spec.q_len // 2)),
        replace(free, layout="contiguous"),
    ]
    wanted += [replace(free, kv_len=spec.kv_len // 4), replace(free, kv_len=spec.kv_len // 2)]
    found = []
    for one in wanted:
        fitted = plan.spec(one.family, one.batch, one.q_len, one.kv_len, one.layout, one.variant, deep=False)
        fitted = replace(fitted, seed=spec.seed)
        changed = _size(fitted) < _size(spec) or (_size(fitted) == _size(spec) and fitted.layout != spec.layout)
        if changed and fitted not in found and fitted.kv_len and fitted.q_len:
            found.append(fitted)
    return found


def _try(session: Session, spec: CaseSpec) -> Judged | None:
    try:
        case = build_case(session.contract, spec, session.device)
        return judge_output(case, session.guard.run(case))
    except (Violation, CandidateError):
        return None


def _location(bad: Tensor, usable: Tensor) -> str:
    """Say which heads or batch rows are wrong when the others are right."""
    if not bool(bad.any()):
        return ""
    found = []
    for name, dims in (("batch row", (1, 2)), ("head", (0, 2)), ("sampled query row", (0, 1))):
        wrong = bad.any(dims[1]).any(dims[0] if dims[0] < dims[1] else dims[1])
        there = usable.any(dims[1]).any(dims[0] if dims[0] < dims[1] else dims[1])
        if 0 < int(wrong.sum()) < int(there.sum()) and name != "sampled query row":
            found.append(f"only {name} {_runs(wrong.nonzero().flatten().tolist())} of {len(wrong)}")
    return f"{', '.join(found)}: " if found else ""


def _runs(numbers: list[int]) -> str:
    if len(numbers) > 2 and len(numbers) >= 0.9 * (numbers[-1] + 1 - numbers[0]):
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(str(number) for number in numbers[:6]) + (" ..." if len(numbers) > 6 else "")


def _looks_like(judged: Judged, bad: Tensor) -> str:
    """Try every hypothesis on the wrong rows; fall back to what the statistics say."""
    variance = judged.deviation.variance[bad]
    error = judged.error[bad]
    before = float((error.square() / variance).mean())
    if before > 2.0:
        best, rest = "", math.inf
        out = judged.rows.out + judged.error
        for text, other in alternatives(judged):
            left = float(((out - other)[bad].square() / variance).mean())
            if left < rest:
                best, rest = text, left
        if rest <= max(1.5, _EXPLAINED * before):
            return best
        declared = _other_precision(judged)
        if declared:
            return declared
        subset = _subset(judged, bad)
        if subset:
            return subset
        simple = _simple_factor(judged, bad, before) or _low_rank(judged, bad)
        if simple:
            return simple
    return _from_statistics(judged)


def _other_precision(judged: Judged) -> str:
    """Ask whether another declared precision would accept the output."""
    case = judged.case
    if case.contract.dtype == "float32":
        return ""
    contract = case.contract
    declared = (
        ("probability_dtype='input'", "probabilities", replace(contract, probability_dtype="input")),
        ("score_dtype='input'", "scores", replace(contract, score_dtype="input")),
    )
    for keyword, text, changed in declared:
        if changed != contract and not judge_output(replace(case, contract=changed), judged.output).failed:
            return f"{text} rounded to {contract.dtype} (declare {keyword} if that is intended)"
    return ""


def _subset(judged: Judged, bad: Tensor) -> str:
    """Ask up to four wrong rows which keys they use; they must agree."""
    places = bad.nonzero().tolist()
    counts = judged.rows.count.expand(bad.shape)
    places.sort(key=lambda place: -int(counts[place[0], place[1], place[2]]))
    answers = []
    for batch, head, row in places[:4]:
        found = subset_of(judged, batch, head, row)
        before = float((judged.error[batch, head, row].square() / judged.deviation.variance[batch, head, row]).mean())
        # Fewer keys round more than the predicted deviation of the full row says.
        if found is None or not found.rest <= max(3.0, min(100.0, 0.01 * before)):
            return ""
        answers.append(found.text)
    return max(set(answers), key=answers.count) if answers else ""


def _simple_factor(judged: Judged, bad: Tensor, before: float) -> str:
    out = (judged.rows.out + judged.error)[bad]
    exact, variance = judged.rows.out[bad], judged.deviation.variance[bad]
    factor = float((out * exact / variance).sum() / (exact.square() / variance).sum().clamp_min(1e-30))
    left = float(((out - factor * exact).square() / variance).mean())
    if left <= max(1.5, _EXPLAINED * before):
        return f"the output multiplied by {factor:.4g} (a normaliser or scale factor)"
    slope = judged.rows.scale_slope[bad]
    step = float((judged.error[bad] * slope / variance).sum() / (slope.square() / variance).sum().clamp_min(1e-30))
    left = float(((judged.error[bad] - step * slope).square() / variance).mean())
    if left <= max(1.5, _EXPLAINED * before):
        return f"scores scaled by about {1.0 + step:.4g} (temperature)"
    return ""


def _low_rank(judged: Judged, bad: Tensor) -> str:
    """Look for an output that lies in a subspace of V's columns although the exact one does not."""
    for head in range(bad.shape[1]):
        rows = bad[:, head]
        out = (judged.rows.out + judged.error)[:, head][rows]
        if min(out.shape) < 8:
            continue
        exact = judged.rows.out[:, head][rows]
        noise = float(judged.deviation.variance[:, head][rows].mean()) ** 0.5 * max(out.shape) ** 0.5 * 4.0
        rank, full = (int((torch.linalg.svdvals(x) > noise).sum()) for x in (out, exact))
        if rank <= 0.75 * full:
            return f"V of low rank (rank {rank} of {full} in the outputs of head {head})"
    return ""


def _from_statistics(judged: Judged) -> str:
    by_name: dict[str, Stat] = {stat.name: stat for stat in judged.stats if not stat.ratio <= 1.0}
    energy = next((stat.value * stat.n for stat in judged.stats if stat.name == "z2"), math.inf)
    for name in ("edge", "scan.heads", "scan"):
        stat = by_name.get(name)
        # One wrong key explains the error when its filter carries a good part of the whole squared error.
        if stat is not None and (stat.value * bound(stat.n)) ** 2 > _KEY_SHARE * energy:
            return f"a wrong weight of one key: {stat.where}"
    shapes = {"gain": "a wrong normaliser", "scale": "a wrong temperature"}
    projections = [stat for name, stat in by_name.items() if name.split(".")[0] in shapes]
    strongest = max(projections, key=lambda stat: stat.ratio, default=None)
    if strongest is not None and strongest.value**2 > _KEY_SHARE * energy:
        return f"{shapes[strongest.name.split('.')[0]]}: {strongest.where}"
    if strongest is not None and not {"maxz", "excess", "z2"} & set(by_name):
        return f"{shapes[strongest.name.split('.')[0]]}: {strongest.where}"
    keys = _keys_by_amplitude(judged)
    if keys:
        return keys
    ratio = float((judged.error.nan_to_num().square() / judged.deviation.variance).mean())
    bits = 0.5 * math.log2(max(ratio, 1.0))
    if bits > _ROUNDING_BITS:
        return "a gross error that no single reading of the call explains"
    dtype = judged.case.contract.dtype
    hint = "are scores rounded?" if judged.case.contract.score_dtype == "float32" else "a low-precision accumulator"
    return f"rounding about {bits:.1f} bits coarser than {dtype} allows ({hint}; FP8 or an 8-bit cache loses 3 to 5)"


def _keys_by_amplitude(judged: Judged) -> str:
    """Name the keys whose contribution is missing: their filter is minus its own power."""
    if judged.scan is None:
        return ""
    filtered, power = (x.sum((0, 1)) for x in (judged.scan.filtered, judged.scan.power))
    amplitude = filtered / power.clamp_min(1e-2)
    usable = power > bound(len(power)) ** 2
    if not bool(usable.any()):
        return ""
    missing = usable & (amplitude < -0.6) & (amplitude > -1.6)
    count = int(missing.sum())
    if count > 0.6 * int(usable.sum()):
        return "V (or its weight) does not belong to its keys: nearly every key is missing (page, token or head offset)"
    if not count:
        return ""
    numbers = (missing.nonzero().flatten() + judged.scan.first_key).tolist()
    return f"{count} keys missing: {_runs(numbers)}"


def _lse_fault(judged: Judged) -> str:
    lse = judged.output.lse
    if lse is None:
        return ""
    exact = judged.rows.lse
    live = torch.isfinite(exact)
    found = lse[:, :, judged.rows.index].double() * (_LN2 if judged.case.contract.lse_base == "2" else 1.0)
    if not bool((found[~live] == exact[~live]).all()):
        return "lse of rows that see no key (expected -inf, or the sink)"
    readings = {
        "lse in base 2 where base e is declared": exact / _LN2,
        "lse in base e where base 2 is declared": exact * _LN2,
        "lse of scores without the scale": exact / judged.case.call.scale,
        "lse with the wrong sign": -exact,
    }
    if judged.case.call.sinks is not None:
        sinks = judged.case.call.sinks.double()[None, :, None].expand_as(exact)
        readings["lse without the sinks"] = exact + torch.log1p(-torch.exp(sinks - exact).clamp(max=1.0 - 1e-12))
    for text, other in readings.items():
        if bool(((found - other).abs()[live] <= 1e-4 * (1.0 + other.abs()[live])).all()):
            return text
    apart = (found - exact)[live]
    if float(apart.std(correction=0)) < 1e-3 * (1.0 + float(apart.abs().max())):
        return f"lse off by a constant {float(apart.mean()):.4g}"
    return "lse does not belong to this output"
