"""Attention functions that must be rejected (and one that must not be)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from pytest_attnaccept.controls import Control
from pytest_attnaccept.kernel.call import AttentionCall
from pytest_attnaccept.kernel.contract import KernelContract, make_contract
from pytest_attnaccept.kernel.run import KERNEL_CHECKS, measure_kernel
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["controls"]

Kernel = Callable[[AttentionCall], Tensor]


def right(call: AttentionCall, *, causal: bool | None = None, scale: float = 1.0) -> Tensor:
    """Return attention in float32, rounded once: q (b, h, n, d), k and v (b, g, m, d) -> (b, h, n, d)."""
    group = call.q.shape[1] // call.k.shape[1]
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (call.k, call.v))
    scores = call.q.float() @ k.transpose(-1, -2) * (call.scale * scale)
    n, m = scores.shape[-2:]
    if call.causal if causal is None else causal:
        hidden = torch.ones(n, m, dtype=torch.bool, device=scores.device).triu(m - n + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # a row without keys is zero
    return (weights @ v).to(call.q.dtype)


def zeros(call: AttentionCall) -> Tensor:
    """Return nothing but zeros: what a comparison of ~0 with ~0 lets through."""
    return torch.zeros((*call.q.shape[:3], call.v.shape[-1]), dtype=call.q.dtype, device=call.q.device)


def mean_of_values(call: AttentionCall) -> Tensor:
    """Return the mean of V for every query: a softmax that has gone flat."""
    group = call.q.shape[1] // call.k.shape[1]
    mean = call.v.float().mean(dim=2, keepdim=True).nan_to_num(0.0).repeat_interleave(group, dim=1)
    return mean.expand(-1, -1, call.q.shape[2], -1).to(call.q.dtype)


def drops_first_key(call: AttentionCall) -> Tensor:
    """Lose the oldest key, as a window that is one too short does."""
    if call.k.shape[2] < 2:
        return right(call)
    k = call.k.clone()
    k[:, :, 0] = k[:, :, 1]
    v = call.v.clone()
    v[:, :, 0] = v[:, :, 1]
    return right(dataclasses.replace(call, k=k, v=v))


def sees_the_future(call: AttentionCall) -> Tensor:
    """Ignore the causal mask."""
    return right(call, causal=False)


def wrong_scale(call: AttentionCall) -> Tensor:
    """Scale the scores by two percent too much."""
    return right(call, scale=1.02)


def wrong_gradient(call: AttentionCall) -> Tensor:
    """Give the right output and no gradient for V."""
    return right(dataclasses.replace(call, v=call.v.detach() + 0 * call.v))


def controls(seed: int, device: str) -> Iterator[Control]:
    """Yield the controls of the surface ``kernel``: every check rejects zeros and accepts correct attention."""
    bad, good = frozenset({Verdict.FAIL, Verdict.INVALID}), frozenset({Verdict.PASS})
    shape = {"dtype": "bfloat16", "q_heads": 4, "kv_heads": 2, "head_dim": 32, "probability_dtype": "float32"}
    plain, trained = make_contract(**shape), make_contract(**{**shape, "dtype": "float32"}, backward=True)
    forward = [c for c in KERNEL_CHECKS if c != "backward"]
    cases: list[tuple[str, str, Kernel, frozenset[Verdict], KernelContract]] = [
        *(("correct attention", check, right, good, plain) for check in forward),
        *(("zeros", check, zeros, bad, plain) for check in forward if check != "selftest"),
        ("correct attention", "backward", right, good, trained),
        ("no gradient for V", "backward", wrong_gradient, bad, trained),
        ("mean of the values", "value", mean_of_values, bad, plain),
        ("the first key is lost", "value", drops_first_key, bad, plain),
        ("the future is visible", "poison", sees_the_future, bad, plain),
        ("the scale is 2 % too large", "value", wrong_scale, bad, plain),
    ]
    for name, check, fn, expected, contract in cases:
        measure: Callable[[], Measured] = partial(
            measure_kernel, check, fn, contract, max_length=1024, seed=seed, device=device
        )
        yield Control(surface="kernel", name=name, check=check, expected=expected, measure=measure)
