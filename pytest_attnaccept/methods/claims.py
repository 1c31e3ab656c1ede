"""What a method promises about cache and weights, read from its knobs alone: how many entries, how many bits, from where on.

The claim is independent of the code that applies the method, so a candidate of the user's own is held to the same
promise as ours: ``h2o`` with ``kv_budget=0.25`` keeps a quarter of the context's entries, whoever wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Claim", "budget_entries", "claim_of", "combine", "default_group"]

# Scale and zero point of a group, at most two float32 (KIVI, quanto and hqq store 16 or 32 bits each).
_PARAMETER_BITS = 64.0
_ON_WEIGHTS: Mapping[str, tuple[int, int | None]] = {"w4a16": (4, None), "w8a8": (8, 8)}
_DEFAULT_GROUP = 32  # the smallest group of common KV quantizers when the mark names none: the loosest honest claim


def budget_entries(kv_budget: float | int, tokens: int) -> int:
    """Return how many entries a budget keeps of `tokens`: a float is a share (rounded up), an int a number.

    >>> budget_entries(0.25, 10), budget_entries(6, 10), budget_entries(6, 4)
    (3, 6, 4)
    """
    if isinstance(kv_budget, float):
        kept = math.ceil(kv_budget * tokens - 1e-9)  # 0.1 * 30 is 3.0000000000000004 in binary: that is 3 entries
    else:
        kept = int(kv_budget)
    return max(1, min(tokens, kept))


def default_group(head_dim: int, wanted: int = 64) -> int:
    """Return the largest divisor of `head_dim` that is at most `wanted` (a group must not straddle two heads)."""
    return next(size for size in range(min(wanted, head_dim), 0, -1) if head_dim % size == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A promise about the stored cache and the weights.

    Attributes
    ----------
    budget
        Share (float) or number (int) of entries per layer; None: every entry is kept.
    per_layer
        Whether the budget holds for every layer; False: for the mean over the layers.
    bits
        Bits of a stored value, without the parameters of its group; None: the model's dtype.
    group_size
        Values that share a scale and a zero point.
    full_precision
        Most recent tokens that may stay in the model's dtype.
    weight_bits, activation_bits
        Bits of a weight and of an activation of the linear layers; None: the model's dtype.
    weight_group
        Neighbours of a weight row that share a scale; None: not said (per row, or any group).
    attention
        Whether every attention layer computes something else than the baseline's.
    always
        Whether the method acts at every length (weights, kernels): then a bit-identical run is a no-op at once.
    source
        Method and knobs in words, for messages.
    """

    budget: float | int | None = None
    per_layer: bool = True
    bits: float | None = None
    group_size: int = _DEFAULT_GROUP
    full_precision: int = 0
    weight_bits: int | None = None
    activation_bits: int | None = None
    weight_group: int | None = None
    attention: bool = False
    always: bool = False
    source: str = ""

    @property
    def about_kv(self) -> bool:
        """Whether anything is promised about the cache."""
        return self.budget is not None or self.bits is not None

    def entries(self, context: int, continuation: int = 0) -> int:
        """Return the most entries a layer may hold after `context` tokens and `continuation` further ones.

        A share is a share of the *context*; what follows it (question, answer) may be kept whole. A number is a number.
        """
        if self.budget is None:
            return context + continuation
        if isinstance(self.budget, float):
            return budget_entries(self.budget, context) + continuation
        return min(self.budget, context + continuation)

    def stored_bits(self, model_bits: int) -> float:
        """Return the most bits per stored value, parameters of its group included."""
        if self.bits is None:
            return float(model_bits)
        return min(float(model_bits), self.bits + _PARAMETER_BITS / self.group_size)

    def missing_tokens(self, tokens: int) -> int:
        """Return the context that the knobs need in order to act, or 0 when `tokens` is enough."""
        needed = 0
        if isinstance(self.budget, int) and self.budget >= tokens:
            needed = self.budget
        if isinstance(self.budget, float) and budget_entries(self.budget, tokens) >= tokens and self.budget < 1.0:
            needed = max(needed, math.ceil(1.0 / (1.0 - self.budget)))
        if self.bits is not None and self.full_precision >= tokens:
            needed = max(needed, self.full_precision)
        return needed

    @property
    def is_identity(self) -> bool:
        """Whether the knobs ask for no change at any length."""
        keeps_all = self.budget is None or (isinstance(self.budget, float) and self.budget >= 1.0)
        return keeps_all and self.bits is None and not self.always


def claim_of(name: str, knobs: Mapping[str, object]) -> Claim:
    """Return the promise of the method called `name` with `knobs` (complete settings; None: not set)."""
    given = {key: value for key, value in knobs.items() if value is not None}
    source = f"{name}({', '.join(f'{k}={v}' for k, v in sorted(given.items()))})"
    if name in _ON_WEIGHTS:
        weight_bits, activation_bits = _ON_WEIGHTS[name]
        group = _integer(given.get("group_size"), 0) or None
        return Claim(
            weight_bits=weight_bits, activation_bits=activation_bits, weight_group=group, always=True, source=source
        )
    bits = given.get("bits", int(name[2:]) if name.startswith("kv") and name[2:].isdigit() else None)
    if bits is not None:
        group = _integer(given.get("group_size"), _DEFAULT_GROUP)
        waiting = group if given.get("axis") == "channel" else 0
        residual = _integer(given.get("residual"), 0)
        return Claim(bits=float(str(bits)), group_size=group, full_precision=residual + waiting, source=source)
    budget = given.get("kv_budget")
    if isinstance(budget, (int, float)) and not isinstance(budget, bool):
        return Claim(budget=budget, per_layer=name != "pyramidkv", source=source)
    window = given.get("window")
    if isinstance(window, int):
        return Claim(budget=window + _integer(given.get("sinks"), 0), source=source)
    return Claim(always=True, attention=name == "fp8_attention", source=source)


def _integer(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def combine(claims: Iterable[Claim]) -> Claim:
    """Return the promise of a stack: the smallest budget and the fewest bits hold together."""
    total = Claim()
    for claim in claims:
        budgets = [b for b in (total.budget, claim.budget) if b is not None]
        coded = min((c for c in (total, claim) if c.bits is not None), key=lambda c: c.bits or 0.0, default=total)
        on_weights = claim if claim.weight_bits is not None else total
        # A share and a number cannot be ordered without a length; the later one is kept and both are applied.
        same = len({type(b) for b in budgets}) == 1
        total = Claim(
            budget=(min(budgets) if same else budgets[-1]) if budgets else None,
            per_layer=total.per_layer and claim.per_layer,
            bits=coded.bits,
            group_size=coded.group_size,
            full_precision=coded.full_precision,
            weight_bits=on_weights.weight_bits,
            activation_bits=on_weights.activation_bits,
            weight_group=on_weights.weight_group,
            attention=total.attention or claim.attention,
            always=total.always or claim.always,
            source=" + ".join(filter(None, (total.source, claim.source))),
        )
    return total
