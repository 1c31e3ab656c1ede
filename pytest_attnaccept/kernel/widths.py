"""Whether element offsets above 2^31 and page ids above 2^16 are computed in enough bits, without computing that much.

Positions
---------
1. An offset depends on strides, not on how much is computed: few positions (or pages) far apart in untouched memory need
   64 bits as much as a tensor that fills it. Only the touched parts of such a buffer ever become memory.
2. What cannot be laid out here (no address space, a pool that would not fit) is left out with its reason in the facts.
3. Only contracts that go beyond 65535 keys meet these sizes; shorter ones never need such offsets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, with_keys
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.precision import put
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.measurement import Fact

__all__ = ["check_widths"]

_LONG = 65536
_OFFSET = 2**31
# Keys of the wide cases; the distance between positions grows as their number falls.
_WIDE_KEYS = 40
# Page ids around the edges of 15 and 16 bits; a pool of that many pages must stay below this size per tensor.
_MANY_PAGES = 65600
_POOL_BYTES = 2**30


def check_widths(session: Session, plan: Planner) -> None:
    """Call with k and v whose offsets exceed 2^31 elements and, when paged, with page ids above 65535."""
    if plan.max_length < _LONG:
        return
    size = plan.contract.variants()[0].page_size
    # With 12 of 17 pages in use, some lie in the upper half wherever they are.
    spec = plan.spec("diffuse", 1, 5, _WIDE_KEYS if size is None else 12 * size, deep=False)
    if size is None and not 1 < spec.kv_len <= 256:
        _note(session, "64-bit offsets", f"not tested: the contract starts at {spec.kv_len} keys")
        return
    case = session.build(spec)
    for name, build in (("64-bit offsets", _far_apart), ("page ids above 65535", _high_pages)):
        found = build(case)
        if isinstance(found, str):
            _note(session, name, f"not tested: {found}")
        else:
            session.judge(found, session.run(found, copy_inputs=False), controls=False)
            _note(session, name, "tested")


def _note(session: Session, name: str, text: str) -> None:
    session.facts.append(Fact(name=name, value=text))


def _far_apart(case: Case) -> Case | str:
    """Return the case with positions (or pages) so far apart that the last ones lie beyond 2^31 elements, or a reason."""
    if case.contract.strides != "any":
        return "the contract says strides='contiguous'"
    axis = 0 if case.call.block_table is not None else 2
    try:
        k, v = (_spread(x, axis) for x in (case.call.k, case.call.v))
    except (RuntimeError, MemoryError) as error:
        return f"no address space for a wide view ({str(error).splitlines()[0][:80]})"
    return with_keys(case, k=k, v=v)


def _spread(x: Tensor, axis: int) -> Tensor:
    """Return the values of `x` with so large a stride along `axis` that its upper half lies beyond 2^31 elements."""
    count = x.shape[axis]
    inner = x.numel() // count
    step = max(_OFFSET // max(1, count // 2) + 64, inner)
    rest = [at for at in range(x.dim()) if at != axis]
    strides, size = [0] * x.dim(), 1
    for at in reversed(rest):
        strides[at], size = size, size * x.shape[at]
    strides[axis] = step
    storage = torch.empty((count - 1) * step + size, dtype=x.dtype, device=x.device)
    view = storage.as_strided(x.shape, strides)
    put(view, (slice(None),), x)
    return view


def _high_pages(case: Case) -> Case | str:
    """Return the case with its pages moved to ids around 2^15, below and above 2^16, or a reason."""
    call = case.call
    if call.block_table is None:
        return "the contract is not paged"
    page = call.k[0].numel() + call.v[0].numel()
    if page * _MANY_PAGES * call.k.element_size() > _POOL_BYTES:
        return f"{_MANY_PAGES} pages of {page} elements exceed {_POOL_BYTES // 2**20} MiB"
    count = call.k.shape[0]
    # The last pages come first in memory, so that an id that wraps reads another page and not its own.
    ids = torch.tensor([_MANY_PAGES - 1 - at if at % 2 else 32768 + 7 * at for at in range(count)])
    ids = ids.to(call.k.device)
    try:
        pools = [torch.empty((_MANY_PAGES, *x.shape[1:]), dtype=x.dtype, device=x.device) for x in (call.k, call.v)]
    except (RuntimeError, MemoryError) as error:
        return f"no memory for the pool ({str(error).splitlines()[0][:80]})"
    for pool, x in zip(pools, (call.k, call.v), strict=True):
        put(pool, (ids,), x)
    return with_keys(case, k=pools[0], v=pools[1], block_table=ids[call.block_table])
