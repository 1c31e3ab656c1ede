"""What one method contributes to a stack: a policy, a codec, other weights, or a whole candidate of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.methods.codec import Codec
from pytest_attnaccept.methods.eviction import Policy

__all__ = ["Applied", "budget", "codec_from", "knob"]

T = TypeVar("T", int, float, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The contribution of one method; exactly one of them is set.

    ``weights`` makes a changed copy of the model that it is given.
    """

    method: str
    policy: Policy | None = None
    codec: Codec | None = None
    weights: Callable[[Any], Any] | None = None
    candidate: Candidate | None = None


def knob(method: str, knobs: Mapping[str, object], name: str, default: T) -> T:
    """Return a knob of the type of its default, or raise naming method, knob and type; None means the default."""
    value = knobs.get(name)
    if value is None:
        return default
    wanted = type(default)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise ContractError(f"{method}: {name}={value!r} must be {wanted.__name__}")
    return value


def budget(method: str, knobs: Mapping[str, object]) -> float | int:
    """Return ``kv_budget``, a share in (0, 1] or a positive number of entries."""
    value = knobs.get("kv_budget")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ContractError(f"{method}: kv_budget={value!r} must be a float in (0, 1] (share) or an int (entries)")
    if isinstance(value, float) and not 0.0 < value <= 1.0:
        raise ContractError(
            f"{method}: kv_budget={value!r} is a share and must be in (0, 1]; an int is a number of entries"
        )
    if isinstance(value, int) and value < 1:
        raise ContractError(f"{method}: kv_budget={value!r} must be at least 1 entry")
    return value


def codec_from(method: str, bits: int, knobs: Mapping[str, object]) -> Codec:
    """Return the codec of a KV quantization with `bits` bits."""
    named = knob(method, knobs, "bits", bits)
    if named != bits:
        raise ContractError(f"{method}: bits={named} contradicts its name; use kv{named}")
    axis = knob(method, knobs, "axis", "token")
    if axis not in ("token", "channel"):
        raise ContractError(f"{method}: axis={axis!r} must be 'token' or 'channel'")
    group = knob(method, knobs, "group_size", 0)
    residual = knob(method, knobs, "residual", 0)
    if group < 0 or residual < 0:
        raise ContractError(f"{method}: group_size={group} and residual={residual} must not be negative")
    return Codec(bits=bits, group_size=group or None, residual=residual, axis=axis)
