"""A second call with several tokens is wrong in Mamba, FalconMamba and Jamba; token by token is right."""

from typing import Any

import torch
import transformers
from tiny import build, logits, report

print("transformers", transformers.__version__)
MODELS = {
    "Mamba": {"state_size": 8},
    "FalconMamba": {"state_size": 8},
    "Mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16, "expand": 2},
    "Jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "num_experts": 2,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
}
ids = torch.randint(1, 97, (24,), generator=torch.Generator().manual_seed(1))


def through_cache(model: Any, sizes: tuple[int, ...], keyword: str) -> torch.Tensor:
    """Return logits of all tokens, fed to one cache in calls of the given sizes."""
    cache, done, parts = transformers.DynamicCache(config=model.config), 0, []
    for size in sizes:
        parts.append(logits(model, ids[done : done + size], cache, done, keyword))
        done += size
    return torch.cat(parts)


for name, change in MODELS.items():
    model = build(name, **change)
    keyword = "past_key_values" if name == "Jamba" else "cache_params"
    want = logits(model, ids, name=keyword)
    for words, sizes in (("12 + 12", (12, 12)), ("12 + 1 + 1 ...", (12, *[1] * 12))):
        try:
            report(f"{name}, {words}", through_cache(model, sizes, keyword), want)
        except Exception as error:
            print(f"{name}, {words}:", type(error).__name__, str(error)[:90])
