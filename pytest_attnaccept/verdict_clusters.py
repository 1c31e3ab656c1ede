"""Token means whose independent unit is the document -> one metric with its verdict.

For perplexity the limit is a relative increase r: the mean log-likelihood loss must be proven below ln(1 + r), and every
number is shown as ``exp(number) - 1``, the unit of the limit. A divergence or a share of flips is compared as it is.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from pytest_attnaccept.limits import Limit
from pytest_attnaccept.measurement import ClusteredSums
from pytest_attnaccept.records import Metric
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict_parts import judged

if TYPE_CHECKING:
    from pytest_attnaccept.stats.clustered import ClusteredResult

_Z_SQUARED = 2.706  # 1.645 squared, the one-sided 5 % point of a normal law: a planning hint, not a bound

__all__ = ["clustered_metric"]


def clustered_metric(gate: ClusteredSums, limit: Limit, alpha_pass: float, alpha_fail: float) -> Metric:
    """Judge one token mean."""
    from pytest_attnaccept.stats.clustered import DEFAULT_CAP, clustered_mean

    if gate.base_limit is not None and not gate.base_level <= gate.base_limit:
        return _blind(gate, limit)
    ratio = gate.scale == "exp_ratio"
    margin = math.log1p(limit.max) if ratio else limit.max
    shown = partial(_shown, ratio=ratio)
    cap = DEFAULT_CAP if gate.cap is None else gate.cap
    result = clustered_mean(
        gate.sums, gate.tokens, margin, alpha_pass=alpha_pass, alpha_fail=alpha_fail, cap=cap, shown=shown
    )
    effect, low, high = (shown(x) for x in (result.mean, result.lower, result.upper))
    text = (
        f"{gate.name}: {'increase' if ratio else 'loss'} {effect:+.4f} [{low:+.4f}, {high:+.4f}] against margin {limit.max:g},"
        f" {result.documents} documents, {result.tokens} tokens"
    )
    if math.isfinite(gate.base_level):
        text += f", baseline {gate.base_level:.4g}"
    if result.beyond:
        text += f", {result.beyond} documents beyond the cap"
    return judged(
        gate.name,
        result,
        limit,
        interval=(effect, low, high),
        n=result.documents,
        unit="relative increase" if ratio else gate.unit,
        text=text,
        costs=result.measurable and ratio,  # KL and flips are never negative
        needs=lambda: _needs(result),
    )


def _needs(result: ClusteredResult) -> str:
    """Say how many documents would decide: the half width of the interval shrinks with the root of their number.

    So does the error of the share of documents beyond the cap, whose variance is largest at its limit.
    """
    from pytest_attnaccept.stats.clustered import BEYOND_LIMIT

    never = "more documents will not make it pass"
    count, share = result.documents, result.beyond / result.documents if result.documents else 0.0
    if not result.mean < result.margin:
        return f"the estimate is not below the margin: {never}"
    if share >= BEYOND_LIMIT:
        return f"{share:.1%} of the documents lie beyond the cap and {BEYOND_LIMIT:.0%} may: {never}"
    if not math.isfinite(result.upper):
        return "more documents are needed than can be estimated from these"
    need = math.ceil(count * ((result.upper - result.mean) / (result.margin - result.mean)) ** 2)
    if result.beyond:
        need = max(need, math.ceil(_Z_SQUARED * BEYOND_LIMIT * (1 - BEYOND_LIMIT) / (BEYOND_LIMIT - share) ** 2))
    return f"needs about {max(need, count + 1, result.minimum)} documents for PASS if the loss stays at this estimate"


def _shown(value: float, *, ratio: bool) -> float:
    """Return the value on the scale of the limit; an end that overflows is infinite."""
    try:
        return math.expm1(value) if ratio else value
    except OverflowError:
        return math.inf


def _blind(gate: ClusteredSums, limit: Limit) -> Metric:
    return Metric(
        name=gate.name,
        verdict=Verdict.INVALID.value,
        limit=limit.max,
        unit=gate.unit,
        origin=limit.origin,
        text=(
            f"{gate.name}: the baseline is at {gate.base_level:.4g}, beyond {gate.base_limit:.4g}: a model or tokenizer that"
            " cannot predict this text cannot show a loss on it"
        ),
    )
