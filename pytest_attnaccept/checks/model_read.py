"""Is what is stored what is read, in the runs that are judged and not only in those of `footprint`?

A candidate may store what it claims and continue from an original that it keeps elsewhere, for some lengths, batches or call
patterns only. So the cache of some judged contexts is damaged in a second run of the same calls, and the logits must move
as the baseline's do: the first context of every pattern, alone and in a batch, in every doubling of the length, and one in
eight others, chosen by their tokens. A stack that this package applied itself has no such habits: one context of each kind
per session, on copies of its cache.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.damage import WHOLE, Effect, Part, bypassed, effect, layers_of, parts_of, unread
from pytest_attnaccept.checks.model_evidence import drawn, largest_difference, rounding_bound
from pytest_attnaccept.checks.stack_memo import shared_key
from pytest_attnaccept.engines.draws import same_draws
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, fork, prefill
from pytest_attnaccept.errors import AttnAcceptError
from pytest_attnaccept.measurement import Refusal
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["at_other_budget", "forget_read", "not_read_where_judged", "note_read", "turn_of"]

_PROBES, _COUNTS = "read probes", "read counts"  # keys of the session's memo
_ONE_IN = 8  # policy: an eighth of the contexts costs a few percent of the calls and meets a habit within a sample
# measured: the last layer of pyramidkv, a few entries of a short context, shows .023 in its worst text (token by token);
# layers that answer from originals less than a thousandth
_READ_LAYER = 0.005
# measured, in shares of the range of all logits: a scale that the tokens of a call share rounds earlier ones anew when a later
# one sets it, which moves them by .002 to .004 at 8 bits (4 bits: .05); a token that is seen moves them by .07
_ROUNDED_ANEW, _BITS = 0.02, 8
_TOKENS = 4  # of the continuation that is compared, as in `footprint`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """What damage to the cache of a judged batch of contexts did to the candidate; `faults`: what else these runs show."""

    ids: Tensor
    following: Tensor
    pattern: Pattern
    step: int
    layers: int
    effects: Mapping[str, Effect]
    faults: tuple[Refusal, ...] = ()


def forget_read(session: ModelSession) -> None:
    """Begin a check."""
    session.memo[_PROBES] = []
    if not _ours(session):
        session.memo[_COUNTS] = {}


def note_read(
    session: ModelSession, side: Side, state: State, ids: Tensor, following: Tensor, *, step: int, forked: bool
) -> None:
    """Damage what `side` stores of the contexts `ids` (batch, n) and keep what it changes; call inside ``side.running()``.

    Parameters
    ----------
    state
        The filled cache; left as it is.
    forked
        The judged continuation runs on a copy of the cache, so the damaged one does too.
    following
        What the judged continuation feeds next (batch, m), in calls of `step` tokens.
    """
    if not _is_judged(session, side):
        return
    forked = forked or _ours(session)
    first, due = _turns(session, side, state, ids)
    if not (first or due):
        return
    fed = following[:, : max(step, _TOKENS)]
    layers = len(layers_of(state.cache))
    # Where every part costs a prefill, one part of a later context has to do.
    parts = _chosen(parts_of(state.cache), layers, _digest(session, ids), all_of_them=first or forked)
    again = _again(side, state, ids, forked=forked)
    expected = _run(side, again(), fed, step)
    bounds = _bounds(session, expected)
    found = {name: effect(side, again(), part, fed, expected[:, :_TOKENS], step) for name, part in parts.items()}
    faults: list[Refusal] = []
    if first or forked:
        afresh = _again(side, state, ids, forked=False)
        noise, faults = _memory(side, again, afresh, fed, step, expected, bounds[1])
        if not faults:  # what remembers other runs moves everything
            faults += _future(side, again, fed, step, expected, max(bounds[0], noise))
    session.memo[_PROBES].append(
        _Probe(
            ids=ids, following=fed, pattern=state.pattern, step=step, layers=layers, effects=found, faults=tuple(faults)
        )
    )


def _bounds(session: ModelSession, logits: Tensor) -> tuple[float, float]:
    """Return how far earlier logits may differ behind another token, and logits of two runs of the same calls."""
    rounding, anew = rounding_bound(logits), _ROUNDED_ANEW * float(logits.max() - logits.min())
    bits = min((c.bits for c in session.claims if c.bits is not None), default=float(_BITS))
    rounds = any(c.bits is not None or c.attention or c.activation_bits is not None for c in session.claims)
    future = math.inf if bits < _BITS else max(rounding, anew) if rounds else rounding
    # Sums of a GPU may be taken in another order; a choice of entries then flips at a near tie.
    return future, rounding if logits.device.type == "cpu" else max(rounding, anew)


def _run(side: Side, state: State, fed: Tensor, step: int) -> Tensor:
    """Return the logits of `fed`, with the same random numbers every time (a candidate may draw)."""
    with same_draws():
        return extend(side, state, fed, step=step)


def _future(
    side: Side, again: Callable[[], State], fed: Tensor, step: int, expected: Tensor, bound: float
) -> Iterator[Refusal]:
    """Change a token inside of the first judged call: logits before it must not move, in calls of just this size.

    Most tokens of a text are scored in the call that holds the token to be predicted.
    """
    at = min(step, fed.shape[1], _TOKENS) - 1
    if at < 1 or bound == math.inf:
        return
    other = fed.clone()
    other[:, at] = (other[:, at] + 1) % int(side.model.get_input_embeddings().weight.shape[0])
    moved = largest_difference(_run(side, again(), other, step)[:, :at], expected[:, :at])
    if not moved <= bound:
        reason = (
            f"tokens see the future in calls of {min(step, fed.shape[1])} tokens: earlier logits move by {moved:.2g}"
        )
        yield Refusal(verdict=Verdict.FAIL, reason=reason)


def _memory(
    side: Side,
    again: Callable[[], State],
    afresh: Callable[[], State],
    fed: Tensor,
    step: int,
    expected: Tensor,
    bound: float,
) -> tuple[float, list[Refusal]]:
    """Repeat the very first of these runs: what ran in between must not be noticed; also returns how far draws move logits.

    A press may keep what belongs to one sequence in itself: right for one sequence after another, wrong for copies. One that
    draws from a generator of its own differs in runs that follow one another, too, and by as much: that is no memory.
    """
    # Twice: what alternates from run to run is as it was in one of them.
    moved = max(largest_difference(_run(side, again(), fed, step), expected) for _ in range(2))
    if moved <= bound:
        return 0.0, []
    if moved <= drawn([_run(side, afresh(), fed, step) for _ in range(3)]):
        return drawn([_run(side, again(), fed, step) for _ in range(3)]), []
    first = _run(side, afresh(), fed, step)
    _run(side, afresh(), fed.flip(1), step)
    if largest_difference(_run(side, afresh(), fed, step), first) <= bound:
        verdict, reason = (
            Verdict.INVALID,
            "the candidate keeps a state of its sequence outside of the cache: copies of a cache share it, so what one"
            f" question does moves the answer to the next one (logits by {moved:.2g}), and several questions per context are"
            " no measurement; keep it in the cache",
        )
    else:
        verdict, reason = (
            Verdict.FAIL,
            f"the same calls give other logits (by {moved:.2g}) after others ran: something outside of the cache remembers,"
            " so answers depend on what was asked before",
        )
    return 0.0, [Refusal(verdict=verdict, reason=reason)]


def _is_judged(session: ModelSession, side: Side) -> bool:
    """Whether `side` is the candidate, or the candidate at another budget of a curve, and claims something of its cache."""
    if not session.claim.about_kv or _PROBES not in session.memo or not same_vocabulary(session):
        return False
    return side is session.candidate or at_other_budget(session, side)


def at_other_budget(session: ModelSession, side: Side) -> bool:
    """Whether `side` is the candidate at another budget of a curve."""
    return any(side is other for key, other in session.memo.items() if key.startswith("budget:"))


def same_vocabulary(session: ModelSession) -> bool:
    """Whether a token means the same to both sides."""
    ours, theirs = session.baseline.loaded.tokenizer, session.candidate.loaded.tokenizer
    if "same vocabulary" not in session.memo:
        session.memo["same vocabulary"] = ours is theirs or ours.get_vocab() == theirs.get_vocab()
    return bool(session.memo["same vocabulary"])


def _turns(session: ModelSession, side: Side, state: State, ids: Tensor) -> tuple[bool, bool]:
    """Return whether these contexts are the first of their kind, and whether their tokens choose them."""
    counts = session.memo.setdefault(_COUNTS, {})
    key = (id(side), state.pattern.name, ids.shape[0] > 1, state.seen.bit_length())
    counts[key] = counts.get(key, 0) + 1
    return counts[key] == 1, not _ours(session) and _digest(session, ids) % _ONE_IN == 0


def _ours(session: ModelSession) -> bool:
    return shared_key(session, session.candidate) is not None


def turn_of(session: ModelSession, ids: Tensor, count: int) -> int:
    """Return before which of `count` judged continuations of a batch the damaged one runs: nobody should know."""
    return _digest(session, ids) // _ONE_IN % max(1, count)


def _digest(session: ModelSession, ids: Tensor) -> int:
    content = f"{session.seed}|{tuple(ids.shape)}|".encode() + ids.cpu().numpy().tobytes()
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big")


def _chosen(parts: Mapping[str, Part], layers: int, digest: int, *, all_of_them: bool) -> dict[str, Part]:
    """Return one layer, and keys and values apart where that is possible (everything together is less), or one of these."""
    by_chance = digest // _ONE_IN**2
    names = ["keys", "values"] if "keys" in parts else [WHOLE]
    names += [f"layer {by_chance % layers}"] if layers else []
    if not all_of_them:
        names = [names[by_chance // max(1, layers) % len(names)]]
    return {name: parts[name] for name in names}


def _again(side: Side, state: State, ids: Tensor, *, forked: bool) -> Callable[[], State]:
    """Return what makes another cache of the same contexts, as the judged continuation got its own."""

    def made() -> State:
        with same_draws():  # every one of these caches is the same one, also where a copy has to be filled again
            return fork(side, state) if forked else prefill(side, ids, state.pattern)

    return made


def not_read_where_judged(session: ModelSession) -> tuple[Refusal, ...]:
    """Return why the judged answers were no answers from what is stored, or nothing."""
    for probe in session.memo.get(_PROBES) or ():
        words = bypassed(unread(_baseline(session, probe), probe.effects, layer=_READ_LAYER))
        if words or probe.faults:
            rows = "" if probe.ids.shape[0] == 1 else f", batch of {probe.ids.shape[0]}"
            where = f" (where answers are judged: {probe.pattern.name}, {probe.ids.shape[1]} tokens{rows})"
            unlike = Refusal(verdict=Verdict.INVALID, reason=words + where) if words else None
            faults = (replace(fault, reason=fault.reason + where) for fault in probe.faults)
            return (unlike,) if unlike else tuple(faults)
    return ()


def _baseline(session: ModelSession, probe: _Probe) -> dict[str, Effect]:
    """Return what the same damage does to the baseline; a baseline that cannot show it shows nothing."""
    side = session.baseline
    texts = tuple(x.cpu().numpy().tobytes() for x in (probe.ids, probe.following))
    key = ("read", *texts, probe.ids.shape[0], probe.pattern, probe.step, tuple(probe.effects), probe.layers)
    known = None if side.changes else baseline_memo.get((*key, session.baseline_key))
    if known is None:
        known = _measured(side, probe)
        if not side.changes:
            baseline_memo.put((*key, session.baseline_key), known)
    return {name: None if float(row.min()) < 0 else row for name, row in zip(probe.effects, known, strict=True)}


def _measured(side: Side, probe: _Probe) -> Tensor:
    """Return the effects on `side` (parts, rows); negative where a part cannot be compared."""
    nothing = -torch.ones(probe.ids.shape[0])
    try:
        with side.running():
            state = prefill(side, probe.ids, probe.pattern)
            parts = parts_of(state.cache)
            alike = len(layers_of(state.cache)) == probe.layers
            names = [name for name in probe.effects if name in parts and (alike or not name.startswith("layer"))]
            expected = _run(side, fork(side, state), probe.following, probe.step)[:, :_TOKENS]
            found = {
                name: effect(side, fork(side, state), parts[name], probe.following, expected, probe.step)
                for name in names
            }
    except AttnAcceptError:  # the check itself reports a baseline that cannot run
        found = {}
    rows = [found.get(name) for name in probe.effects]
    return torch.stack([nothing if row is None else row for row in rows])
