"""Which function measures which model-level check id, and the tier that a needle id names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_attnaccept.checks.model_benchmark import measure as measure_benchmark
from pytest_attnaccept.checks.model_budget_curve import measure as measure_budget_curve
from pytest_attnaccept.checks.model_controls import measure as measure_controls
from pytest_attnaccept.checks.model_equality import measure as measure_equality
from pytest_attnaccept.checks.model_footprint import measure as measure_footprint
from pytest_attnaccept.checks.model_identity import measure as measure_identity
from pytest_attnaccept.checks.model_length_curve import measure as measure_length_curve
from pytest_attnaccept.checks.model_longrange import measure as measure_long_range
from pytest_attnaccept.checks.model_needle import measure as measure_needle
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_perplexity import measure_divergence, measure_perplexity
from pytest_attnaccept.checks.model_speculation import measure as measure_speculation
from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.measurement import Measured

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["CHECKS", "check_function"]

Check = Callable[["ModelSession", Params], Measured]

CHECKS: dict[str, Check] = {
    "identity": measure_identity,
    "footprint": measure_footprint,
    "divergence": measure_divergence,
    "perplexity": measure_perplexity,
    "equality": measure_equality,
    "needle": measure_needle,
    "speculation": measure_speculation,
    "long-range": measure_long_range,
    "benchmark": measure_benchmark,
    "budget-curve": measure_budget_curve,
    "length-curve": measure_length_curve,
    "controls": measure_controls,
}
# Checks whose id goes on with a name, and the parameter that holds it.
_NAMED = {"long-range": "family", "benchmark": "task"}
_NEEDLE = re.compile(r"needle-(\d+(?:\.\d+)?)x")


def check_function(check_id: str, params: dict[str, object]) -> tuple[Check, dict[str, object]]:
    """Return the function of `check_id` and its parameters; ``needle-0.5x`` sets ``tier`` to 0.5."""
    found = _NEEDLE.fullmatch(check_id)
    if found:
        return CHECKS["needle"], {**params, "tier": float(found.group(1))}
    for check, parameter in _NAMED.items():
        if check_id.startswith(f"{check}-"):
            return CHECKS[check], {parameter: check_id.removeprefix(f"{check}-"), **params}
    if check_id not in CHECKS:
        raise UnknownNameError("model check", check_id, [*CHECKS, "needle-1x"])
    return CHECKS[check_id], params
