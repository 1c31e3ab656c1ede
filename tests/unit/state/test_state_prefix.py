"""Prefix caches: the oracle's bounds and rows, the collisions that are claimed, and what a measurement says."""

import hashlib
import json
import zlib

import pytest
import torch

from fixtures.broken.prefix_caches import FetchGivesPoolView, NeverMatches, NoParentInKey, keyed
from fixtures.good.prefix_caches import BlockHashPrefixCache, RadixPrefixCache, TablePrefixCache
from pytest_attnaccept.errors import AcceptanceFailure, CandidateError, ContractError
from pytest_attnaccept.state.collisions import _SHORT_HASHES, colliding_pairs, wide_pairs
from pytest_attnaccept.state.identities import (
    HASHED_VALUES,
    colliding_identities,
    colliding_serializations,
    typed_identities,
)
from pytest_attnaccept.state.prefix import PREFIX_CHECKS, make_prefix_contract, measure_prefix_cache
from pytest_attnaccept.state.prefix_oracle import Entry, PrefixOracle, common_length
from pytest_attnaccept.taxonomy import Verdict

PLAIN = (("adapter", ""), ("image", ""), ("tenant", ""))
OTHER = (("adapter", "x"), ("image", ""), ("tenant", ""))


def measure(check, factory, programs=30, **keywords):
    return measure_prefix_cache(
        check, factory, make_prefix_contract(**keywords), seed=0, device="cpu", programs=programs
    )


def verdicts(measured):
    return {refusal.verdict for refusal in measured.refusals}


def failed(measured):
    return any(not gate.value <= gate.limit for gate in measured.gates)


def oracle(**keywords):
    return PrefixOracle(make_prefix_contract(**keywords), seed=0)


