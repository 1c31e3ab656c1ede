"""Dynamic NTK scaling: beyond the trained length cached decoding disagrees with one forward, and a request shows in the next."""

from typing import Any

import torch
import transformers
from tiny import build, logits, report

print("transformers", transformers.__version__)
ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
ids = torch.randint(1, 97, (137,), generator=torch.Generator().manual_seed(1))


def through_cache(model: Any, length: int) -> torch.Tensor:
    """Return logits of a prefill of 100 tokens, then one by one."""
    cache = transformers.DynamicCache(config=model.config)
    parts = [logits(model, ids[:100], cache)]
    parts += [logits(model, ids[place : place + 1], cache, place) for place in range(100, length)]
    return torch.cat(parts)


for length in (120, 137):
    got = through_cache(build("Llama", rope_parameters=ROPE), length)
    report(f"{length} tokens, trained for 128, cached", got, logits(build("Llama", rope_parameters=ROPE), ids[:length]))
fresh, used = (build("Llama", rope_parameters=ROPE) for _ in range(2))
logits(used, ids)
report("128 tokens after a request of 137, no cache", logits(used, ids[:128]), logits(fresh, ids[:128]))
