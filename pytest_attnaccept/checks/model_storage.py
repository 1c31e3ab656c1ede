"""The measurements behind `footprint`: storage at two moments and the limits that the claim gives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_slack import take_slack
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.storage import LayerStorage, layer_storage
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, prefill
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.methods.claims import Claim

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["Moment", "gates_of", "kept_original", "moment", "moments", "promised_entries", "unreadable"]

# derived: one float32 score and one int32 position per entry and KV head is all the bookkeeping an eviction needs
_BOOKKEEPING_BYTES = 8
# policy: a quarter of the promise is less than any honest format stores (2-bit codes are .6 of what their claim allows)
_READABLE_SHARE = 0.25
_FEW_ENTRIES = 16  # below, rounding of a window by one entry is a large share


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a cache held at one moment; `words` says when."""

    words: str
    tokens: int
    layers: tuple[LayerStorage, ...]
    rows: int = 1

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
        first = moment(side, state, "after the context, before the question")
        extend(side, state, row[:, context:])
        return first, moment(side, state, "after the last token")


def moment(side: Side, state: State, words: str, rows: int = 1) -> Moment:
    """Return what the cache of `state` holds now; `words` says when that is. What is behind its views is dropped first."""
    take_slack(state.cache)
    layers = layer_storage(state.cache)
    declared = side.around.kv_footprint
    if declared is not None:
        try:
            layers = _declared(declared(state.cache), layers)
        except Exception as error:  # the boundary to foreign code
            raise CandidateError(f"kv_footprint of the {side.name} raised {type(error).__name__}: {error}") from error
    return Moment(words=words, tokens=state.seen, layers=tuple(layers), rows=rows)


def _declared(claimed: Any, read: list[LayerStorage]) -> list[LayerStorage]:
    """Use the candidate's own figures where nothing can be read; storage that can be read is never talked down."""
    result = [LayerStorage(entries=int(n), storage_bytes=int(size), coded=False) for n, size in claimed]
    wrong = [layer for layer in result if (layer.entries or 0) < 0 or layer.storage_bytes < 0]
    if wrong:
        raise ValueError(f"entries and bytes are counts, got ({wrong[0].entries}, {wrong[0].storage_bytes})")
    seen = sum(layer.storage_bytes for layer in read)
    if seen > sum(layer.storage_bytes for layer in result):
        return read
    if len(read) != len(result):
        return result
    shown = [max(own.entries or 0, layer.entries or 0) for own, layer in zip(result, read, strict=True)]
    return [replace(layer, entries=entries) for layer, entries in zip(result, shown, strict=True)]


def gates_of(
    session: ModelSession,
    base: Sequence[Moment],
    found: Mapping[str, Sequence[Moment]],
    context: int,
) -> Iterator[Threshold]:
    """Yield one entry gate and one byte gate per pattern and moment: the worst layer decides."""
    acting: list[str] = []  # patterns in which entries are dropped as claimed
    for name, pair in found.items():
        for held, reference in zip(pair, base, strict=True):
            entries = promised_entries(session, context, held.tokens - context)
            where = f"{name}, {held.words}"
            if any(layer.entries is not None for layer in held.layers):
                gate = _entry_gate(session.claim, held, reference, entries, where)
                if gate.value <= gate.limit < held.tokens:
                    acting.append(name)
                elif gate.value > gate.limit and acting and name not in acting:
                    gate = replace(gate, seems=f"a method that acts on {acting[0]} prompts and not in {name}")
                yield gate
            yield _byte_gate(session, held, reference, entries, where)


def promised_entries(session: ModelSession, context: int, continuation: int = 0) -> int:
    """Return the most entries that a layer may hold under every claim of the stack: a share and a number both hold."""
    return min((claim.entries(context, continuation) for claim in session.claims), default=context + continuation)


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
        seems="no eviction, or an eviction by mask only: every entry is still stored" if masked else "",
    )  # fmt: skip


def _byte_gate(session: ModelSession, moment: Moment, reference: Moment, entries: int, where: str) -> Threshold:
    """Compare the bytes of the worst layer with its limit, as a share of the baseline's bytes."""
    worst = (-1.0, 1.0, "no layer")
    pairs = _paired_layers(moment, reference, one_by_one=session.claim.per_layer)
    limits = [_byte_limit(session, base, reference.tokens, entries, moment.rows) for base in reference.layers]
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


def _byte_limit(session: ModelSession, base: LayerStorage, tokens: int, entries: int, rows: int = 1) -> float:
    if not _grows(base, tokens) or not session.claim.about_kv:
        return float(base.storage_bytes)
    model_bits = torch.finfo(next(session.baseline.model.parameters()).dtype).bits
    per_entry = base.storage_bytes / tokens
    full = min(entries, session.claim.full_precision)
    coded = per_entry * session.claim.stored_bits(model_bits) / model_bits
    config = session.baseline.model.config.get_text_config(decoder=True)
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return full * per_entry + (entries - full) * coded + entries * heads * rows * _BOOKKEEPING_BYTES


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
    entries = promised_entries(session, moment.tokens)
    if entries < _FEW_ENTRIES:
        return ""
    promised = sum(_byte_limit(session, layer, base.tokens, entries) for layer in base.layers)
    if moment.total_bytes >= _READABLE_SHARE * promised:
        return ""
    return (
        f"only {moment.total_bytes} bytes of the cache can be read where {session.claim.source} keeps about {promised:.0f}:"
        " declare what is really kept, or kv_footprint=... for storage that is not in tensors"
    )
