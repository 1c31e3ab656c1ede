"""A cache, a prefix cache and a decoder that are right, and the same with one mistake each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.controls import Control
from pytest_attnaccept.state.cache import make_cache_contract, measure_cache
from pytest_attnaccept.state.decoder import make_decoder_contract, measure_decoder
from pytest_attnaccept.state.prefix import make_prefix_contract, measure_prefix_cache
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["controls"]


class ListCache:
    """One tensor of keys and values per sequence, each sequence with its own copy."""

    def __init__(self) -> None:
        self._kv: dict[int, tuple[Tensor, Tensor]] = {}

    def append(self, seq: int, keys: Tensor, values: Tensor) -> None:
        """Append keys and values (kv_heads, n, head_dim)."""
        old = self._kv.get(seq)
        self._kv[seq] = (
            (keys, values) if old is None else (torch.cat([old[0], keys], 1), torch.cat([old[1], values], 1))
        )

    def attend(self, seq: int, queries: Tensor) -> Tensor:
        """Return causal attention of the last n positions: (q_heads, n, head_dim)."""
        k, v = (x.double().repeat_interleave(queries.shape[0] // x.shape[0], dim=0) for x in self._kv[seq])
        scores = queries.double() @ k.transpose(-1, -2) * queries.shape[-1] ** -0.5
        n, m = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), float("-inf"))
        return (torch.softmax(scores, dim=-1) @ v).to(queries.dtype)

    def fork(self, parent: int, child: int) -> None:
        """Give the child the parent's contents."""
        self._kv[child] = self._kv[parent]

    def free(self, seq: int) -> None:
        """Forget a sequence."""
        del self._kv[seq]

    def truncate(self, seq: int, length: int) -> None:
        """Forget the positions from `length` on."""
        k, v = self._kv[seq]
        self._kv[seq] = (k[:, :length], v[:, :length])


class SharesAfterFork(ListCache):
    """Mistake: what the child appends appears in the parent."""

    def __init__(self) -> None:
        super().__init__()
        self._alias: dict[int, int] = {}

    def fork(self, parent: int, child: int) -> None:
        """Point the child at the parent's own storage."""
        super().fork(parent, child)
        self._alias[child] = parent

    def append(self, seq: int, keys: Tensor, values: Tensor) -> None:
        """Append, and write through to the parent."""
        super().append(seq, keys, values)
        parent = self._alias.get(seq)
        if parent in self._kv:
            super().append(parent, keys, values)


class TruncatesOneTooFew(ListCache):
    """Mistake: a rejected draft leaves one position behind."""

    def truncate(self, seq: int, length: int) -> None:
        """Keep one position too many."""
        super().truncate(seq, length + 1)


class LosesTheFirstKeyAtAPageEdge(ListCache):
    """Mistake: when the last page is full, the oldest key is not attended."""

    def attend(self, seq: int, queries: Tensor) -> Tensor:
        """Attend without the first key at multiples of four tokens."""
        k, v = self._kv[seq]
        if k.shape[1] % 4 or k.shape[1] <= queries.shape[1]:
            return super().attend(seq, queries)
        self._kv[seq] = (k[:, 1:], v[:, 1:])
        try:
            return super().attend(seq, queries)
        finally:
            self._kv[seq] = (k, v)


class RefusesTooEarly(ListCache):
    """Mistake: MemoryError although the pool has room."""

    def append(self, seq: int, keys: Tensor, values: Tensor) -> None:
        """Refuse a sequence of more than 64 tokens."""
        held = self._kv[seq][0].shape[1] if seq in self._kv else 0
        if held + keys.shape[1] > 64:
            raise MemoryError("no page left")
        super().append(seq, keys, values)


class RemembersFreed(ListCache):
    """Mistake: a freed sequence comes back when its number is used again."""

    def free(self, seq: int) -> None:
        """Keep everything."""


