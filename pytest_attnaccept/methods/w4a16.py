"""`w4a16`: weights of the linear layers in 4 bits, activations as they are.

Format of GPTQ (Frantar et al., 2022) and AWQ (Lin et al., 2023) checkpoints: groups of neighbours of a weight row share a
float16 scale and, asymmetric, an integer zero point. Differences to the papers: the codes are plain rounding to nearest,
nothing is calibrated (`rounding`), and the product is computed as dequantize-then-multiply in the model's dtype, which is
what a fused kernel computes up to rounding. Bytes and speed are therefore not those of a packed checkpoint.

The output head and the embedding are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.applied import Applied, knob
from pytest_attnaccept.methods.rounding import rounded_groups, row_group
from pytest_attnaccept.methods.weights import requantized

__all__ = ["W4A16", "apply", "identity"]

_SCHEMES = ("asymmetric", "symmetric")


@dataclass(frozen=True, slots=True, kw_only=True)
class W4A16:
    """Settings of the method; 16 bits: weights stay as they are."""

    bits: int = 4
    group_size: int | None = None
    scheme: str = "asymmetric"

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="w4a16", weights=lambda model: requantized(model, self._change, "w4a16"))

    def _change(self, name: str, layer: nn.Linear) -> nn.Module:
        if self.bits >= 16:
            return layer
        weight = layer.weight.data
        group = row_group(int(weight.shape[1]), self.group_size, f"w4a16, {name}:")
        rounded = rounded_groups(weight, self.bits, group, symmetric=self.scheme == "symmetric")
        layer.weight = nn.Parameter(rounded, requires_grad=False)  # `layer` is the copy's own module
        return layer


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``group_size``, ``scheme``)."""
    bits, group = knob("w4a16", knobs, "bits", 4), knob("w4a16", knobs, "group_size", 0)
    scheme = knob("w4a16", knobs, "scheme", "asymmetric")
    if bits not in (4, 16):
        raise ContractError(f"w4a16: bits={bits} contradicts its name")
    if scheme not in _SCHEMES:
        raise ContractError(f"w4a16: scheme={scheme!r} must be 'asymmetric' or 'symmetric'")
    return W4A16(bits=bits, group_size=group or None, scheme=scheme).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: weights of 16 bits are the model's own."""
    return {**knobs, "bits": 16}
