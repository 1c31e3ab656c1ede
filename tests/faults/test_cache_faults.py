"""Every broken cache is caught by the check that its row names, and correct caches pass under many seeds."""

import pytest
import torch

from fixtures.broken.caches import BROKEN_CACHES, SHAPE
from fixtures.good.caches import ContiguousCache, PagedCache, RingWindowCache
from pytest_attnaccept.state.cache import CACHE_CHECKS, make_cache_contract, measure_cache
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

WINDOW, SINKS = {"window": 7}, {"window": 7, "sink_tokens": 2}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def measure(check, factory, seed, programs, **keywords):
    contract = make_cache_contract(**{**SHAPE, "dtype": "float32", **keywords})
    return measure_cache(check, factory, contract, seed=seed, device="cpu", programs=programs)


@pytest.mark.parametrize("row", BROKEN_CACHES, ids=lambda row: f"{row.name}-{row.check}")
def test_broken_cache_is_caught(row):
    measured = measure(row.check, row.factory, 0, 60, **row.keywords)
    assert decide(measured, {}).verdict is Verdict.FAIL
    assert measured.reproduce or measured.refusals


GOOD = {
    "contiguous": (ContiguousCache, {}),
    "paged": (lambda: PagedCache(kv_heads=2, head_dim=16, page_size=4, capacity_tokens=96), {}),
    "paged-page1": (
        lambda: PagedCache(kv_heads=2, head_dim=16, page_size=1, capacity_tokens=96),
        {"page_size": 1},
    ),
    "paged-page16": (
        lambda: PagedCache(kv_heads=2, head_dim=16, page_size=16, capacity_tokens=256),
        {"page_size": 16, "capacity_tokens": 256},
    ),
    "paged-window": (lambda: PagedCache(kv_heads=2, head_dim=16, page_size=4, capacity_tokens=96, **WINDOW), WINDOW),
    "paged-sinks": (lambda: PagedCache(kv_heads=2, head_dim=16, page_size=4, capacity_tokens=96, **SINKS), SINKS),
    "ring-window": (lambda: RingWindowCache(**WINDOW), WINDOW),
    "ring-sinks": (lambda: RingWindowCache(**SINKS), SINKS),
    "ring-window4": (lambda: RingWindowCache(window=4, slack=1), {"window": 4}),
    "paged-bfloat16": (
        lambda: PagedCache(kv_heads=2, head_dim=16, page_size=4, capacity_tokens=96, dtype=torch.bfloat16),
        {"dtype": "bfloat16"},
    ),
    "paged-float16": (
        lambda: PagedCache(kv_heads=2, head_dim=16, page_size=4, capacity_tokens=96, dtype=torch.float16),
        {"dtype": "float16"},
    ),
    "paged-bitwise": (
        lambda: PagedCache(kv_heads=2, head_dim=16, page_size=4, capacity_tokens=96),
        {"bitwise_to": ContiguousCache},
    ),
    "paged-roomy": (
        lambda: PagedCache(kv_heads=2, head_dim=16, page_size=16, capacity_tokens=1024),
        {"page_size": 16, "capacity_tokens": 1024},
    ),
    "mqa": (
        lambda: PagedCache(kv_heads=1, head_dim=5, page_size=3, capacity_tokens=96),
        {"q_heads": 7, "kv_heads": 1, "head_dim": 5, "page_size": 3},
    ),
}


@pytest.mark.parametrize("check", CACHE_CHECKS)
@pytest.mark.parametrize("name", sorted(GOOD))
def test_correct_cache_passes(name, check):
    factory, keywords = GOOD[name]
    for seed in (1,) if check == "edges" else (1, 2):  # the sweep over edges is the same for every seed
        measured = measure(check, factory, seed, 6, **keywords)
        assert decide(measured, {}).verdict is Verdict.PASS, measured


@pytest.mark.full
@pytest.mark.parametrize("check", CACHE_CHECKS)
@pytest.mark.parametrize("name", sorted(GOOD))
def test_correct_cache_passes_many_seeds(name, check):
    factory, keywords = GOOD[name]
    for seed in range(100, 140):
        measured = measure(check, factory, seed, 10, **keywords)
        assert decide(measured, {}).verdict is Verdict.PASS, measured
