"""How the coded caches of this package are rolled back after rejected drafts, and which of them cannot be.

Rolling back must leave no trace: the cache has to be the one in which the removed tokens never were. That holds where each
token is coded on its own and at once. It does not where tokens were evicted, where scales are shared across tokens
(``axis="channel"``), or where a full-precision tail was coded to make room for the tokens that are taken back.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_attnaccept.errors import EngineError
from pytest_attnaccept.methods.layer import PolicyLayer

__all__ = ["CodedLayer", "make_croppable"]


class CodedLayer(PolicyLayer):
    """A layer without eviction whose last tokens can be taken back."""

    is_croppable = True

    def crop(self, *args: Any) -> None:
        """Remove tokens: a negative number is how many, a positive one (older transformers) is how many stay."""
        number = int(args[0])
        stored = self.key_store.tokens
        keep = stored + number if number <= 0 else min(number, stored)
        if keep == stored:
            return
        if keep < 0:
            raise EngineError(f"layer {self.layer_idx}: {-number} of {stored} tokens cannot be taken back")
        for store in (self.key_store, self.value_store):
            waiting = 0 if store.tail is None else int(store.tail.shape[2])
            coded = store.tokens - waiting
            kept = torch.arange(keep, device=self.device)
            if keep < coded and store.coded is not None:
                store.gather(kept)
            elif store.tail is not None:
                store.tail = store.tail[:, :, : keep - coded].clone()  # clone: a view keeps what was rejected alive
        self.seen = keep


def make_croppable(cache: Any) -> Any:
    """Return `cache` with its coded layers made croppable where that leaves no trace; other caches are left alone.

    Raises
    ------
    EngineError
        When a layer of this package has evicted entries or codes that depend on the tokens to be taken back.
    """
    for layer in getattr(cache, "layers", ()):
        if type(layer) is not PolicyLayer:
            continue
        if layer.policy is not None:
            raise EngineError("evicted entries cannot be rolled back after rejected drafts")
        codec = layer.codec
        if codec is not None and (codec.residual or codec.axis == "channel"):
            raise EngineError(
                "a cache with a full-precision tail (residual) or scales across tokens (axis='channel') codes older tokens"
                " to make room for drafts, and cannot be rolled back without a trace"
            )
        layer.__class__ = CodedLayer
    return cache
