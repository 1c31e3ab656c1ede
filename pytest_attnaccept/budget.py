"""The planning model: what a step may cost and what a claimed gain may be, weights and KV in separate ledgers.

``t_step = (weights/q_w + L * kv_per_token/q_kv) / bandwidth / speculation``. Decimal GB and GB/s for
traffic, KiB and GiB for the ledger of a cache, as the field writes them. Weights and KV are divided by their own ratio
and added; the product of single gains is never formed, because it counts the same bytes twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.kv_ledger import KvLedger

__all__ = ["Budget", "KvLedger", "budget_main", "crossover_tokens", "equal_reads_tokens"]

_LARGEST = 1e12  # no machine moves more GB, and no ratio is larger; beyond, a double overflows into inf and nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One decode step's traffic.

    Attributes
    ----------
    weights_gb, kv_gb
        Bytes that one step reads of weights and of KV, in decimal GB, before compression.
    bandwidth_gbs
        Memory bandwidth in decimal GB/s.
    weight_ratio, kv_ratio
        Compression of each ledger (2 = half the bytes).
    speculation
        Tokens per step (1 = no speculation).
    """

    weights_gb: float
    kv_gb: float
    bandwidth_gbs: float
    weight_ratio: float = 1.0
    kv_ratio: float = 1.0
    speculation: float = 1.0

    def __post_init__(self) -> None:
        for name in ("weights_gb", "bandwidth_gbs", "weight_ratio", "kv_ratio", "speculation"):
            value = getattr(self, name)
            if not 1 / _LARGEST <= value <= _LARGEST:
                raise UsageError(
                    f"budget: {_option(name)} ({name}={value!r}) must be a positive number of a machine, up to {_LARGEST:g}"
                )
        if not 0 <= self.kv_gb <= _LARGEST:
            raise UsageError(f"budget: --kv-gb (kv_gb={self.kv_gb!r}) must be a number that is not negative")

    @property
    def moved_gb(self) -> float:
        """Return the GB that one step moves."""
        return self.weights_gb / self.weight_ratio + self.kv_gb / self.kv_ratio

    @property
    def saved_gb(self) -> float:
        """Return the GB that compression saves, weights and KV added: the same bytes can be saved once only."""
        return self.weights_gb + self.kv_gb - self.moved_gb

    @property
    def naive(self) -> float:
        """Return the product of all ratios, which counts the same bytes several times."""
        return self.weight_ratio * self.kv_ratio * self.speculation

    @property
    def kv_share(self) -> float:
        """Return the share of KV in the bytes of the baseline's step."""
        return self.kv_gb / (self.weights_gb + self.kv_gb)

    @property
    def step_ms(self) -> float:
        """Return the effective time per token in milliseconds."""
        return self.moved_gb / self.bandwidth_gbs * 1e3 / self.speculation

    @property
    def baseline_ms(self) -> float:
        """Return the time per token without compression and speculation."""
        return (self.weights_gb + self.kv_gb) / self.bandwidth_gbs * 1e3

    @property
    def speedup(self) -> float:
        """Return how many times faster than the baseline a token is."""
        return self.baseline_ms / self.step_ms

    @property
    def ceiling(self) -> float:
        """Return the largest speedup that any split of the bytes allows: the better ratio times speculation."""
        return max(self.weight_ratio, self.kv_ratio) * self.speculation

    def claim_exceeds(self, claimed: float, tolerance: float = 0.02) -> bool:
        """Whether a claimed speedup is above what the ledger allows (2 % for rounding of published numbers)."""
        return claimed > self.speedup * (1 + tolerance)


def _option(name: str) -> str:
    return "--spec" if name == "speculation" else f"--{name.replace('_', '-')}"


def crossover_tokens(weights_gb: float, kib_per_token: float, weight_ratio: float, kv_ratio: float) -> float:
    """Return the resident tokens (batch x context) from which KV compression saves more time than weight compression."""
    if weight_ratio <= 1 or kv_ratio <= 1:
        raise UsageError("budget: the crossover needs --weight-ratio and --kv-ratio above 1")
    return weights_gb * 1e9 * (1 - 1 / weight_ratio) / (kib_per_token * 1024 * (1 - 1 / kv_ratio))


def equal_reads_tokens(
    weights_gb: float, kib_per_token: float, weight_ratio: float = 1.0, kv_ratio: float = 1.0
) -> float:
    """Return the resident tokens (batch x context) from which a step reads more KV than weights."""
    if not kib_per_token > 0:
        raise UsageError("budget: a model without KV never reads more KV than weights")
    return weights_gb * 1e9 / weight_ratio / (kib_per_token * 1024 / kv_ratio)


def budget_main(argv: Sequence[str]) -> int:
    """Run ``python -m pytest_attnaccept budget``; exit 0, 1 for a claim above the ledger, 2 for bad input."""
    from pytest_attnaccept.budget_report import run

    return run(argv)
