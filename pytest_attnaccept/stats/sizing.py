"""A profile is sized by the probability that a harmless change passes all of its gates at once.

Harmless means: no true loss, 4 % of the answers differing. That must pass a whole profile with probability 0.98 or more
(DESIGN rule 3.4). Gates that share items agree more often than independent ones, so the product over gates is a
conservative figure; the union bound, which needs no assumption at all, is given beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.stats.characteristics import operating_characteristics
from pytest_attnaccept.stats.clustered import MIN_DOCUMENTS
from pytest_attnaccept.stats.decision import DEFAULT_ALPHA
from pytest_attnaccept.stats.floors import MIN_CLUSTERS, items_for_any_pass
from pytest_attnaccept.stats.paired import p_pass_scores
from pytest_attnaccept.stats.planning import DEFAULT_DISCORDANCE, items_needed, power
from pytest_attnaccept.stats.sequential import LOOKS, plan_looks

__all__ = ["PROFILE_TARGET", "GatePlan", "ProfilePower", "gate_power", "items_for_profile", "profile_power"]

PROFILE_TARGET = 0.98
"""Required probability that a harmless change passes a profile (DESIGN rule 3.4)."""

_KINDS = ("binary", "sequential", "clusters", "tokens", "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePlan:
    """One gate of a profile, or ``count`` gates of the same size.

    Attributes
    ----------
    kind
        "binary": n items; "sequential": n is n_max of the planned looks; "clusters": n contexts of ``cluster_size``
        questions; "tokens": n documents whose means spread with ``spread``; "fixed": a deterministic comparison with
        false alarm probability ``spread``.
    margin
        Accuracy as a fraction, or nats per token for "tokens".
    correlation
        Correlation of the answers within a cluster (beta-binomial mixing of the discordance).
    fractions
        Looks of a sequential gate.
    """

    name: str
    kind: str
    n: int
    margin: float = math.nan
    count: int = 1
    discordance: float = DEFAULT_DISCORDANCE
    spread: float = 0.0
    cluster_size: int = 1
    correlation: float = 0.3
    alpha: float = DEFAULT_ALPHA
    fractions: tuple[float, ...] = LOOKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePower:
    """How often a harmless change passes.

    Attributes
    ----------
    probability
        Product over all gates (independent gates: the worst case of gates that agree positively).
    at_least
        Union bound, valid for any dependence.
    gates
        Name and probability of each gate plan, worst first; ``count`` of them enter the product.
    """

    probability: float
    at_least: float
    gates: tuple[tuple[str, float, int], ...]

    @property
    def sufficient(self) -> bool:
        """Whether the profile reaches the target."""
        return self.probability >= PROFILE_TARGET


def gate_power(gate: GatePlan, *, seed: int = 0, repetitions: int = 400) -> float:
    """Give the probability that a harmless change passes one gate: exact, except for clusters (simulated)."""
    if gate.kind not in _KINDS:
        raise ContractError(f"kind = {gate.kind!r} of gate {gate.name!r} is unknown; allowed: {', '.join(_KINDS)}")
    if gate.kind == "fixed":
        return 1.0 - gate.spread
    if gate.kind == "binary":
        return power(gate.n, gate.margin, discordance=gate.discordance, alpha=gate.alpha)
    if gate.kind == "sequential":
        plan = plan_looks(gate.n, gate.margin, alpha_pass=gate.alpha, fractions=gate.fractions)
        return operating_characteristics(plan, gate.discordance / 2, gate.discordance / 2).passes
    if gate.kind == "tokens":
        return _token_power(gate)
    return _cluster_power(gate, seed, repetitions)


def _token_power(gate: GatePlan) -> float:
    """Power of the t bound over documents at zero loss (noncentral t)."""
    if gate.n < MIN_DOCUMENTS or not gate.spread > 0:
        return 0.0
    shift = -gate.margin * math.sqrt(gate.n) / gate.spread
    if shift < -35:  # beyond the range of the noncentral t in double precision; the bound passes surely
        return 1.0
    return float(distributions.nct.cdf(distributions.t(gate.n - 1).ppf(gate.alpha), gate.n - 1, shift))


def _cluster_power(gate: GatePlan, seed: int, repetitions: int) -> float:
    """Simulate contexts whose questions differ together, and count the PASS verdicts."""
    rng = np.random.default_rng(seed)
    q, rho = gate.discordance, min(max(gate.correlation, 1e-6), 0.999)
    strength = (1 - rho) / rho
    if gate.n < max(items_for_any_pass(gate.margin, gate.alpha), MIN_CLUSTERS if gate.cluster_size > 1 else 1):
        return 0.0
    passed = 0
    for _ in range(repetitions):
        rate = rng.beta(q * strength, (1 - q) * strength, size=gate.n) if q > 0 else np.zeros(gate.n)
        differing = rng.binomial(gate.cluster_size, rate)
        lost = rng.binomial(differing, 0.5)
        losses = (2 * lost - differing) / gate.cluster_size
        passed += p_pass_scores(losses, gate.margin) < gate.alpha
    return passed / repetitions


def profile_power(gates: Sequence[GatePlan], *, seed: int = 0, repetitions: int = 400) -> ProfilePower:
    """Combine the gates of a profile."""
    if not gates:
        raise ContractError("a profile without gates passes nothing")
    each = [(gate.name, gate_power(gate, seed=seed, repetitions=repetitions), gate.count) for gate in gates]
    return ProfilePower(
        probability=math.prod(p**count for _, p, count in each),
        at_least=max(0.0, 1.0 - sum((1 - p) * count for _, p, count in each)),
        gates=tuple(sorted(each, key=lambda row: row[1])),
    )


def items_for_profile(
    margin: float,
    gates: int,
    *,
    discordance: float = DEFAULT_DISCORDANCE,
    target: float = PROFILE_TARGET,
    alpha: float = DEFAULT_ALPHA,
) -> int | None:
    """Give the items per gate at which ``gates`` equal gates pass together with the target probability."""
    if gates < 1:
        raise ContractError(f"a profile has at least one gate, not {gates}")
    return items_needed(margin, discordance=discordance, target=target ** (1 / gates), alpha=alpha)
