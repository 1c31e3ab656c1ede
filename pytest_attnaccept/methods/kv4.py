"""`kv4`: keys and values are stored in 4 bits, in groups with a scale and a lower bound (see `codec`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.methods.applied import Applied, codec_from
from pytest_attnaccept.methods.codec import Codec

__all__ = ["KV4", "apply", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KV4:
    """Settings of the method."""

    codec: Codec

    def applied(self) -> Applied:
        """Return the contribution to a stack."""
        return Applied(method="kv4", codec=self.codec)


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply the method with `knobs` (``group_size``, ``residual``, ``axis``)."""
    return KV4(codec=codec_from("kv4", 4, knobs)).applied()


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: every token waits in the full-precision residual."""
    return {**knobs, "residual": 2**30}
