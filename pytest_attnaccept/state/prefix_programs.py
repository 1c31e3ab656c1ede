"""Which programs are run against a prefix cache: random ones, and one fixed family for each way of sharing wrongly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from pytest_attnaccept.state import identities
from pytest_attnaccept.state.collisions import Pair, colliding_pairs, wide_pairs
from pytest_attnaccept.state.prefix_oracle import Entry, Identity, PrefixContract
from pytest_attnaccept.state.prefix_replay import PrefixStep

__all__ = ["CROWD", "PREFIX_THEMES", "crowd_programs", "simpler_step", "typed_programs", "wide_programs"]

Program = list[PrefixStep]
# A 16-bit key confuses one of CROWD stored with one of CROWD asked with probability 1 - exp(-CROWD^2 / 65536) > 1 - 1e-6.
CROWD = 1000


def _plain(contract: PrefixContract) -> Identity:
    return tuple((key, "") for key in contract.identity_keys)


def _visit(entries: list[Entry], note: str = "") -> Program:
    """Insert one by one; look at all of them before and after each."""
    program: Program = []
    for entry in entries:
        program += [PrefixStep("match", entry, note), PrefixStep("insert", entry)]
        program += [PrefixStep("match", other, note) for other in entries]
    return program


def identity_programs(contract: PrefixContract, _seed: int, _programs: int) -> Iterator[Program]:
    """Yield the same tokens under two identities of strings that are easily confused."""
    yield from _shared_tokens(contract, identities.colliding_identities(contract.identity_keys))
    yield from _shared_tokens(contract, _serializations(contract.identity_keys))


@lru_cache(maxsize=4)
def _serializations(keys: tuple[str, ...]) -> tuple[identities.Pair, ...]:
    return tuple(identities.colliding_serializations(keys))


def typed_programs(contract: PrefixContract) -> Iterator[Program]:
    """Yield the same tokens under identities of other types; a cache may refuse them with an exception."""
    yield from _shared_tokens(contract, identities.typed_identities(contract.identity_keys))


def _shared_tokens(contract: PrefixContract, pairs: Iterable[identities.Pair]) -> Iterator[Program]:
    tokens = tuple(range(50, 50 + 3 * contract.block_size + 2))
    for pair in pairs:
        entries = [Entry(tokens, tuple(side.items())) for side in (pair.one, pair.other)]
        yield _visit(entries, pair.why)
        yield _visit(entries[::-1], pair.why)


def collision_programs(contract: PrefixContract, _seed: int, _programs: int) -> Iterator[Program]:
    """Yield two lists that a careless key confuses."""
    for pair in colliding_pairs(contract.block_size):
        yield from _pair_programs(contract, pair)


def wide_programs(contract: PrefixContract) -> Iterator[Program]:
    """Yield lists of 61-bit tokens; a cache may refuse them with an exception."""
    for pair in wide_pairs(contract.block_size):
        yield from _pair_programs(contract, pair)


def _pair_programs(contract: PrefixContract, pair: Pair) -> Iterator[Program]:
    plain = _plain(contract)
    entries = [Entry(pair.one, plain), Entry(pair.other, plain)]
    yield _visit(entries, pair.why)
    yield _visit(entries[::-1], pair.why)


def block_programs(contract: PrefixContract, seed: int, _programs: int) -> Iterator[Program]:
    """Yield lists that end at, before and after block edges, with their beginnings, continuations and near misses."""
    block, plain = contract.block_size, _plain(contract)
    rng = random.Random(f"blocks/{seed}")
    base = tuple(rng.randrange(1000) for _ in range(4 * block + 4))
    lengths = sorted({1, 2, block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1, 3 * block} - {0})
    for length in lengths:
        stored = Entry(base[:length], plain)
        asked = [Entry(base[:cut], plain) for cut in sorted({*lengths, len(base)})]
        asked += [Entry((*base[:length], 0, 0), plain)]
        asked += [
            Entry((*base[:cut], base[cut] + 1, *base[cut + 1 :]), plain) for cut in range(min(length + 1, 3 * block))
        ]
        yield [PrefixStep("insert", stored), *(PrefixStep("match", entry) for entry in asked)]
    # The same block of tokens behind two different beginnings, and twice inside one list.
    first, second, shared = base[:block], tuple(token + 1 for token in base[:block]), base[block : 2 * block]
    yield _visit(
        [Entry((*first, *shared, 3), plain), Entry((*second, *shared, 3), plain)], "an equal block behind another"
    )
    yield _visit([Entry((*shared, *shared, *shared, 3), plain), Entry((*shared, 3), plain)], "a repeated block")
    # A short list first, then a longer one through it, then branches off both.
    long, branch = Entry(base, plain), Entry((*base[: 2 * block], *second, 5), plain)
    yield _visit([Entry(base[: block + 1], plain), long, branch, Entry((*base[:block], *second), plain)], "branches")


def eviction_programs(contract: PrefixContract, seed: int, programs: int) -> Iterator[Program]:
    """Yield insertions, evictions and re-insertions around lists that stay and lists that are in use."""
    block, plain = contract.block_size, _plain(contract)
    yield from _duplicates(contract, seed)
    for index in range(max(4, programs // 4)):
        rng = random.Random(f"eviction/{seed}/{index}")
        mine, other = (tuple(rng.randrange(1000) + shift for _ in range(3 * block + 1)) for shift in (0, 2000))
        longer = (*mine[: 2 * block], *other[: block + 1])
        steps = [PrefixStep("insert", Entry(tokens, plain)) for tokens in (mine, other, longer)]
        steps += [PrefixStep("match", Entry(tokens, plain), "before eviction") for tokens in (mine, other, longer)]
        for round_ in range(3):
            fresh = tuple(rng.randrange(1000) + 4000 * (round_ + 1) for _ in range(rng.randrange(1, 4) * block + 1))
            gone = rng.choice((mine, longer))
            steps += [PrefixStep("evict", Entry(gone, plain))]
            steps += [PrefixStep("match", Entry(tokens, plain), "after eviction") for tokens in (other, mine, longer)]
            steps += [PrefixStep("insert", Entry(fresh, plain)), PrefixStep("match", Entry(fresh, plain))]
            steps += [
                PrefixStep("match", Entry(tokens, plain), "after room was reused") for tokens in (mine, longer, other)
            ]
            # A freed block's number is given out again: what was built on it must not continue the new one.
            for cut in range(block, len(fresh), block):
                steps += [
                    PrefixStep("match", Entry((*fresh[:cut], *old[cut:]), plain), "grafted") for old in (mine, longer)
                ]
            steps += [PrefixStep("insert", Entry(gone, plain))]
            steps += [
                PrefixStep("match", Entry(tokens, plain), "after re-insertion") for tokens in (gone, other, fresh)
            ]
        yield steps


def _duplicates(contract: PrefixContract, seed: int) -> Iterator[Program]:
    """Yield lists inserted twice, or under two identities, of which one is evicted while the other is in use."""
    block, plain = contract.block_size, _plain(contract)
    rng = random.Random(f"duplicates/{seed}")
    mine, other, *fresh = (tuple(rng.randrange(9000) for _ in range(3 * block + 1)) for _ in range(2 + 2 * 2 * 3))
    branch = (*mine[: 2 * block], *other[: block + 1])
    owners = [plain, *(tuple((k, "x" if k == key else "") for k, _ in plain) for key in contract.identity_keys[:1])]
    for owner in owners:
        twice = [Entry(mine, plain), Entry(mine, owner)]
        around = [*twice, Entry(branch, owner)]
        steps = [PrefixStep("insert", entry) for entry in (*twice, Entry(branch, owner), twice[0])]
        steps += [PrefixStep("match", entry, "before a duplicate is evicted") for entry in around]
        for tokens in (mine, branch):
            steps.append(PrefixStep("evict", Entry(tokens, plain)))
            steps += [PrefixStep("match", entry, "a duplicate was evicted") for entry in around]
            for _ in range(3):
                new = Entry(fresh.pop(), owner)
                steps += [
                    PrefixStep("insert", new),
                    *(PrefixStep("match", entry, "room was reused") for entry in around),
                ]
        yield steps


def crowd_programs(contract: PrefixContract, seed: int) -> Iterator[Program]:
    """Yield many lists, and many values of each attribute: a short hash must confuse two of them."""
    rng = random.Random(f"crowd/{seed}")
    size = contract.block_size + 1
    lists = [tuple(rng.randrange(30_000) for _ in range(size)) for _ in range(2 * CROWD)]
    plain = _plain(contract)
    yield _crowd([Entry(tokens, plain) for tokens in lists], "one of many token lists")
    for key in contract.identity_keys:
        identities = [
            tuple((name, f"{rng.getrandbits(256):064x}" if name == key else "") for name in contract.identity_keys)
            for _ in range(2 * CROWD)
        ]
        yield _crowd([Entry(lists[0], identity) for identity in identities], f"one of many values of {key}")


def _crowd(entries: list[Entry], note: str) -> Program:
    stored, asked = entries[:CROWD], entries[CROWD:]
    return [*(PrefixStep("insert", entry) for entry in stored), *(PrefixStep("match", entry, note) for entry in asked)]


def random_programs(contract: PrefixContract, seed: int, programs: int) -> Iterator[Program]:
    """Yield random programs over lists that share beginnings, middles and attributes."""
    for index in range(programs):
        yield _random_program(contract, random.Random(f"prefix/{seed}/{index}"))


def _random_program(contract: PrefixContract, rng: random.Random) -> Program:
    block = max(4, contract.block_size)
    identities = [tuple((key, rng.choice(("", "a", "b"))) for key in contract.identity_keys) for _ in range(3)]
    known: list[tuple[int, ...]] = [tuple(rng.randrange(4) for _ in range(rng.randrange(1, 4 * block + 3)))]
    program: Program = []
    for _ in range(rng.randrange(10, 40)):
        tokens = _relative(rng, known, block)
        entry = Entry(tokens, rng.choice(identities))
        draw = rng.random()
        if draw < 0.4:
            known.append(tokens)
            program += [PrefixStep("insert", entry), PrefixStep("match", entry)]
        elif draw < 0.9:
            program.append(PrefixStep("match", entry))
        else:
            program.append(PrefixStep("evict", Entry(rng.choice(known), ())))
        program.append(PrefixStep("match", Entry(rng.choice(known), rng.choice(identities))))
    return program


def _relative(rng: random.Random, known: list[tuple[int, ...]], block: int) -> tuple[int, ...]:
    """Return a list that begins like a known one, cut at a block edge more often than not."""
    base = rng.choice(known)
    cut = rng.choice((len(base), len(base) - 1, rng.randrange(len(base) + 1), len(base) // block * block))
    tail = rng.choice((rng.choice(known), tuple(rng.randrange(4) for _ in range(rng.randrange(block + 2)))))
    return (*base[: max(0, cut)], *tail)[: 6 * block + 2] or (rng.randrange(4),)


PREFIX_THEMES: Mapping[str, Callable[[PrefixContract, int, int], Iterator[Program]]] = {
    "programs": random_programs,
    "identity": identity_programs,
    "collisions": collision_programs,
    "blocks": block_programs,
    "eviction": eviction_programs,
}


def simpler_step(step: PrefixStep) -> Iterator[PrefixStep]:
    """Yield simpler variants of a step: shorter lists, emptier identities."""
    tokens = step.entry.tokens
    for cut in dict.fromkeys((len(tokens) // 2, len(tokens) - 1)):
        if 0 < cut < len(tokens):
            yield replace(step, entry=replace(step.entry, tokens=tokens[:cut]))
    for place, (key, value) in enumerate(step.entry.identity):
        if value and isinstance(value, str):
            identity = (*step.entry.identity[:place], (key, ""), *step.entry.identity[place + 1 :])
            yield replace(step, entry=replace(step.entry, identity=identity))
