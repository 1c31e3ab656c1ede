"""A token mean is judged by its documents: the ratio estimator's error comes from document sums, with t(G - 1).

Tokens of one document share their fate, so standard errors over tokens are wrong by a factor of two and more; the
document is the independent unit for NLL, KL divergence and top-1 flips alike (positive = candidate worse).

Positions
---------
1. No sample excludes rare documents with unlimited losses, and a t interval does not even notice them when none was
   drawn. So a PASS needs both: the t bound, and the robust mode, which assumes nothing but the cap.
2. Robust mode: the Gaffke bound on document values capped at ``cap``, and beside it the share of documents beyond the
   cap with a binary bound of its own, because the cap hides exactly those. 59 documents exclude a share of 5 %.
3. With skewed documents (skewness of document means above 1, or a document beyond the cap) the t bound errs two to three
   times too often: the robust mode alone decides, and needs 100 documents to pass.
4. A sample without any variation has no t interval (its width would be zero): the robust mode alone decides.
5. A perplexity ratio needs no delta method: bound the mean of the log ratio, then `exp` both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, decide, require_alpha
from pytest_attnaccept.stats.floors import items_for_any_pass
from pytest_attnaccept.stats.gaffke import difference_cdf, difference_sf, weighted_mean_tail
from pytest_attnaccept.stats.roots import bound
from pytest_attnaccept.taxonomy import Verdict

__all__ = [
    "BEYOND_LIMIT",
    "DEFAULT_CAP",
    "MAX_SKEWNESS",
    "MIN_DOCUMENTS",
    "MIN_ROBUST",
    "ClusteredResult",
    "clustered_mean",
    "quantile_upper",
]

MIN_DOCUMENTS = 20
"""Fewest documents that may pass (reference: statistics 1.4)."""

MIN_ROBUST = 100
"""Fewest documents that may pass when they are skewed (reference: statistics 1.4)."""

MAX_SKEWNESS = 1.0
"""Sample skewness of document means above which t is not trusted (reference: statistics 1.4)."""

DEFAULT_CAP = 0.1
"""Cap of one document's loss in nats per token in the robust mode (reference: statistics 1.4: 0.05 to 0.1)."""

