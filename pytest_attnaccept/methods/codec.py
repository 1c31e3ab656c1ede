"""How quantized K and V are stored: packed codes with a scale and a lower bound per group, never quantized twice.

Differences to transformers' ``QuantizedCache``, each on purpose:

1. What is stored is what attention reads, in prefill too. ``QuantizedCache`` returns the unquantized prompt in the
   prefill, so a prefill never sees the loss; engines that write to a quantized cache (vLLM, llama.cpp) attend to it.
2. Codes are final. ``QuantizedCache`` dequantizes and quantizes everything again whenever its residual is full, and the
   loss grows with every flush.
3. With ``axis="token"`` a token is coded alone, so every call pattern stores the same bits.

``axis="token"``: groups of `group_size` values inside one head's vector. ``axis="channel"``: keys in groups of
`group_size` *tokens* per channel (KIVI), values per token; an incomplete group waits in full precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.claims import default_group

__all__ = ["Codec", "Coded", "decode", "encode", "pack", "unpack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Settings of a quantized store."""

    bits: int
    group_size: int | None = None
    residual: int = 0
    axis: str = "token"

    def group(self, head_dim: int, *, across_tokens: bool) -> int:
        """Return the group size for vectors of `head_dim` values."""
        if across_tokens:
            return self.group_size or 32
        size = self.group_size or default_group(head_dim)
        if head_dim % size:
            raise ContractError(
                f"kv{self.bits} group_size={size} does not divide the head dimension {head_dim} of this model;"
                f" use a divisor such as {default_group(head_dim, size)}"
            )
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """Coded tokens.

    ``codes`` (batch, heads, tokens, head_dim * bits / 8) uint8; ``scale`` and ``low`` float16, (batch, heads, tokens,
    groups) per token or (batch, heads, groups, head_dim) across tokens.
    """

    codes: Tensor
    scale: Tensor
    low: Tensor

    @property
    def tokens(self) -> int:
        """Number of coded tokens, from the tensor."""
        return int(self.codes.shape[2])


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return `codes` (..., n) uint8 below 2**bits as (..., n * bits / 8) bytes, first value in the lowest bits."""
    per_byte = 8 // bits
    if per_byte == 1:
        return codes
    if codes.shape[-1] % per_byte:
        raise ContractError(f"kv{bits}: {codes.shape[-1]} values per head do not fill whole bytes")
    parts = codes.reshape(*codes.shape[:-1], -1, per_byte)
    packed = parts[..., 0].clone()
    for place in range(1, per_byte):
        packed |= parts[..., place] << (bits * place)
    return packed


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return the inverse of `pack`."""
    per_byte = 8 // bits
    if per_byte == 1:
        return packed
    parts = [(packed >> (bits * place)) & (2**bits - 1) for place in range(per_byte)]
    return torch.stack(parts, dim=-1).flatten(-2)


def encode(x: Tensor, codec: Codec, *, across_tokens: bool) -> Coded:
    """Code `x` (batch, heads, tokens, head_dim); across tokens, `tokens` must be a multiple of the group.

    Scale and lower bound are rounded to float16 *before* the codes are chosen, so coding and decoding use the same
    grid. NaN and infinite inputs stay visible: they make scale and lower bound non-finite.
    """
    batch, heads, tokens, dim = x.shape
    size = codec.group(dim, across_tokens=across_tokens)
    shape = (batch, heads, tokens // size, size, dim) if across_tokens else (batch, heads, tokens, dim // size, size)
    axis = 3 if across_tokens else 4
    groups = x.to(torch.float32).reshape(shape)
    low = groups.amin(axis, keepdim=True).to(torch.float16)
    top = 2**codec.bits - 1
    scale = ((groups.amax(axis, keepdim=True) - low.float()) / top).to(torch.float16)
    step = torch.where(scale == 0, torch.ones_like(scale), scale).float()  # a constant group: every code is 0
    codes = ((groups - low.float()) / step).round().clamp(0, top).nan_to_num(0.0).to(torch.uint8)
    codes = pack(codes.reshape(x.shape), codec.bits)
    return Coded(codes=codes, scale=scale.squeeze(axis), low=low.squeeze(axis))


def decode(coded: Coded, codec: Codec, dtype: torch.dtype, *, across_tokens: bool) -> Tensor:
    """Return the values of `coded`, shape (batch, heads, tokens, head_dim)."""
    codes = unpack(coded.codes, codec.bits)
    batch, heads, tokens, dim = codes.shape
    axis = 3 if across_tokens else 4
    groups = coded.scale.shape[2] if across_tokens else coded.scale.shape[3]
    shape = (
        (batch, heads, groups, tokens // max(groups, 1), dim)
        if across_tokens
        else (batch, heads, tokens, groups, dim // groups)
    )
    values = codes.reshape(shape).float() * coded.scale.unsqueeze(axis).float() + coded.low.unsqueeze(axis).float()
    return values.reshape(codes.shape).to(dtype)
