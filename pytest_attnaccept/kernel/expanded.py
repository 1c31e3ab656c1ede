"""Whether shared KV heads and latent KV give the answer of their expanded form: two relations of the check `relations`.

Positions
---------
1. A relation needs both forms from the candidate, so the contract must list both: ``kv_heads=[2, 8]`` with 8 query heads for
   GQA against MHA, ``kv_heads=[1, 16], head_dim=[576, 192], v_head_dim=[512, 128], scale=192 ** -0.5`` for MLA.
2. The up-projections of MLA pick latent columns with a sign. Both forms then hold exactly the same numbers, and what is
   left between them is the rounding of two correct calls. As in a latent cache, V is a view of K.
3. Each form is judged against the reference as well.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, with_keys
from pytest_attnaccept.kernel.contract import KernelContract, Variant
from pytest_attnaccept.kernel.guard import Output
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.session import Session

__all__ = ["check_expanded"]

# At most this many variants are expanded: the relation is about the two forms, not about sizes.
_VARIANTS = 4


def check_expanded(session: Session, plan: Planner) -> set[str]:
    """Run both relations on every variant (up to four) that the contract lists in both forms; return their names."""
    contract = plan.contract
    found: set[str] = set()
    for name, partner, run in (
        ("GQA = expanded MHA", _repeated, _grouped),
        ("MLA absorbed = expanded", _projected, _latent),
    ):
        usable = [(at, partner(contract, variant)) for at, variant in enumerate(contract.variants())]
        for at, other in [(at, other) for at, other in usable if other is not None][:_VARIANTS]:
            for spec in plan.fits(
                [plan.spec("needle", 2, 9, 260, variant=at), plan.spec("diffuse", 1, 1, 777, variant=at)]
            ):
                run(session, session.build(spec), other, name)
                found.add(name)
    return found


def _repeated(contract: KernelContract, variant: Variant) -> Variant | None:
    """Return the variant with one KV head per query head, where the contract lists it."""
    other = replace(variant, kv_heads=variant.q_heads)
    return other if variant.group > 1 and contract.supports(other) else None


def _grouped(session: Session, case: Case, other: Variant, name: str) -> None:
    call = case.call
    axis = 1 if call.block_table is None else 2
    session.judge(case, shared := session.run(case))
    k, v = (_repeat(x, case.variant.group, axis) for x in (call.k, call.v))
    expanded = with_keys(replace(case, variant=other), k=k, v=v)
    base = session.judge(expanded, session.run(expanded))
    session.expect_close(name, base, shared)


def _repeat(x: Tensor, group: int, axis: int) -> Tensor:
    """Repeat every KV head, one-byte floats through their bits."""
    if x.element_size() == 1:
        return x.view(torch.uint8).repeat_interleave(group, dim=axis).view(x.dtype)
    return x.repeat_interleave(group, dim=axis)


def _projected(contract: KernelContract, variant: Variant) -> Variant | None:
    """Return the expanded form of a latent variant: one KV head per query head, same rope features, no wider than the latent.

    A variant is latent when its single KV head is at least as wide as V, which may then be a view of it.
    """
    latent, rope = variant.v_head_dim, variant.head_dim - variant.v_head_dim
    if variant.kv_heads != 1 or variant.q_heads == 1 or rope < 0 or contract.kv_dtype is not None:
        return None
    for head_dim in contract.head_dim:
        if contract.scale is None and head_dim != variant.head_dim:
            continue
        for v_head_dim in contract.v_head_dim:
            width = v_head_dim or head_dim
            other = replace(variant, kv_heads=variant.q_heads, head_dim=head_dim, v_head_dim=width)
            if 1 <= head_dim - rope <= latent and width <= latent and contract.supports(other):
                return other
    return None


def _latent(session: Session, case: Case, other: Variant, name: str) -> None:
    call, variant = case.call, case.variant
    latent, rope, heads = variant.v_head_dim, variant.head_dim - variant.v_head_dim, variant.q_heads
    axis = 1 if call.block_table is None else 2
    generator = torch.Generator().manual_seed(case.spec.number("latent"))
    k_pick, k_sign = _picks(heads, other.head_dim - rope, latent, generator, call.k)
    v_pick, v_sign = _picks(heads, other.v_head_dim, latent, generator, call.k)
    inner = call.q[..., : other.head_dim - rope]
    q = torch.zeros_like(call.q)
    q.scatter_(-1, k_pick[None, :, None].expand(*inner.shape), inner * k_sign[:, None])
    q[..., latent:] = call.q[..., latent:]
    v = call.k[..., :latent]
    absorbed = with_keys(case, q=q, v=v if case.contract.strides == "any" else v.contiguous())
    output = session.run(absorbed)
    session.judge(absorbed, output)
    keys = [_projection(call.k, axis, k_pick[head], k_sign[head], latent) for head in range(heads)]
    values = [_projection(v, axis, v_pick[head], v_sign[head], latent) for head in range(heads)]
    expanded = with_keys(
        replace(case, variant=other),
        q=torch.cat([inner, call.q[..., latent:]], -1),
        k=torch.cat(keys, axis),
        v=torch.cat(values, axis),
    )
    base = session.judge(expanded, session.run(expanded))
    picked = output.out.gather(-1, v_pick[None, :, None].expand(*output.out.shape[:3], -1))
    session.expect_close(name, base, Output(picked * v_sign[:, None].to(picked.dtype), None))


def _picks(heads: int, count: int, latent: int, generator: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return which latent columns each head reads, ``(heads, count)`` int64, and their signs in the dtype of `like`."""
    columns = torch.stack([torch.randperm(latent, generator=generator)[:count] for _ in range(heads)])
    signs = torch.randint(2, (heads, count), generator=generator) * 2 - 1
    return columns.to(like.device), signs.to(device=like.device, dtype=like.dtype)


def _projection(x: Tensor, axis: int, pick: Tensor, sign: Tensor, latent: int) -> Tensor:
    """Return what one head reads of the latent ``x``: its columns with signs, then the shared rope features."""
    one = x.narrow(axis, 0, 1)
    return torch.cat([one[..., pick] * sign, one[..., latent:]], -1)
