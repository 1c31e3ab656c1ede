"""Continuing behind right padding is wrong in hybrid models: the padding runs through convolution and recurrent state."""

from typing import Any

import torch
import transformers
from tiny import build, logits, report

print("transformers", transformers.__version__)
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
MODELS = {
    "Llama": {},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Qwen3Next": {
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 0,
        "mlp_only_layers": [0, 1],
    },
    "FalconH1": {**MAMBA, "mamba_d_ssm": 64, "head_dim": 8},
    "Bamba": {**MAMBA, "attn_layer_indices": [1], "mamba_expand": 2},
}
ids = torch.randint(1, 97, (17,), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def next_token(model: Any, side: str) -> torch.Tensor:
    """Prefill 16 tokens padded to 20 on one side; return the logits of one more token."""
    padded, mask = torch.zeros(1, 20, dtype=torch.long), torch.zeros(1, 20, dtype=torch.long)
    place = slice(0, 16) if side == "right" else slice(4, 20)
    padded[0, place], mask[0, place] = ids[:16], 1
    given = {"past_key_values": transformers.DynamicCache(config=model.config), "use_cache": True}
    model(padded, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0), **given)
    mask = torch.cat([mask, torch.ones(1, 1, dtype=torch.long)], 1)
    return model(ids[None, 16:], attention_mask=mask, position_ids=torch.tensor([[16]]), **given).logits[0]


for name, change in MODELS.items():
    model = build(name, **change)
    want = logits(model, ids)[-1:]
    for side in ("left", "right"):
        try:
            report(f"{name}, {side} padding, next token", next_token(model, side), want)
        except Exception as error:
            print(f"{name}, {side} padding:", type(error).__name__, error)
