"""Whether two different calls that must give the same answer do: the metamorphic check `relations`.

Positions
---------
1. A relation compares the candidate with itself, so it also holds where the reference samples only some rows; the base
   call is judged against the reference as well, because zeros satisfy most relations.
2. Page renaming is bitwise (the same numbers in the same order). Batch composition is bitwise only where the contract
   says ``batch_invariant``; everything else holds within rounding, because tiles and splits may change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, with_keys
from pytest_attnaccept.kernel.expanded import check_expanded
from pytest_attnaccept.kernel.guard import Output
from pytest_attnaccept.kernel.judge import Judged
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.poison import same_layout
from pytest_attnaccept.kernel.precision import effective_dtype, put, take, ulp
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.kernel.statistics import Stat, bound
from pytest_attnaccept.measurement import Fact

__all__ = ["check_relations"]


def check_relations(session: Session, plan: Planner) -> None:
    """Run every relation that the contract allows on a small and on a long case."""
    top = min(plan.max_length, 4090)
    used: set[str] = set()
    wanted = [plan.spec("shift", 3, 17, 300), plan.spec("diffuse", 2, 1, 777), plan.spec("shift", 1, 9, top)]
    wanted += [plan.spec("needle", 2, 9, 260, variant=at) for at in range(1, min(len(plan.contract.variants()), 4))]
    for spec in plan.fits(wanted):
        base = session.measure(spec)
        for name, relation in _RELATIONS.items():
            if relation(session, plan, base):
                used.add(name)
    used |= check_expanded(session, plan)
    session.facts.append(Fact(name="relations", value=", ".join(sorted(used)) or "none applies"))


def _run(session: Session, case: Case, **changes: object) -> Output:
    twin = with_keys(case, **changes)
    shape = twin.call.q.shape
    spec = replace(case.spec, batch=shape[0], q_len=shape[2])
    if twin.call.block_table is None:
        spec = replace(spec, kv_len=twin.call.k.shape[2])
    return session.run(replace(twin, spec=spec))


def _score_shift(session: Session, plan: Planner, base: Judged) -> bool:
    """Adding a constant to all scores changes nothing but lse, by that constant."""
    call = base.case.call
    if (
        base.case.spec.family != "shift"
        or call.softcap is not None
        or not call.k.numel()
        or call.block_table is not None
    ):
        return False
    k = same_layout(call.k)
    k[..., -1] = torch.where(_valid(base.case, k)[..., 0], torch.zeros_like(k[..., -1]), k[..., -1])
    moved = call.scale * float(call.q[0, 0, 0, -1]) * float(call.k[0, 0, 0, -1].double()) * (call.k_scale or 1.0)
    if not call.q.numel() or (base.case.spec.lengths and min(base.case.spec.lengths) == 0):
        return False
    sinks = None if call.sinks is None else (call.sinks.double() - moved).float()
    second = _run(session, base.case, k=k, sinks=sinks)
    session.expect_close("score shift", base, second)
    _lse_moves(session, "score shift lse", base, second, -moved)
    return True


def _valid(case: Case, k: Tensor) -> Tensor:
    """Return ``(batch, 1, kv_len, 1)`` bool, True at positions that hold a key."""
    keys = torch.arange(k.shape[2], device=k.device)
    lengths = case.call.kv_lengths
    if lengths is None:
        return torch.ones(k.shape[0], 1, k.shape[2], 1, dtype=torch.bool, device=k.device)
    return (keys < lengths[:, None])[:, None, :, None]


def _lse_moves(session: Session, name: str, base: Judged, second: Output, moved: float) -> None:
    if base.output.lse is None or second.lse is None:
        return
    factor = 1.4426950408889634 if session.contract.lse_base == "2" else 1.0
    first = base.output.lse.double()
    apart = (second.lse.double() - first - moved * factor).abs()
    allowed = 4e-6 * (1.0 + first.abs() + abs(moved)) * factor
    if session.contract.score_dtype == "input" and session.contract.dtype != "float32":
        allowed = allowed + bound(apart.numel()) * 0.01 * (1.0 + abs(moved))
    ratio = torch.where(torch.isfinite(first), apart / allowed, 0.0)
    session.record([Stat(name=name, value=float(ratio.max()), limit=1.0, where="all rows", n=ratio.numel())], base.case)


def _page_names(session: Session, plan: Planner, base: Judged) -> bool:
    """Renaming the physical pages changes nothing, bit by bit."""
    call = base.case.call
    if call.block_table is None:
        return False
    generator = torch.Generator().manual_seed(base.case.spec.number("pages renamed"))
    order = torch.randperm(call.k.shape[0], generator=generator).to(call.k.device)
    k, v = torch.empty_like(call.k), torch.empty_like(call.v)
    put(k, (order,), call.k)
    put(v, (order,), call.v)
    second = _run(session, base.case, k=k, v=v, block_table=order[call.block_table])
    session.expect_same("page renaming", base, second)
    return True


def _key_order(session: Session, plan: Planner, base: Judged) -> bool:
    """Without positions the order of the keys does not matter."""
    call = base.case.call
    if call.causal or call.alibi_slopes is not None or call.block_table is not None or call.kv_lengths is not None:
        return False
    order = torch.randperm(call.k.shape[2], generator=torch.Generator().manual_seed(7)).to(call.k.device)
    second = _run(session, base.case, k=call.k[:, :, order], v=call.v[:, :, order])
    session.expect_close("key order", base, second)
    return True


def _merge(session: Session, plan: Planner, base: Judged) -> bool:
    """Two calls over parts of the keys, merged by their lse, give the whole; the parts are uneven."""
    call = base.case.call
    contract = session.contract
    q_len, kv_len = call.q.shape[2], call.k.shape[2]
    whole = call.window is None and call.sinks is None and call.alibi_slopes is None and call.kv_lengths is None
    seen_by_all = not call.causal or (q_len == 1 and contract.alignment == "bottom_right")
    small = contract.fit_kv(max(kv_len // 40, 1))
    free = contract.q_lens not in ("square", "square_or_decode") or q_len == 1
    if (
        not (base.output.lse is not None and whole and seen_by_all and free and 0 < small < kv_len)
        or call.block_table is not None
    ):
        return False
    if kv_len - small != contract.fit_kv(kv_len - small):
        return False
    parts = [
        _run(session, base.case, k=call.k[:, :, :-small].contiguous(), v=call.v[:, :, :-small].contiguous()),
        _run(session, base.case, k=call.k[:, :, -small:].contiguous(), v=call.v[:, :, -small:].contiguous()),
    ]
    unit = 0.6931471805599453 if contract.lse_base == "2" else 1.0
    logs = torch.stack([part.lse.double() * unit for part in parts if part.lse is not None])
    weights = torch.softmax(logs, dim=0)[..., None]
    stacked = torch.stack([part.out.double() for part in parts])
    # Each part is rounded before the merge; parts may be larger than their sum.
    extra = (weights.square() * ulp(stacked, effective_dtype(parts[0].out, call.q.dtype)).square() / 12.0).sum(0)
    session.expect_close("merge of parts", base, Output((stacked * weights).sum(0), None), extra=extra)
    return True


def _chunk(session: Session, plan: Planner, base: Judged) -> bool:
    """The last rows alone (bottom right), or the first rows over the first keys (top left), are the rows of the whole."""
    call, contract = base.case.call, session.contract
    q_len, kv_len = call.q.shape[2], base.case.spec.kv_len
    if not call.causal or q_len < 2:
        return False
    if contract.alignment == "bottom_right" and (contract.q_lens == "any" or isinstance(contract.q_lens, tuple)):
        for wanted in (1, 5):
            few = contract.fit_q(wanted, kv_len)
            if few < q_len:
                second = _run(session, base.case, q=call.q[:, :, -few:].contiguous())
                _compare_rows(session, "last rows alone", base, second, q_len - few)
        return True
    if call.kv_lengths is None and q_len == kv_len:
        few = contract.fit_kv(kv_len // 2 + 1)
        if 0 < few < kv_len and contract.fit_q(few, few) == few:
            short = {name: getattr(call, name)[:, :, :few].contiguous() for name in ("q", "k", "v")}
            _compare_rows(session, "first rows alone", base, _run(session, base.case, **short), 0)
            return True
    return False


def _compare_rows(session: Session, name: str, base: Judged, part: Output, start: int) -> None:
    """Put the rows of `part` into the whole output at `start` and compare them there."""
    out = base.output.out.clone()
    stop = start + part.out.shape[2]
    out[:, :, start:stop] = part.out.to(out.dtype)
    session.expect_close(name, base, Output(out, None))


def _batch(session: Session, plan: Planner, base: Judged) -> bool:
    """Each batch row alone, and the batch in another order, give the same rows."""
    call = base.case.call
    batch = call.q.shape[0]
    if batch < 2:
        return False
    bitwise = session.contract.batch_invariant
    order = torch.arange(batch - 1, -1, -1, device=call.q.device)
    back = _run(session, base.case, **_rows_of(base.case, order))
    session.expect_same(
        "batch order", base, Output(back.out[order], None if back.lse is None else back.lse[order]), bitwise=bitwise
    )
    out = base.output.out.clone()
    lse = None if base.output.lse is None else base.output.lse.clone()
    for row in range(batch):
        alone = _run(session, base.case, **_rows_of(base.case, order.new_tensor([row])))
        out[row] = alone.out[0].to(out.dtype)
        if lse is not None and alone.lse is not None:
            lse[row] = alone.lse[0].to(lse.dtype)
    session.expect_same("row alone", base, Output(out, lse), bitwise=bitwise)
    return True


def _rows_of(case: Case, rows: Tensor) -> dict[str, object]:
    call = case.call
    found: dict[str, object] = {"q": call.q[rows]}
    if call.block_table is None:
        found |= {"k": take(call.k, rows), "v": take(call.v, rows)}
    else:
        found["block_table"] = call.block_table[rows]
    if call.kv_lengths is not None:
        found["kv_lengths"] = call.kv_lengths[rows]
    return found


def _heads(session: Session, plan: Planner, base: Judged) -> bool:
    """KV groups in reverse order give the same heads in reverse order."""
    call, variant = base.case.call, base.case.variant
    if variant.kv_heads < 2:
        return False
    groups = torch.arange(variant.kv_heads - 1, -1, -1, device=call.q.device)
    heads = (groups[:, None] * variant.group + torch.arange(variant.group, device=call.q.device)).flatten()
    axis = 1 if call.block_table is None else 2
    changes: dict[str, object] = {"q": call.q[:, heads]}
    changes |= (
        {name: getattr(call, name).index_select(axis, groups) for name in ("k", "v")}
        if call.k_scale is None
        else {name: _pick(getattr(call, name), axis, groups) for name in ("k", "v")}
    )
    for name in ("sinks", "alibi_slopes"):
        value = getattr(call, name)
        if value is not None:
            changes[name] = value[heads]
    second = _run(session, base.case, **changes)
    session.expect_close("head order", base, Output(second.out[:, heads], None))
    return True


def _pick(x: Tensor, axis: int, order: Tensor) -> Tensor:
    """Index FP8 tensors through their bytes, which every device supports."""
    return x.view(torch.uint8).index_select(axis, order).view(x.dtype)


def _linear(session: Session, plan: Planner, base: Judged) -> bool:
    """-2 V gives -2 times the output."""
    call = base.case.call
    if session.contract.kv_dtype is not None:
        return False
    second = _run(session, base.case, v=same_layout(call.v).mul_(-2.0))
    session.expect_close("V linearity", base, Output(second.out.double() / -2.0, None))
    return True


def _columns(session: Session, plan: Planner, base: Judged) -> bool:
    """V with its columns reversed gives the output with its columns reversed."""
    call = base.case.call
    if session.contract.kv_dtype is not None:
        return False
    second = _run(session, base.case, v=call.v.flip(-1))
    session.expect_close("V columns", base, Output(second.out.flip(-1), None))
    return True


def _balance(session: Session, plan: Planner, base: Judged) -> bool:
    """Twice the queries against half the keys are the same scores."""
    call = base.case.call
    if session.contract.kv_dtype is not None:
        return False
    k = same_layout(call.k)
    k.mul_(0.5)
    second = _run(session, base.case, q=call.q * 2.0, k=k)
    session.expect_close("q and k balance", base, second)
    return True


_RELATIONS: dict[str, Callable[[Session, Planner, Judged], bool]] = {
    "score shift": _score_shift,
    "page renaming": _page_names,
    "key order": _key_order,
    "merge of parts": _merge,
    "chunks": _chunk,
    "batch": _batch,
    "head order": _heads,
    "V linearity": _linear,
    "V columns": _columns,
    "q and k balance": _balance,
}
