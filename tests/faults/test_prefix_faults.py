"""Every broken prefix cache is caught by the check that its row names, and correct ones pass under many seeds."""

import pytest
import torch

from fixtures.broken.prefix_caches import BROKEN_PREFIX_CACHES
from fixtures.good.prefix_caches import BlockHashPrefixCache, RadixPrefixCache, TablePrefixCache
from pytest_attnaccept.state.prefix import PREFIX_CHECKS, make_prefix_contract, measure_prefix_cache
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

GOOD = {
    "table": (TablePrefixCache, 1),
    "radix": (RadixPrefixCache, 1),
    "blocks-1": (lambda: BlockHashPrefixCache(block_size=1), 1),
    "blocks-4": (lambda: BlockHashPrefixCache(block_size=4), 4),
    "blocks-16": (lambda: BlockHashPrefixCache(block_size=16), 16),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def measure(check, factory, seed, programs, block_size):
    contract = make_prefix_contract(block_size=block_size)
    return measure_prefix_cache(check, factory, contract, seed=seed, device="cpu", programs=programs)


@pytest.mark.parametrize("row", BROKEN_PREFIX_CACHES, ids=lambda row: f"{row.name}-{row.check}")
def test_broken_prefix_cache_is_caught(row):
    measured = measure(row.check, row.factory, 0, 60, row.block_size)
    wanted = Verdict.INVALID if row.name == "NeverMatches" else Verdict.FAIL
    assert decide(measured, {}).verdict is wanted


@pytest.mark.parametrize("check", PREFIX_CHECKS)
@pytest.mark.parametrize("name", sorted(GOOD))
def test_correct_prefix_cache_passes(name, check):
    factory, block = GOOD[name]
    measured = measure(check, factory, 1, 20, block)
    assert decide(measured, {}).verdict is Verdict.PASS, measured


@pytest.mark.full
@pytest.mark.parametrize("check", ["programs", "blocks", "eviction"])
@pytest.mark.parametrize("name", sorted(GOOD))
def test_correct_prefix_cache_passes_many_seeds(name, check):
    factory, block = GOOD[name]
    for seed in range(100, 160):
        assert decide(measure(check, factory, seed, 20, block), {}).verdict is Verdict.PASS
