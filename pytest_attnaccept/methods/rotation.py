"""How stored rotary keys are moved to other positions: turned by the difference, with the model's own rotary embedding.

A key that is stored at position p and turned by d positions is the key at p + d; so an entry behind which others were
evicted moves towards the newest one, and queries and recent keys keep the positions of the text: only differences count.

Position: what is not known to compose (several embeddings, frequencies that depend on the length, layers without one) is
refused, and the function itself is tried on random values first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.errors import EngineError

__all__ = ["Move", "mover"]

# (keys, values, how far each of the first entries moves) -> keys and values with those entries moved
Move = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Turn = Callable[[Tensor, Tensor], Tensor]

_LENGTH_DEPENDENT = ("dynamic", "longrope")


def mover(model: Any, method: str) -> Move:
    """Return the function that moves the first entries of a layer of `model`; the model is looked at when it is called."""
    turns: list[Turn] = []

    def move(keys: Tensor, values: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        if not turns:
            turns.append(_turn(model, method))
        count = int(by.shape[0])
        in_values, first, width = _rotary_part(model, keys, values, method)
        target = values if in_values else keys
        head, tail = target[:, :, :count].clone(), target[:, :, count:]
        part = slice(first, first + width)
        head[..., part] = turns[0](head[..., part], by)
        moved = torch.cat([head, tail], dim=2)
        return (keys, moved) if in_values else (moved, values)

    return move


def _rotary_part(model: Any, keys: Tensor, values: Tensor, method: str) -> tuple[bool, int, int]:
    """Return (in the values?, first channel, channels) of what is rotated in a stored entry."""
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "qk_rope_head_dim", None)
    if rope is None:
        return False, 0, 2 * int(_rotary(model, method).inv_freq.shape[0])
    if keys.shape[-1] == config.kv_lora_rank and values.shape[-1] == rope:
        return True, 0, rope  # latents as keys, the shared rotary key as values
    if keys.shape[-1] == config.qk_nope_head_dim + rope:
        return False, config.qk_nope_head_dim, rope
    raise _refusal(method, f"stores keys of {keys.shape[-1]} and values of {values.shape[-1]} channels")


def _rotary(model: Any, method: str) -> Any:
    found = getattr(model.base_model, "rotary_emb", None)
    if found is None or getattr(found, "inv_freq", None) is None:
        raise _refusal(method, "has no rotary embedding of one kind")
    if getattr(found, "rope_type", "default") in _LENGTH_DEPENDENT:
        raise _refusal(method, f"has rotary frequencies that depend on the length ({found.rope_type})")
    config = model.config.get_text_config(decoder=True)
    if not all(getattr(config, "no_rope_layers", None) or [1]):
        raise _refusal(method, "has layers without rotary embedding")
    return found


def _refusal(method: str, why: str) -> EngineError:
    return EngineError(
        f"{method} moves stored keys to their positions inside the cache, and this model {why}; use positions='text'"
    )


def _turn(model: Any, method: str) -> Turn:
    rotary = _rotary(model, method)
    apply = getattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", None)
    if apply is None:
        raise _refusal(method, "has no apply_rotary_pos_emb next to its class")

    def turn(x: Tensor, by: Tensor) -> Tensor:
        values = x.float()
        cos, sin = rotary(values, by[None])
        strength = float(getattr(rotary, "attention_scaling", 1.0))  # is in the stored key already
        turned: Tensor = apply(values, values, cos / strength, sin / strength)[1]
        return turned.to(x.dtype)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1, 1, 2 * int(rotary.inv_freq.shape[0]), generator=generator).to(rotary.inv_freq.device)
    seven, eleven = (torch.tensor([n], device=x.device) for n in (7, 11))
    if not torch.allclose(turn(turn(x, seven), eleven), turn(x, seven + eleven), atol=1e-4):
        raise _refusal(method, "has a rotary embedding that does not compose")
    return turn
