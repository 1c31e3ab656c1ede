"""Whether what a cache shows is what the model continues from: layers that are not read, and originals kept elsewhere.

Two kinds of evidence. What is stored is damaged, and the continuation must suffer as the baseline's does from the same
damage: a candidate that answers from anywhere else (bytes, a file, another process) hardly changes. And the memory of this
process is compared before and after a run: new tensors, grown Python and NumPy memory, old buffers that were written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from pytest_attnaccept.checks.damage import Effect, bypassed, effect, parts_of, unread
from pytest_attnaccept.checks.model_slack import take_slack
from pytest_attnaccept.checks.model_storage import Moment, moment
from pytest_attnaccept.engines.draws import same_draws
from pytest_attnaccept.engines.memory import left_behind
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.storage import layer_storage
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, fork, prefill

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["damage_effects", "kept_outside", "not_read"]

# policy: a quarter of the baseline's cache outside the cache is no rounding of an allocator, it is a copy
_OUTSIDE_SHARE = 0.25
_TOKENS = 4  # of the continuation that is compared


def not_read(session: ModelSession, row: Tensor, context: int, patterns: tuple[Pattern, Pattern]) -> str:
    """Say so when damage to a layer of the candidate's cache matters far less than the same damage to the baseline's.

    `patterns` are those of the baseline and of the candidate.
    """
    base = damage_effects(session.baseline, row, context, patterns[0])
    found = damage_effects(session.candidate, row, context, patterns[1])
    return bypassed(unread(base, found))


def damage_effects(side: Side, row: Tensor, context: int, pattern: Pattern) -> dict[str, Effect]:
    """Return how much damage to each part of the cache changes the logits."""
    ids = row[:, context : context + _TOKENS]
    with side.running():
        state = prefill(side, row[:, :context], pattern)
        step = min(pattern.step, _TOKENS)  # one call where the model takes several tokens
        with same_draws():
            expected = extend(side, fork(side, state), ids, step=step)
        return {
            name: effect(side, fork(side, state), part, ids, expected, step)
            for name, part in parts_of(state.cache).items()
        }


def kept_outside(session: ModelSession, row: Tensor, context: int, pattern: Pattern, base: Moment) -> str:
    """Say so when a run leaves memory behind that is neither in the cache nor in the models.

    What a candidate declares beyond what can be read (``kv_footprint``) may be outside of its cache.
    """
    side = session.candidate
    kept: list[State] = []

    def run(text: Tensor = row) -> State:
        state = prefill(side, text[:, :context], pattern)
        state.last = None
        take_slack(state.cache)  # who else holds what is behind a view keeps it outside
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
