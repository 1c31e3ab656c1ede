"""How large the rounding error of a correct kernel is: the constants and the variance model of one contract.

Positions
---------
1. Errors of a correct kernel are independent roundings, so variances add; the model is written in unit roundoffs of what
   the contract says is rounded (scores, probabilities, output), never in a tolerance that somebody chose.
2. 0.4247 is the rms of round-to-nearest in units of half an ulp when the mantissa is log-uniform.
3. A fp16 probability below 2^-14 has an absolute spacing of 2^-24. Kernels that normalise before they round (eager
   attention) feel it on p itself, so the floor is taken there; it is the larger of the two legal places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_attnaccept.kernel.contract import KernelContract

__all__ = ["Precision", "as_dtype", "effective_dtype", "mantissa_bits", "precision_of", "put", "take", "ulp"]

LOG_UNIFORM_RMS = 0.4247
_BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23, torch.float64: 52}
_MIN_EXPONENT = {torch.bfloat16: -126, torch.float16: -14, torch.float32: -126, torch.float64: -1022}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Constants of the variance model.

    Attributes
    ----------
    p_relative
        Relative rms of the rounding of one probability.
    p_floor
        Absolute rms of that rounding (fp16 subnormals), else 0.
    s_relative
        Relative rms of the rounding of one score by ``score_dtype="input"``, else 0.
    half
        Whether q is bfloat16 or float16.
    """

    p_relative: float
    p_floor: float
    s_relative: float
    half: bool

    @property
    def scores_matter(self) -> bool:
        """Whether the rounding of scores is not far below that of probabilities (small outputs then show it)."""
        return self.s_relative > 0.0 or self.p_relative < 1e-4


def as_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called `name`."""
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch.{name} is not a dtype")
    return found


def mantissa_bits(dtype: torch.dtype) -> int:
    """Return the stored mantissa bits of `dtype`."""
    return _BITS[dtype]


def precision_of(contract: KernelContract) -> Precision:
    """Return the constants for what `contract` says the kernel rounds."""
    dtype = as_dtype(contract.dtype)
    half = dtype is not torch.float32
    # exp in fp32 is good to about two ulp; for half inputs this drowns in the rounding of P or of the output.
    p_relative = 2.0**-22
    p_floor = 0.0
    if half and contract.probability_dtype == "input":
        p_relative = LOG_UNIFORM_RMS * 2.0 ** -(mantissa_bits(dtype) + 1)
        p_floor = 2.0**-24 / 12**0.5 if dtype is torch.float16 else 0.0
    s_relative = 0.0
    if half and contract.score_dtype == "input":
        s_relative = LOG_UNIFORM_RMS * 2.0 ** -(mantissa_bits(dtype) + 1)
    return Precision(p_relative=p_relative, p_floor=p_floor, s_relative=s_relative, half=half)


def take(x: Tensor, *index: Tensor) -> Tensor:
    """Return ``x[index]``; one-byte floats go through their bits, which every device can index."""
    if x.element_size() == 1:
        return x.view(torch.uint8)[index].view(x.dtype)
    return x[index]


def put(x: Tensor, index: tuple[Tensor | slice, ...], values: Tensor) -> None:
    """Set ``x[index] = values`` in place, one-byte floats through their bits."""
    if x.element_size() == 1:
        x.view(torch.uint8)[index] = values.to(x.device).view(torch.uint8)
    else:
        x[index] = values.to(x.device)


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of `dtype` at each of `values` (any shape), float64."""
    _, exponent = torch.frexp(values.abs().double())
    return torch.ldexp(
        torch.ones_like(values, dtype=torch.float64), exponent.clamp_min(_MIN_EXPONENT[dtype] + 1) - 1 - _BITS[dtype]
    )


def effective_dtype(out: Tensor, q_dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which `out` was really written.

    A function may return a wider dtype than q; when every value fits a narrower one, that is where it was rounded.
    """
    for dtype in (q_dtype, torch.float32):
        if out.dtype is dtype or torch.equal(out.to(dtype).to(out.dtype).nan_to_num(), out.nan_to_num()):
            return dtype
    return out.dtype
