"""Which function measures which model-level check id, and the tier that a needle id names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_attnaccept.checks import (
    model_equality,
    model_footprint,
    model_identity,
    model_needle,
    model_perplexity,
)
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.measurement import Measured

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["CHECKS", "check_function"]

Check = Callable[["ModelSession", Params], Measured]

CHECKS: dict[str, Check] = {
    "identity": model_identity.measure,
    "footprint": model_footprint.measure,
    "divergence": model_perplexity.measure_divergence,
    "perplexity": model_perplexity.measure_perplexity,
    "equality": model_equality.measure,
    "needle": model_needle.measure,
}
_NEEDLE = re.compile(r"needle-(\d+(?:\.\d+)?)x")


def check_function(check_id: str, params: dict[str, object]) -> tuple[Check, dict[str, object]]:
    """Return the function of `check_id` and its parameters; ``needle-0.5x`` sets ``tier`` to 0.5."""
    found = _NEEDLE.fullmatch(check_id)
    if found:
        return CHECKS["needle"], {**params, "tier": float(found.group(1))}
    if check_id not in CHECKS:
        raise UnknownNameError("model check", check_id, [*CHECKS, "needle-1x"])
    return CHECKS[check_id], params
