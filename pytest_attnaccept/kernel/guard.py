"""Whether one call of the candidate kept the rules: shape, dtype, device, no change of inputs, no shared storage.

Positions
---------
1. A broken rule is a `Violation`, which fails the item with its text; an exception out of the candidate is a
   `CandidateError` that keeps the original as its cause.
2. Inputs are compared bit by bit with a copy after every call, so an oracle can never read what the candidate changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.cases import Case

__all__ = ["Guard", "Output", "Violation", "bits"]

_TENSORS = ("q", "k", "v", "sinks", "alibi_slopes", "kv_lengths", "block_table")
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Outputs up to this size are kept to see whether a later call overwrites them.
_KEPT_ELEMENTS = 2**22


class Violation(Exception):
    """The candidate broke a rule of the contract; the text says which, where and what is expected."""


class Output(NamedTuple):
    """What the candidate returned; `lse` only where the contract declares it."""

    out: Tensor
    lse: Tensor | None


class Guard:
    """Calls one candidate and checks the rules around every call.

    Attributes
    ----------
    calls
        Number of calls so far.
    """

    def __init__(self, fn: Callable[[AttentionCall], Any]) -> None:
        self._fn = fn
        self._last: tuple[Tensor, Tensor, str] | None = None
        self.calls = 0

    def run(self, case: Case, *, copy_inputs: bool = True) -> Output:
        """Call the candidate with gradients off.

        Raises
        ------
        Violation
            When it refuses, returns something of the wrong form, or changes or shares its inputs.
        CandidateError
            When it raises.
        """
        before = _copies(case.call) if copy_inputs else {}
        with torch.no_grad():
            returned = self.invoke(case)
        output = _unpacked(returned, case)
        _check_inputs(case, before)
        _check_storage(output.out, case)
        self._check_earlier(output.out, case)
        return output

    def invoke(self, case: Case) -> Any:
        """Call the candidate and translate what it raises."""
        self.calls += 1
        try:
            return self._fn(case.call)
        except NotImplementedError as error:
            raise Violation(f"refused: NotImplementedError({error}) inside the contract, at {case.label}") from error
        except Exception as error:
            raise CandidateError(f"the candidate raised {type(error).__name__} at {case.label}: {error}") from error

    def _check_earlier(self, out: Tensor, case: Case) -> None:
        if self._last is not None:
            kept, copy, label = self._last
            if kept.numel() and not torch.equal(bits(kept), bits(copy)):
                raise Violation(
                    f"the output of {label} changed when {case.label} was computed: the function keeps its output buffer"
                )
        self._last = (out, out.detach().clone(), case.label) if out.numel() <= _KEPT_ELEMENTS else None


def bits(x: Tensor) -> Tensor:
    """Return the bit pattern of `x` as integers of the same shape, so that NaN equals itself."""
    if x.dtype in (torch.int64, torch.int32):
        return x
    return x.detach().view(_INTEGERS[x.element_size()])


def _copies(call: AttentionCall) -> dict[str, Tensor]:
    found = {}
    for name in _TENSORS:
        value = getattr(call, name)
        if value is not None:
            found[name] = bits(value).clone()
    return found


def _check_inputs(case: Case, before: dict[str, Tensor]) -> None:
    for name, copy in before.items():
        if not torch.equal(bits(getattr(case.call, name)), copy):
            raise Violation(f"the candidate modified its input {name} in place at {case.label}")


def _check_storage(out: Tensor, case: Case) -> None:
    if not out.numel():
        return
    storage = out.untyped_storage().data_ptr()
    for name in _TENSORS:
        value = getattr(case.call, name)
        if value is not None and value.numel() and value.untyped_storage().data_ptr() == storage:
            raise Violation(f"the output shares storage with its input {name} at {case.label}: return a new tensor")


def _unpacked(returned: Any, case: Case) -> Output:
    out, lse = returned, None
    if isinstance(returned, (tuple, list)):
        if not 1 <= len(returned) <= 2:
            raise Violation(f"returned {len(returned)} values at {case.label}; expected out or (out, lse)")
        out, lse = returned[0], returned[1] if len(returned) == 2 else None
    if not isinstance(out, Tensor):
        raise Violation(f"returned {type(out).__name__} at {case.label}; expected a tensor or (tensor, lse)")
    q = case.call.q
    want = (*q.shape[:3], case.variant.v_head_dim)
    if tuple(out.shape) != want:
        raise Violation(
            f"output shape {tuple(out.shape)} at {case.label}; expected {want} (batch, q_heads, q_len, v_head_dim)"
        )
    _check_kind(out, q, case)
    if not case.contract.returns_lse:
        return Output(out.detach(), None)
    if not isinstance(lse, Tensor):
        raise Violation(
            f"the contract declares returns_lse=True but no lse came back at {case.label}; return (out, lse)"
        )
    if tuple(lse.shape) != want[:3] or not lse.is_floating_point():
        raise Violation(
            f"lse has shape {tuple(lse.shape)}, {lse.dtype} at {case.label}; expected {want[:3]}, floating point"
        )
    return Output(out.detach(), lse.detach().to(q.device))


def _check_kind(out: Tensor, q: Tensor, case: Case) -> None:
    wider = (q.dtype, torch.float32, torch.float64) if q.dtype is not torch.float32 else (torch.float32, torch.float64)
    if out.dtype not in wider:
        raise Violation(f"output dtype {out.dtype} at {case.label}; expected {q.dtype} or wider")
    if out.device != q.device:
        raise Violation(f"output on {out.device} at {case.label}; expected {q.device}")