class PrefixStore:
    """Rows by whole prefix and identity, compared in full."""

    identified = True

    def __init__(self) -> None:
        self._rows: dict[object, tuple[Tensor, Tensor]] = {}

    def _key(self, tokens: list[int], identity: Mapping[str, Any]) -> object:
        who = tuple(sorted((k, repr(v)) for k, v in identity.items())) if self.identified else ()
        return (tuple(tokens), who)

    def match(self, tokens: list[int], identity: Mapping[str, Any]) -> int:
        """Return the length of the longest stored prefix."""
        return next((n for n in range(len(tokens), 0, -1) if self._key(tokens[:n], identity) in self._rows), 0)

    def insert(self, tokens: list[int], keys: Tensor, values: Tensor, identity: Mapping[str, Any]) -> None:
        """Store every prefix of the tokens."""
        for n in range(1, len(tokens) + 1):
            self._rows[self._key(tokens[:n], identity)] = (keys[:, :n].clone(), values[:, :n].clone())

    def fetch(self, tokens: list[int], length: int, identity: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first `length` tokens."""
        keys, values = self._rows[self._key(tokens[:length], identity)]
        return keys.clone(), values.clone()


class IgnoresIdentity(PrefixStore):
    """Mistake: equal tokens of another tenant, adapter or image are shared."""

    identified = False


class SumsTokens(PrefixStore):
    """Mistake: the key is a hash that other token lists share."""

    def _key(self, tokens: list[int], identity: Mapping[str, Any]) -> object:
        return (sum(tokens), len(tokens), super()._key([], identity))


class IgnoresPartialBlocks(PrefixStore):
    """Mistake: what stands in a block that is not full does not count."""

    def _key(self, tokens: list[int], identity: Mapping[str, Any]) -> object:
        return (tuple(tokens[: len(tokens) // 4 * 4]), len(tokens), super()._key([], identity))


class SwapsRows(PrefixStore):
    """Mistake: the rows of two tokens are exchanged."""

    def fetch(self, tokens: list[int], length: int, identity: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the rows in the wrong order."""
        keys, values = super().fetch(tokens, length, identity)
        return keys.flip(1), values.flip(1)


class EvictsHalf(PrefixStore):
    """Mistake: after an eviction the entry still matches, and its rows are gone."""

    def evict(self, tokens: list[int]) -> None:
        """Zero the rows and keep the entries."""
        for who, (keys, values) in self._rows.items():
            if isinstance(who, tuple) and who[0] == tuple(tokens):
                self._rows[who] = (torch.zeros_like(keys), torch.zeros_like(values))


def _target(tokens: Tensor) -> Tensor:
    """Return logits (vocab,) that depend on the last two tokens."""
    last = int(tokens[-1]) * 7 + (int(tokens[-2]) if tokens.numel() > 1 else 0) * 3
    return 2 * torch.cos(torch.arange(8, dtype=torch.float64) * (1.3 + last % 11) + last)


def samples(prompt: Tensor, max_new_tokens: int, temperature: float, seed: int, *, heat: float = 1.0) -> Tensor:
    """Decode one token after the other from the target; `heat` multiplies the temperature (1.0 is right)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = prompt
    for _ in range(max_new_tokens):
        logits = _target(tokens)
        if temperature == 0:
            chosen = logits.argmax().reshape(1)
        else:
            chosen = torch.multinomial(torch.softmax(logits / (temperature * heat), -1), 1, generator=generator)
        tokens = torch.cat([tokens, chosen])
    return tokens[prompt.numel() :]


def too_hot(prompt: Tensor, max_new_tokens: int, temperature: float, seed: int) -> Tensor:
    """Mistake: the target is sampled at another temperature."""
    return samples(prompt, max_new_tokens, temperature, seed, heat=1.5)


def second_best(prompt: Tensor, max_new_tokens: int, temperature: float, seed: int) -> Tensor:
    """Mistake: greedy decoding takes the second best token."""
    if temperature > 0:
        return samples(prompt, max_new_tokens, temperature, seed)
    tokens = prompt
    for _ in range(max_new_tokens):
        tokens = torch.cat([tokens, _target(tokens).topk(2).indices[1:]])
    return tokens[prompt.numel() :]


def ignores_the_seed(prompt: Tensor, max_new_tokens: int, temperature: float, seed: int) -> Tensor:
    """Mistake: every seed gives the same sample."""
    del seed
    return samples(prompt, max_new_tokens, temperature, 0)


class Remembers:
    """Mistake: what was decoded before changes what is decoded next."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, prompt: Tensor, max_new_tokens: int, temperature: float, seed: int) -> Tensor:
        """Decode; every second request is rotated by one token."""
        self._calls += 1
        tokens = samples(prompt, max_new_tokens, temperature, seed)
        return tokens if self._calls % 2 else (tokens + 1) % 8


def boasts(prompt: Tensor, max_new_tokens: int, temperature: float, seed: int) -> tuple[Tensor, dict[str, object]]:
    """Mistake: reports more accepted tokens than it returned."""
    tokens = samples(prompt, max_new_tokens, temperature, seed)
    return tokens, {"target_calls": 3, "accepted": [max_new_tokens] * 3}


def controls(seed: int, device: str) -> Iterator[Control]:
    """Yield the controls of the surfaces ``cache``, ``prefix_cache`` and ``decoder``; they run on the CPU whatever the device."""
    del device
    bad, good = frozenset({Verdict.FAIL, Verdict.INVALID}), frozenset({Verdict.PASS})
    contract = make_cache_contract(
        q_heads=4, kv_heads=2, head_dim=16, page_size=4, dtype="float32", capacity_tokens=4096,
        operations=("fork", "free", "truncate"),
    )  # fmt: skip
    caches: tuple[tuple[str, str, Callable[[], object], frozenset[Verdict]], ...] = (
        ("correct cache", "programs", ListCache, good),
        ("the child writes into the parent", "fork", SharesAfterFork, bad),
        ("one rejected token stays", "rollback", TruncatesOneTooFew, bad),
        ("a key is lost at a page edge", "edges", LosesTheFirstKeyAtAPageEdge, bad),
        ("a key is lost at a page edge", "programs", LosesTheFirstKeyAtAPageEdge, bad),
        ("memory is refused too early", "pressure", RefusesTooEarly, bad),
        ("a freed sequence comes back", "reuse", RemembersFreed, bad),
    )
    for name, check, factory, expected in caches:
        measure = partial(measure_cache, check, factory, contract, seed=seed, device="cpu", programs=20)
        yield Control(surface="cache", name=name, check=check, expected=expected, measure=measure)
    prefix = make_prefix_contract(block_size=4)
    for name, check, store, expected in (
        ("correct prefix cache", "identity", PrefixStore, good),
        ("another tenant's prefix is shared", "identity", IgnoresIdentity, bad),
        ("rows are exchanged", "programs", SwapsRows, bad),
        ("equal sums share", "collisions", SumsTokens, bad),
        ("partial blocks share", "blocks", IgnoresPartialBlocks, bad),
        ("an evicted entry matches", "eviction", EvictsHalf, bad),
    ):
        run = partial(measure_prefix_cache, check, store, prefix, seed=seed, device="cpu", programs=30)
        yield Control(surface="prefix_cache", name=name, check=check, expected=expected, measure=run)
    decoder = make_decoder_contract(vocab_size=8)
    for name, check, candidate, expected in (
        ("correct decoder", "greedy", samples, good),
        ("correct decoder", "distribution", samples, good),
        ("sampled at another temperature", "distribution", too_hot, bad),
        ("the second best token", "greedy", second_best, bad),
        ("the seed is ignored", "seeds", ignores_the_seed, bad),
        ("requests change each other", "state", Remembers(), bad),
        ("an impossible report", "steps", boasts, bad),
    ):
        decode = partial(measure_decoder, check, candidate, _target, decoder, seed=seed, device="cpu", profile="smoke")
        yield Control(surface="decoder", name=name, check=check, expected=expected, measure=decode)
