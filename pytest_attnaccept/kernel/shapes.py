"""Which shapes meet every pair of boundary conditions: a greedy pairwise choice over batch, q_len, keys and layout.

Positions
---------
1. Faults of the last years needed two conditions at once (batch > 1 and q_len 9 to 16; padded view and second tile), and
   hardly ever three: all pairs, not the full product.
2. A second, coarser choice does the same for large sizes (many query tiles, several rows of a batch over split keys,
   strides over many tiles): there each class of q_len and keys stands for several sizes, one of which the seed picks.
3. Key lengths are named relative to edges (tile, page, window, q_len), so that they mean the same in every contract.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from pytest_attnaccept.kernel.cases import CaseSpec
from pytest_attnaccept.kernel.plans import Planner

__all__ = ["boundary_shapes"]

_Q_LENS = (1, 2, 3, 5, 8, 9, 13, 16, 17, 33, 65, 129)
_BATCHES = (1, 2, 3, 4)
_FAMILIES = ("diffuse", "needle", "shift", "fingerprint")
# Classes of large sizes: one query, a verify step, one tile, several tiles, a long prefill.
_LARGE_Q = ((1,), (2, 5, 16), (33, 64, 128), (130, 200, 257, 300), (512, 513, 700, 1000))
_LARGE_KV = ((600, 777, 1024, 1025), (1500, 2047, 2048, 2049), (3000, 4090, 4096, 4097), (2**30,))
# Scores per head of one large case: 8 heads then take 134 MB in float32.
_LARGE_PRODUCT = 2**22
# Square cases cost as much as all others together.
_LARGE_SQUARES = (
    (2, 520, "cache"),
    (1, 1025, "padded"),
    (2, 1030, "fused"),
    (1, 1500, "cache"),
    (1, 2047, "transposed"),
)


def boundary_shapes(plan: Planner) -> list[CaseSpec]:
    """Return the cases, degenerate ones (no keys, no queries, fewer keys than queries) first."""
    variants = plan.contract.variants()
    factors: list[tuple[object, ...]] = [
        _BATCHES,
        _q_lens(plan),
        _kv_lens(plan),
        plan.layouts(),
        _FAMILIES,
        tuple(range(len(variants))),
    ]
    rows = _all_pairs(factors, seed=len(variants))
    found = [
        plan.spec("diffuse", 2, 5, 0, deep=False),
        plan.spec("diffuse", 2, 7, 3),
        plan.spec("diffuse", 3, 33, 16),
        plan.spec("diffuse", 4, 16, 1),
    ]
    if plan.contract.q_lens == "any":
        found.append(plan.spec("diffuse", 2, 0, 9))
    for batch, q_len, kv_len, layout, family, variant in rows:
        found.append(
            plan.spec(str(family), _int(batch), _int(q_len), _int(kv_len), str(layout), _int(variant), deep=False)
        )
    return plan.fits([*found, *_large_shapes(plan)])


def _large_shapes(plan: Planner) -> list[CaseSpec]:
    """Return every pair of large classes of batch, q_len, keys, stride and family, each variant at least once."""
    top = min(plan.top, 8192)
    keys = [tuple(k for k in sizes if k <= top) for sizes in _LARGE_KV[:-1]]
    keys = [sizes for sizes in keys if sizes] + ([(top,)] if top > 513 else [])
    if not keys:
        return []
    variants = len(plan.contract.variants())
    chooser = random.Random(plan.seed)
    if plan.squares:
        found = [plan.spec("diffuse", batch, size, min(size, top), layout) for batch, size, layout in _LARGE_SQUARES]
        return [replace(spec, variant=at % variants) for at, spec in enumerate(found)]
    rows = _all_pairs([_BATCHES, _LARGE_Q, tuple(keys), plan.layouts(), _FAMILIES], seed=1)
    rows += [rows[at % len(rows)] for at in range(len(rows), variants)]
    found = []
    for at, (batch, queries, lengths, layout, family) in enumerate(rows):
        kv_len = chooser.choice(_sizes(lengths))
        q_len = min(chooser.choice(_sizes(queries)), max(1, (_LARGE_PRODUCT - 1) // kv_len))
        rows_of_batch = max(1, min(_int(batch), _LARGE_PRODUCT // (q_len * kv_len)))
        found.append(plan.spec(str(family), rows_of_batch, q_len, kv_len, str(layout), at % variants, deep=False))
    # The longest prefill that the bound on q_len * kv_len allows.
    found.append(plan.spec("needle", 1, min(2040, top), min(2047, top), "transposed", deep=False))
    if plan.contract.has_lengths:
        # Drawn lengths rarely fill the rows above the first; here all of them reach the last tiles.
        full = [plan.spec("needle", 3, 1, size, deep=False) for size in (min(2049, top), top)]
        found += [
            replace(spec, lengths=(spec.kv_len, plan.contract.fit_kv(spec.kv_len - 1), spec.kv_len)) for spec in full
        ]
    return found


def _sizes(value: object) -> tuple[int, ...]:
    return tuple(_int(one) for one in value) if isinstance(value, tuple) else (_int(value),)


def _q_lens(plan: Planner) -> tuple[int, ...]:
    wanted = plan.contract.q_lens
    if isinstance(wanted, tuple):
        low, high = wanted
        return tuple(sorted({low, high, *(q for q in _Q_LENS if low <= q <= high)}))
    return (1,) if wanted == "decode" else _Q_LENS


def _kv_lens(plan: Planner) -> tuple[int, ...]:
    """Key lengths at edges of tiles (64, 128, 256, 512), of pages and of windows, all of them short."""
    found = {1, 2, 63, 64, 65, 127, 129, 257, 513}
    for variant in plan.contract.variants():
        for edge in (variant.page_size, variant.window):
            if edge is not None:
                found |= {edge - 1, edge, edge + 1, 3 * edge + 1}
    return tuple(sorted(length for length in found if 1 <= length <= min(plan.max_length, 1200))) or (1,)


def _int(value: object) -> int:
    return value if isinstance(value, int) else int(str(value))


def _all_pairs(factors: list[tuple[object, ...]], seed: int) -> list[tuple[object, ...]]:
    """Return rows such that every pair of values of two factors occurs; best of 30 random completions per row."""
    chooser = random.Random(seed)
    missing = {
        ((i, a), (j, b))
        for (i, first), (j, second) in itertools.combinations(enumerate(factors), 2)
        for a in first
        for b in second
    }
    rows: list[tuple[object, ...]] = []
    while missing:
        (i, a), (j, b) = min(missing, key=repr)
        best: tuple[object, ...] = ()
        best_new: set[tuple[tuple[int, object], tuple[int, object]]] = set()
        for _ in range(30):
            row = [chooser.choice(values) for values in factors]
            row[i], row[j] = a, b
            new = set(itertools.combinations(enumerate(row), 2)) & missing
            if len(new) > len(best_new):
                best, best_new = tuple(row), new
        rows.append(best)
        missing -= best_new
    return rows
