"""Whether what a cache shows is what the model continues from: layers that are not read, and originals kept elsewhere.

Two kinds of evidence. What is stored is damaged, and the continuation must suffer as the baseline's does from the same
damage: a candidate that answers from anywhere else (bytes, a file, another process) hardly changes. And the memory of this
process is compared before and after a run: new tensors, grown Python and NumPy memory, old buffers that were written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_storage import Moment, moment
from pytest_attnaccept.engines.memory import left_behind
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.storage import layer_storage, tensors_of
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, fork, prefill
from pytest_attnaccept.errors import AttnAcceptError

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["damage_effects", "kept_outside", "not_read"]

# policy: a quarter of the baseline's cache outside the cache is no rounding of an allocator, it is a copy
_OUTSIDE_SHARE = 0.25
# measured: 18 settings (budgets .5 and .05, 2 to 8 bits) on four embedded models show .39 to 2.2 times the effect that the
# baseline shows, in every layer; a single entry per layer shows .14 in the worst layer and .42 as a whole; candidates that
# answer from originals less than a thousandth
_READ_WHOLE, _READ_LAYER = 0.1, 0.05
_TOKENS = 4  # of the continuation that is compared


def not_read(session: ModelSession, row: Tensor, context: int, patterns: tuple[Pattern, Pattern]) -> str:
    """Say so when damage to a layer of the candidate's cache matters far less than the same damage to the baseline's.

    `patterns` are those of the baseline and of the candidate.
    """
    base = damage_effects(session.baseline, row, context, patterns[0])
    found = damage_effects(session.candidate, row, context, patterns[1])
    if len(base) != len(found):  # another layout: only the whole can be compared
        base, found = base[-1:], found[-1:]
    shares = [*[_READ_LAYER] * (len(found) - 1), _READ_WHOLE]
    unread = [
        number
        for number, (expected, seen, share) in enumerate(zip(base, found, shares, strict=True))
        if expected is not None and seen is not None and seen <= share * expected
    ]
    if not unread:
        return ""
    places = "the cache" if unread == [len(found) - 1] else f"layer {[n for n in unread if n < len(found) - 1]}"
    worst = min((found[n] or 0.0) / (base[n] or 1.0) for n in unread)
    return (
        f"the continuation bypasses the cache: damaging what {places} stores changes the logits by {worst:.2g} of what it"
        f" changes them in the baseline (at least {shares[unread[0]]:g}): the answer comes from somewhere else"
    )


def damage_effects(side: Side, row: Tensor, context: int, pattern: Pattern) -> list[float | None]:
    """Return how much damage to each layer, and last to all of them, changes the logits (mean absolute difference).

    None: there was nothing to damage; infinity: the damaged cache made the side raise, so it was read.
    """
    effects: list[float | None] = []
    ids = row[:, context : context + _TOKENS]
    with side.running():
        state = prefill(side, row[:, :context], pattern)
        step = min(pattern.step, _TOKENS)  # one call where the model takes several tokens
        expected = extend(side, fork(side, state), ids, step=step)
        count = len(getattr(state.cache, "layers", None) or [])
        for number in [*range(count), None]:
            effects.append(_effect(side, fork(side, state), number, ids, expected, step))
    return effects


def _effect(side: Side, state: State, number: int | None, ids: Tensor, expected: Tensor, step: int) -> float | None:
    target = state.cache if number is None else state.cache.layers[number]
    if not _damage(target):
        return None
    try:
        seen = extend(side, state, ids, step=step)
    except (AttnAcceptError, RuntimeError, ValueError, TypeError, ArithmeticError):
        return float("inf")
    return float((seen.float() - expected.float()).abs().mean())


def _damage(target: object) -> bool:
    """Change every stored value in place; returns whether there was anything to change."""
    touched = False
    done: set[int] = set()
    for tensor in list(tensors_of(target)):
        if tensor.numel() < 2 or tensor.dtype in (torch.int64, torch.int32, torch.bool):
            continue  # counters and indices: damaging them breaks the cache instead of its contents
        if tensor.data_ptr() in done:
            continue  # a second name of the same storage would undo the damage
        done.add(tensor.data_ptr())
        if tensor.dtype in (torch.uint8, torch.int8):
            tensor.bitwise_xor_(0x55)
        elif tensor.dtype.is_floating_point and tensor.element_size() > 1:
            tensor.mul_(-1).add_(tensor.float().std(unbiased=False).to(tensor.dtype))
        else:
            tensor.view(torch.uint8).bitwise_xor_(0x55)
        touched = True
    return touched


def kept_outside(session: ModelSession, row: Tensor, context: int, pattern: Pattern, base: Moment) -> str:
    """Say so when a run leaves memory behind that is neither in the cache nor in the models.

    What a candidate declares beyond what can be read (``kv_footprint``) may be outside of its cache.
    """
    side = session.candidate
    kept: list[State] = []

    def run(text: Tensor = row) -> State:
        state = prefill(side, text[:, :context], pattern)
        state.last = None
        kept[:] = [state]
        return state

    with side.running():
        # What is made on first use is made now; with another text, or a buffer would be overwritten with what it holds.
        run(row.flip(1))
        kept.clear()
        left = left_behind(run, (session.baseline.model, side.model))
        declared = moment(side, kept[0], "").total_bytes
    readable = sum(layer.storage_bytes for layer in layer_storage(kept[0].cache))
    if left.total <= _OUTSIDE_SHARE * base.total_bytes + max(0, declared - readable):
        return ""
    return (
        f"keeps {left.total} bytes outside of the cache that it shows (the baseline's cache is {base.total_bytes} bytes;"
        f" new tensors {left.tensors}, Python and NumPy memory {left.python}, buffers written to {left.rewritten}):"
        " what was dropped is still stored"
    )
