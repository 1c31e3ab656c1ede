"""Whether dq, dk and dv equal the exact gradients within rounding: the check `backward`.

Positions
---------
1. Gradients are compared on small shapes, all rows, because every element depends on many; there a dense float64
   reference is cheap.
2. What is masked must not change them, and gets none itself (`backward_poison`).
3. The error model rounds P and dS to q's dtype (what fused kernels do) and the row sum of dO * O through a rounded O.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.kernel.backward_poison import Three, check_masked_gradients
from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.cases import Case, with_keys
from pytest_attnaccept.kernel.guard import Violation
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.precision import LOG_UNIFORM_RMS, mantissa_bits, ulp
from pytest_attnaccept.kernel.reference import Semantics, key_limits, score, semantics_of, with_semantics
from pytest_attnaccept.kernel.session import NotApplicable, Session
from pytest_attnaccept.kernel.statistics import Stat, bound

__all__ = ["check_backward", "exact_gradients"]

# Masked gradients take several calls each: cases with few rows show as much.
_POISON_ROWS = 65


class Gradients(NamedTuple):
    """Exact gradients and the variance of their rounding, float64, shapes of q, k and v."""

    exact: tuple[Tensor, Tensor, Tensor]
    variance: tuple[Tensor, Tensor, Tensor]


def check_backward(session: Session, plan: Planner) -> None:
    """Compare gradients at shapes that are no multiple of any tile, with fewer and more keys than queries."""
    if not session.contract.backward:
        raise NotApplicable("the contract does not declare backward=True")
    wanted = [
        ("diffuse", 2, 33, 130),
        ("needle", 1, 65, 257),
        ("shift", 2, 17, 129),
        ("diffuse", 1, 129, 129),
        ("diffuse", 1, 256, 2),
        ("fingerprint", 3, 5, 77),
        ("diffuse", 2, 1, 300),
    ]
    specs = [plan.spec(family, batch, q, kv) for family, batch, q, kv in wanted]
    specs += [plan.spec("diffuse", 1, 19, 93, variant=at) for at in range(1, len(plan.contract.variants()))]
    for spec in plan.fits(specs):
        if not spec.q_len or not spec.kv_len:
            continue
        case = session.build(spec)
        session.judge(case, session.run(case))
        _compare(session, case)


def _leaky(case: Case, dout: Tensor) -> Three:
    """Return the gradients of a function that sees one key too many at every edge."""
    what = semantics_of(case.call, case.contract.alignment)
    lengths = (what.lengths + 1).clamp(max=case.spec.kv_len)
    window = None if what.window is None else what.window + 2
    return exact_gradients(
        case, dout, with_semantics(what, lengths=lengths, offset=what.offset + 1, window=window)
    ).exact


def _compare(session: Session, case: Case) -> None:
    generator = torch.Generator().manual_seed(case.spec.number("dout"))
    q = case.call.q
    dout = torch.randn((*q.shape[:3], case.variant.v_head_dim), generator=generator).to(q.dtype).to(q.device)

    def candidate(one: Case, upstream: Tensor) -> Three:
        return _candidate_gradients(session, one, upstream)

    try:
        found = candidate(case, dout)
        session.required = tuple(dict.fromkeys((*session.required, "zero gradients")))
        _judge(session, case, dout, found)
        if 1 < case.spec.q_len <= _POISON_ROWS:
            check_masked_gradients(session, case, dout, found, candidate, _leaky)
    except Violation as violation:
        session.broken.append((str(violation), case.spec))
        raise


def _judge(session: Session, case: Case, dout: Tensor, found: Three) -> None:
    wanted = exact_gradients(case, dout)
    q = case.call.q
    for name, gradient, exact, variance in zip(("dq", "dk", "dv"), found, wanted.exact, wanted.variance, strict=True):
        total = (variance + ulp(exact, q.dtype).square() / 12.0).sqrt()
        z = ((gradient.double() - exact).abs() / total.clamp_min(1e-300)).nan_to_num(math.inf)
        if float((exact.abs() / total.clamp_min(1e-300)).max()) > bound(z.numel()):
            session.rejected.add("zero gradients")
        place = [int(x) for x in (z == z.max()).nonzero()[0]]
        where = f"batch {place[0]}, head {place[1]}, position {place[2]}"
        session.record(
            [
                Stat(name=f"{name} maxz", value=float(z.max()) / bound(z.numel()), limit=1.0, where=where, n=z.numel()),
                Stat(name=f"{name} z2", value=float(z.square().mean()), limit=2.0, where=where, n=z.numel()),
            ],
            case,
        )


def _candidate_gradients(session: Session, case: Case, dout: Tensor) -> Three:
    leaves = [x.detach().clone().requires_grad_(True) for x in (case.call.q, case.call.k, case.call.v)]
    with torch.enable_grad():
        returned = session.guard.invoke(with_keys(case, q=leaves[0], k=leaves[1], v=leaves[2]))
        out = returned[0] if isinstance(returned, (tuple, list)) else returned
        if not isinstance(out, Tensor) or not out.requires_grad:
            raise Violation(f"backward=True is declared but the output has no gradient at {case.label}")
        try:
            dq, dk, dv = torch.autograd.grad(out, leaves, dout.to(out.dtype))
        except NotImplementedError as error:
            raise Violation(f"refused: backward raised NotImplementedError({error}) at {case.label}") from error
        except Exception as error:
            raise CandidateError(
                f"backward of the candidate raised {type(error).__name__} at {case.label}: {error}"
            ) from error
    return dq, dk, dv


def exact_gradients(case: Case, dout: Tensor, what: Semantics | None = None) -> Gradients:
    """Compute gradients of ``sum(out * dout)`` in float64 with the variance that rounding gives them.

    With `what` the call is read as a wrong function would.
    """
    call = case.call
    what = what or semantics_of(call, case.contract.alignment)
    p, slope = _probabilities(call, what)
    group = call.q.shape[1] // call.k.shape[1]
    valid = torch.arange(call.k.shape[2], device=call.q.device) < what.lengths[:, None]
    k, v = (
        torch.where(valid[:, None, :, None], x.double(), 0.0).repeat_interleave(group, dim=1) for x in (call.k, call.v)
    )
    q, do = call.q.double(), dout.double()
    out = p @ v
    dp = do @ v.transpose(-1, -2)
    row = (do * out).sum(-1, keepdim=True)
    ds = p * (dp - row)
    inner = ds * slope * call.scale
    parts = (inner @ k, inner.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do)
    exact = (parts[0], _grouped(parts[1], group), _grouped(parts[2], group))
    noise, row_variance, weights = _noise(case, q, k, v, do, p, slope)
    variance = [
        noise @ k.square(),
        noise.transpose(-1, -2) @ q.square(),
        weights.transpose(-1, -2) @ do.square(),
    ]
    # The error of the row sum is common to a whole row of dS, so it adds up along the row in dq.
    variance[0] = variance[0] + row_variance * ((p * slope * call.scale) @ k).square()
    # Blocks of queries and expanded heads may each be rounded before they are summed, and so may every partial sum.
    rounded = [4.0 * ulp(part, call.q.dtype).square() / 12.0 for part in parts]
    grouped = [_grouped(variance[at] + rounded[at], group) for at in (1, 2)]
    if group > 1:
        partial = [_grouped(parts[at].square(), group).sqrt() for at in (1, 2)]
        grouped = [
            x + 2.0 * group * ulp(partial_size, call.q.dtype).square() / 12.0
            for x, partial_size in zip(grouped, partial, strict=True)
        ]
    return Gradients(exact, (variance[0] + rounded[0], grouped[0], grouped[1]))


def _noise(
    case: Case, q: Tensor, k: Tensor, v: Tensor, do: Tensor, p: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the error variance of dS (of dQK^T), of the row sums of dO * O, and of P, all float64.

    Shapes ``(batch, q_heads, q_len, kv_len)``, ``(batch, q_heads, q_len, 1)`` and again the first.
    """
    dtype, scale = case.call.q.dtype, case.call.scale
    out, dp = p @ v, do @ v.transpose(-1, -2)
    row = (do * out).sum(-1, keepdim=True)
    unit = 2.0**-22 if dtype is torch.float32 else LOG_UNIFORM_RMS * 2.0 ** -(mantissa_bits(dtype) + 1)
    # Scores are recomputed in float32: their error grows with |q||k| and with the score itself.
    size = (q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :] * scale).square()
    relative = unit**2 + 2.0**-48 * (q.shape[-1] / 6.0 + 2.0) * size
    row_variance = (do.square() * ulp(out, dtype).square() / 12.0).sum(-1, keepdim=True)
    # P, dP and dS may each be rounded, and the row sum uses a rounded output.
    noise = relative * p.square() * (4.0 * (dp - row).square() + dp.square() + row.square())
    # dP is a float32 dot product over v_head_dim terms that may cancel against the row sum.
    product = (do.norm(dim=-1)[..., None] * v.norm(dim=-1)[..., None, :]).square()
    noise = noise + p.square() * (2.0**-48 * (v.shape[-1] / 6.0 + 2.0) * product + row_variance)
    if p.shape[-1]:
        # Autograd through the row maximum adds there what rounding leaves of a sum that is zero.
        rest = 2.0 * (relative * (p * dp).square()).sum(-1, keepdim=True)
        noise = noise.scatter_add(-1, p.argmax(-1, keepdim=True), rest)
    return noise * (slope * scale).square(), row_variance, 2.0 * relative * p.square()


