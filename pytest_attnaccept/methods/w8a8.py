"""`w8a8`: int8 weights per output channel and int8 activations per token, multiplied as integers.

The dynamic scheme of LLM.int8()'s vector-wise quantization (Dettmers et al., 2022), SmoothQuant's "per-token dynamic"
setting (Xiao et al., 2022) and compressed-tensors' W8A8-INT8: symmetric codes -127 .. 127, one float32 scale per row.
Differences to the papers: no outlier split and no smoothing. On CPU the product is a real int8 matrix product (exact in
int32); elsewhere it is computed in float32 from the same codes, which is exact up to 1040 input features and within
float32 rounding above. Codes are stored as int8, so the bytes of the weights are really a half or a quarter.

The output head and the embedding are left alone; attention is computed in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.applied import Applied, knob
from pytest_attnaccept.methods.rounding import int8_rows
from pytest_attnaccept.methods.weights import requantized

__all__ = ["W8A8", "Int8Linear", "apply", "identity"]


class Int8Linear(nn.Module):
    """A linear layer with int8 weights per output channel and int8 activations per token."""

    codes: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        codes, scale = int8_rows(layer.weight.data)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer("codes", codes)  # (out, in) int8
        self.register_buffer("scale", scale.T.contiguous())  # (1, out) float32
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The weights that the codes stand for, (out, in) float32; for readers, not used in the product."""
        return self.codes.float() * self.scale.T

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b, (..., out), in the dtype of `x`."""
        codes, step = int8_rows(x)
        total = _product(codes.reshape(-1, self.in_features), self.codes)
        out = (total * self.scale).reshape(*x.shape[:-1], self.out_features) * step
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return left right^T of int8 matrices (n, in) and (out, in), float32."""
    if left.device.type == "cpu":
        return torch._int_mm(left, right.T).float()
    return left.float() @ right.float().T


@dataclass(frozen=True, slots=True, kw_only=True)
class W8A8:
    """Settings of the method; 16 bits: layers stay as they are."""

    bits: int = 8

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="w8a8", weights=lambda model: requantized(model, self._change, "w8a8"))

    def _change(self, name: str, layer: nn.Linear) -> nn.Module:
        return layer if self.bits >= 16 else Int8Linear(layer)


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method; it has no knobs."""
    bits = knob("w8a8", knobs, "bits", 8)
    if bits not in (8, 16):
        raise ContractError(f"w8a8: bits={bits} contradicts its name")
    return W8A8(bits=bits).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: 16 bits are the model's own layers."""
    return {**knobs, "bits": 16}
