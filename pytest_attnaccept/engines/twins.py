"""`mha_twin`: a GQA model with its KV heads repeated: the same function with the cache of multi-head attention.

Query head i of a model with g query heads per KV head reads KV head i // g, so repeating each KV projection g times changes
no number, and K and V of the copies are equal bit for bit.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from pytest_attnaccept.errors import EngineError

__all__ = ["mha_twin"]


def mha_twin(model: Any) -> Any:
    """Return a copy of `model` that has as many KV heads as query heads; other tensors are shared.

    Raises
    ------
    EngineError
        When the model is MHA already, or keeps its keys and values otherwise (latent, fused projections).
    """
    config = model.config.get_text_config(decoder=True)
    heads, kv_heads = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or kv_heads == heads or heads % kv_heads:
        raise EngineError(f"{type(model).__name__} has {kv_heads} KV heads for {heads} query heads: it has no MHA twin")
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    own = twin.config.get_text_config(decoder=True)
    own.num_key_value_heads = heads
    found = 0
    for module in twin.modules():
        if isinstance(getattr(module, "k_proj", None), nn.Linear) and isinstance(
            getattr(module, "v_proj", None), nn.Linear
        ):
            module.k_proj = _repeated(module.k_proj, kv_heads, heads // kv_heads)
            module.v_proj = _repeated(module.v_proj, kv_heads, heads // kv_heads)
            module.num_key_value_groups = 1
            if hasattr(module, "num_key_value_heads"):
                module.num_key_value_heads = heads
            found += 1
    if found != config.num_hidden_layers:
        raise EngineError(
            f"{type(model).__name__}: {found} of {config.num_hidden_layers} layers have k_proj and v_proj: its KV heads cannot"
            " be repeated"
        )
    return twin.eval()


def _repeated(layer: nn.Linear, kv_heads: int, times: int) -> nn.Linear:
    """Return the projection with each head's rows `times` times, one after the other."""
    weight = _rows(layer.weight.data, kv_heads, times)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias is not None, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        made.bias = nn.Parameter(_rows(layer.bias.data, kv_heads, times), requires_grad=False)
    return made


def _rows(tensor: torch.Tensor, kv_heads: int, times: int) -> torch.Tensor:
    """Repeat the rows (kv_heads * head_dim, ...) head by head; new storage."""
    by_head = tensor.reshape(kv_heads, -1, *tensor.shape[1:])
    return by_head.repeat_interleave(times, dim=0).reshape(-1, *tensor.shape[1:]).contiguous()
