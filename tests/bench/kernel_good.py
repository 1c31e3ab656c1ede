"""Known-good attention implementations: SDPA backends, transformers eager, and emulations of legal orders."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.emulate import Habit, attend
from pytest_attnaccept.kernel.sdpa import adapt

HABITS: dict[str, Habit] = {
    "tile 32": Habit(tile=32),
    "tile 64": Habit(tile=64),
    "tile 128": Habit(tile=128),
    "tile 256": Habit(tile=256),
    "split-KV 3": Habit(tile=64, splits=3),
    "split-KV 8": Habit(tile=32, splits=8),
    "reversed": Habit(tile=64, reverse=True),
    "lazy rescale": Habit(tile=64, lazy=8.0),
    "exp2": Habit(tile=128, exp2=True),
    "float32 P": Habit(tile=128, round_p=False),
    "truncating accumulation": Habit(tile=16, truncate=True),
    "everything": Habit(tile=32, splits=2, reverse=True, lazy=6.0, exp2=True, truncate=True),
}


def backend(kind: SDPBackend | None) -> Callable[..., Any]:
    """Return SDPA with one backend; empty problems go to the default dispatch, which flash refuses."""

    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        keywords = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if kind is None or not key.shape[2] or not query.shape[2]:
            return F.scaled_dot_product_attention(query, key, value, **keywords)
        with sdpa_kernel([kind]):
            return F.scaled_dot_product_attention(query, key, value, **keywords)

    return call


def transformers_eager(call: AttentionCall) -> torch.Tensor:
    """Llama's eager attention of transformers with its additive finfo.min mask (square causal calls)."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    q_len, kv_len = call.q.shape[2], call.k.shape[2]
    module = SimpleNamespace(num_key_value_groups=call.q.shape[1] // call.k.shape[1], training=False)
    lowest = torch.finfo(call.q.dtype).min
    mask = torch.full((q_len, kv_len), lowest, dtype=call.q.dtype).triu(kv_len - q_len + 1)[None, None]
    out, _ = eager_attention_forward(module, call.q, call.k, call.v, mask, scaling=call.scale, dropout=0.0)
    return out.transpose(1, 2).contiguous()


def naive(call: AttentionCall) -> torch.Tensor:
    """Float32 softmax, P normalised and then rounded to q's dtype."""
    group = call.q.shape[1] // call.k.shape[1]
    k, v = (x.repeat_interleave(group, 1).float() for x in (call.k, call.v))
    s = call.q.float() @ k.mT * call.scale
    q_len, kv_len = s.shape[-2:]
    s = s.masked_fill(torch.ones(q_len, kv_len, dtype=torch.bool).triu(kv_len - q_len + 1), -torch.inf)
    p = torch.softmax(s, -1).nan_to_num(0.0).to(call.q.dtype)
    return (p.float() @ v).to(call.q.dtype)


def emulation(habit: Habit) -> Callable[[AttentionCall], tuple[torch.Tensor, torch.Tensor]]:
    """Return an emulated kernel as a function of one call."""
    return lambda call: attend(call, habit)


def flex(call: AttentionCall) -> torch.Tensor:
    """Compiled FlexAttention, causal, aligned bottom right.

    The offset is a tensor: as a number it would be compiled in, and after eight values torch runs the function uncompiled.
    """
    if "flex" not in _COMPILED:
        _COMPILED["flex"] = torch.compile(_flex, dynamic=True)
    start = torch.tensor(call.k.shape[2] - call.q.shape[2])
    return _COMPILED["flex"](call.q, call.k, call.v, start, call.scale)


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor, scale: float) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    def score_mod(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, row: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return torch.where(key <= row + start, score, -float("inf"))

    return flex_attention(q, k, v, score_mod=score_mod, scale=scale, enable_gqa=True)


_COMPILED: dict[str, Any] = {}
__all__ = ["HABITS", "adapt", "backend", "emulation", "flex", "naive", "transformers_eager"]
