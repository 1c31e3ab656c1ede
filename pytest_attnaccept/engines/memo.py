"""Results of plain baselines, kept for the life of the process: many cells of a matrix compare with the same baseline.

Keys hold the digest of the weights and the tokens themselves, so a changed model or text is never served an old result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from torch import Tensor

__all__ = ["TensorMemo", "baseline_memo"]

_LIMIT_BYTES = 256 << 20  # policy: a quarter of a gigabyte is small next to any model that needs a memo


class TensorMemo:
    """Tensors by key; the oldest ones leave when the total passes a limit."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit, self._used = limit_bytes, 0
        self._items: OrderedDict[Hashable, Tensor] = OrderedDict()

    def get(self, key: Hashable) -> Tensor | None:
        """Return the tensor of `key`, or None."""
        return self._items.get(key)

    def put(self, key: Hashable, value: Tensor) -> None:
        """Keep `value` if it fits at all."""
        size = value.numel() * value.element_size()
        if size > self._limit or key in self._items:
            return
        self._items[key] = value
        self._used += size
        while self._used > self._limit:
            _, old = self._items.popitem(last=False)
            self._used -= old.numel() * old.element_size()

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self._used = 0


baseline_memo = TensorMemo()
