"""Does the cache hold what is claimed in the runs that are judged, not only in those of `footprint`?

A candidate may keep its promise for the lengths, texts and call patterns of one check and store everything elsewhere; then
its quality is that of no compression. So the cache is looked at after every context that a quality check hands over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from pytest_attnaccept.checks.model_read import at_other_budget, forget_read, not_read_where_judged, note_read, turn_of
from pytest_attnaccept.checks.model_storage import Moment, gates_of, moment, unreadable
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.storage import LayerStorage, layer_storage
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, parse_pattern, prefill
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Refusal
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["continued_text", "forget_stored", "most_entries", "note_stored", "stored_too_much"]

_HELD, _PLAIN, _OTHERS = "held", "held by the baseline", "held at other budgets"  # keys of the session's memo
_ENTRIES, _BYTES, _FEWEST = range(3)  # which extremes are kept: the most entries, the most bytes, the fewest bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """The most or the least that a cache held after contexts of one length in one pattern, and one of these contexts.

    `context`: how many of the tokens are the context; what follows it may be kept whole.
    """

    moment: Moment
    ids: Tensor
    context: int

    @property
    def size(self) -> tuple[int, int, int]:
        """What is compared: entries, bytes, and fewness of bytes."""
        total = self.moment.total_bytes
        return sum(layer.entries or 0 for layer in self.moment.layers), total, -total


def forget_stored(session: ModelSession) -> None:
    """Begin a check: what an earlier one saw was judged there."""
    session.memo[_HELD] = {}
    forget_read(session)


def note_stored(session: ModelSession, side: Side, state: State) -> None:
    """Remember what the candidate holds after a context, or after a question to it; judged later, outside of its calls.

    Padded rows are left out: entries of padding belong to nobody's budget.
    """
    if not session.claim.about_kv or state.pattern.padding:
        return
    if side is not session.candidate:
        if at_other_budget(session, side):
            _note_entries(session, side, state)
        return
    rows = int(state.source.shape[0])
    context = state.filled or state.seen
    asked = f" and {state.seen - context} more" if state.seen > context else ""
    found = moment(side, state, f"after a context of {context} tokens{asked}", rows=rows)
    here = _Held(moment=found, ids=state.source[:1], context=context)
    held = session.memo.setdefault(_HELD, {})
    for order in (_ENTRIES, _BYTES, _FEWEST):
        key = (state.pattern.name, context, state.seen, rows, order)
        if key not in held or here.size[order] > held[key].size[order]:
            held[key] = here


def _note_entries(session: ModelSession, side: Side, state: State) -> None:
    """Remember the most entries (mean over the layers) of another budget of a curve; its bytes are asked of one context."""
    found = [layer.entries for layer in layer_storage(state.cache) if layer.entries is not None]
    if found and not state.calls:  # what follows a context may be kept whole
        kept = session.memo.setdefault(_OTHERS, {})
        kept[id(side)] = max(kept.get(id(side), 0.0), sum(found) / len(found))


def most_entries(session: ModelSession, side: Side) -> float:
    """Return the most entries that another budget of the candidate held after a judged context, mean over the layers."""
    entries: float = session.memo.get(_OTHERS, {}).get(id(side), 0.0)
    return entries


def continued_text(session: ModelSession, side: Side, ids: Tensor, context: int, pattern: Pattern) -> Tensor:
    """Return what `through_cache.teacher_forced` returns, and remember what was stored before the continuation."""
    if not 2 <= context < ids.shape[1]:
        raise ContractError(f"a context of {context} tokens leaves nothing to score in a text of {ids.shape[1]}")
    before, after = ids[:, : context - 1], ids[:, context - 1 : -1]
    state = prefill(side, before, pattern)
    note_stored(session, side, state)
    first = turn_of(session, before, 2) == 0
    if first:
        note_read(session, side, state, before, after, step=pattern.step, forked=False)
    logits = extend(side, state, after)
    if not first:
        note_read(session, side, state, before, after, step=pattern.step, forked=False)
    return logits


def stored_too_much(session: ModelSession) -> tuple[Refusal, ...]:
    """Return why what was measured is not the method that is claimed, or nothing."""
    held: dict[tuple[str, int, int, int, int], _Held] = session.memo.get(_HELD) or {}
    if not held:
        return ()
    plain = _plain(session, max(held.values(), key=lambda each: each.moment.tokens))
    for (pattern, _, tokens, rows, order), each in held.items():
        reference = replace(
            plain, tokens=tokens, layers=tuple(_scaled(x, plain.tokens, tokens, rows) for x in plain.layers)
        )
        if order == _FEWEST:
            hidden = unreadable(session, reference, each.moment)
            if hidden:
                return (Refusal(verdict=Verdict.INVALID, reason=f"{hidden} ({pattern}, where answers are judged)"),)
            continue
        for gate in gates_of(session, (reference,), {pattern: (each.moment,)}, each.context):
            if not gate.value <= gate.limit:
                words = (
                    f"stores more than it claims where its answers are judged: {gate.name} {gate.value:.4g} {gate.unit}"
                )
                reason = f"{words} is beyond {gate.limit:.4g} ({gate.origin})"
                return (Refusal(verdict=Verdict.FAIL, reason=reason),)
    return not_read_where_judged(session)


def _plain(session: ModelSession, longest: _Held) -> Moment:
    """Return what the baseline stores for one context of at least that length."""
    known: Moment | None = session.memo.get(_PLAIN)
    if known is None or known.tokens < longest.moment.tokens:
        side = session.baseline
        with side.running():
            state = prefill(side, longest.ids, parse_pattern("one-shot", 1))
            known = moment(side, state, "")
        session.memo[_PLAIN] = known
    return known


def _scaled(layer: LayerStorage, whole: int, tokens: int, rows: int) -> LayerStorage:
    """Return a layer of the baseline for fewer tokens and more rows; one that does not grow keeps its size per row."""
    if layer.entries is None or layer.entries < whole:
        return replace(layer, storage_bytes=layer.storage_bytes * rows)
    return replace(layer, entries=tokens, storage_bytes=layer.storage_bytes * rows * tokens // whole)
