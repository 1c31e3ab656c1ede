"""Before the run: how many items a margin needs. After it: how many more would decide, and whether more are hopeless.

All numbers come from the exact distribution of the verdict (`boundary`), not from a normal approximation. Power means
the probability of PASS for a candidate whose answers differ on a share ``discordance`` of the items without any true
loss, plus ``true_loss`` on top. Above 5000 items a required number is rounded up within 0.2 %.

The source of the discordance, best first: this cell's own pilot, an A/A run of the baseline against itself, 4 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as distributions

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.boundary import (
    gain_distribution,
    loss_cdf,
    pass_up_to,
    probability_fail,
    probability_pass,
    split_discordance,
)
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA, require_alpha, require_margin
from pytest_attnaccept.stats.floors import items_for_any_pass

__all__ = [
    "DEFAULT_DISCORDANCE",
    "HOPELESS",
    "conditional_power",
    "discordance_from_aa",
    "discordance_from_runs",
    "hopeless",
    "items_needed",
    "items_to_decide",
    "items_to_decide_scores",
    "minimum_detectable_loss",
    "power",
    "smallest_margin",
    "underpowered",
]

DEFAULT_DISCORDANCE = 0.04
"""Planning value without a pilot (reference: statistics 1.5, public A/A data show 0.6 to 3.5 %)."""

HOPELESS = 0.10
"""Conditional power below this: more items will not help (reference: statistics, section 3)."""

_MAX_ITEMS = 100_000  # beyond this, "more items" is no advice


def power(
    n: int,
    margin: float,
    *,
    discordance: float = DEFAULT_DISCORDANCE,
    true_loss: float = 0.0,
    alpha: float = DEFAULT_ALPHA,
) -> float:
    """Give the probability that n items end in PASS."""
    require_margin(margin), require_alpha(alpha)
    return probability_pass(n, margin, alpha, *split_discordance(true_loss, discordance)) if n > 0 else 0.0


def items_needed(
    margin: float,
    *,
    discordance: float = DEFAULT_DISCORDANCE,
    true_loss: float = 0.0,
    target: float = 0.9,
    alpha: float = DEFAULT_ALPHA,
) -> int | None:
    """Give the smallest n whose power reaches the target; None when a loss this close to the margin never passes."""
    floor = items_for_any_pass(margin, alpha)
    if true_loss >= margin:
        return None

    def enough(n: int) -> bool:
        return power(n, margin, discordance=discordance, true_loss=true_loss, alpha=alpha) >= target

    quantile = float(distributions.norm.isf(alpha) + distributions.norm.ppf(target))
    guess = quantile**2 * max(discordance + abs(true_loss), margin / 4) / (margin - true_loss) ** 2 + 3 / margin
    return _smallest(enough, floor, int(guess))


def _smallest(enough: Callable[[int], bool], floor: int, guess: int) -> int | None:
    """Bracket, bisect, and step back over the teeth of a saw-toothed power curve."""
    high = max(floor, guess)
    if high > _MAX_ITEMS:
        return None
    while not enough(high):
        high = high + high // 3 + 1
        if high > _MAX_ITEMS:
            return None
    low = floor - 1
    step = max(1, high // 5)
    while high - step > low and enough(high - step):
        high -= step
    low = max(low, high - step)
    while high - low > max(1, high // 500 if high > 5000 else 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def minimum_detectable_loss(
    n: int,
    margin: float,
    *,
    discordance: float = DEFAULT_DISCORDANCE,
    target: float = 0.8,
    alpha: float = DEFAULT_ALPHA,
) -> float | None:
    """Give the smallest true loss that ends in FAIL with the target probability; None when no loss does."""

    def detected(loss: float) -> bool:
        noise = min(discordance, 1.0 - loss)
        return probability_fail(n, margin, alpha, *split_discordance(loss, noise)) >= target

    require_margin(margin), require_alpha(alpha)
    return _bisect(detected, margin, 1.0)


def smallest_margin(
    n: int, *, discordance: float = DEFAULT_DISCORDANCE, target: float = 0.9, alpha: float = DEFAULT_ALPHA
) -> float | None:
    """Give the smallest margin that n items certify with the target power; None when there is none below 100 %."""
    if n < 1:
        return None
    return _bisect(lambda margin: power(n, margin, discordance=discordance, alpha=alpha) >= target, 0.0, 1.0 - 1e-9)


def _bisect(true_above: Callable[[float], bool], low: float, high: float) -> float | None:
    """Find the switch of a monotone condition to 1e-4, on the side where it holds."""
    if not true_above(high):
        return None
    while high - low > 1e-4:
        middle = (low + high) / 2 if low > 0.01 or high < 0.04 else max(low, 0.004) * 1.8
        low, high = (low, middle) if true_above(middle) else (middle, high)
    return high


def discordance_from_aa(discordant: int, n: int) -> float:
    """Plan with (discordant + 2) / (n + 2): an A/A run or a first look, moved to the safe side."""
    if not 0 <= discordant <= n or n == 0:
        raise ContractError(f"{discordant} discordant items of {n} is not a count")
    return min(1.0, (discordant + 2) / (n + 2))


def discordance_from_runs(accuracies: Sequence[float], n: int) -> float:
    """Convert the spread of repeated baseline runs on the same n items: q = 2 n Var(mean)."""
    if len(accuracies) < 2 or n < 1:
        raise ContractError("at least two runs of at least one item are needed to see a spread")
    return float(min(1.0, 2 * n * np.var(np.asarray(accuracies, dtype=np.float64), ddof=1)))


def conditional_power(
    losses: int,
    gains: int,
    n: int,
    n_max: int,
    margin: float,
    *,
    alpha: float = DEFAULT_ALPHA,
    p_loss: float | None = None,
    p_gain: float | None = None,
) -> float:
    """Give P(PASS at n_max | data so far); the rest behaves like the data unless probabilities are given."""
    if n_max < n or n <= 0:
        raise ContractError(f"n_max = {n_max} must be at least n = {n}, and n positive")
    p_loss = losses / n if p_loss is None else p_loss
    p_gain = gains / n if p_gain is None else p_gain
    rest = n_max - n
    further, weight = gain_distribution(rest, p_gain)
    edge = pass_up_to(n_max, margin, alpha, gains + int(further[-1]) + 1, gains + int(further[0])) - losses
    share = min(1.0, p_loss / (1 - p_gain)) if p_gain < 1 else 0.0
    return float(weight @ loss_cdf(edge, rest - further, share))


def hopeless(losses: int, gains: int, n: int, n_max: int, margin: float, *, alpha: float = DEFAULT_ALPHA) -> bool:
    """Say whether going on to n_max at the observed rates would pass with less than 10 % probability."""
    return conditional_power(losses, gains, n, n_max, margin, alpha=alpha) < HOPELESS


def items_to_decide(
    losses: int,
    gains: int,
    n: int,
    margin: float,
    *,
    alpha: float = DEFAULT_ALPHA,
    target: float = 0.8,
) -> int | None:
    """Give the total n at which PASS has the target probability if the rest shows no loss; None: beyond reach."""
    if n <= 0:
        return items_needed(margin, target=target, alpha=alpha)
    # A short pilot says little: not more than the larger of the planning value and its own rate.
    pilot = (losses + gains) / n
    half = min(discordance_from_aa(losses + gains, n), max(DEFAULT_DISCORDANCE, pilot)) / 2

    def enough(total: int) -> bool:
        chance = conditional_power(losses, gains, n, total, margin, alpha=alpha, p_loss=half, p_gain=half)
        return chance >= target

    return _smallest(enough, max(n, items_for_any_pass(margin, alpha)), n)


def items_to_decide_scores(
    losses: ArrayLike,
    margin: float,
    *,
    upper: float | None = None,
    further_loss: float = 0.0,
    alpha: float = DEFAULT_ALPHA,
    target: float = 0.8,
) -> int | None:
    """Give the total n at which scores like these pass with the target probability; None: beyond reach.

    Parameters
    ----------
    losses : array, shape (n,)
        ``baseline - candidate`` per item or cluster so far; they stay in the sample.
    upper
        Bound that these losses have; its excess over the normal bound shrinks with 1 / n, as Gaffke's does.
    further_loss
        Mean loss of the items to come; they spread as these do.
    """
    values = np.asarray(losses, dtype=np.float64).ravel()
    n, mean, spread = values.size, float(values.mean()), float(np.sqrt(np.mean(values**2)))
    sure, lucky = float(distributions.norm.isf(alpha)), float(distributions.norm.ppf(target))
    excess = 0.0 if upper is None else max(0.0, (upper - mean - sure * spread / math.sqrt(n)) * n)

    def enough(total: int) -> bool:
        rest = total - n
        expected = (n * mean + rest * further_loss + lucky * spread * math.sqrt(rest)) / total
        return expected + sure * spread / math.sqrt(total) + excess / total <= margin

    floor = max(n + 1, items_for_any_pass(margin, alpha), math.ceil(3 / margin))
    return _smallest(enough, floor, floor)


def underpowered(
    n: int,
    margin: float,
    *,
    discordance: float = DEFAULT_DISCORDANCE,
    target: float = 0.9,
    alpha: float = DEFAULT_ALPHA,
) -> str:
    """Say before the run that n items are too few, with the numbers that help; an empty string when they suffice."""
    reached = power(n, margin, discordance=discordance, alpha=alpha)
    if reached >= target:
        return ""
    need = items_needed(margin, discordance=discordance, target=target, alpha=alpha)
    best = smallest_margin(n, discordance=discordance, target=target, alpha=alpha)
    certify = "no margin" if best is None else f"a margin of {math.ceil(best * 1000) / 10:.1f} %"
    return (
        f"margin {margin:.1%} with {discordance:.1%} of answers differing needs {need} items for {target:.0%} power; "
        f"{n} available give {reached:.0%} and can certify {certify}"
    )
