"""What a prefix cache may claim and must return: bounds on a match, and rows made of the whole prefix and the identity.

Positions
---------
1. The row of a position is a hash of all tokens up to it and of the identity; two contexts that differ anywhere before it,
   or in any attribute, have different rows, so every wrong sharing is visible bit by bit.
2. An upper bound counts everything that was ever inserted (a cache may keep what was evicted, its rows are still right);
   a lower bound counts only what nobody evicted a part of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.state.keywords import as_dtype, as_int, as_names, refuse_unknown

__all__ = ["Entry", "Identity", "PrefixContract", "PrefixOracle", "common_length", "make_prefix_contract"]

Identity = tuple[tuple[str, object], ...]
_DEFAULTS: Mapping[str, object] = {
    "kv_heads": 2,
    "head_dim": 16,
    "dtype": torch.float32,
    "block_size": 1,
    "identity_keys": ("adapter", "image", "tenant"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixContract:
    """The declared facts of one prefix cache.

    Attributes
    ----------
    block_size
        `match` may fall short of the longest stored prefix by less than this (by one token more where everything matches).
    identity_keys
        Attributes that separate requests. Identities have all of them as strings, and, where a cache takes such, some without
        a value or with one of another type.
    """

    kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    block_size: int = 1
    identity_keys: tuple[str, ...] = ("adapter", "image", "tenant")

    def keywords(self) -> dict[str, object]:
        """Return the keywords that make this contract again, without the defaults."""
        return {name: getattr(self, name) for name, default in _DEFAULTS.items() if getattr(self, name) != default}


def make_prefix_contract(**keywords: object) -> PrefixContract:
    """Return the contract of `accept.prefix_cache`; anything unknown or impossible is a ContractError."""
    refuse_unknown("prefix_cache", keywords, _DEFAULTS)
    given = {**_DEFAULTS, **keywords}
    contract = PrefixContract(
        kv_heads=as_int("prefix_cache", "kv_heads", given["kv_heads"], low=1),
        head_dim=as_int("prefix_cache", "head_dim", given["head_dim"], low=1),
        dtype=as_dtype("prefix_cache", given["dtype"]),
        block_size=as_int("prefix_cache", "block_size", given["block_size"], low=1),
        identity_keys=as_names("prefix_cache", "identity_keys", given["identity_keys"]),
    )
    if contract.kv_heads * contract.head_dim < 4:
        raise ContractError(
            "accept.prefix_cache: kv_heads * head_dim must be at least 4, or rows of two prefixes may agree."
        )
    return contract


@dataclass(frozen=True, slots=True)
class Entry:
    """One inserted list of tokens under one identity."""

    tokens: tuple[int, ...]
    identity: Identity


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


class PrefixOracle:
    """Remembers what was inserted and evicted, and knows every row."""

    def __init__(self, contract: PrefixContract, seed: int) -> None:
        self.contract = contract
        self.ever: dict[Identity, list[tuple[int, ...]]] = {}
        self.sure: dict[Identity, list[tuple[int, ...]]] = {}
        self._salt = str(seed).encode()

    def insert(self, entry: Entry) -> None:
        """Remember one insertion."""
        for kept in (self.ever, self.sure):
            lists = kept.setdefault(entry.identity, [])
            if entry.tokens not in lists:
                lists.append(entry.tokens)

    def evict(self, tokens: tuple[int, ...]) -> None:
        """Forget that lists which share a beginning with `tokens` are surely there."""
        for identity, lists in self.sure.items():
            self.sure[identity] = [kept for kept in lists if common_length(kept, tokens) == 0]

    def holds(self, tokens: tuple[int, ...]) -> bool:
        """Return whether exactly this list is surely stored under some identity."""
        return any(tokens in lists for lists in self.sure.values())

    def longest(self, entry: Entry) -> int:
        """Return the longest prefix that was ever inserted under the identity: `match` must not exceed it."""
        return max((common_length(kept, entry.tokens) for kept in self.ever.get(entry.identity, [])), default=0)

    def least(self, entry: Entry) -> int:
        """Return what `match` must reach."""
        stored = max((common_length(kept, entry.tokens) for kept in self.sure.get(entry.identity, [])), default=0)
        slack = self.contract.block_size - 1 + int(stored == len(entry.tokens))
        return max(0, stored - slack)

    def rows(self, entry: Entry) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of every position, each ``(kv_heads, n, head_dim)`` in the contract's dtype."""
        state = hashlib.blake2b(repr(entry.identity).encode(), key=self._salt, digest_size=16).digest()
        width = self.contract.kv_heads * self.contract.head_dim
        raw = bytearray()
        for token in entry.tokens:
            state = hashlib.blake2b(state + token.to_bytes(16, "little", signed=True), digest_size=16).digest()
            raw += hashlib.shake_128(state).digest(2 * width)
        # Bytes as whole numbers: exact in every dtype down to bfloat16.
        numbers = np.frombuffer(bytes(raw), dtype=np.int8).reshape(len(entry.tokens), 2, self.contract.kv_heads, -1)
        both = torch.from_numpy(numbers.transpose(1, 2, 0, 3).copy()).to(self.contract.dtype)
        return both[0], both[1]
