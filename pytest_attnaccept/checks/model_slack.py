"""Storage behind a view is taken away before it can be read: a cache that keeps a slice holds, and answers from, the slice.

A slice of a long tensor keeps the whole tensor in memory. The sliding-window layers of transformers are made so: the last
keys are a view of everything that came in, until the next call copies them. Counted as it stands, the honest window stores
the whole prompt; believed, a candidate could read what it claims to have dropped. So the slice is copied and the rest is
gone, before bytes are counted and before anything is answered.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

from pytest_attnaccept.engines.storage import tensors_of

__all__ = ["take_slack"]


def take_slack(cache: Any) -> int:
    """Replace every attribute of a layer that is alone on a larger storage by a copy of what it shows; returns the bytes freed.

    A storage that a second tensor of the cache uses (a pool, a ring buffer, keys and values side by side) is left as it is.
    """
    layers = list(getattr(cache, "layers", None) or [])
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors_of(cache))
    freed = 0
    for layer in layers:
        for name, value in list(getattr(layer, "__dict__", {}).items()):
            if type(value) is not Tensor or not value.numel():
                continue
            storage, shown = value.untyped_storage(), value.numel() * value.element_size()
            if storage.nbytes() <= shown or users[storage.data_ptr()] > 1:
                continue
            freed += storage.nbytes() - shown
            setattr(layer, name, value.detach().clone())
    return freed
