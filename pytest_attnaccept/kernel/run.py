"""The one entry of this package: `measure_kernel` runs one check of one attention function and returns what it measured.

Positions
---------
1. A check that the contract gives nothing to do is NOT_APPLICABLE with its reason; a check that compared nothing is INVALID.
2. Every check ends at `max_length` keys (or the contract's own, when smaller) and says to which length it certifies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from pytest_attnaccept.errors import ContractError, UnknownNameError
from pytest_attnaccept.kernel.backward import check_backward
from pytest_attnaccept.kernel.cases import CaseSpec
from pytest_attnaccept.kernel.checks_value import check_inputs, check_long, check_lse, check_shapes, check_value
from pytest_attnaccept.kernel.contract import KernelContract, make_contract
from pytest_attnaccept.kernel.diagnose import describe, describe_pairs, shrink, snippet, telling
from pytest_attnaccept.kernel.guard import Guard, Violation
from pytest_attnaccept.kernel.judge import Judged
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.poison import check_poison
from pytest_attnaccept.kernel.relations import check_relations
from pytest_attnaccept.kernel.repeat import check_repeat
from pytest_attnaccept.kernel.sdpa import adapt
from pytest_attnaccept.kernel.selftest import check_selftest
from pytest_attnaccept.kernel.session import EnoughFailures, NotApplicable, Session
from pytest_attnaccept.measurement import Measured, Refusal
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["KERNEL_CHECKS", "measure_kernel", "replay"]

_CHECKS: dict[str, Callable[[Session, Planner], None]] = {
    "selftest": check_selftest,
    "value": check_value,
    "lse": check_lse,
    "poison": check_poison,
    "relations": check_relations,
    "inputs": check_inputs,
    "shapes": check_shapes,
    "long": check_long,
    "repeat": check_repeat,
    "backward": check_backward,
}
KERNEL_CHECKS: tuple[str, ...] = tuple(_CHECKS)


def measure_kernel(
    check: str,
    fn: Callable[..., Any],
    contract: KernelContract,
    *,
    max_length: int,
    seed: int,
    device: str,
    profile: str = "",
) -> Measured:
    """Run one check.

    Parameters
    ----------
    fn
        A function of one `AttentionCall`, or one with the signature of ``scaled_dot_product_attention``.
    max_length, device
        Longest kv_len of the profile, and where the tensors live; the contract's own cap and win.

    Raises
    ------
    CandidateError
        When the candidate raises; its exception is the cause.
    ContractError
        When the contract cannot be given to this function.
    """
    if check not in _CHECKS:
        raise UnknownNameError("kernel check", check, KERNEL_CHECKS)
    session, plan = _session(check, fn, contract, max_length, seed, device)
    try:
        with contextlib.suppress(EnoughFailures):
            _CHECKS[check](session, plan)
    except NotApplicable as reason:
        return Measured(refusals=(Refusal(verdict=Verdict.NOT_APPLICABLE, reason=str(reason)),), seed=seed)
    except Violation:
        # Already recorded by the session; later cases would only repeat it.
        spec = session.broken[0][1] if session.broken else CaseSpec()
        return session.result(reproduce=snippet(session.contract, spec))
    return _summed_up(session, plan)


def _summed_up(session: Session, plan: Planner) -> Measured:
    """Add to what was measured what a failure looks like and the smallest call that shows it."""
    failed = [name for name, (stat, _) in session.worst.items() if not stat.ratio <= 1.0]
    pairs = describe_pairs(failed)
    if not session.failures:
        return session.result(seems=pairs, reproduce=_bitwise_snippet(session))
    look = describe(telling(session.failures))
    smallest = shrink(session, plan)
    seems = "; ".join(dict.fromkeys(text for text in (look, pairs) if text))
    return session.result(seems=seems, reproduce=snippet(session.contract, smallest.case.spec))


def replay(fn: Callable[..., Any], *, case: dict[str, Any], device: str = "cpu", **keywords: Any) -> Judged:
    """Rebuild one case of a failure text, call `fn` on it and judge the output.

    Parameters
    ----------
    case
        Fields of the case (family, batch, q_len, kv_len, layout, variant, lengths, seed).
    **keywords
        The contract's keywords.
    """
    session, _ = _session("replay", fn, make_contract(**keywords), case.get("kv_len", 1), case.get("seed", 0), device)
    return session.measure(CaseSpec(**case))


def _session(
    check: str, fn: Callable[..., Any], contract: KernelContract, max_length: int, seed: int, device: str
) -> tuple[Session, Planner]:
    call, contract = adapt(fn, contract)
    where = contract.device or device
    if torch.device(where).type == "cuda" and not torch.cuda.is_available():
        raise ContractError(f"device={where!r}: no CUDA device is present.")
    longest = min(max_length, contract.max_length) if contract.max_length is not None else max_length
    session = Session(check=check, contract=contract, guard=Guard(call), max_length=longest, seed=seed, device=where)
    return session, Planner(contract, longest, seed, cpu=torch.device(where).type == "cpu")


def _bitwise_snippet(session: Session) -> str:
    """Name the case of a failed comparison of two calls."""
    for stat, spec in session.worst.values():
        if not stat.ratio <= 1.0:
            return snippet(session.contract, spec)
    return ""
