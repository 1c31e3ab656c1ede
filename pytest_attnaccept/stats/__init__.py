"""Paired non-inferiority with controlled error: everything here turns numbers into p-values, bounds and verdicts.

Names are resolved lazily, so that importing the package costs nothing. Every loss is ``baseline - candidate`` (positive =
candidate worse), every margin an absolute fraction of the score unless said otherwise. Results carry ``verdict``
(`taxonomy.Verdict`) and ``reason`` (one sentence).

Paired answers and scores
    ``paired_binary(losses, gains, n, margin, *, alpha_pass=.05, alpha_fail=.05, base_correct=None, chance=0.,
    method="gaffke"|"tango") -> PairedResult``;
    ``paired_scores(losses, margin, *, alpha_pass, alpha_fail, base_mean=None, chance=0., worst=1., best=-1.,
    clusters=False)``; ``paired_relative(base, cand, tolerated_loss)``; ``p_pass(b, c, n, m)``, ``p_fail(b, c, n, m)``,
    ``p_pass_scores(losses, m)``; ``cluster_means(values, labels)``; ``count_outcomes(base, cand) -> (b, c, n, correct)``;
    ``items_for_any_pass(margin)``; ``baseline_floor(base_mean, n, margin, chance) -> reason or ""``
Tokens by document
    ``clustered_mean(sums, tokens, margin, *, cap=0.1, beyond_limit=.05, mode="auto") -> ClusteredResult`` (margin per
    token; ``log1p(r)`` for a perplexity ratio; top-1 flips: ``cap=1.0``); ``quantile_upper(values, q) -> float | None``
Early stopping
    ``plan_looks(n_max, margin, *, fractions=LOOKS, spending="joint"|"increments", seed, order) -> SequentialPlan``
    (``.looks``, ``.pass_levels``, ``.fail_levels``, ``.digest()``); ``matrix_plan(n0, margin, cells)``;
    ``Monitor(plan=plan)``: ``.next_n``, ``.observe(losses, gains, rest_base_right=, rest_base_wrong=) -> Monitor``,
    ``.observe_scores(losses)``, ``.decided``, ``.verdict``; ``item_order(ids, seed)``, ``order_digest(ids)``;
    ``operating_characteristics(plan, p_loss, p_gain)`` (exact)
Planning
    ``power(n, margin, *, discordance=.04, true_loss=0.)``, ``items_needed(margin, *, target=.9)``,
    ``smallest_margin(n)``, ``minimum_detectable_loss(n, margin)``, ``underpowered(n, margin) -> text or ""``,
    ``conditional_power(b, c, n, n_max, margin)``, ``hopeless(...)``, ``items_to_decide(b, c, n, margin) -> int | None``,
    ``items_to_decide_scores(losses, margin)``,
    ``discordance_from_aa(discordant, n)``, ``discordance_from_runs(accuracies, n)``;
    ``profile_power([GatePlan(name=, kind=, n=, margin=, count=)]) -> ProfilePower``, ``items_for_profile(margin, gates)``
Matrix, interaction, curves
    ``family_verdict([CellEvidence(name=, p_pass=, p_fail=)], planned) -> FamilyResult``, ``holm(p_values)``,
    ``attribute(full, singles, without, margin)``; ``interaction_nll(full, singles, tokens, margin)``,
    ``interaction_accuracy(base, full, singles, margin)``; ``certified_range([CurvePoint(at=, verdict=)], easy_end="low")``,
    ``certified_at(points, at) -> reason or ""``, ``adjacent_steps(losses)``, ``isotonic_drawing(at, losses)``,
    ``degradation_area(at, losses)``
Performance
    ``abba_order(blocks, seed)``, ``block_log_ratios(order, values, higher_is_better=)``, ``compare_blocks(ratios, margin)
    -> PerfResult``, ``block_levels()``, ``deterministic_ratio(base, cand, margin)``, ``p99(latencies) -> float | None``,
    ``p99_upper``, ``p99_requests_needed(slowdown, sigma)``
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_attnaccept.stats.boundary import fail_from, pass_up_to, probability_fail, probability_pass
    from pytest_attnaccept.stats.characteristics import Characteristics, operating_characteristics
    from pytest_attnaccept.stats.clustered import ClusteredResult, clustered_mean, quantile_upper
    from pytest_attnaccept.stats.curves import (
        CertifiedRange,
        CurvePoint,
        Steps,
        adjacent_steps,
        certified_at,
        certified_range,
        degradation_area,
        isotonic_drawing,
    )
    from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, decide
    from pytest_attnaccept.stats.floors import MIN_CLUSTERS, baseline_floor, items_for_any_pass
    from pytest_attnaccept.stats.gaffke import difference_cdf, difference_sf, weighted_mean_tail
    from pytest_attnaccept.stats.interaction import InteractionResult, interaction_accuracy, interaction_nll
    from pytest_attnaccept.stats.matrix import (
        CellEvidence,
        CellVerdict,
        FamilyResult,
        Suspect,
        attribute,
        family_verdict,
        holm,
    )
    from pytest_attnaccept.stats.paired import (
        PairedResult,
        cluster_means,
        count_outcomes,
        p_fail,
        p_pass,
        p_pass_scores,
        paired_binary,
        paired_relative,
        paired_scores,
    )
    from pytest_attnaccept.stats.perf import (
        PerfResult,
        abba_order,
        block_levels,
        block_log_ratios,
        compare_blocks,
        deterministic_ratio,
        p99,
        p99_requests_needed,
        p99_upper,
    )
    from pytest_attnaccept.stats.planning import (
        DEFAULT_DISCORDANCE,
        conditional_power,
        discordance_from_aa,
        discordance_from_runs,
        hopeless,
        items_needed,
        items_to_decide,
        items_to_decide_scores,
        minimum_detectable_loss,
        power,
        smallest_margin,
        underpowered,
    )
    from pytest_attnaccept.stats.sequential import (
        LOOKS,
        Monitor,
        SequentialPlan,
        item_order,
        matrix_plan,
        order_digest,
        plan_looks,
    )
    from pytest_attnaccept.stats.sizing import (
        GatePlan,
        ProfilePower,
        gate_power,
        items_for_profile,
        profile_power,
    )
    from pytest_attnaccept.stats.spending import increment_levels, joint_levels

_WHERE = {
    "boundary": (
        "fail_from",
        "pass_up_to",
        "probability_fail",
        "probability_pass",
    ),
    "characteristics": (
        "Characteristics",
        "operating_characteristics",
    ),
    "clustered": (
        "ClusteredResult",
        "clustered_mean",
        "quantile_upper",
    ),
    "curves": (
        "CertifiedRange",
        "CurvePoint",
        "Steps",
        "adjacent_steps",
        "certified_at",
        "certified_range",
        "degradation_area",
        "isotonic_drawing",
    ),
    "decision": (
        "DEFAULT_ALPHA",
        "decide",
    ),
    "floors": (
        "MIN_CLUSTERS",
        "baseline_floor",
        "items_for_any_pass",
    ),
    "gaffke": (
        "difference_cdf",
        "difference_sf",
        "weighted_mean_tail",
    ),
    "interaction": (
        "InteractionResult",
        "interaction_accuracy",
        "interaction_nll",
    ),
    "matrix": (
        "CellEvidence",
        "CellVerdict",
        "FamilyResult",
        "Suspect",
        "attribute",
        "family_verdict",
        "holm",
    ),
    "paired": (
        "PairedResult",
        "cluster_means",
        "count_outcomes",
        "p_fail",
        "p_pass",
        "p_pass_scores",
        "paired_binary",
        "paired_relative",
        "paired_scores",
    ),
    "perf": (
        "PerfResult",
        "abba_order",
        "block_levels",
        "block_log_ratios",
        "compare_blocks",
        "deterministic_ratio",
        "p99",
        "p99_requests_needed",
        "p99_upper",
    ),
    "planning": (
        "DEFAULT_DISCORDANCE",
        "conditional_power",
        "discordance_from_aa",
        "discordance_from_runs",
        "hopeless",
        "items_needed",
        "items_to_decide",
        "items_to_decide_scores",
        "items_to_decide_scores",
        "minimum_detectable_loss",
        "power",
        "smallest_margin",
        "underpowered",
    ),
    "sizing": (
        "GatePlan",
        "ProfilePower",
        "gate_power",
        "items_for_profile",
        "profile_power",
    ),
    "sequential": (
        "LOOKS",
        "Monitor",
        "SequentialPlan",
        "item_order",
        "matrix_plan",
        "order_digest",
        "plan_looks",
    ),
    "spending": (
        "increment_levels",
        "joint_levels",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "DEFAULT_ALPHA",
    "DEFAULT_DISCORDANCE",
    "LOOKS",
    "MIN_CLUSTERS",
    "CellEvidence",
    "CellVerdict",
    "CertifiedRange",
    "Characteristics",
    "ClusteredResult",
    "CurvePoint",
    "FamilyResult",
    "GatePlan",
    "InteractionResult",
    "Monitor",
    "PairedResult",
    "PerfResult",
    "ProfilePower",
    "SequentialPlan",
    "Steps",
    "Suspect",
    "abba_order",
    "adjacent_steps",
    "attribute",
    "baseline_floor",
    "block_levels",
    "block_log_ratios",
    "certified_at",
    "certified_range",
    "cluster_means",
    "clustered_mean",
    "compare_blocks",
    "conditional_power",
    "count_outcomes",
    "decide",
    "degradation_area",
    "deterministic_ratio",
    "difference_cdf",
    "difference_sf",
    "discordance_from_aa",
    "discordance_from_runs",
    "fail_from",
    "family_verdict",
    "gate_power",
    "holm",
    "hopeless",
    "increment_levels",
    "interaction_accuracy",
    "interaction_nll",
    "isotonic_drawing",
    "item_order",
    "items_for_any_pass",
    "items_for_profile",
    "items_needed",
    "items_to_decide",
    "items_to_decide_scores",
    "joint_levels",
    "matrix_plan",
    "minimum_detectable_loss",
    "operating_characteristics",
    "order_digest",
    "p99",
    "p99_requests_needed",
    "p99_upper",
    "p_fail",
    "p_pass",
    "p_pass_scores",
    "paired_binary",
    "paired_relative",
    "paired_scores",
    "pass_up_to",
    "plan_looks",
    "power",
    "probability_fail",
    "probability_pass",
    "profile_power",
    "quantile_upper",
    "smallest_margin",
    "underpowered",
    "weighted_mean_tail",
]


def __getattr__(name: str) -> object:
    """Import the module that holds a public name on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
