"""Where one layer keeps K (or V): an optional coded part for the older tokens and a full-precision tail.

Nothing else is kept: the original of what was coded or evicted is gone, which is what the footprint check reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.codec import Codec, Coded, decode, encode

__all__ = ["Store"]


@dataclass(slots=True, kw_only=True)
class Store:
    """Keys or values of one layer, shape (batch, heads, tokens, head_dim), oldest first.

    ``codec`` None stores everything in the tail. ``across_tokens``: groups span tokens (keys of ``axis="channel"``).
    """

    codec: Codec | None
    across_tokens: bool = False
    tail: Tensor | None = None
    coded: Coded | None = None

    @property
    def tokens(self) -> int:
        """Stored entries, counted from the tensors."""
        return (self.coded.tokens if self.coded else 0) + (0 if self.tail is None else int(self.tail.shape[2]))

    def append(self, new: Tensor) -> None:
        """Add `new` (batch, heads, n, head_dim) and code what is older than the residual."""
        # cat copies: the new states are often a view into a wider projection whose storage must not stay alive
        self.tail = torch.cat([new] if self.tail is None else [self.tail, new], dim=2)
        if self.codec is not None:
            self._flush(self.tail.shape[2] - self.codec.residual)

    def read(self) -> Tensor:
        """Return what attention sees: decoded values and the tail."""
        if self.tail is None:
            raise ContractError("an empty cache layer was read")
        if self.coded is None or self.codec is None:
            return self.tail
        old = decode(self.coded, self.codec, self.tail.dtype, across_tokens=self.across_tokens)
        return torch.cat([old, self.tail], dim=2)

    def gather(self, keep: Tensor) -> None:
        """Keep only the entries `keep`, of shape (n,) or (batch, heads, n), ascending."""
        if self.tail is None:
            return
        if self.coded is None:
            self.tail = _select(self.tail, keep)
            return
        if self.across_tokens:
            raise ContractError(
                "axis='channel' shares a scale among neighbouring tokens, so an eviction in the same stack would break"
                " its groups; use axis='token'"
            )
        self._gather_coded(keep)

    def _gather_coded(self, keep: Tensor) -> None:
        """Gather where an older part is coded; the tail survives whole, or it is coded before it is cut."""
        if self.tail is None or self.coded is None:
            return
        waiting, first = int(self.tail.shape[2]), self.coded.tokens
        whole = waiting == 0 or (keep.shape[-1] >= waiting and bool((keep[..., -waiting:] >= first).all()))
        if not whole:
            self._flush(waiting)
            waiting = 0
        old = keep[..., : keep.shape[-1] - waiting]
        self.coded = Coded(
            codes=_select(self.coded.codes, old), scale=_select(self.coded.scale, old), low=_select(self.coded.low, old)
        )

    def _flush(self, count: int) -> None:
        """Code the `count` oldest tokens of the tail (whole groups only where groups span tokens)."""
        if self.codec is None or self.tail is None or self.codec.bits >= 16:
            return
        if self.across_tokens:
            size = self.codec.group(int(self.tail.shape[3]), across_tokens=True)
            count -= count % size
        if count <= 0:
            return
        fresh = encode(self.tail[:, :, :count], self.codec, across_tokens=self.across_tokens)
        if self.coded is not None:
            fresh = Coded(
                codes=torch.cat([self.coded.codes, fresh.codes], dim=2),
                scale=torch.cat([self.coded.scale, fresh.scale], dim=2),
                low=torch.cat([self.coded.low, fresh.low], dim=2),
            )
        self.coded = fresh
        self.tail = self.tail[:, :, count:].clone()  # clone: a view would keep the original's storage alive


def _select(x: Tensor, keep: Tensor) -> Tensor:
    """Pick entries of `x` (batch, heads, tokens, width) along the tokens, into new storage."""
    if keep.dim() == 1:
        return x.index_select(2, keep)
    return x.gather(2, keep[..., None].expand(*keep.shape, x.shape[3]))
