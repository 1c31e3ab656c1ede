"""The measurements behind `footprint`: storage at two moments, limits from the claim, and whether the cache is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.storage import LayerStorage, layer_storage, live_storages, tensors_of
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, fork, prefill
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.methods.claims import Claim

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["Moment", "bypassed_layers", "gates_of", "kept_original", "kept_outside", "moments", "unreadable"]

# derived: one float32 score and one int32 position per entry and KV head is all the bookkeeping an eviction needs
_BOOKKEEPING_BYTES = 8
# policy: a quarter of the baseline's cache outside the cache is no rounding of an allocator, it is a copy
_OUTSIDE_SHARE = 0.25
# policy: a quarter of the promise is less than any honest format stores (2-bit codes are .6 of what their claim allows)
_READABLE_SHARE = 0.25
_FEW_ENTRIES = 16  # below, rounding of a window by one entry is a large share


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a cache held at one moment; `words` says when."""

    words: str
    tokens: int
    layers: tuple[LayerStorage, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.storage_bytes for layer in self.layers)

    def table(self) -> list[tuple[int | None, int]]:
        """Return (entries, bytes) per layer."""
        return [(layer.entries, layer.storage_bytes) for layer in self.layers]


def moments(side: Side, row: Tensor, context: int, pattern: Pattern) -> tuple[Moment, Moment]:
    """Return what `side` stores right after the context (before any question) and after the last token."""
    with side.running():
        state = prefill(side, row[:, :context], pattern)
        first = _moment(side, state, "after the context, before the question")
        extend(side, state, row[:, context:])
        return first, _moment(side, state, "after the last token")


def _moment(side: Side, state: State, words: str) -> Moment:
    layers = layer_storage(state.cache)
    declared = side.around.kv_footprint
    if declared is not None:
        try:
            layers = _declared(declared(state.cache), layers)
        except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            raise CandidateError(f"kv_footprint of the {side.name} raised {type(error).__name__}: {error}") from error
    return Moment(words=words, tokens=state.seen, layers=tuple(layers))


def _declared(claimed: Any, read: list[LayerStorage]) -> list[LayerStorage]:
    """Use the candidate's own figures where nothing can be read; storage that can be read is never talked down."""
    result = [LayerStorage(entries=int(n), storage_bytes=int(size), coded=False) for n, size in claimed]
    seen = sum(layer.storage_bytes for layer in read)
    if seen > sum(layer.storage_bytes for layer in result):
        return read
    return result


def gates_of(
    session: ModelSession,
    base: tuple[Moment, Moment],
    found: Mapping[str, tuple[Moment, Moment]],
    context: int,
    continuation: int,
) -> Iterator[Threshold]:
    """Yield one entry gate and one byte gate per pattern and moment: the worst layer decides."""
    for name, pair in found.items():
        for moment, reference in zip(pair, base, strict=True):
            extra = moment.tokens - context
            entries = session.claim.entries(context, extra)
            where = f"{name}, {moment.words}"
            if any(layer.entries is not None for layer in moment.layers):
                yield _entry_gate(session.claim, moment, reference, entries, where)
            yield _byte_gate(session, moment, reference, entries, where)


def _grows(layer: LayerStorage, tokens: int) -> bool:
    """Whether the baseline's layer keeps every token; no claim is about native windows and recurrent states."""
    return layer.entries is not None and layer.entries >= tokens


def _entry_gate(claim: Claim, moment: Moment, reference: Moment, entries: int, where: str) -> Threshold:
    worst, place = 0.0, "no layer with readable entries"
    held: list[int] = []
    for number, layer in enumerate(moment.layers):
        grows = number >= len(reference.layers) or _grows(reference.layers[number], reference.tokens)
        if layer.entries is None or not grows:
            continue
        held.append(layer.entries)
        if layer.entries > worst:
            worst, place = float(layer.entries), f"layer {number}, {where}"
    if held and not claim.per_layer:
        worst, place = sum(held) / len(held), f"mean of {len(held)} layers, {where}"
    masked = worst >= moment.tokens > entries
    return Threshold(
        name=f"entries[{where}]", value=worst, limit=float(entries), unit="entries", n=len(moment.layers),
        where=place, origin=f"derived: {claim.source or 'no eviction'} of {moment.tokens} tokens",
        seems="an eviction by mask only: every entry is still stored" if masked else "",
    )  # fmt: skip


def _byte_gate(session: ModelSession, moment: Moment, reference: Moment, entries: int, where: str) -> Threshold:
    """Compare the bytes of the worst layer with its limit, as a share of the baseline's bytes."""
    worst = (-1.0, 1.0, "no layer")
    pairs = _paired_layers(moment, reference, one_by_one=session.claim.per_layer)
    limits = [_byte_limit(session, base, reference.tokens, entries) for base in reference.layers]
    if len(pairs) != len(limits) or not session.claim.per_layer:
        limits = [sum(limits)]
    for number, ((layer, base), limit) in enumerate(zip(pairs, limits, strict=True)):
        scale = max(1, base.storage_bytes)
        if layer.storage_bytes / max(1.0, limit) > worst[0] / max(1e-12, worst[1]) or worst[0] < 0:
            place = f"layer {number}, {where}" if len(pairs) > 1 else f"all layers, {where}"
            worst = (layer.storage_bytes / scale, limit / scale, place)
    words = session.claim.source or "the baseline"
    return Threshold(
        name=f"bytes[{where}]", value=worst[0], limit=worst[1], unit="of the baseline's bytes", n=len(pairs),
        where=worst[2], origin=f"derived: entries and bits of {words}, {_BOOKKEEPING_BYTES} bytes per entry and head",
    )  # fmt: skip


