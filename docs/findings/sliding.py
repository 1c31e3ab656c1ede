"""Sliding layers: crop before the first update, reset and use again, rollback without recording."""

import torch
import transformers
from tiny import build, logits, report

print("transformers", transformers.__version__)
model = build("Mistral", sliding_window=12)
ids = torch.randint(1, 97, (40,), generator=torch.Generator().manual_seed(1))
want = logits(model, ids)

cache = transformers.DynamicCache(config=model.config)
try:
    cache.crop(-1)
    print("crop(-1) of an empty cache: nothing happens")
except Exception as error:
    print("crop(-1) of an empty cache:", type(error).__name__, error)

cache = transformers.DynamicCache(config=model.config)
logits(model, ids, cache)
cache.reset()
try:
    print("after reset the length is", cache.get_seq_length())
    report("the same cache again after reset", logits(model, ids, cache), want)
except Exception as error:
    print("the same cache again after reset:", type(error).__name__, error)

cache = transformers.DynamicCache(config=model.config)
logits(model, ids[:20], cache)
logits(model, ids[30:34], cache, 20)  # a draft that is rejected
try:
    cache.crop(-4)
    report("four rejected tokens, no recording", logits(model, ids[20:22], cache, 20), want[20:22])
except Exception as error:
    print("four rejected tokens, no recording:", type(error).__name__, error)
