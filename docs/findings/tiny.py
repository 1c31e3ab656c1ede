"""Tiny random models whose attention and logits are far from uniform, and one forward with explicit positions."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import transformers

transformers.logging.set_verbosity_error()
warnings.simplefilter("ignore")
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def build(name: str, **change: Any) -> Any:
    """Return `<name>ForCausalLM` with random weights, four times as large as at initialisation."""
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}ForCausalLM")
    config = getattr(transformers, f"{name}TextConfig", None) or getattr(transformers, f"{name}Config")
    model = kind(config(**{**SMALL, **change})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    return model


@torch.no_grad()
def logits(
    model: Any, ids: torch.Tensor, cache: Any = None, start: int = 0, name: str = "past_key_values"
) -> torch.Tensor:
    """Return logits ``(n, vocab)`` of one call."""
    given: dict[str, Any] = {"use_cache": cache is not None}
    if cache is not None:
        given[name] = cache
    if name == "past_key_values":
        given["position_ids"] = torch.arange(start, start + len(ids))[None]
    return model(ids[None], **given).logits[0]


def report(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Print the largest difference of two logit tensors beside the largest logit."""
    off, top = float((got - want).abs().max()), float(want.abs().max())
    flips = int((got.argmax(-1) != want.argmax(-1)).sum())
    print(f"{what}: off by {off:.2g} of {top:.2g}; best token differs at {flips} of {len(got)}")
