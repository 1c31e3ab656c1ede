"""The planning model: what a step may cost and what a claimed gain may be, weights and KV in separate ledgers.

``t_step = (weights/q_w + L * kv_per_token/q_kv) / bandwidth / speculation``. Decimal GB and GB/s for
traffic, KiB and GiB for the ledger of a cache, as the field writes them. Weights and KV are divided by their own ratio
and added; the product of single gains is never formed, because it counts the same bytes twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_attnaccept.errors import UsageError

__all__ = ["Budget", "KvLedger", "budget_main", "crossover_tokens"]


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
            if not (0 < value < float("inf")):
                raise UsageError(f"budget: {name}={value!r} must be a positive number")
        if not 0 <= self.kv_gb < float("inf"):
            raise UsageError(f"budget: kv_gb={self.kv_gb!r} must not be negative")

    @property
    def moved_gb(self) -> float:
        """Return the GB that one step moves."""
        return self.weights_gb / self.weight_ratio + self.kv_gb / self.kv_ratio

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLedger:
    """Size of a KV cache: ``2 * layers * kv_heads * head_dim * bytes`` per token."""

    layers: int
    kv_heads: int
    head_dim: int
    value_bytes: float = 2.0

    @property
    def kib_per_token(self) -> float:
        """Return KiB per token of context."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.value_bytes / 1024

    def gib(self, tokens: int) -> float:
        """Return GiB at a context length."""
        return self.kib_per_token * tokens / 1024**2


def crossover_tokens(weights_gb: float, kib_per_token: float, weight_ratio: float, kv_ratio: float) -> float:
    """Return the resident tokens (batch x context) from which KV compression saves more time than weight compression."""
    if weight_ratio <= 1 or kv_ratio <= 1:
        raise UsageError("budget: the crossover needs --weight-ratio and --kv-ratio above 1")
    return weights_gb * 1e9 * (1 - 1 / weight_ratio) / (kib_per_token * 1024 * (1 - 1 / kv_ratio))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pytest_attnaccept budget", description="Step time, ledger and claims.")
    parser.add_argument("--weights-gb", type=float, required=True, help="weight bytes one step reads, decimal GB")
    parser.add_argument(
        "--kv-gb", type=float, help="KV bytes one step reads, decimal GB (or give the layout and --context)"
    )
    parser.add_argument("--bandwidth-gbs", type=float, required=True, help="memory bandwidth, decimal GB/s")
    parser.add_argument("--weight-ratio", type=float, default=1.0)
    parser.add_argument("--kv-ratio", type=float, default=1.0)
    parser.add_argument("--spec", type=float, default=1.0, help="tokens per step of speculative decoding")
    parser.add_argument("--context", type=int, help="tokens of context, for the ledger")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--head-dim", type=int)
    parser.add_argument("--kv-bytes", type=float, default=2.0, help="bytes per stored value (2 = fp16)")
    parser.add_argument(
        "--claim", type=float, help="a claimed speedup, checked against the ledger (exit 1 when above it)"
    )
    return parser


def budget_main(argv: Sequence[str]) -> int:
    """Run ``python -m pytest_attnaccept budget``; exit 0, 1 for a claim above the ledger, 2 for bad input."""
    args = _parser().parse_args(argv)
    ledger = _ledger(args)
    kv_gb = args.kv_gb
    if kv_gb is None:
        if ledger is None or args.context is None:
            raise UsageError("budget: give --kv-gb, or --layers, --kv-heads, --head-dim and --context")
        kv_gb = ledger.kib_per_token * 1024 * args.context * args.batch / 1e9
    budget = Budget(
        weights_gb=args.weights_gb,
        kv_gb=kv_gb,
        bandwidth_gbs=args.bandwidth_gbs,
        weight_ratio=args.weight_ratio,
        kv_ratio=args.kv_ratio,
        speculation=args.spec,
    )
    for line in _lines(budget, ledger, args):
        print(line)
    if args.claim is not None and budget.claim_exceeds(args.claim):
        print(f"claim {args.claim:g}x is above what the ledger allows ({budget.speedup:.2f}x): it counts bytes twice")
        return 1
    return 0


def _ledger(args: argparse.Namespace) -> KvLedger | None:
    sizes = (args.layers, args.kv_heads, args.head_dim)
    if all(s is None for s in sizes):
        return None
    if any(s is None or s < 1 for s in sizes):
        raise UsageError("budget: --layers, --kv-heads and --head-dim belong together and are positive")
    return KvLedger(layers=args.layers, kv_heads=args.kv_heads, head_dim=args.head_dim, value_bytes=args.kv_bytes)


def _lines(budget: Budget, ledger: KvLedger | None, args: argparse.Namespace) -> list[str]:
    rows = [
        ("baseline", Budget(weights_gb=budget.weights_gb, kv_gb=budget.kv_gb, bandwidth_gbs=budget.bandwidth_gbs)),
        ("with everything", budget),
    ]
    lines = [f"{'':<16} {'weights GB':>10} {'KV GB':>8} {'moved GB':>9} {'ms/token':>9} {'speedup':>8}"]
    for name, row in rows:
        lines.append(
            f"{name:<16} {row.weights_gb / row.weight_ratio:>10.3f} {row.kv_gb / row.kv_ratio:>8.3f}"
            f" {row.moved_gb:>9.3f} {row.step_ms:>9.3f} {row.speedup:>7.2f}x"
        )
    total = budget.weights_gb + budget.kv_gb
    lines.append(
        f"KV share of the baseline's bytes: {budget.kv_gb / total:.1%}; no split of bytes allows more than {budget.ceiling:.2f}x"
    )
    if ledger is not None:
        lines.append(f"KV ledger: {ledger.kib_per_token:g} KiB per token")
        if args.context is not None:
            lines[-1] += (
                f", {ledger.gib(args.context * args.batch):g} GiB at {args.context} tokens x batch {args.batch}"
            )
        if budget.weight_ratio > 1 and budget.kv_ratio > 1:
            tokens = crossover_tokens(budget.weights_gb, ledger.kib_per_token, budget.weight_ratio, budget.kv_ratio)
            lines.append(
                f"KV compression saves more time than weight compression from {tokens:,.0f} resident tokens (batch x context)"
            )
    return lines
