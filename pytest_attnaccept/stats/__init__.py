"""Paired non-inferiority with controlled error: everything here turns numbers into p-values, bounds and verdicts.

Names are resolved lazily, so that importing the package costs nothing.

==================================================================  ==================================================
``paired_binary(losses, gains, n, margin, *, alpha_pass, alpha_fail,  right/wrong answers -> `PairedResult` (``method``:
base_correct, chance, method)``                                       "gaffke" or "tango")
``paired_scores(losses, margin, *, base_mean, chance, worst, best,    bounded scores, one loss per item or cluster
clusters)``
``paired_relative(base, cand, tolerated_loss)``                       keep (1 - r) of the baseline's mean
``cluster_means(values, labels)``, ``count_outcomes(base, cand)``     preparation
``p_pass(b, c, n, m)``, ``p_fail(b, c, n, m)``                        bare Gaffke p-values, cached
``items_for_any_pass(margin, alpha)``, ``baseline_floor(...)``        refusals before and after the run
``decide(p_pass, p_fail, alpha_pass, alpha_fail)``                    p-values -> `Verdict`
==================================================================  ==================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, decide
    from pytest_attnaccept.stats.floors import baseline_floor, items_for_any_pass
    from pytest_attnaccept.stats.paired import (
        PairedResult,
        cluster_means,
        count_outcomes,
        p_fail,
        p_pass,
        paired_binary,
        paired_relative,
        paired_scores,
    )

_WHERE = {
    "decision": ("DEFAULT_ALPHA", "decide"),
    "floors": ("baseline_floor", "items_for_any_pass"),
    "paired": (
        "PairedResult",
        "cluster_means",
        "count_outcomes",
        "p_fail",
        "p_pass",
        "paired_binary",
        "paired_relative",
        "paired_scores",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "DEFAULT_ALPHA",
    "PairedResult",
    "baseline_floor",
    "cluster_means",
    "count_outcomes",
    "decide",
    "items_for_any_pass",
    "p_fail",
    "p_pass",
    "paired_binary",
    "paired_relative",
    "paired_scores",
]


def __getattr__(name: str) -> object:
    """Import the module that holds a public name on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