def _paired_layers(
    moment: Moment, reference: Moment, *, one_by_one: bool = True
) -> list[tuple[LayerStorage, LayerStorage]]:
    if one_by_one and len(moment.layers) == len(reference.layers):
        return list(zip(moment.layers, reference.layers, strict=True))
    # Another layout (one pool for all layers, extra storage next to the layers): only the totals can be compared.
    total = LayerStorage(entries=None, storage_bytes=moment.total_bytes, coded=any(x.coded for x in moment.layers))
    grown = max((x.entries or 0 for x in reference.layers), default=0)
    return [(total, LayerStorage(entries=grown or None, storage_bytes=reference.total_bytes, coded=False))]


def _byte_limit(session: ModelSession, base: LayerStorage, tokens: int, entries: int) -> float:
    if not _grows(base, tokens) or not session.claim.about_kv:
        return float(base.storage_bytes)
    model_bits = torch.finfo(next(session.baseline.model.parameters()).dtype).bits
    per_entry = base.storage_bytes / tokens
    full = min(entries, session.claim.full_precision)
    coded = per_entry * session.claim.stored_bits(model_bits) / model_bits
    config = session.baseline.model.config.get_text_config(decoder=True)
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return full * per_entry + (entries - full) * coded + entries * heads * _BOOKKEEPING_BYTES


def kept_original(claim: Claim, base: tuple[Moment, Moment], found: tuple[Moment, Moment]) -> str:
    """Say so when codes are stored *and* the bytes of the baseline are still there."""
    if claim.bits is None:
        return ""
    for moment, reference in zip(found, base, strict=True):
        for number, (layer, plain) in enumerate(_paired_layers(moment, reference)):
            if layer.coded and layer.storage_bytes >= plain.storage_bytes:
                return (
                    f"quantizes but keeps the original: layer {number} holds codes and {layer.storage_bytes} bytes,"
                    f" the baseline {plain.storage_bytes} bytes, {moment.words}"
                )
    return ""


def unreadable(session: ModelSession, base: Moment, moment: Moment) -> str:
    """Say so when far less is stored than what is promised to be kept: the storage is somewhere that cannot be read."""
    entries = session.claim.entries(moment.tokens)
    if entries < _FEW_ENTRIES:
        return ""
    promised = sum(_byte_limit(session, layer, base.tokens, entries) for layer in base.layers)
    if moment.total_bytes >= _READABLE_SHARE * promised:
        return ""
    return (
        f"only {moment.total_bytes} bytes of the cache can be read where {session.claim.source} keeps about {promised:.0f}:"
        " declare what is really kept, or kv_footprint=... for storage that is not in tensors"
    )


def bypassed_layers(side: Side, row: Tensor, context: int, pattern: Pattern) -> list[int]:
    """Return the layers whose stored values can be damaged without changing any logit of the continuation."""
    unread: list[int] = []
    with side.running():
        state = prefill(side, row[:, :context], pattern)
        expected = extend(side, fork(side, state), row[:, context : context + 1], step=1)
        layers = list(getattr(state.cache, "layers", None) or [])
        for number in range(max(1, len(layers))):
            copy = fork(side, state)
            target = copy.cache.layers[number] if layers else copy.cache
            if not _damage(target):
                continue
            try:
                seen = extend(side, copy, row[:, context : context + 1], step=1)
            except Exception:  # damaged values may well make the candidate raise: then they are read
                continue
            if torch.equal(seen, expected):
                unread.append(number)
    return unread


def _damage(target: object) -> bool:
    """Change every stored value in place; returns whether there was anything to change."""
    touched = False
    for tensor in list(tensors_of(target)):
        if tensor.numel() < 2 or tensor.dtype in (torch.int64, torch.int32, torch.bool):
            continue  # counters and indices: damaging them breaks the cache instead of its contents
        if tensor.dtype in (torch.uint8, torch.int8):
            tensor.bitwise_xor_(0x55)
        elif tensor.dtype.is_floating_point and tensor.element_size() > 1:
            tensor.mul_(-1).add_(tensor.float().std(unbiased=False).to(tensor.dtype))
        else:
            tensor.view(torch.uint8).bitwise_xor_(0x55)
        touched = True
    return touched


def kept_outside(session: ModelSession, row: Tensor, context: int, pattern: Pattern, base: Moment) -> str:
    """Say so when a run leaves tensors behind that are neither in the cache nor in the model."""
    side = session.candidate
    with side.running():
        gc.collect()
        before = live_storages()
        state = prefill(side, row[:, :context], pattern)
        state.last = None
        gc.collect()
        inside = {t.untyped_storage().data_ptr() for t in tensors_of(state.cache)}
        inside.add(state.source.untyped_storage().data_ptr())
        now = live_storages()
    grown = sum(size for where, size in now.items() if where not in before and where not in inside)
    limit = _OUTSIDE_SHARE * base.total_bytes
    if grown <= limit:
        return ""
    return (
        f"keeps {grown} bytes outside of the cache that it shows (the baseline's cache is {base.total_bytes} bytes):"
        " what was dropped is still stored"
    )
