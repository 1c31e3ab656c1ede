"""How a function with the signature of `scaled_dot_product_attention` is called: an adapter from `AttentionCall`.

Positions
---------
1. A function counts as SDPA-like when it is `torch.nn.functional.scaled_dot_product_attention` (also compiled or partial),
   or when its first parameters are ``query, key, value`` or it takes three positional tensors and ``is_causal`` or
   ``attn_mask``.
2. ``is_causal`` is top-left there; it is used only where that means the same. Everything else gets a boolean mask, True
   where a query sees a key. Without an ``attn_mask`` parameter only square and decode shapes are tested.
3. What the signature cannot carry (sinks, softcap, ALiBi, pages, FP8, lse) is a contract error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.contract import KernelContract

__all__ = ["adapt", "sdpa_parameters"]

_FULL = frozenset({"attn_mask", "is_causal", "scale", "enable_gqa"})


def adapt(fn: Callable[..., Any], contract: KernelContract) -> tuple[Callable[[AttentionCall], Any], KernelContract]:
    """Return a function of one `AttentionCall`, and the contract it can be held to."""
    if not callable(fn):
        raise ContractError(f"accept.kernel needs a function, got {type(fn).__name__}.")
    takes = sdpa_parameters(fn)
    if takes is None:
        return fn, contract
    _refuse(contract)
    if "attn_mask" not in takes:
        if contract.window != (None,) or contract.has_lengths:
            raise ContractError(
                "this SDPA-like function takes no attn_mask, so it cannot be given a window or ragged lengths."
            )
        if contract.q_lens == "any" and contract.causal:
            contract = replace(contract, q_lens="square_or_decode")
    return functools.partial(_call, fn, takes, contract.alignment), contract


def sdpa_parameters(fn: Callable[..., Any]) -> frozenset[str] | None:
    """Return which SDPA keywords `fn` takes, or None when it is not SDPA-like."""
    plain = fn
    bound: frozenset[str] = frozenset()
    while isinstance(plain, functools.partial):
        if plain.args:
            return None
        bound |= frozenset(plain.keywords)
        plain = plain.func
    original = getattr(plain, "_torchdynamo_orig_callable", plain)
    if original is torch.nn.functional.scaled_dot_product_attention:
        return _FULL - bound
    try:
        parameters = inspect.signature(original).parameters
    except (TypeError, ValueError):
        return None
    names = list(parameters)
    positional = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named_alike = positional[:3] == ["query", "key", "value"]
    masked = len(positional) >= 3 and ("is_causal" in names or "attn_mask" in names)
    if not (named_alike or masked):
        return None
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return (_FULL if rest else _FULL & frozenset(names)) - bound


def _refuse(contract: KernelContract) -> None:
    carried = {
        "sinks": contract.sinks,
        "softcap": contract.softcap != (None,),
        "alibi": contract.alibi,
        "page_size": contract.page_size != (None,),
        "kv_dtype": contract.kv_dtype is not None,
        "returns_lse": contract.returns_lse,
    }
    wrong = [name for name, declared in carried.items() if declared]
    if wrong:
        raise ContractError(
            f"a function with the signature of scaled_dot_product_attention cannot be given {', '.join(wrong)}; "
            "write a function of one AttentionCall around it."
        )


def _call(fn: Callable[..., Any], takes: frozenset[str], alignment: str, call: AttentionCall) -> Any:
    q_len, kv_len = call.q.shape[2], call.k.shape[2]
    keywords: dict[str, Any] = {}
    k, v = call.k, call.v
    if k.shape[1] != call.q.shape[1]:
        if "enable_gqa" in takes:
            keywords["enable_gqa"] = True
        else:
            group = call.q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if "scale" in takes:
        keywords["scale"] = call.scale
    elif abs(call.scale - call.q.shape[-1] ** -0.5) > 1e-9:
        raise ContractError(f"this SDPA-like function takes no scale, but the contract says scale={call.scale}.")
    simple = call.kv_lengths is None and call.window is None
    top_left = q_len == kv_len or alignment == "top_left"
    if simple and (not call.causal or (q_len == 1 and alignment == "bottom_right")):
        pass
    elif simple and top_left and "is_causal" in takes:
        keywords["is_causal"] = True
    else:
        keywords["attn_mask"] = _mask(call, alignment)
    return fn(call.q, k, v, **keywords)


def _mask(call: AttentionCall, alignment: str) -> Tensor:
    """Return ``(batch, 1, q_len, kv_len)`` bool, True where a query sees a key."""
    batch, _, q_len, _ = call.q.shape
    kv_len = call.k.shape[2]
    device = call.q.device
    lengths = call.kv_lengths if call.kv_lengths is not None else torch.full((batch,), kv_len, device=device)
    keys = torch.arange(kv_len, device=device)[None, None, None, :]
    mask = (keys < lengths[:, None, None, None]).expand(batch, 1, q_len, kv_len)
    if not call.causal:
        return mask
    start = lengths - q_len if alignment == "bottom_right" else torch.zeros_like(lengths)
    rows = torch.arange(q_len, device=device)[None, None, :, None] + start[:, None, None, None]
    mask = mask & (keys <= rows)
    return mask if call.window is None else mask & (keys > rows - call.window)
