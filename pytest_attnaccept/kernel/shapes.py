"""Which small shapes meet every pair of boundary conditions: a greedy pairwise choice over batch, q_len, keys and layout.

Positions
---------
1. Faults of the last years needed two conditions at once (batch > 1 and q_len 9 to 16; padded view and second tile), and
   hardly ever three: all pairs, not the full product.
2. Key lengths are named relative to edges (tile, page, window, q_len), so that they mean the same in every contract.
"""

from __future__ import annotations

import itertools
import random

from pytest_attnaccept.kernel.cases import CaseSpec
from pytest_attnaccept.kernel.plans import Planner

__all__ = ["boundary_shapes"]

_Q_LENS = (1, 2, 3, 5, 8, 9, 13, 16, 17, 33, 65, 129)
_BATCHES = (1, 2, 3, 4)
_FAMILIES = ("diffuse", "needle", "shift", "fingerprint")


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
    return plan.fits(found)


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
