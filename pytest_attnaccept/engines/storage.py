"""How many bytes and entries a cache really holds: every tensor it can reach, each storage counted once.

Names and counters of a cache are not believed: the walk follows attributes, slots, containers, tensor subclasses and
the cells of closures, so an original that is kept "somewhere else" inside the cache is found.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["LayerStorage", "layer_storage", "live_storages", "tensors_of", "visible_entries"]

_OPAQUE = (str, bytes, int, float, bool, complex, type, types.ModuleType, nn.Module, torch.device, torch.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStorage:
    """What one layer holds.

    Attributes
    ----------
    entries
        Tokens that can be read from its K/V tensors; None when they have no such shape.
    storage_bytes
        Bytes of all storages reachable from the layer and counted for no earlier one.
    coded
        Whether integer or sub-16-bit tensors are among them (a quantized store).
    """

    entries: int | None
    storage_bytes: int
    coded: bool


def tensors_of(root: object) -> Iterator[Tensor]:
    """Yield every plain tensor reachable from `root`, tensor subclasses taken apart, models left out."""
    seen: set[int] = set()
    stack: list[object] = [root]
    while stack:
        item = stack.pop()
        if item is None or isinstance(item, _OPAQUE) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray) and item.dtype != object and item.flags.writeable:
            item = torch.from_numpy(item)  # shares its memory: storage outside of torch is storage too
        if isinstance(item, Tensor):
            inner = _inside(item)
            if inner is None:
                yield item
            else:
                stack.extend(inner)
            stack.extend(value for value in getattr(item, "__dict__", {}).values())
        else:
            stack.extend(_children(item))


def _inside(tensor: Tensor) -> list[object] | None:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or type(tensor) in (Tensor, nn.Parameter):
        return None
    names, _ = flatten()
    return [getattr(tensor, name) for name in names]


def _children(item: object) -> Iterable[object]:
    if isinstance(item, Mapping):
        yield from item.keys()
        yield from item.values()
        return
    if isinstance(item, (list, tuple, set, frozenset)):
        yield from item
        return
    if isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    if isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    if isinstance(item, types.FunctionType):
        for cell in item.__closure__ or ():
            if _filled(cell):
                yield cell.cell_contents
        yield from item.__defaults__ or ()
    yield from getattr(item, "__dict__", {}).values()
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(item, name, None)


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # an empty cell
        return False
    return True


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return (identity, bytes) of the storage behind a tensor."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def visible_entries(layer: Any) -> int | None:
    """Return how many tokens the K/V tensors of `layer` hold, read from shapes, or None when it has none."""
    lengths = [
        int(value.shape[-2])
        for value in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if isinstance(value, Tensor) and value.dim() == 4
    ]
    count = getattr(layer, "stored_entries", None)
    if not lengths and callable(count):
        lengths = [int(count())]
    return max(lengths, default=None)


def layer_storage(cache: Any) -> list[LayerStorage]:
    """Return what each layer of `cache` holds; what is reachable only from the cache itself is one further entry."""
    counted: set[int] = set()
    result: list[LayerStorage] = []
    layers = list(getattr(cache, "layers", []) or [])
    for layer in layers:
        result.append(_measure(layer, visible_entries(layer), counted))
    rest = _measure(cache, None, counted)
    if rest.storage_bytes or not layers:
        result.append(rest)
    return result


def _measure(item: object, entries: int | None, counted: set[int]) -> LayerStorage:
    total, coded = 0, False
    for tensor in tensors_of(item):
        where, size = _storage(tensor)
        if size and where not in counted:
            counted.add(where)
            total += size
            coded = coded or tensor.dtype in (torch.uint8, torch.int8) or "float8" in str(tensor.dtype)
    return LayerStorage(entries=entries, storage_bytes=total, coded=coded)


def live_storages(exclude: Iterable[Tensor] = ()) -> dict[int, int]:
    """Return address -> bytes of every storage that any living tensor of this process uses.

    The difference between two moments shows what a run kept outside its cache.
    """
    import gc

    skipped = {_storage(tensor)[0] for tensor in exclude}
    found: dict[int, int] = {}
    for item in gc.get_objects():
        if not issubclass(type(item), Tensor):
            continue
        for tensor in tensors_of(item) if type(item) not in (Tensor, nn.Parameter) else (item,):
            try:
                where, size = _storage(tensor)
            except (RuntimeError, NotImplementedError):  # fake, meta and functional tensors have no storage
                continue
            if size and where not in skipped:
                found[where] = size
    return found
