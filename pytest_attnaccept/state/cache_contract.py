"""What a stateful KV cache promises: shapes, window, sinks, room, operations, a bitwise twin (`accept.cache`, all keywords)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.state.keywords import as_dtype, as_int, as_names, refuse_missing, refuse_unknown

__all__ = ["OPERATIONS", "Cache", "CacheContract", "CacheFactory", "make_cache_contract"]

OPERATIONS = ("fork", "free", "truncate")
_REQUIRED = ("q_heads", "kv_heads", "head_dim", "page_size", "dtype", "capacity_tokens")
_OPTIONAL = ("window", "sink_tokens", "operations", "bitwise_to")


class Cache(Protocol):
    """The object under test; `fork`, `free` and `truncate` exist as far as the contract declares them."""

    def append(self, seq: int, keys: torch.Tensor, values: torch.Tensor) -> object:
        """Add n tokens; keys and values ``(kv_heads, n, head_dim)``."""

    def attend(self, seq: int, queries: torch.Tensor) -> torch.Tensor:
        """Attend with the last n positions, ``(q_heads, n, head_dim)`` in and out."""


CacheFactory = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContract:
    """The declared facts of one cache.

    Attributes
    ----------
    window
        How many most recent keys a query sees, its own position included; None: all of them.
    sink_tokens
        First tokens of a sequence that stay visible in addition to the window.
    capacity_tokens
        Room of the pool; a cache may raise MemoryError only beyond ``capacity_tokens // page_size`` pages.
    operations
        Which of fork, free and truncate exist.
    bitwise_to
        Makes a cache with the same kernel over another layout (contiguous), with as much room as it likes: every output
        must equal this one's bit for bit.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    capacity_tokens: int
    window: int | None = None
    sink_tokens: int = 0
    operations: tuple[str, ...] = OPERATIONS
    bitwise_to: CacheFactory | None = field(default=None, repr=False, compare=False)

    @property
    def capacity_pages(self) -> int:
        """Whole pages in the pool."""
        return self.capacity_tokens // self.page_size

    def pages(self, tokens: int) -> int:
        """Return ``ceil(tokens / page_size)``."""
        return -(-tokens // self.page_size)

    def keywords(self) -> dict[str, object]:
        """Return the keywords that make this contract again, without the defaults."""
        given: dict[str, object] = {name: getattr(self, name) for name in _REQUIRED}
        if self.window is not None:
            given["window"] = self.window
        if self.sink_tokens:
            given["sink_tokens"] = self.sink_tokens
        if self.operations != OPERATIONS:
            given["operations"] = self.operations
        if self.bitwise_to is not None:
            given["bitwise_to"] = _Name("twin_factory")
        return given


class _Name:
    """A name that stands for itself in printed code."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def make_cache_contract(**keywords: object) -> CacheContract:
    """Return the contract of `accept.cache`; anything unknown, missing or impossible is a ContractError.

    Parameters
    ----------
    keywords
        ``q_heads, kv_heads, head_dim, page_size, dtype, capacity_tokens`` are required; ``window=None, sink_tokens=0,
        operations=("fork", "free", "truncate"), bitwise_to=None`` are not.
    """
    refuse_unknown("cache", keywords, (*_REQUIRED, *_OPTIONAL))
    refuse_missing("cache", keywords, _REQUIRED)
    numbers = {name: as_int("cache", name, keywords[name], low=1) for name in _REQUIRED if name != "dtype"}
    contract = CacheContract(
        **numbers,
        dtype=as_dtype("cache", keywords["dtype"]),
        window=_window(keywords),
        sink_tokens=as_int("cache", "sink_tokens", keywords.get("sink_tokens", 0), low=0),
        operations=as_names("cache", "operations", keywords.get("operations", OPERATIONS), OPERATIONS),
        bitwise_to=_factory(keywords.get("bitwise_to")),
    )
    _refuse_impossible(contract)
    return contract


def _factory(value: object) -> CacheFactory | None:
    if value is not None and not callable(value):
        raise ContractError(f"accept.cache: bitwise_to must be a factory of caches, got {value!r}.")
    return value


def _window(keywords: Mapping[str, object]) -> int | None:
    window = keywords.get("window")
    return None if window is None else as_int("cache", "window", window, low=1)


def _refuse_impossible(contract: CacheContract) -> None:
    if contract.q_heads % contract.kv_heads:
        raise ContractError(
            f"accept.cache: q_heads {contract.q_heads} is not a multiple of kv_heads {contract.kv_heads}."
        )
    if contract.sink_tokens and contract.window is None:
        raise ContractError("accept.cache: sink_tokens needs a window; without one every token stays visible.")
    if contract.capacity_pages < 1:
        raise ContractError(
            f"accept.cache: capacity_tokens {contract.capacity_tokens} is less than one page of {contract.page_size}."
        )
