"""A model configuration -> its layers that keep keys and values, each with its window, or a refusal where it does not say.

Positions
---------
1. A configuration lists its layers (``layer_types``), or says them by a rule of its architecture (periods, a window from
   some layer on). The rules are those of the configuration classes in transformers 5.24.
2. A window without a word on which layers use it, and a kind of layer with a cache of its own (an indexer, compressed
   blocks), are refused: counting them as full layers would be a wrong ledger by an order of magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_attnaccept.errors import UsageError

__all__ = ["MOST", "count_of", "layers_of"]

MOST = 10**9  # no count of layers, heads or dimensions is larger; a typing mistake is
_FULL = ("full_attention", "attention", "hybrid")
_NONE = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe")
_WINDOWED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_EVERY_LAYER = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2")  # their window is every layer's
_PERIOD = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "olmo3": 4}  # every n-th layer is a full one
_NO_ROPE_INTERVAL = 4  # Llama 4: every fourth layer has no rotary positions and attends to everything
_OPT_IN = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")  # a window counts only with use_sliding_window


def layers_of(config: Mapping[str, Any], where: str) -> tuple[int | None, ...]:
    """Return, for every layer that keeps keys and values, its window; None: all tokens."""
    if config.get("is_encoder_decoder"):
        raise UsageError(
            f"budget: {where}: an encoder-decoder has two caches; give --layers, --kv-heads and --head-dim"
        )
    count = count_of(config, where, "num_hidden_layers")
    kinds = _kinds(config, where, count)
    shared = config.get("num_kv_shared_layers") or 0
    if isinstance(shared, bool) or not isinstance(shared, int) or not 0 <= shared < count:
        raise UsageError(f"budget: {where}: num_kv_shared_layers={shared!r} must be less than {count} layers")
    found: list[int | None] = []
    for kind in kinds[: count - shared]:  # the last ones read the cache of an earlier layer
        if kind in _WINDOWED:
            found.append(count_of(config, where, _WINDOWED[kind]))
        elif kind in _FULL:
            found.append(None)
        elif kind not in _NONE:
            raise UsageError(
                f"budget: {where}: layer type {kind!r}: what it keeps is not known here; give --layers, ..."
            )
    if not found:
        raise UsageError(f"budget: {where}: no layer of this model keeps keys and values")
    return tuple(found)


def _kinds(config: Mapping[str, Any], where: str, count: int) -> list[str]:
    listed = config.get("layer_types") or config.get("layers_block_type")
    if listed is not None:
        if not isinstance(listed, list) or len(listed) != count:
            raise UsageError(f"budget: {where}: layer_types must name {count} layers (num_hidden_layers)")
        return [str(kind) for kind in listed]
    if config.get("attn_layer_period") is not None:
        period, offset = count_of(config, where, "attn_layer_period"), config.get("attn_layer_offset", 0)
        return ["attention" if i % period == offset else "mamba" for i in range(count)]
    if config.get("attention_chunk_size") is not None:
        return _chunked(config, where, count)
    if config.get("sliding_window") is not None:
        return _sliding(config, where, count)
    return ["attention"] * count


def _chunked(config: Mapping[str, Any], where: str, count: int) -> list[str]:
    rotary = config.get("no_rope_layers")
    if not rotary:
        interval = config.get("no_rope_layer_interval", _NO_ROPE_INTERVAL)
        rotary = [(i + 1) % interval for i in range(count)] if isinstance(interval, int) and interval > 0 else None
    if not isinstance(rotary, list) or len(rotary) != count:
        raise UsageError(
            f"budget: {where}: attention_chunk_size without layer_types: which layers are chunked is not said"
        )
    return ["chunked_attention" if has else "full_attention" for has in rotary]


def _sliding(config: Mapping[str, Any], where: str, count: int) -> list[str]:
    kind = str(config.get("model_type", ""))
    used = config.get("use_sliding_window", False if kind in _OPT_IN else None)
    if used is False:
        return ["attention"] * count
    period = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", _PERIOD.get(kind)))
    if isinstance(period, int) and period > 0:
        return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(count)]
    first = config.get("max_window_layers") if used else 0 if kind in _EVERY_LAYER else None
    if isinstance(first, int):
        return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
    raise UsageError(
        f"budget: {where}: has a sliding_window and does not say which layers use it (layer_types); add layer_types, or set"
        " sliding_window to null where none does"
    )


def count_of(config: Mapping[str, Any], where: str, name: str) -> int:
    """Return a positive whole number of the configuration."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST:
        raise UsageError(f"budget: {where}: {name}={value!r} must be a positive whole number")
    return value
