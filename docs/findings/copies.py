"""Copies of a cache: which of them have tensors of their own, and whether two of them fed in turns stay apart."""

import copy

import torch
import transformers
from tiny import build, logits, report

print("transformers", transformers.__version__)
model = build("Llama")
ids = torch.randint(1, 97, (40,), generator=torch.Generator().manual_seed(1))
other = torch.cat([ids[:20], torch.randint(1, 97, (20,), generator=torch.Generator().manual_seed(2))])
want = logits(model, ids), logits(model, other)
MAKE = {
    "DynamicCache": lambda: transformers.DynamicCache(config=model.config),
    "StaticCache": lambda: transformers.StaticCache(config=model.config, max_cache_len=64),
}
for name, make in MAKE.items():
    for how, copied in (("copy.copy", copy.copy), ("copy.deepcopy", copy.deepcopy)):
        warm = make()
        logits(model, ids[:20], warm)
        pair = warm, copied(warm)
        try:
            parts = [[logits(model, one[20:30], cache, 20) for one, cache in zip((ids, other), pair, strict=True)]]
            parts.append([logits(model, one[30:], cache, 30) for one, cache in zip((ids, other), pair, strict=True)])
            for number in range(2):
                got = torch.cat([part[number] for part in parts])
                report(f"{name}, {how}, side {number} of two in turns", got, want[number][20:])
        except Exception as error:
            print(f"{name}, {how}:", type(error).__name__, error)