def test_rows_depend_on_everything_before_and_on_nothing_behind():
    rows = oracle().rows
    base, longer = rows(Entry((1, 2, 3), PLAIN)), rows(Entry((1, 2, 3, 4), PLAIN))
    for one, other in zip(base, longer, strict=True):
        assert one.shape == (2, 3, 16)
        assert torch.equal(one, other[:, :3])
    changed = rows(Entry((1, 9, 3), PLAIN))
    assert torch.equal(base[0][:, 0], changed[0][:, 0])
    assert not torch.equal(base[0][:, 2], changed[0][:, 2])
    assert not torch.equal(base[0], rows(Entry((1, 2, 3), OTHER))[0])
    assert not torch.equal(base[0], base[1])
    assert not torch.equal(base[0], PrefixOracle(make_prefix_contract(), seed=1).rows(Entry((1, 2, 3), PLAIN))[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_rows_are_exact_in_every_dtype(dtype):
    got = oracle(dtype=dtype).rows(Entry((1, 2), PLAIN))[0]
    assert torch.equal(got.to(torch.float32), oracle().rows(Entry((1, 2), PLAIN))[0])


def test_bounds_of_a_match():
    facts = oracle(block_size=4)
    facts.insert(Entry(tuple(range(10)), PLAIN))
    asked = Entry((*range(9), 99), PLAIN)
    assert (facts.longest(asked), facts.least(asked)) == (9, 6)
    everything = Entry(tuple(range(8)), PLAIN)
    assert (facts.longest(everything), facts.least(everything)) == (8, 4)
    assert facts.longest(Entry(tuple(range(10)), OTHER)) == 0
    facts.evict(tuple(range(10)))
    assert (facts.longest(asked), facts.least(asked)) == (9, 0)
    assert not facts.holds(tuple(range(10)))


def test_common_length():
    assert common_length((), (1,)) == 0
    assert common_length((1, 2, 3), (1, 2)) == 2
    assert common_length((1, 2), (1, 3)) == 1


@pytest.mark.parametrize("block", [1, 4, 16])
def test_pairs_differ_and_fill_a_block(block):
    pairs = colliding_pairs(block)
    assert len(pairs) > 30
    for pair in pairs:
        assert pair.one != pair.other, pair.why
        assert max(len(pair.one), len(pair.other)) > block
        assert all(0 <= token < 2**31 for token in (*pair.one, *pair.other))


def test_pairs_really_collide():
    pairs = {pair.why: pair for pair in colliding_pairs(4)}
    for why, key in _SHORT_HASHES:
        pair = pairs[f"equal {why}"]
        assert key(pair.one[:-1]) == key(pair.other[:-1])
    assert sum(pairs["equal sum"].one) == sum(pairs["equal sum"].other)
    for count, bits in ((256, 32), (2048, 64)):
        pair = pairs[f"equal polynomial hash modulo {bits} bits"]
        for base in (31, 131, 1_000_003, 6364136223846793005):
            values = []
            for tokens in (pair.one, pair.other):
                value = 0
                for token in tokens:
                    value = (value * base + token) % (1 << bits)
                values.append(value)
            assert values[0] == values[1], (count, base)


@pytest.mark.parametrize("block", [1, 4, 16])
def test_wide_pairs_collide_under_the_tuple_hash(block):
    pairs = wide_pairs(block)
    assert len(pairs) == (2 if block <= 2 else 1)
    for pair in pairs:
        assert pair.one != pair.other
        assert hash(pair.one[:-1]) == hash(pair.other[:-1])
        assert len(pair.one) > block


KEYS = ("adapter", "image", "tenant")


def test_identities_differ_and_have_all_keys():
    seen = list(colliding_identities(KEYS))
    for one, other, why in seen:
        assert tuple(one) == tuple(other) == KEYS
        assert one != other, why
        assert all(isinstance(value, str) for value in (*one.values(), *other.values()))
    assert len(seen) > 60


def test_typed_identities_differ_for_python():
    seen = list(typed_identities(KEYS))
    assert len(seen) > 50
    for one, other, why in seen:
        assert one != other, why
        assert tuple(sorted(one.items(), key=repr)) != tuple(sorted(other.items(), key=repr)), why


def test_stored_values_really_collide():
    functions = {
        "CRC-32": lambda v: zlib.crc32(v),
        "first 48 bits of the SHA-256": lambda v: hashlib.sha256(v).digest()[:6],
        "last 40 bits of the SHA-256": lambda v: hashlib.sha256(v).digest()[-5:],
        "first 48 bits of the MD5": lambda v: hashlib.md5(v).digest()[:6],
        "last 40 bits of the MD5": lambda v: hashlib.md5(v).digest()[-5:],
        "Adler-32, sums": lambda v: zlib.adler32(v),
        "a polynomial hash modulo 32 bits": lambda v: sum(c * 31**place for place, c in enumerate(v)) % 2**32,
    }
    assert set(functions) == {why for why, _, _ in HASHED_VALUES}
    for why, one, other in HASHED_VALUES:
        assert one != other
        assert functions[why](one.encode()) == functions[why](other.encode()), why


@pytest.mark.parametrize("keys", [KEYS, ("salt",)])
def test_serializations_are_found_for_any_attributes(keys):
    pairs = list(colliding_serializations(keys))
    assert len(pairs) == 5
    one, other, why = pairs[0]
    assert "JSON" in why
    digests = {hashlib.sha256(json.dumps(side, sort_keys=True).encode()).digest()[:4] for side in (one, other)}
    assert len(digests) == 1
    assert list(colliding_serializations(())) == []


def test_identities_that_are_not_strings_may_be_refused():
    class Strings(RadixPrefixCache):
        def root(self, identity):
            return super().root({key: identity[key].encode() for key in KEYS})

    measured = measure("identity", Strings)
    assert not failed(measured)
    assert not measured.refusals
    refused = {fact.name: fact.value for fact in measured.facts}["identities of other types"]
    assert "refused" in refused
    assert "AttributeError" in refused


@pytest.mark.parametrize(
    "owner",
    [
        lambda identity: tuple(sorted(identity.items())),
        lambda identity: frozenset(identity.items()),
        lambda identity: json.dumps(dict(identity), sort_keys=True),
        lambda identity: repr(sorted(identity.items())),
        lambda identity: hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest(),
        lambda identity: tuple(identity[key] for key in KEYS),
    ],
    ids=["items", "set", "json", "repr", "sha", "values"],
)
def test_usual_ways_to_tell_identities_apart_are_right(owner):
    class Keyed(RadixPrefixCache):
        def root(self, identity):
            return super().root({"owner": owner(identity)})

    for check in ("identity", "programs"):
        measured = measure(check, Keyed)
        assert not failed(measured), measured.gates
        assert not measured.refusals


def test_one_attribute_is_enough():
    measured = measure("identity", RadixPrefixCache, identity_keys=("salt",))
    assert not failed(measured)
    assert not measured.refusals


def test_no_attribute_at_all_is_possible():
    measured = measure("programs", RadixPrefixCache, identity_keys=())
    assert not failed(measured)


def test_never_matching_is_invalid_on_every_check():
    for check in ("programs", "blocks", "eviction", "identity"):
        measured = measure(check, NeverMatches)
        assert verdicts(measured) == {Verdict.INVALID}, check
        assert not failed(measured)


def test_no_evict_is_not_applicable():
    class Fixed:
        def __init__(self):
            inner = TablePrefixCache()
            self.match, self.insert, self.fetch = inner.match, inner.insert, inner.fetch

    assert verdicts(measure("eviction", Fixed)) == {Verdict.NOT_APPLICABLE}
    measured = measure("programs", Fixed)
    assert not measured.refusals
    assert not failed(measured)


def test_evict_is_called_only_for_what_is_stored():
    class Strict(TablePrefixCache):
        def evict(self, tokens):
            if all(entry[0] != tokens for entry in self.entries):
                raise KeyError(tokens)
            super().evict(tokens)

    for check in ("programs", "eviction"):
        measured = measure(check, Strict, programs=60)
        assert not failed(measured)
        assert not measured.refusals


def test_a_failure_runs_again_and_names_the_attribute():
    measured = measure("identity", keyed("IgnoresImage"))
    assert failed(measured)
    assert "image=" in measured.seems
    with pytest.raises(AcceptanceFailure, match="were inserted under this identity"):
        exec(measured.reproduce, {"factory": keyed("IgnoresImage")})
    exec(measured.reproduce, {"factory": RadixPrefixCache})


def test_wrong_rows_name_their_owner():
    measured = measure("blocks", lambda: NoParentInKey(block_size=4), block_size=4)
    assert failed(measured)
    assert "rows of position" in measured.seems


def test_tensors_in_use_keep_their_values():
    measured = measure("programs", lambda: FetchGivesPoolView(block_size=4), block_size=4, programs=60)
    assert failed(measured)
    assert "still in use" in measured.gates[0].where


def test_views_of_a_store_that_is_never_overwritten_are_fine():
    measured = measure("programs", TablePrefixCache)
    assert not failed(measured)


@pytest.mark.parametrize(
    ("method", "value", "words"),
    [
        ("match", lambda *_: None, "not an int"),
        ("match", lambda *_: -1, "-1"),
        ("match", lambda *_: 1.0, "not an int"),
        ("fetch", lambda *_: None, "not (keys, values)"),
        ("fetch", lambda tokens, length, identity: (torch.zeros(2, length, 16),), "not (keys, values)"),
        ("fetch", lambda tokens, length, identity: (torch.zeros(2, length + 1, 16),) * 2, "shape"),
        ("fetch", lambda tokens, length, identity: (torch.zeros(2, length, 16).half(),) * 2, "dtype"),
    ],
)
def test_wrong_form_fails(method, value, words):
    def factory():
        cache = RadixPrefixCache()
        setattr(cache, method, value)
        return cache

    measured = measure("programs", factory)
    assert verdicts(measured) == {Verdict.FAIL}
    assert words in measured.refusals[0].reason


def test_exceptions_carry_the_minimal_program():
    class Raises(RadixPrefixCache):
        def insert(self, tokens, keys, values, identity):
            if len(tokens) > 3:
                raise IndexError("block table")
            super().insert(tokens, keys, values, identity)

    with pytest.raises(CandidateError, match=r"run\.insert") as caught:
        measure("programs", Raises)
    assert isinstance(caught.value.__cause__, IndexError)


def test_tokens_beyond_32_bits_may_be_refused():
    class Narrow(RadixPrefixCache):
        def insert(self, tokens, keys, values, identity):
            torch.tensor(tokens, dtype=torch.int32)
            super().insert(tokens, keys, values, identity)

    measured = measure("collisions", Narrow)
    assert not failed(measured)
    assert {fact.name: fact.value for fact in measured.facts}[
        "tokens of 61 bits"
    ] == "4 of 4 programs refused (RuntimeError)"


def test_a_bounded_cache_may_forget_in_a_crowd():
    class Bounded(TablePrefixCache):
        def insert(self, tokens, keys, values, identity):
            super().insert(tokens, keys, values, identity)
            del self.entries[:-200]

    assert not failed(measure("identity", Bounded))


def test_same_seed_same_measurement():
    assert measure("programs", RadixPrefixCache) == measure("programs", RadixPrefixCache)


def test_unknown_check():
    with pytest.raises(ContractError, match="unknown check"):
        measure("program", RadixPrefixCache)
    assert "programs" in PREFIX_CHECKS


def test_block_cache_under_its_declared_block():
    measured = measure("blocks", lambda: BlockHashPrefixCache(block_size=4), block_size=4)
    assert not failed(measured)
    coarse = measure("blocks", lambda: BlockHashPrefixCache(block_size=4), block_size=1)
    assert failed(coarse)
    assert "fall short" in coarse.gates[0].name
