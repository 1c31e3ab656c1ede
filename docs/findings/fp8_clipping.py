"""QuantizedCache with the backend fp8: the scale is that of the first update, and what is larger later is cut off."""

import torch
import transformers

print("transformers", transformers.__version__)
config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)
generator = torch.Generator().manual_seed(0)
quiet = torch.randn(1, 2, 32, 16, generator=generator)
try:
    for factor in (1, 10):
        cache = transformers.QuantizedCache("fp8", config)
        cache.update(quiet, quiet, 0)
        later = factor * torch.randn(1, 2, 8, 16, generator=generator)
        cache.update(later, later, 0)
        keys, _ = cache.update(quiet[:, :, :1], quiet[:, :, :1], 0)
        stored = keys[:, :, 32:40]
        error = float((stored - later).abs().max() / later.abs().max())
        largest, kept = float(later.abs().max()), float(stored.abs().max())
        print(f"later keys {factor} times as large: {kept:.3g} is stored of {largest:.3g}, off by {error:.0%}")
except (ValueError, TypeError) as error:
    print(type(error).__name__, error)
