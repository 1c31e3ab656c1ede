"""Where the randomness of a task item comes from: its own stream, derived from (seed, task, parameters, index).

Only ``random.Random.random`` is used, the one method whose sequence Python promises to keep between versions.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pytest_attnaccept.tasks.items import Parameter

__all__ = ["Stream"]

T = TypeVar("T")


class Stream:
    """A local random stream; equal arguments give equal draws on every platform."""

    def __init__(self, seed: int, task: str, parameters: Mapping[str, Parameter], index: int) -> None:
        key = json.dumps([seed, task, sorted(parameters.items()), index], separators=(",", ":"))
        self._random = random.Random(int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest(), "big"))

    def unit(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def below(self, n: int) -> int:
        """Uniform integer in [0, n)."""
        return int(self._random.random() * n)

    def pick(self, values: Sequence[T]) -> T:
        """One of the values."""
        return values[int(self._random.random() * len(values))]

    def sample(self, values: Sequence[T], k: int) -> list[T]:
        """``k`` different values in random order."""
        pool = list(values)
        for i in range(k):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """All values in random order."""
        return self.sample(values, len(values))
