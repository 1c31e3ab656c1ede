"""`fp8_attention`: Q, K, V and P in E4M3, products and softmax in float32, as FlashAttention-3 does it in FP8.

Shah et al., 2024 (FlashAttention-3). ``granularity``: one scale per "tensor" (of a row of the batch), per "head", or per
"block" of 64 tokens of a head (their block quantization). Emulated with rounded float32 values through the attention
interface, on CPU and GPU alike; on CUDA the device must be one that could run the kernel (8.9 or higher).

Differences to the paper: scales are powers of two, the softmax is not tiled (both in `e4m3`), there is no incoherent
processing (random rotation of Q and K), and the cache keeps its own format (add ``kv8`` for that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.methods.applied import Applied, knob
from pytest_attnaccept.methods.e4m3 import attention

__all__ = ["FP8Attention", "apply", "identity"]

_GRANULARITIES = ("tensor", "head", "block", "none")
# arguments of attention functions that change its formula; what is not known here must not be dropped silently
_UNSUPPORTED = ("softcap", "s_aux", "sinks", "position_bias", "head_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class FP8Attention:
    """Settings of the method; "none" rounds nothing."""

    granularity: str = "tensor"

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="fp8_attention", candidate=Candidate(attn_implementation=self._registered()))

    def _registered(self) -> str:
        """Register the attention function (process-wide, additive) with the mask function of sdpa; return its name."""
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

        name = f"e4m3_{self.granularity}"
        AttentionMaskInterface.register(name, sdpa_mask)
        AttentionInterface.register(name, _function(self.granularity))
        return name


def _function(granularity: str) -> Callable[..., tuple[Tensor, None]]:
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        for name in _UNSUPPORTED:
            if kwargs.get(name) is not None:
                raise EngineError(
                    f"fp8_attention does not emulate {name}, which {type(module).__name__} uses; pass the real kernel:"
                    " accept.model(candidate=Candidate(attn_implementation=...))"
                )
        if attention_mask is None and not getattr(module, "is_causal", True):
            raise EngineError(f"fp8_attention emulates causal attention; {type(module).__name__} is not causal")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = attention(query, key, value, attention_mask, scale, granularity)
        return out.transpose(1, 2).contiguous().to(query.dtype), None

    return attend


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``granularity``)."""
    granularity = knob("fp8_attention", knobs, "granularity", "tensor")
    if granularity not in _GRANULARITIES:
        raise ContractError(f"fp8_attention: granularity={granularity!r} must be 'tensor', 'head' or 'block'")
    return FP8Attention(granularity=granularity).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change but the order of float32 sums: nothing is rounded to E4M3."""
    return {**knobs, "granularity": "none"}
