"""Whether anything that is masked can change a single bit of the output: the check `poison`.

Positions
---------
1. Two calls differ only in values that the contract masks; the rows that must not see them are compared bit by bit, all
   of them, at any length and without a reference.
2. Fillers are large finite numbers, because correct dense kernels multiply them by zero; NaN goes where the contract says
   that masked positions are never read, and into pages that no block table row names.
3. A kernel that leaks one key must change bits on the same inputs, or the check says INVALID.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, CaseSpec, poison_value, with_keys
from pytest_attnaccept.kernel.emulate import Habit, attend
from pytest_attnaccept.kernel.guard import Output, bits
from pytest_attnaccept.kernel.judge import CONTROLS
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.precision import as_dtype, put
from pytest_attnaccept.kernel.reference import key_limits, semantics_of
from pytest_attnaccept.kernel.session import NotApplicable, Session

__all__ = ["check_poison", "poison_positions", "same_layout"]

_LEAK = "a leaked key"


def check_poison(session: Session, plan: Planner) -> None:
    """Poison the future, what left the window, padding, page tails, spare and unnamed pages."""
    contract = session.contract
    session.required = (*CONTROLS, _LEAK)
    compared = 0
    for spec in _cases(plan):
        case = session.build(spec)
        twins = _twins(case)
        if not twins:
            continue
        base = session.judge(case, session.run(case))
        for name, twin, rows in twins:
            compared += 1
            session.expect_same(name, base, session.run(twin), rows)
            if _LEAK not in session.rejected and spec.kv_len <= 2048 and _leak_shows(case, twin, rows):
                session.rejected.add(_LEAK)
    if not compared:
        what = (
            "causal, window, ragged and page_size"
            if not contract.causal
            else "window, ragged and page_size (q_len is 1)"
        )
        raise NotApplicable(f"nothing is masked by this contract ({what} are not declared)")
    session.resolution = (
        "a masked position that is read with any weight or value changes bits and is seen, at every tested length"
    )


def _cases(plan: Planner) -> list[CaseSpec]:
    top = min(plan.max_length, 8192)
    found = [
        plan.spec("diffuse", 2, 33, 333),
        plan.spec("shift", 2, 17, 1000),
        plan.spec("diffuse", 3, 5, 130),
        plan.spec("diffuse", 1, 130, 130),
        plan.spec("diffuse", 1, 16, top),
        plan.spec("diffuse", 1, 300, 700, "fused"),
        plan.spec("needle", 2, 1, top, "cache"),
    ]
    for variant in range(1, len(plan.contract.variants())):
        found.append(plan.spec("diffuse", 2, 9, 300, variant=variant))
    return plan.fits(found)


def _twins(case: Case) -> list[tuple[str, Case, Tensor | None]]:
    """Return (name, poisoned twin, rows that must stay equal) for everything that this case masks."""
    what = semantics_of(case.call, case.contract.alignment)
    device = case.call.q.device
    keys = torch.arange(case.spec.kv_len, device=device)
    index = torch.arange(case.spec.q_len, device=device)
    low, high = key_limits(what, index)
    rows = index[None, :].expand(case.spec.batch, -1)
    found: list[tuple[str, Case, Tensor | None]] = []
    modes = ("finite", "nan") if case.contract.masked_read == "never" else ("finite",)
    for mode in modes:
        if case.call.causal:
            for row in sorted({0, case.spec.q_len // 2, case.spec.q_len - 2}):
                if not 0 <= row < case.spec.q_len:
                    continue
                future = (keys[None, :] >= high[:, row, None]) & (keys[None, :] < what.lengths[:, None])
                found += _twin("future", case, future, rows <= row, mode)
                if case.call.window is not None:
                    found += _twin("window", case, keys[None, :] < low[:, row, None], rows >= row, mode)
        if case.call.kv_lengths is not None:
            found += _twin("padding", case, keys[None, :] >= what.lengths[:, None], None, mode)
    if case.call.block_table is not None:
        found += [("page tails", _other_tails(case), None), ("unnamed pages", _other_pages(case), None)]
        found.append(("spare entries", _other_spares(case), None))
    return found


def _twin(
    name: str, case: Case, where: Tensor, rows: Tensor | None, mode: str
) -> list[tuple[str, Case, Tensor | None]]:
    if not bool(where.any()):
        return []
    label = name if mode == "finite" else f"{name} (NaN)"
    return [(label, poison_positions(case, where, mode), rows)]


def same_layout(x: Tensor) -> Tensor:
    """Copy `x` keeping its strides, so that the candidate takes the same path."""
    copy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    copy.copy_(x)
    return copy


def poison_positions(case: Case, where: Tensor, mode: str) -> Case:
    """Return the case with K and V overwritten at logical positions `where`, ``(batch, kv_len)`` bool."""
    generator = torch.Generator().manual_seed(case.spec.number(f"poison {mode}"))
    changed = {}
    for name in ("k", "v"):
        pool = same_layout(getattr(case.call, name))
        batch, position = (x.flatten() for x in where.nonzero(as_tuple=True))
        if case.call.block_table is not None:
            size = pool.shape[1]
            page = case.call.block_table[batch, position // size]
            filler = _filler((len(batch), *pool.shape[2:]), case, generator, mode)
            put(pool, (page, position % size), filler)
        else:
            filler = _filler((len(batch), pool.shape[1], pool.shape[3]), case, generator, mode)
            put(pool, (batch, slice(None), position), filler)
        changed[name] = pool
    return with_keys(case, **changed)


def _filler(shape: tuple[int, ...], case: Case, generator: torch.Generator, mode: str) -> Tensor:
    dtype = as_dtype(case.contract.stored_dtype)
    if mode == "nan":
        return torch.full(shape, math.nan).to(dtype)
    signs = torch.randint(2, shape, generator=generator).float() * 2.0 - 1.0
    return (signs * poison_value(case.contract)).to(dtype)


def _masks_of_pages(case: Case) -> tuple[Tensor, Tensor]:
    """Return ``(num_pages,)`` bool masks: pages that some table entry names, and pages that hold valid tokens."""
    table = case.call.block_table
    lengths = case.call.kv_lengths
    if table is None or lengths is None:
        raise ValueError("only a paged case has pages")
    count, size = case.call.k.shape[0], case.call.k.shape[1]
    named = torch.zeros(count, dtype=torch.bool, device=table.device)
    named[table.flatten()] = True
    data = torch.zeros_like(named)
    for row in range(table.shape[0]):
        data[table[row, : -(-int(lengths[row]) // size)]] = True
    return named, data


def _other_tails(case: Case) -> Case:
    """Refill the slots past each row's length in its last page."""
    table, lengths = case.call.block_table, case.call.kv_lengths
    size = case.call.k.shape[1]
    mode = "nan" if case.contract.masked_read == "never" else "finite"
    generator = torch.Generator().manual_seed(case.spec.number("tails"))
    changed = {}
    for name in ("k", "v"):
        pool = same_layout(getattr(case.call, name))
        for row, length in enumerate(() if lengths is None else lengths.tolist()):
            if length % size and table is not None:
                page = int(table[row, length // size])
                shape = (size - length % size, *pool.shape[2:])
                put(pool[page], (slice(length % size, None),), _filler(shape, case, generator, mode))
        changed[name] = pool
    return with_keys(case, **changed)


def _other_pages(case: Case) -> Case:
    """Turn the NaN of unnamed pages into plausible numbers."""
    named, _ = _masks_of_pages(case)
    generator = torch.Generator().manual_seed(case.spec.number("pages"))
    changed = {}
    for name in ("k", "v"):
        pool = same_layout(getattr(case.call, name))
        shape = (int((~named).sum()), *pool.shape[1:])
        put(pool, (~named,), torch.randn(shape, generator=generator).to(pool.dtype))
        changed[name] = pool
    return with_keys(case, **changed)


def _other_spares(case: Case) -> Case:
    """Let spare table entries name pages with real data of other rows."""
    table, lengths = case.call.block_table, case.call.kv_lengths
    if table is None or lengths is None:
        return case
    _, data = _masks_of_pages(case)
    real = data.nonzero().flatten()
    changed = table.clone()
    for row in range(table.shape[0]):
        used = -(-int(lengths[row]) // case.call.k.shape[1])
        if len(real) and case.contract.masked_read != "never":
            changed[row, used:] = real[row % len(real)]
    return with_keys(case, block_table=changed)


def _leak_shows(case: Case, twin: Case, rows: Tensor | None) -> bool:
    """Whether a kernel that sees one key too many changes bits between the two calls."""
    habit = Habit(alignment=case.contract.alignment, tile=128)
    outs = []
    for one in (case, twin):
        call, lead = one.call, 1
        if call.kv_lengths is not None:
            capacity = call.k.shape[2] if call.block_table is None else call.k.shape[1] * call.block_table.shape[1]
            call, lead = replace(call, kv_lengths=(call.kv_lengths + 1).clamp(max=capacity)), 0
        elif call.window is not None and rows is not None and bool(rows[:, -1].all()):
            call, lead = replace(call, window=call.window + 1), 0
        outs.append(Output(attend(call, habit, lead=lead)[0], None))
    different = (bits(outs[0].out) != bits(outs[1].out)).any(-1)
    if rows is not None:
        different = different & rows[:, None]
    return bool(different.any())
