"""What a run left in the memory of this process: new storages, grown Python and NumPy memory, and old buffers it wrote to."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pytest_attnaccept.engines.storage import live_storages, memory_of

__all__ = ["Left", "left_behind"]

_KINDS = (Tensor, nn.Parameter, np.ndarray, bytearray)
_PAGE = 4096  # bytes that are compared as one


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Bytes outside of what the run returned: in new tensors, in Python and NumPy memory, in buffers that were there before."""

    tensors: int
    python: int
    rewritten: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.tensors + self.python + self.rewritten


def left_behind(run: Callable[[], Any], models: Iterable[Any]) -> Left:
    """Run `run` and return what is in memory after it besides its result and the parameters of `models`.

    Call it once before, with another input, so that what is made on first use (imports, rotary tables, kernels) is not
    counted, and what is overwritten changes.
    """
    gc.collect()
    own = {t.data_ptr() for model in models for t in model.parameters()}  # a buffer of a model can be written to
    buffers = _buffers(own)
    pages = [_pages(buffer) for buffer in buffers]
    before = own | {buffer.data_ptr() for buffer in buffers} | set(live_storages())
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        first = tracemalloc.get_traced_memory()[0]
        result = run()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        if not tracing:
            tracemalloc.stop()
    inside = memory_of(result)
    after = live_storages()
    new = sum(size for where, size in after.items() if where not in before and where not in inside)
    changed = sum(
        _PAGE * int((_pages(buffer) != page).sum())
        for buffer, page in zip(buffers, pages, strict=True)
        if buffer.untyped_storage().data_ptr() not in inside
    )
    return Left(tensors=new, python=max(0, grown - sum(inside.values())), rewritten=changed)


def _buffers(own: set[int]) -> list[Tensor]:
    """Return every tensor and writable array of this process that is no parameter, one per storage, as bytes."""
    found: dict[int, Tensor] = {}
    for item in gc.get_objects():
        for held in gc.get_referents(item):  # arrays are not in the list themselves, only what refers to them
            if type(held) in _KINDS:
                tensor = _as_bytes(held)
                if tensor is not None and tensor.data_ptr() not in own:
                    found.setdefault(tensor.data_ptr(), tensor)
    return list(found.values())


def _as_bytes(item: object) -> Tensor | None:
    """Return a byte view of the whole storage of a plain tensor or a writable array, or None."""
    kind = type(item)
    if kind in (np.ndarray, bytearray):
        data: Any = item
        flat = np.frombuffer(data, dtype=np.uint8) if kind is bytearray and len(data) else None
        if (
            kind is np.ndarray
            and data.dtype != object
            and data.flags.writeable
            and data.flags.c_contiguous
            and data.size
        ):
            flat = data.reshape(-1).view(np.uint8)
        return None if flat is None or not flat.flags.writeable else torch.from_numpy(flat)
    try:
        storage = item.untyped_storage()  # type: ignore[attr-defined]
        if not storage.nbytes():
            return None
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    except (RuntimeError, NotImplementedError):  # fake, meta and functional tensors have no storage
        return None


def _pages(flat: Tensor) -> Tensor:
    """Return one checksum per page of a byte tensor."""
    whole = flat.numel() // _PAGE * _PAGE
    sums = [flat[:whole].view(-1, _PAGE).float() @ _weights(flat.device)] if whole else []
    rest = flat[whole:].float()
    return torch.cat([*sums, (rest @ _weights(flat.device)[: rest.numel()])[None]])


def _weights(device: torch.device) -> Tensor:
    return torch.linspace(1.0, 2.0, _PAGE, device=device)  # two bytes that swap places change the sum
