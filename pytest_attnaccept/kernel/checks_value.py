"""Whether outputs equal the exact answer within rounding: the checks `value`, `inputs`, `lse`, `long` and `shapes`.

These checks differ only in their cases; judging is the same everywhere.
"""

from __future__ import annotations

import torch

from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.kernel.shapes import boundary_shapes
from pytest_attnaccept.measurement import Fact

__all__ = ["check_inputs", "check_long", "check_lse", "check_shapes", "check_value"]

# Strided views whose last element lies beyond 2^31 elements need this many bytes of address space, not of memory.
_WIDE_ROWS = 40


def check_value(session: Session, plan: Planner) -> None:
    """Standardised error on three families at lengths up to 8192."""
    for spec in plan.value():
        session.measure(spec)


def check_inputs(session: Session, plan: Planner) -> None:
    """Families that make each term matter."""
    for spec in plan.inputs():
        session.measure(spec)


def check_lse(session: Session, plan: Planner) -> None:
    """The denominator: lse in its declared base, or the mass through V = 1 and block codes."""
    for spec in plan.mass():
        session.measure(spec)
    if not session.contract.returns_lse:
        session.facts.append(Fact(name="lse", value="not declared: mass measured through V = 1 and block codes"))


def check_shapes(session: Session, plan: Planner) -> None:
    """Pairwise boundary shapes: small batches, q_len 0 to 17, tile, page and window edges, strided views."""
    for spec in boundary_shapes(plan):
        session.measure(spec)


def check_long(session: Session, plan: Planner) -> None:
    """Up to the longest length in at most a dozen calls, plus a view that needs 64-bit indices."""
    for spec in plan.long():
        session.measure(spec)
    _wide_view(session, plan)


def _wide_view(session: Session, plan: Planner) -> None:
    """Call with k and v as views whose element offsets exceed 2^31; only the touched pages of memory exist."""
    contract = session.contract
    variant = contract.variants()[0]
    usable = plan.max_length >= 65536 and contract.strides == "any" and variant.page_size is None
    if not usable or contract.kv_dtype is not None:
        return
    spec = plan.spec("diffuse", 1, 5, _WIDE_ROWS)
    if not 1 < spec.kv_len <= 256:
        return
    case = session.build(spec)
    step = 2**31 // (spec.kv_len - 1) + 64
    try:
        views = [_spread(x, step) for x in (case.call.k, case.call.v)]
    except (RuntimeError, MemoryError):
        session.facts.append(Fact(name="64-bit offsets", value="not tested: no address space for a wide view"))
        return
    from pytest_attnaccept.kernel.cases import with_keys

    wide = with_keys(case, k=views[0], v=views[1])
    session.judge(wide, session.run(wide), controls=False)
    session.facts.append(Fact(name="64-bit offsets", value="tested: view with element offsets above 2^31"))


def _spread(x: torch.Tensor, step: int) -> torch.Tensor:
    """Return the values of ``x (1, heads, length, dim)`` with a stride of `step` elements between positions."""
    heads, length, dim = x.shape[1:]
    storage = torch.empty((length - 1) * step + heads * dim, dtype=x.dtype, device=x.device)
    view = storage.as_strided((1, heads, length, dim), (storage.numel(), dim, step, 1))
    view.copy_(x)
    return view
