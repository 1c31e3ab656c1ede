"""Which different identities look equal to a careless key: cut, joined, folded, hashed, converted or filled in.

Positions
---------
1. Two identities are different when Python's ``==`` says so. ``1`` and ``True`` are equal there and are not told apart.
2. All attributes as strings is what every cache must take. Values of other types and missing attributes may be refused
   with an exception; what is taken must not be shared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

__all__ = ["HASHED_VALUES", "Pair", "colliding_identities", "colliding_serializations", "typed_identities"]

Named = Mapping[str, object]
# Birthday: 2^18 draws give about eight equal pairs of a 32-bit hash; no pair at all has probability e^-8.
_DRAWS = 1 << 18

# Values that were searched for once; a test shows that each pair collides.
HASHED_VALUES: tuple[tuple[str, str, str], ...] = (
    ("CRC-32", "05ea2f13322884d0", "1d8f11e6301a4af7"),
    ("first 48 bits of the SHA-256", "000000000026a03f", "0000000001710c0e"),
    ("last 40 bits of the SHA-256", "00000000000e8bca", "00000000001dfa87"),
    ("first 48 bits of the MD5", "0000000000af6083", "0000000001203979"),
    ("last 40 bits of the MD5", "00000000000ac45d", "0000000000162123"),
    ("Adler-32, sums", "abba", "baab"),
    (
        "a polynomial hash modulo 32 bits",
        "".join("ab"[bin(place).count("1") & 1] for place in range(256)),
        "".join("ba"[bin(place).count("1") & 1] for place in range(256)),
    ),
)


class Pair(NamedTuple):
    """Two identities and what a careless key sees as equal in them."""

    one: Named
    other: Named
    why: str


def colliding_identities(keys: tuple[str, ...]) -> Iterator[Pair]:
    """Yield two identities that differ and what a careless key sees as equal in them."""
    plain: Named = dict.fromkeys(keys, "")
    digest = hashlib.sha256(b"image").hexdigest()
    for key in keys:
        yield Pair(plain, {**plain, key: "x"}, f"{key} given or not")
        for one, other, why in (
            ("alpha", "beta", "another value"),
            (digest, digest[:4] + digest[4:][::-1], "equal first 16 bits of the hash"),
            (digest, digest[:-1] + ("0" if digest[-1] != "0" else "1"), "all but the last digit equal"),
            (digest, ("0" if digest[0] != "0" else "1") + digest[1:], "all but the first digit equal"),
            (digest, digest[:32], "a cut hash"),
            ("Alpha", "alpha", "another case"),
            ("alpha", "alpha ", "a space more"),
            ("ab", "ba", "the same letters"),
            ("1", "01", "the same number"),
            ("None", "", "the word None"),
            ("a/1", "a/2", "the same name, another version"),
        ):
            yield Pair({**plain, key: one}, {**plain, key: other}, f"{key}: {why}")
        for why, one, other in HASHED_VALUES:
            yield Pair({**plain, key: one}, {**plain, key: other}, f"{key}: equal {why}")
    for place, one in enumerate(keys):
        for other in keys[place + 1 :]:
            yield Pair({**plain, one: "x"}, {**plain, other: "x"}, f"{one} and {other} with equal strings")
            yield Pair({**plain, one: "a", other: "b"}, {**plain, one: "b", other: "a"}, f"{one} and {other} exchanged")
            yield Pair(
                {**plain, one: "ab", other: "c"},
                {**plain, one: "a", other: "bc"},
                f"{one} and {other} without separator",
            )
            for mark in "|:,/-_ #;\x00":
                yield Pair(
                    {**plain, one: f"a{mark}b", other: "c"},
                    {**plain, one: "a", other: f"b{mark}c"},
                    f"{one} and {other} joined by {mark!r}",
                )


def typed_identities(keys: tuple[str, ...]) -> Iterator[Pair]:
    """Yield identities that differ in the type of a value, or in whether an attribute is there at all."""
    plain: Named = dict.fromkeys(keys, "")
    for key in keys:
        missing = {name: value for name, value in plain.items() if name != key}
        for one, other, why in (
            (None, "", "None and the empty string"),
            (None, "None", "None and its name"),
            (1, "1", "a number and its digits"),
            (0, "", "0 and the empty string"),
            (0, None, "0 and None"),
            (False, "False", "False and its name"),
            (False, None, "False and None"),
            (False, "", "False and the empty string"),
            (True, "True", "True and its name"),
            (True, "1", "True and the digit 1"),
            (1.5, "1.5", "a fraction and its digits"),
            (1, 1.5, "equal after int()"),
            (300, 44, "equal in one byte"),
            (("a", "b"), "('a', 'b')", "a tuple and how it is printed"),
            (("a", "b"), "ab", "a tuple and its joined parts"),
            (b"a", "a", "bytes and their text"),
            (-1, -2, "equal hash(): CPython gives -1 and -2 the same"),
            (0, (1 << 61) - 1, "equal hash(): CPython counts modulo 2^61 - 1"),
        ):
            yield Pair({**plain, key: one}, {**plain, key: other}, f"{key}: {why}")
        yield Pair(missing, plain, f"{key} missing or empty")
        yield Pair(missing, {**plain, key: None}, f"{key} missing or None")
    if len(keys) > 1:
        yield Pair({keys[0]: "x"}, {keys[1]: "x"}, f"only {keys[0]} or only {keys[1]}, with equal strings")
        yield Pair({}, plain, "no attribute, or all empty")


def colliding_serializations(keys: tuple[str, ...]) -> Iterator[Pair]:
    """Yield identities that are equal under 32 bits of a hash of the whole identity, found by birthday."""
    if not keys:
        return
    key, plain = keys[-1], dict.fromkeys(keys, "")
    values = [f"{number * 0x9E3779B97F4A7C15 & (1 << 64) - 1:016x}" for number in range(_DRAWS)]
    for why, digest in _whole(key, plain):
        seen: dict[object, str] = {}
        for value in values:
            other = seen.setdefault(digest(value), value)
            if other != value:
                yield Pair({**plain, key: other}, {**plain, key: value}, f"equal {why}")
                break


def _whole(key: str, plain: Named) -> Iterator[tuple[str, Callable[[str], object]]]:
    mark = "@value@"
    example = {**plain, key: mark}
    for words, text in (
        ("the sorted JSON", json.dumps(example, sort_keys=True)),
        ("the printed sorted items", repr(tuple(sorted(example.items())))),
        ("the printed mapping", str(example)),
    ):
        before, after = (part.encode() for part in text.split(mark))

        def digest(value: str, before: bytes = before, after: bytes = after) -> object:
            return hashlib.sha256(before + value.encode() + after).digest()[:4]

        yield f"first 32 bits of the SHA-256 of {words}", digest
    yield (
        "hash(tuple(sorted(items))) cut to 32 bits",
        lambda value: hash(tuple(sorted({**plain, key: value}.items()))) & 0xFFFFFFFF,
    )
    yield (
        "hash(frozenset(items)) cut to 32 bits",
        lambda value: hash(frozenset({**plain, key: value}.items())) & 0xFFFFFFFF,
    )
