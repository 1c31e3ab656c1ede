"""What every statistical gate says of its result: the verdict's addenda to the sentence, and the metric of the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytest_attnaccept.limits import Limit
from pytest_attnaccept.records import Metric
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["Result", "judged"]


class Result(Protocol):
    """What a test of `stats` returns, as far as it is shown alike."""

    @property
    def verdict(self) -> Verdict: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102
    @property
    def p_pass(self) -> float: ...  # noqa: D102
    @property
    def p_fail(self) -> float: ...  # noqa: D102


def judged(
    name: str,
    result: Result,
    limit: Limit,
    *,
    interval: tuple[float, float, float],
    n: int,
    unit: str,
    text: str,
    costs: bool,
    needs: Callable[[], str],
) -> Metric:
    """Return the metric of one statistical gate.

    Parameters
    ----------
    interval
        Estimate, lower and upper bound, in `unit`.
    text
        What was measured, as a sentence that the reason continues.
    costs
        Whether the loss is measurable, though within the margin.
    needs
        Says what would decide an undecided gate; asked only then.
    """
    if result.verdict is Verdict.PASS and costs:
        text += " (PASS with measurable loss)"
    if result.reason:
        text += f": {result.reason}"
    if result.verdict is Verdict.INCONCLUSIVE:
        text += f"; {needs()}"
    effect, low, high = interval
    return Metric(
        name=name,
        verdict=result.verdict.value,
        effect=effect,
        ci_low=low,
        ci_high=high,
        n=n,
        limit=limit.max,
        unit=unit,
        origin=limit.origin,
        loosened_from=limit.loosened_from,
        p_pass=result.p_pass,
        p_fail=result.p_fail,
        text=text,
    )
