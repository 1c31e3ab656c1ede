"""Which different token lists look equal to a careless key: truncated, order-free, arithmetic and short hashes.

Every pair is given in a length that fills at least one block, with a common token behind it, so that a cache which leaves
the last token out still meets it.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Pair", "colliding_pairs", "wide_pairs"]

# Birthday: 2^18 draws give about eight equal pairs of a 32-bit hash; no pair at all has probability e^-8.
_DRAWS = 1 << 18
_VOCAB = 30_000


class Pair(NamedTuple):
    """Two lists and what a careless key sees as equal in them."""

    one: tuple[int, ...]
    other: tuple[int, ...]
    why: str


def colliding_pairs(block: int) -> list[Pair]:
    """Return all pairs for a block size; the same ones in every run."""
    rng = random.Random(f"collisions/{block}")
    pairs = [*_structural(max(block, 4), rng), *_numeric(max(block, 4), rng), *_truncated(block, rng)]
    return pairs + list(_birthdays(block))


def _fill(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, _VOCAB) for _ in range(count)]


def _structural(size: int, rng: random.Random) -> Iterator[Pair]:
    base = _fill(rng, size)
    tail = (7,)

    def pair(one: list[int], other: list[int], why: str) -> Pair:
        return Pair((*one, *tail), (*other, *tail), why)

    yield pair(base, [*base[:-2], base[-1], base[-2]], "the same tokens in another order")
    yield pair(base, base[::-1], "the same tokens reversed")
    yield pair(base, [*base[:-2], base[-2] + 1, base[-1] - 1], "equal sum")
    yield pair(base, [*base[:-2], base[-2] ^ 64, base[-1] ^ 64], "equal xor")
    three = base[3:]
    yield pair([5, 5, 9, *three], [5, 9, 9, *three], "equal set of tokens")
    yield pair([9, 5, 5, *three], [9, 9, 5, *three], "equal set of tokens, other counts")
    yield pair([1, 23, *base[2:]], [12, 3, *base[2:]], "equal digits without a separator")
    yield pair([0, *base[1:]], [0, 0, *base[1:]], "leading zeros")
    yield pair(
        [*base[: size // 2], 11, *base[size // 2 + 1 :]], [*base[: size // 2], 13, *base[size // 2 + 1 :]], "equal ends"
    )
    yield pair(base, [base[0] + 1, *base[1:]], "equal but for the first token")


def _numeric(size: int, rng: random.Random) -> Iterator[Pair]:
    base = _fill(rng, size)
    for step, why in (
        (1 << 8, "equal in the low 8 bits of each token"),
        (1 << 16, "equal in the low 16 bits of each token"),
        (1000, "equal modulo 1000"),
        (32_000, "equal modulo 32000"),
    ):
        yield Pair((*base, 7), (*base[:-1], base[-1] + step, 7), why)
    for small, why in ((256, "equal in bfloat16"), (2048, "equal in float16"), (1 << 24, "equal in float32")):
        yield Pair((*base[:-1], small, 7), (*base[:-1], small + 1, 7), why)
    for count, why in ((256, "32 bits"), (2048, "64 bits")):
        # The Thue-Morse word and its complement agree under every polynomial hash with an odd base modulo 2^32 (2^64).
        word = [bin(place).count("1") & 1 for place in range(count)]
        yield Pair(
            (*(11 + 8 * bit for bit in word), 7),
            (*(19 - 8 * bit for bit in word), 7),
            f"equal polynomial hash modulo {why}",
        )


def _truncated(block: int, rng: random.Random) -> Iterator[Pair]:
    for count in (1, 2, 4, 8, 16, 32, 64, 128):
        base = _fill(rng, -(-(count + 2) // block) * block)
        differ = [*base[:count], *(token + 1 for token in base[count:])]
        yield Pair((*base, 7), (*differ, 7), f"the first {count} tokens are equal")
        differ = [*(token + 1 for token in base[:-count]), *base[-count:]]
        yield Pair((*base, 7), (*differ, 7), f"the last {count + 1} tokens are equal")


def _bytes(tokens: tuple[int, ...], width: int) -> bytes:
    return b"".join(token.to_bytes(width, "little") for token in tokens)


_SHORT_HASHES: tuple[tuple[str, Callable[[tuple[int, ...]], int]], ...] = (
    ("hash(tuple(tokens)) cut to 32 bits", lambda tokens: hash(tokens) & 0xFFFFFFFF),
    ("CRC-32 of 64-bit tokens", lambda tokens: zlib.crc32(_bytes(tokens, 8))),
    ("CRC-32 of 32-bit tokens", lambda tokens: zlib.crc32(_bytes(tokens, 4))),
    ("CRC-32 of the printed list", lambda tokens: zlib.crc32(str(list(tokens)).encode())),
    (
        "SHA-256 of the printed list cut to 32 bits",
        lambda tokens: int.from_bytes(hashlib.sha256(str(list(tokens)).encode()).digest()[:4], "big"),
    ),
)


@lru_cache(maxsize=4)
def _birthdays(block: int) -> tuple[Pair, ...]:
    """Return one pair of `block`-token lists (4 at least) per short hash; found, not stored, so that it fits the block."""
    rng = random.Random(f"birthday/{block}")
    size = max(4, min(block, 32))  # CRC is linear: fewer than 32 varying bits never collide
    flat, rest = rng.choices(range(100, _VOCAB), k=4 * _DRAWS), (7,) * (size - 4)
    draws = [(*flat[start : start + 4], *rest) for start in range(0, len(flat), 4)]
    pairs = []
    for why, key in _SHORT_HASHES:
        seen: dict[int, tuple[int, ...]] = {}
        for tokens in draws:
            other = seen.setdefault(key(tokens), tokens)
            if other != tokens:
                pairs.append(Pair((*tokens, 7), (*other, 7), f"equal {why}"))
                break
    return tuple(pairs)


def wide_pairs(block: int = 1) -> list[Pair]:
    """Return lists with 61-bit tokens that are equal under ``hash(tuple(tokens))``.

    CPython hashes an int modulo 2^61 - 1, so 0 and 2^61 - 1 hash alike, in blocks of any size; and its tuple hash is inverted
    for two tokens of which neither repeats a hash. A cache that refuses such tokens is not wrong; the caller treats an
    exception as "not supported".
    """
    size = max(block, 4)
    rest = tuple(range(40, 40 + size - 1))
    pairs = [Pair((*rest, 0, 7), (*rest, (1 << 61) - 1, 7), "equal hash(tuple(tokens)): 0 and 2^61 - 1 hash alike")]
    return pairs + (_inverted_pairs() if block <= 2 else [])


def _inverted_pairs() -> list[Pair]:
    prime1, prime2, prime5, mask = 11400714785074694791, 14029467366897019727, 2870177450012600261, (1 << 64) - 1

    def after(first: int) -> int:
        mixed = (prime5 + first * prime2) & mask
        return ((mixed << 31 | mixed >> 33) & mask) * prime1 & mask

    inverse = pow(prime2, -1, 1 << 64)
    base = (5, 1 << 60)
    for first in range(6, 4000):
        second = (base[1] + (after(base[0]) - after(first)) * inverse) & mask
        other = (first, second)
        if second < (1 << 61) - 1 and hash(base) == hash(other):
            return [Pair((*base, 7), (*other, 7), "equal hash(tuple(tokens))")]
    return []
