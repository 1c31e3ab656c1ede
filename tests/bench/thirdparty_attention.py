"""Attention functions that are registered with transformers: right ones, and mistakes that are easily made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from thirdparty_caches import row as _row
from thirdparty_rows import REFUSED, Row

from pytest_attnaccept import Candidate

__all__ = ["rows"]


def _registered(name: str, function: Callable[..., Any], mask: Any = "sdpa") -> Callable[[Any], object]:
    def build(accept_model: Any) -> object:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask, sdpa_mask

        AttentionInterface.register(name, function)
        if mask is not None:
            AttentionMaskInterface.register(name, sdpa_mask if mask == "sdpa" else eager_mask)
        return Candidate(accept_model.model, attn_implementation=name)

    return build


def _scores(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None) -> tuple[Any, Any, Any]:
    """Return masked logits, and keys and values of every query head."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    logits = query @ key.transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
    rows, columns = query.shape[2], key.shape[2]
    if mask is None:
        mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    if mask.dtype is torch.bool:
        return logits.masked_fill(~mask, float("-inf")), key, value
    return logits + mask[..., :columns], key, value


def with_weights(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any
) -> Any:
    """Compute plain attention and return its weights too."""
    logits, _, value = _scores(module, query, key, value, attention_mask, scaling)
    weights = logits.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def top_left(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any) -> Any:
    """Call a library function with is_causal, which aligns top left: wrong for a chunk on a filled cache."""
    groups = query.shape[1] // key.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), is_causal=query.shape[2] > 1
    )
    return out.transpose(1, 2).contiguous(), None


def _to_e4m3(x: Any) -> Any:
    scale = x.abs().amax().clamp(min=1e-12) / 448
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * scale


def fp8(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any) -> Any:
    """Round Q, K and V to E4M3 with one scale per tensor."""
    return with_weights(module, *map(_to_e4m3, (query, key, value)), attention_mask, scaling=scaling)


def fp8_first_layer(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any
) -> Any:
    """Round in the first layer only."""
    function = fp8 if module.layer_idx == 0 else with_weights
    return function(module, query, key, value, attention_mask, scaling=scaling)


def window(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any) -> Any:
    """Show every query the 64 most recent keys; the cache keeps all of them."""
    logits, _, value = _scores(module, query, key, value, attention_mask, scaling)
    rows, columns = query.shape[2], key.shape[2]
    far = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows - 64)
    return (logits.masked_fill(far, float("-inf")).softmax(-1) @ value).transpose(1, 2).contiguous(), None


def rows() -> list[Row]:
    """Return every row of attention functions."""
    group: dict[str, Any] = {"group": "attention functions"}
    exact: dict[str, Any] = {"kind": "exact", **group}
    surface = {"surface": "model"}
    return [
        _row(
            "eager attention of transformers, exact",
            "flash_attention",
            surface,
            lambda m: Candidate(m.model, attn_implementation="eager"),
            **exact,
        ),
        _row(
            "a function that returns weights, exact",
            "flash_attention",
            surface,
            _registered("tp_weights", with_weights),
            REFUSED,
            "padding",
            note="its softmax over a fully masked row is NaN: only left padding shows it",
            **exact,
        ),
        _row(
            "the same with eager's float mask, exact",
            "flash_attention",
            surface,
            _registered("tp_float", with_weights, "eager"),
            **exact,
        ),
        _row(
            "the same without a registered mask, exact",
            "flash_attention",
            surface,
            _registered("tp_nomask", with_weights, None),
            REFUSED,
            "padding",
            note="transformers hands it no mask: padding is attended",
            **exact,
        ),
        _row(
            "is_causal of SDPA (top left), exact",
            "flash_attention",
            surface,
            _registered("tp_topleft", top_left),
            REFUSED,
            "beyond",
            **exact,
        ),
        _row("FP8 emulation, one scale per tensor", "fp8_attention", {}, _registered("tp_fp8", fp8), **group),
        _row(
            "FP8 in the first layer only",
            "fp8_attention",
            {},
            _registered("tp_fp8_first", fp8_first_layer),
            REFUSED,
            "attention_layers",
            **group,
        ),
        _row(
            "plain attention under fp8_attention",
            "fp8_attention",
            {},
            _registered("tp_plain", with_weights),
            REFUSED,
            "never ran",
            **group,
        ),
        _row(
            "a window of 64 by mask, cache keeps all",
            "sliding_window",
            {"window": 64},
            _registered("tp_window", window),
            REFUSED,
            "mask only",
            **group,
        ),
        _row(
            "FP8 emulation declared exact",
            "flash_attention",
            surface,
            _registered("tp_fp8b", fp8),
            REFUSED,
            "beyond",
            **exact,
        ),
    ]