BEYOND_LIMIT = 0.05
"""Largest share of documents beyond the cap that may pass (a twentieth: what the t bound was seen to overlook)."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredResult:
    """What a token mean over documents proves.

    Attributes
    ----------
    mode
        "t" or "robust" (capped Gaffke).
    mean, lower, upper
        Estimate and one-sided bounds of the mean per token; with ``exp`` of each the ratio of perplexities.
    documents, tokens
        Sizes.
    skewness
        Sample skewness of the document means.
    beyond, beyond_upper
        Documents above the cap, and the upper bound of their share.
    minimum
        Fewest documents that could pass, whatever they lose.
    """

    verdict: Verdict
    reason: str
    mode: str
    mean: float
    lower: float
    upper: float
    p_pass: float
    p_fail: float
    margin: float
    documents: int
    tokens: int
    skewness: float
    beyond: int
    beyond_upper: float
    measurable: bool
    minimum: int = 0


def clustered_mean(
    sums: ArrayLike,
    tokens: ArrayLike,
    margin: float,
    *,
    alpha_pass: float = DEFAULT_ALPHA,
    alpha_fail: float = DEFAULT_ALPHA,
    cap: float | None = DEFAULT_CAP,
    beyond_limit: float = BEYOND_LIMIT,
    mode: str = "auto",
    shown: Callable[[float], float] = float,
) -> ClusteredResult:
    """Compare the token mean with a margin, documents being the independent units.

    Parameters
    ----------
    sums : array, shape (G,), float
        Per document, the sum of the loss over its tokens (NLL: candidate minus baseline, nats).
    tokens : array, shape (G,), int
        Per document, the number of scored tokens (> 0).
    margin : float
        Largest tolerated mean per token; for a perplexity ratio of 1 + r give ``log1p(r)``.
    alpha_pass, alpha_fail : float
        Error probabilities of a wrong PASS and a wrong FAIL.
    cap : float or None
        Cap of a document's mean in the robust mode, raised to 4 margins where smaller. 1 or more is taken for the hard
        maximum of the quantity (flips): no share beyond it is checked then. None: no robust mode, the t bound alone
        decides from 20 documents on, and skewed documents are INCONCLUSIVE.
    beyond_limit : float
        Largest tolerated share of documents beyond the cap.
    mode : {"auto", "t", "robust"}
        "auto" applies positions 1, 3 and 4; the others use one mode as it is.
    shown : callable
        Turns a value per token into the unit in which the reason says it (``expm1``: the relative increase).
    """
    totals, counts = _require_documents(sums, tokens)
    require_alpha(alpha_pass, "alpha_pass"), require_alpha(alpha_fail, "alpha_fail")
    if not (math.isfinite(margin) and margin > 0):
        raise ContractError(f"margin = {margin!r} must be a positive number")
    if mode not in ("auto", "t", "robust") or (mode == "robust" and cap is None):
        raise ContractError(f"mode = {mode!r} is not possible here; allowed: 'auto', 't', 'robust' (needs a cap)")
    documents = totals.size
    if documents == 0 or not np.isfinite(totals).all():
        what = "no documents were compared" if documents == 0 else "a document has a loss that is not a finite number"
        return _invalid(what, margin, documents, int(counts.sum()))
    means = totals / counts
    skewness = _skewness(means)
    cap = None if cap is None else max(cap, 4 * margin) if cap < 1 else cap
    beyond = 0 if cap is None else int((means > cap).sum())
    constant = float(np.ptp(means)) <= 1e-12
    skewed = abs(skewness) > MAX_SKEWNESS or beyond > 0
    state = _Sample(totals, counts, float(margin), alpha_pass, alpha_fail, skewness, beyond, shown)
    if cap is not None and (mode == "robust" or (mode == "auto" and (skewed or constant))):
        return _robust(state, cap, beyond_limit, skewed)
    result = _by_t(state, constant, skewed and mode == "auto")
    if cap is not None and mode == "auto" and result.verdict is Verdict.PASS:
        return _confirm(result, _robust(state, cap, beyond_limit, skewed))
    return result


def _confirm(result: ClusteredResult, robust: ClusteredResult) -> ClusteredResult:
    """Let a PASS of the t bound stand only where the robust mode passes too."""
    if robust.verdict is Verdict.PASS:
        return result
    reason = f"rare documents could hide the margin: {robust.reason}"
    p_pass = max(result.p_pass, robust.p_pass)
    return replace(result, verdict=Verdict.INCONCLUSIVE, reason=reason, p_pass=p_pass, minimum=robust.minimum)


@dataclass(frozen=True, slots=True)
class _Sample:
    """What both modes need."""

    sums: FloatArray
    counts: FloatArray
    margin: float
    alpha_pass: float
    alpha_fail: float
    skewness: float
    beyond: int
    shown: Callable[[float], float] = float

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.counts.sum())


def _by_t(sample: _Sample, constant: bool, skewed: bool) -> ClusteredResult:
    """Use the ratio estimator with t(G - 1)."""
    size, mean = sample.sums.size, sample.mean
    if size < 2 or constant:
        refusal = f"{size} document(s) without any variation have no t interval"
        return _result(sample, "t", (mean, -math.inf, math.inf), (1.0, 1.0), Verdict.INCONCLUSIVE, refusal)
    residual = sample.sums - mean * sample.counts
    error = float(np.sqrt(size / (size - 1) * np.sum(residual**2)) / sample.counts.sum())
    law = distributions.t(size - 1)
    lower, upper = mean - law.isf(sample.alpha_fail) * error, mean + law.isf(sample.alpha_pass) * error
    tails = float(law.cdf((mean - sample.margin) / error)), float(law.sf((mean - sample.margin) / error))
    verdict = decide(*tails, sample.alpha_pass, sample.alpha_fail)
    refusal = _doubt(sample, verdict, skewed)
    verdict = Verdict.INCONCLUSIVE if refusal else verdict
    result = _result(sample, "t", (mean, float(lower), float(upper)), tails, verdict, refusal, _beyond_upper(sample))
    return replace(result, minimum=MIN_DOCUMENTS)


def _doubt(sample: _Sample, verdict: Verdict, skewed: bool) -> str:
    """Say why a verdict of the t interval does not count, or return an empty string."""
    size = sample.sums.size
    if verdict is Verdict.PASS and size < MIN_DOCUMENTS:
        return f"{size} documents are too few to pass: {MIN_DOCUMENTS} are the minimum"
    if verdict is Verdict.PASS and skewed:
        return f"document losses are skewed ({sample.skewness:+.1f}) and have no cap"
    if verdict is Verdict.FAIL and sample.skewness < -MAX_SKEWNESS:
        # A few much better documents pull the lower bound up less than they should: do not call that proven harm.
        return f"document losses are skewed to the left ({sample.skewness:+.1f})"
    return ""


def _robust(sample: _Sample, cap: float, beyond_limit: float, skewed: bool) -> ClusteredResult:
    """Use the Gaffke bound on capped documents and count the documents beyond the cap."""
    size = sample.sums.size
    share = sample.counts / sample.counts.max()
    means = np.clip(sample.sums / sample.counts, -cap, cap)

    def upper_tail(m: float) -> float:  # token-weighted: E[T (d - m)] >= 0, worst item: longest document at the cap
        return weighted_mean_tail(np.append(share * (means - m), cap - m), None, 0.0)

    def lower_tail(m: float) -> float:
        return weighted_mean_tail(np.append(share * (m - means), m + cap), None, 0.0)

    mean = float((share * means).sum() / share.sum())
    upper = bound(upper_tail, sample.alpha_pass, mean, cap)
    lower = bound(lower_tail, sample.alpha_fail / 2, mean, -cap)
    tails = upper_tail(sample.margin), min(1.0, 2 * lower_tail(sample.margin))
    k, bounded = sample.beyond, cap >= 1  # a cap of 1 is the largest possible value: nothing lies beyond it
    few = (
        0.0 if bounded else difference_sf(k + 1, 0, size - k, beyond_limit)
    )  # evidence that the share reaches the limit
    many = 1.0 if bounded or k == 0 else min(1.0, 2 * difference_cdf(k, 1, size - k, beyond_limit))
    verdict = decide(max(tails[0], few), min(tails[1], many), sample.alpha_pass, sample.alpha_fail)
    need = max(
        MIN_ROBUST if skewed else MIN_DOCUMENTS,
        items_for_any_pass(sample.margin / cap, sample.alpha_pass),
        1 if bounded else items_for_any_pass(beyond_limit, sample.alpha_pass),
    )
    beyond, say = f"{k} of {size} documents", sample.shown
    text = ""
    if verdict is Verdict.FAIL:
        text = f"{beyond} lose more than {say(cap):.3g} per token" if many < sample.alpha_fail else ""
    elif size < need:
        text = f"{size} documents are too few to pass: {need} are the minimum"
    elif verdict is Verdict.PASS and not sample.mean < sample.margin:
        text = f"{beyond} carry the mean to {say(sample.mean):+.5f}, not below the margin {say(sample.margin):.5f}"
    elif verdict is Verdict.INCONCLUSIVE and tails[0] < sample.alpha_pass:
        text = f"{beyond} lose more than {say(cap):.3g} per token: under {beyond_limit:.0%} is not shown"
    elif verdict is Verdict.INCONCLUSIVE:
        text = (
            f"the bound with documents capped at {say(cap):.3g}, {say(upper):+.5f}, reaches the margin"
            f" {say(sample.margin):.5f}"
        )
    verdict = Verdict.INCONCLUSIVE if text and verdict is Verdict.PASS else verdict
    result = _result(sample, "robust", (mean, lower, upper), tails, verdict, text, _beyond_upper(sample))
    return replace(result, minimum=need)


def _beyond_upper(sample: _Sample) -> float:
    """Bound the share of documents beyond the cap from above (binary)."""
    size, k = sample.sums.size, sample.beyond
    return bound(lambda share: difference_sf(k + 1, 0, size - k, share), sample.alpha_pass, k / size, 1.0)


def _result(
    sample: _Sample,
    mode: str,
    interval: tuple[float, float, float],
    tails: tuple[float, float],
    verdict: Verdict,
    refusal: str,
    beyond_upper: float = float("nan"),
) -> ClusteredResult:
    """Put the outcome into words."""
    mean, lower, upper = interval
    relation = {Verdict.PASS: "lies below", Verdict.FAIL: "lies above"}.get(verdict, "contains")
    say = sample.shown
    text = (
        f"mean {say(mean):+.5f}, interval {say(lower):+.5f} to {say(upper):+.5f} {relation} the margin"
        f" {say(sample.margin):.5f}"
    )
    return ClusteredResult(
        verdict=verdict,
        reason=refusal or text,
        mode=mode,
        mean=mean,
        lower=lower,
        upper=upper,
        p_pass=tails[0],
        p_fail=tails[1],
        margin=sample.margin,
        documents=sample.sums.size,
        tokens=int(sample.counts.sum()),
        skewness=sample.skewness,
        beyond=sample.beyond,
        beyond_upper=beyond_upper,
        measurable=lower > 0,
    )


def _invalid(reason: str, margin: float, documents: int, tokens: int) -> ClusteredResult:
    empty = np.zeros(documents)
    sample = _Sample(empty, np.full(documents, tokens / max(documents, 1)), margin, 0.05, 0.05, math.nan, 0)
    return _result(sample, "t", (math.nan, -math.inf, math.inf), (1.0, 1.0), Verdict.INVALID, reason)


def _skewness(means: FloatArray) -> float:
    """Sample skewness; 0 for a constant sample."""
    spread = float(means.std())
    if means.size < 3 or spread <= 1e-12:
        return 0.0
    return float(np.mean(((means - means.mean()) / spread) ** 3))


def _require_documents(sums: ArrayLike, tokens: ArrayLike) -> tuple[FloatArray, FloatArray]:
    totals, counts = np.asarray(sums, dtype=np.float64).ravel(), np.asarray(tokens, dtype=np.float64).ravel()
    if totals.size != counts.size:
        raise ContractError(f"{totals.size} document sums and {counts.size} token counts: give one count per document")
    if counts.size and not (counts > 0).all():
        raise ContractError("every document needs at least one scored token")
    return totals, counts


def quantile_upper(values: ArrayLike, quantile: float, alpha: float = DEFAULT_ALPHA) -> float | None:
    """Give the order statistic that bounds a quantile of independent values from above; None: too few values.

    A bound exists from ``ln(alpha) / ln(quantile)`` values on (299 for P99). Nothing is interpolated or bootstrapped.
    """
    require_alpha(alpha)
    if not 0 < quantile < 1:
        raise ContractError(f"quantile = {quantile!r} must lie in (0, 1)")
    ordered = np.sort(np.asarray(values, dtype=np.float64).ravel())
    if np.isnan(ordered).any():
        raise ContractError("a quantile of values that include NaN is not defined")
    n = ordered.size
    rank = int(distributions.binom.ppf(1 - alpha, n, quantile)) + 1 if n else 1
    return float(ordered[rank - 1]) if rank <= n else None
