"""How much what a cache stores matters: stored values are damaged in a copy, and the logits tell whether they were read.

A candidate that answers from anywhere else (an original, bytes, a file, another process) hardly changes. Keys and values are
damaged apart where they can be told apart: who reads the stored keys and the original values reads half of a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.engines.draws import same_draws
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.storage import memory_of, tensors_of
from pytest_attnaccept.engines.through_cache import State, extend
from pytest_attnaccept.errors import AttnAcceptError

__all__ = [
    "WHOLE",
    "Effect",
    "Part",
    "bypassed",
    "damaged",
    "effect",
    "keys_and_values",
    "layers_of",
    "parts_of",
    "unread",
]

WHOLE = "the cache"

# measured: 18 settings (budgets .5 and .05, 2 to 8 bits) on four embedded models show .39 to 2.2 times the effect that the
# baseline shows, in every layer; a single entry per layer shows .14 in the worst layer and .42 as a whole; the keys or the
# values of all layers .40 and more (17 settings, 18 contexts of 24 to 256 tokens); candidates that answer from originals less
# than a thousandth
READ_WHOLE, READ_LAYER = 0.1, 0.05
_MOST = 0.5  # policy: keys and values together are at least half of a cache, or their names do not say where they are

# derived: rounding of float32 logits; damage that moves a baseline by no more shows nothing
_NO_EFFECT = 1e-3

Part = Callable[[Any], object]  # what of a cache is damaged
Effect = Tensor | None  # mean absolute difference of the logits per row (rows,), float32; None: nothing was damaged
_NAMES = ("key", "value")


@contextmanager
def damaged(target: object) -> Iterator[bool]:
    """Change every stored value in place, and put it back: caches may share tables with one another, or with the model.

    Gives whether there was anything to change.
    """
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    for tensor in list(tensors_of(target)):
        if tensor.numel() < 2 or tensor.dtype in (torch.int64, torch.int32, torch.bool):
            continue  # counters and indices: damaging them breaks the cache instead of its contents
        flat = _storage_of(tensor)
        if flat is None or flat.data_ptr() in kept:
            continue  # a second name of the same storage would undo the damage
        kept[flat.data_ptr()] = (flat, flat.clone())
        _spoil(flat, tensor)
    try:
        yield bool(kept)
    finally:
        for flat, before in kept.values():
            _write(flat, before)


def _storage_of(tensor: Tensor) -> Tensor | None:
    """Return the whole storage behind a tensor, flat: views may overlap, and expanded ones cannot be written to."""
    try:
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):  # fake, meta and sparse tensors have no storage
        return None
    return flat if flat.numel() else None


def _spoil(flat: Tensor, tensor: Tensor) -> None:
    """Change a storage; by how much is read from the tensor, because the rest of it may never have been written."""
    if flat.dtype.is_floating_point and flat.element_size() > 1:
        _write(flat, tensor.float().std(unbiased=False).to(flat.dtype) - flat)
    else:
        _write(flat.view(torch.uint8), flat.view(torch.uint8) ^ 0x55)


def _write(flat: Tensor, values: Tensor) -> None:
    with torch.inference_mode():  # also into what was made in that mode
        flat.copy_(values)


def effect(side: Side, state: State, part: Part, ids: Tensor, expected: Tensor, step: int) -> Effect:
    """Return how far damage to a part of the cache of `state` (changed) moves the logits of `ids`, per row.

    Compared are the first tokens, as many as `expected` (batch, n, vocab) has; the calls are those that were judged.
    None: there was nothing to damage; infinity: the damaged cache made the side raise, so it was read.
    """
    with damaged(part(state.cache)) as touched:
        if not touched:
            return None
        try:
            with same_draws():  # as the run without damage
                seen = extend(side, state, ids, step=step)
        except (AttnAcceptError, RuntimeError, ValueError, TypeError, ArithmeticError):
            return torch.full((ids.shape[0],), torch.inf)
    return (seen.float()[:, : expected.shape[1]] - expected.float()).abs().mean(dim=(1, 2)).cpu()


def layers_of(cache: Any) -> list[Any]:
    """Return the layers of a cache; none where it has another layout."""
    found = getattr(cache, "layers", None)
    return list(found) if isinstance(found, (list, tuple)) else []


def parts_of(cache: Any) -> dict[str, Part]:
    """Return what can be damaged by itself: every layer, everything, and keys and values where names tell them apart."""
    parts: dict[str, Part] = {f"layer {number}": _layer(number) for number in range(len(layers_of(cache)))}
    return {**parts, WHOLE: _everything, **keys_and_values(cache)}


def keys_and_values(cache: Any) -> dict[str, Part]:
    """Return the parts "keys" and "values", or nothing where names of attributes do not lead to most of what is stored."""
    keys, values = (memory_of(_named(cache, name)) for name in _NAMES)
    if not keys or not values or sum((keys | values).values()) < _MOST * sum(memory_of(cache).values()):
        return {}
    return {f"{name}s": _by_name(name) for name in _NAMES}


def _everything(cache: Any) -> object:
    return cache


def _layer(number: int) -> Part:
    def part(cache: Any) -> object:
        return layers_of(cache)[number]

    return part


def _by_name(name: str) -> Part:
    def part(cache: Any) -> object:
        return _named(cache, name)

    return part


def _named(cache: Any, name: str) -> list[object]:
    """Return the attributes of a cache and of its layers whose names contain `name` and not the other one."""
    other = next(n for n in _NAMES if n != name)
    found: list[object] = []
    for holder in (cache, *layers_of(cache)):
        attributes: Mapping[str, object] = getattr(holder, "__dict__", {})
        found += [value for label, value in attributes.items() if name in label.lower() and other not in label.lower()]
    return found


def unread(
    base: Mapping[str, Effect], found: Mapping[str, Effect], *, layer: float = READ_LAYER
) -> dict[str, tuple[float, float]]:
    """Return the parts whose damage matters to the baseline and hardly to the candidate: the worst row's share, and its limit.

    Layers are compared where both sides have as many; `layer` is their limit.
    """
    layers = [sum(name.startswith("layer") for name in effects) for effects in (base, found)]
    result: dict[str, tuple[float, float]] = {}
    for name, expected in base.items():
        seen = found.get(name)
        if expected is None or seen is None or (name.startswith("layer") and layers[0] != layers[1]):
            continue
        shares = seen / expected.clamp(min=1e-30)
        shares[~torch.isfinite(expected) | (expected <= _NO_EFFECT)] = torch.inf  # nothing to compare with
        share, limit = float(shares.min()), layer if name.startswith("layer") else READ_WHOLE
        if share <= limit:
            result[name] = (share, limit)
    return result


def bypassed(parts: Mapping[str, tuple[float, float]]) -> str:
    """Return the reason that unread parts give, or nothing."""
    if not parts:
        return ""
    share, limit = min(parts.values())
    places = WHOLE if WHOLE in parts else ", ".join(parts)
    return (
        f"the continuation bypasses the cache: damaging what is stored ({places}) changes the logits by {share:.2g} of what it"
        f" changes them in the baseline (at least {limit:g}): the answer comes from somewhere else"
    )
