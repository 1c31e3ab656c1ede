"""How many bytes and entries a cache really holds: every tensor and buffer it can reach, each storage counted once.

Names and counters of a cache are not believed: the walk follows attributes, slots, containers, tensor subclasses and
the cells of closures, so an original that is kept "somewhere else" inside the cache is found, as an array, as bytes, as
text or as a long list of numbers too.
"""

from __future__ import annotations

import array
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["LayerStorage", "layer_storage", "live_storages", "memory_of", "tensors_of", "visible_entries"]

_OPAQUE = (int, float, bool, complex, type, types.ModuleType, nn.Module, torch.device, torch.dtype)
_RAW = (bytes, bytearray, memoryview, array.array, str)
_LONG_TEXT = 1024  # names and messages are shorter
_LONG_LIST = 64  # sizes and settings are shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStorage:
    """What one layer holds.

    Attributes
    ----------
    entries
        Tokens that can be read from its K/V tensors; None when they have no such shape.
    storage_bytes
        Bytes of all storages and buffers reachable from the layer and counted for no earlier one.
    coded
        Whether integer or sub-16-bit tensors are among them (a quantized store).
    """

    entries: int | None
    storage_bytes: int
    coded: bool


def tensors_of(root: object) -> Iterator[Tensor]:
    """Yield every plain tensor reachable from `root`, tensor subclasses taken apart, models left out.

    Arrays that can be written are among them, as tensors that share their memory.
    """
    for item in _walk(root):
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, np.ndarray) and item.flags.writeable:
            yield torch.from_numpy(item)  # shares its memory: storage outside of torch is storage too


def memory_of(root: object) -> dict[int, int]:
    """Return address -> bytes of everything reachable from `root` that holds data: tensors, arrays, bytes, text, numbers."""
    found: dict[int, int] = {}
    for item in _walk(root):
        where, size = _extent(item)
        if size:
            found[where] = max(size, found.get(where, 0))
    return found


def _extent(item: object) -> tuple[int, int]:
    """Return (identity, bytes) of what a leaf of the walk holds."""
    if isinstance(item, Tensor):
        return _storage(item)
    if isinstance(item, np.ndarray):
        while isinstance(item.base, np.ndarray):  # a view keeps the whole array alive
            item = item.base
        return int(item.ctypes.data), int(item.nbytes)
    if isinstance(item, memoryview):
        return id(item.obj), item.nbytes
    if isinstance(item, array.array):
        return id(item), len(item) * item.itemsize
    if isinstance(item, (list, tuple, set, frozenset)):
        return id(item), 8 * len(item)
    size = len(item) if isinstance(item, (bytes, bytearray, str)) else 0
    return id(item), size if not isinstance(item, str) or size >= _LONG_TEXT else 0


def _walk(root: object) -> Iterator[object]:
    """Yield every leaf reachable from `root` that holds data."""
    seen: set[int] = set()
    stack: list[object] = [root]
    while stack:
        item = stack.pop()
        if item is None or isinstance(item, _OPAQUE) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, _RAW) or (isinstance(item, np.ndarray) and item.dtype != object):
            yield item
        elif isinstance(item, Tensor):
            inner = _inside(item)
            if inner is None:
                yield item
            else:
                stack.extend(inner)
            stack.extend(value for value in getattr(item, "__dict__", {}).values())
        else:
            if isinstance(item, (list, tuple, set, frozenset)) and len(item) >= _LONG_LIST and _is_numbers(item):
                yield item
            stack.extend(_children(item))


def _is_numbers(items: Iterable[object]) -> bool:
    return isinstance(next(iter(items)), (int, float, complex))


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
    for leaf in _walk(item):
        where, size = _extent(leaf)
        if size and where not in counted:
            counted.add(where)
            total += size
            coded = coded or _is_code(leaf)
    return LayerStorage(entries=entries, storage_bytes=total, coded=coded)


def _is_code(leaf: object) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype in (np.uint8, np.int8)
    return isinstance(leaf, Tensor) and (leaf.dtype in (torch.uint8, torch.int8) or "float8" in str(leaf.dtype))


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
