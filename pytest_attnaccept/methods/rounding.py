"""How weights and activations are rounded to integers: groups of a row for weights, one scale per row or token for int8.

Differences to what GPTQ, AWQ and friends do, on purpose: nothing is calibrated. Plain rounding to nearest is what every
tool starts from and the worst of its class, so a gate that passes it says something about the format, not about a recipe.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_attnaccept.errors import ContractError

__all__ = ["int8_rows", "rounded_groups", "row_group"]

_FIELD_GROUP = 128  # what GPTQ, AWQ and compressed-tensors checkpoints use by default


def row_group(width: int, wanted: int | None, method: str) -> int:
    """Return the group size for rows of `width` weights.

    `wanted` None: the largest power of two up to 128 that divides the row, or the whole row where it has no such divisor.
    A row that is shorter than the group is one group.
    """
    if wanted is None:
        size = _FIELD_GROUP
        while size > 1 and width % size:
            size //= 2
        return size if size > 1 else width
    if wanted >= width:
        return width
    if width % wanted:
        raise ContractError(
            f"{method} group_size={wanted} does not divide a weight row of {width} values;"
            f" use a divisor such as {row_group(width, None, method)}"
        )
    return wanted


def rounded_groups(weight: Tensor, bits: int, group: int, *, symmetric: bool) -> Tensor:
    """Return `weight` (out, in) rounded to 2**bits levels in each group of `group` neighbours of a row.

    The scale is rounded to float16 first, as it is stored, so the levels are those of a checkpoint. Asymmetric: the grid
    reaches from the smaller of 0 and the minimum to the larger of 0 and the maximum and contains 0. Symmetric: codes
    -2**(bits-1) .. 2**(bits-1) - 1. Returns the dtype of `weight`; NaN and infinity stay visible.
    """
    rows, width = weight.shape
    groups = weight.float().reshape(rows, width // group, group)
    if symmetric:
        low, top = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        scale = groups.abs().amax(-1, keepdim=True) / top
    else:
        low, top = 0, 2**bits - 1
        bottom = groups.amin(-1, keepdim=True).clamp(max=0)
        scale = (groups.amax(-1, keepdim=True).clamp(min=0) - bottom) / top
    scale = scale.to(torch.float16).float()
    step = torch.where(scale == 0, torch.ones_like(scale), scale)  # a group of zeros
    zero = torch.zeros_like(step) if symmetric else (-bottom / step).round()
    codes = ((groups / step).round() + zero).clamp(low, top)
    return ((codes - zero) * step).reshape(rows, width).to(weight.dtype)


def int8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes of the shape of `x` and one float32 scale per last-axis row, shape (..., 1); symmetric.

    NaN and infinity make the scale of their row non-finite, so they stay visible.
    """
    values = x.float()
    scale = values.abs().amax(-1, keepdim=True) / 127.0
    step = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = (values / step).round().clamp(-127, 127).nan_to_num(0.0).to(torch.int8)
    return codes, scale