def _grouped(x: Tensor, group: int) -> Tensor:
    return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)


def _probabilities(call: AttentionCall, what: Semantics) -> tuple[Tensor, Tensor]:
    """Return P and the derivative of the score with respect to ``q . k * scale``, ``(batch, q_heads, q_len, kv_len)``."""
    q_len, kv_len = call.q.shape[2], call.k.shape[2]
    device = call.q.device
    index, keys = torch.arange(q_len, device=device), torch.arange(kv_len, device=device)
    low, high = key_limits(what, index)
    k = call.k.double()[:, what.head_map]
    k = torch.where((keys < what.lengths[:, None])[:, None, :, None], k, 0.0)
    raw = call.q.double() @ k.transpose(-1, -2) * call.scale
    position = index[None, :] + what.offset[:, None]
    s, t = score(raw, what, (keys - position[..., None])[:, None])
    slope = torch.where(raw.abs() > 1e-12, t / torch.where(raw.abs() > 1e-12, raw, 1.0), 1.0)
    seen = (keys >= low[..., None]) & (keys < high[..., None])
    s = s.masked_fill(~seen[:, None], -torch.inf)
    lse = torch.logsumexp(s, -1, keepdim=True)
    if what.sinks is not None:
        lse = torch.logaddexp(lse, what.sinks[None, :, None, None])
    return torch.exp(s - lse).nan_to_num(0.0), slope
