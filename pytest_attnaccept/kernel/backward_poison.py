"""Whether anything that is masked can change a bit of dq, dk or dv, or gets a gradient itself.

Positions
---------
1. Rows whose upstream gradient is zero give nothing to dk and dv. With that set for the rows that do see the poisoned keys,
   all other gradients must not move by a bit, whatever the poison is.
2. A key that no row sees has a gradient of exactly zero.
3. Many correct backward passes add with atomics: where two equal calls differ already, the comparison is within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case
from pytest_attnaccept.kernel.poison import poison_positions
from pytest_attnaccept.kernel.reference import key_limits, semantics_of
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.kernel.statistics import Stat

__all__ = ["LEAK", "Three", "check_masked_gradients"]

LEAK = "a leaked key in backward"
# dq, dk and dv in the shapes of q, k and v.
Three = tuple[Tensor, Tensor, Tensor]
# Gradients of one case for one upstream gradient.
Gradient = Callable[[Case, Tensor], Three]


class _Twin(NamedTuple):
    """What is poisoned (``(batch, kv_len)``), which rows keep an upstream gradient, which gradients must stay equal."""

    name: str
    poisoned: Tensor
    rows: Tensor


def check_masked_gradients(
    session: Session, case: Case, dout: Tensor, found: Three, candidate: Gradient, leaky: Gradient
) -> None:
    """Poison what is masked and compare; `leaky` gives the gradients of a function that sees one key too many."""
    _unseen_keys(session, case, found)
    modes = ("finite", "nan") if case.contract.masked_read == "never" else ("finite",)
    for twin in _twins(case):
        upstream = torch.where(twin.rows[:, None, :, None], dout, 0.0)
        base = candidate(case, upstream)
        again = candidate(case, upstream)
        repeats = all(torch.equal(one, two) for one, two in zip(base, again, strict=True))
        for mode in modes:
            poisoned = poison_positions(case, twin.poisoned, mode)
            other = candidate(poisoned, upstream)
            stat = _compared(twin, base, other, None if repeats else again)
            session.record([stat], case)
        session.required = tuple(dict.fromkeys((*session.required, LEAK)))
        finite = poison_positions(case, twin.poisoned, "finite")
        if not _compared(twin, leaky(case, upstream), leaky(finite, upstream), None).ratio <= 1.0:
            session.rejected.add(LEAK)


def _unseen_keys(session: Session, case: Case, found: Three) -> None:
    """Gradients of keys that no row sees are zero."""
    low, high, keys = _limits(case)
    seen = ((keys >= low[..., None]) & (keys < high[..., None])).any(1)
    if bool(seen.all()):
        return
    wrong = torch.stack([(x != 0).any(-1).any(1) for x in found[1:]]).any(0) & ~seen
    where = ""
    if bool(wrong.any()):
        batch, key = (int(x) for x in wrong.nonzero()[0])
        where = f"batch {batch}, key {key}"
    session.record(
        [Stat(name="gradient of unseen keys", value=float(wrong.sum()), limit=0.5, where=where, n=int((~seen).sum()))],
        case,
    )


def _twins(case: Case) -> Iterator[_Twin]:
    low, high, keys = _limits(case)
    count = case.spec.q_len
    rows = torch.arange(count, device=keys.device)[None, :].expand(case.spec.batch, -1)
    middle = max(0, count // 2 - 1)
    lengths = semantics_of(case.call, case.contract.alignment).lengths
    valid = keys < lengths[:, None]
    future = (keys >= high[:, middle, None]) & valid
    if case.call.causal and bool(future.any()):
        yield _Twin("future in backward", future, rows <= middle)
    left = keys < low[:, middle, None]
    if case.call.window is not None and bool(left.any()):
        yield _Twin("window in backward", left, rows >= middle)
    if not bool(valid.all()):
        yield _Twin("padding in backward", ~valid, rows >= 0)


def _limits(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    what = semantics_of(case.call, case.contract.alignment)
    device = case.call.q.device
    low, high = key_limits(what, torch.arange(case.spec.q_len, device=device))
    return low, high, torch.arange(case.spec.kv_len, device=device)


def _compared(twin: _Twin, base: Three, other: Three, again: Three | None) -> Stat:
    """Count gradients that moved; with `again` only moves beyond four times what a repeat moves count."""
    moved, where, n = 0, "", 0
    masks = (twin.rows, ~twin.poisoned, ~twin.poisoned)
    for at, (name, mask) in enumerate(zip(("dq", "dk", "dv"), masks, strict=True)):
        first, second = base[at], other[at]
        different = first != second
        if again is not None:
            noise = 4.0 * (first - again[at]).abs().amax()
            different = ~((first - second).abs() <= noise)
        different = different.any(-1) & mask[:, None]
        n += int(mask.sum())
        if bool(different.any()):
            moved += int(different.sum())
            batch, head, position = (int(x) for x in different.nonzero()[0])
            where = where or f"{name} of batch {batch}, head {head}, position {position}"
    return Stat(name=twin.name, value=float(moved), limit=0.5, where=where, n=n)
