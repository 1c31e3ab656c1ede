"""Whether values lie on a grid of few levels: what quantized weights must look like, whoever wrote them.

A group with more values than levels is counted; a group that is too small for that (or 8 bits) must lie on a uniform
grid through zero, or on the E4M3 grid of one scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["on_few_levels"]

_INFORMATIVE = 8  # policy: values that must be able to contradict a grid before a match counts
_TOLERANCE = 0.25  # of a step; a value whose own rounding is larger says nothing
_SAMPLE = 16  # groups for which every step is tried; a module is coded as a whole or not


def on_few_levels(groups: Tensor, bits: int, eps: float) -> Tensor:
    """Return which `groups` (n, size) show at most 2**bits levels, boolean (n,).

    `eps` is the relative rounding of the values' dtype. Groups of zeros are on every grid.
    """
    values = groups.float()
    levels = 2**bits
    if values.shape[1] >= 2 * levels:
        return distinct(values).le(levels)
    found = values.abs().amax(1) == 0
    for steps in _likely(bits):
        found |= _on_uniform(values, steps, levels, eps)
    if bits == 8:
        found |= _on_e4m3(values, eps)
    left = (~found).nonzero()[:, 0]
    if len(left) == 0:
        return found
    some = left[:: max(1, len(left) // _SAMPLE)]
    matched = torch.zeros(len(some), dtype=torch.bool, device=values.device)
    for steps in range(1, levels):
        matched |= _on_uniform(values[some], steps, levels, eps)
    if bool(matched.all()):  # all that were tried: then the others are of the same kind
        found[left] = True
    else:
        found[some] = matched
    return found


def distinct(values: Tensor) -> Tensor:
    """Return how many different values each row of `values` (n, size) holds, up to float noise of its largest one."""
    ordered = values.sort(dim=1).values
    noise = 1e-6 * values.abs().amax(1, keepdim=True)
    return 1 + (ordered.diff(dim=1) > noise).sum(1)


def _likely(bits: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1)))


def _on_uniform(values: Tensor, steps: int, levels: int, eps: float) -> Tensor:
    """Return which rows are multiples of (largest magnitude / steps) and span at most `levels` of them."""
    codes = values * steps / values.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    few = codes.amax(1) - codes.amin(1) < levels - 0.5
    return few & _agree((codes - codes.round()).abs(), 1e-3 + eps * codes.abs())


def _on_e4m3(values: Tensor, eps: float) -> Tensor:
    """Return which rows are E4M3 values of the scale at which their largest magnitude is 448."""
    codes = values * 448.0 / values.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    nearest = codes.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    step = torch.exp2(torch.floor(torch.log2(codes.abs().clamp(min=2**-6))) - 3)
    return _agree((codes - nearest).abs() / step, 1e-3 + eps * codes.abs() / step)


def _agree(error: Tensor, tolerance: Tensor) -> Tensor:
    """Return which rows have no informative value off the grid, and enough informative ones."""
    informative = tolerance < _TOLERANCE
    return ((error <= tolerance) | ~informative).all(1) & (informative.sum(1) >= _INFORMATIVE)
