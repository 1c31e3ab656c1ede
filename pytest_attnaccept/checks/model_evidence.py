"""Whether a comparison is evidence at all: did the method act, was it reached, is the cached path of the model right?

Every quality check asks here, so none of them can pass a candidate that never ran.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.calls import call
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern, parse_pattern, teacher_forced
from pytest_attnaccept.errors import EngineError
from pytest_attnaccept.measurement import Fact, Refusal
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = [
    "Soundness",
    "drawn",
    "indistinguishable",
    "largest_difference",
    "longest_context",
    "not_evidence",
    "pattern_of",
    "rounding_bound",
    "soundness",
    "soundness_fact",
]

ROUNDING_ORIGIN = "measured: 14 times the cached/uncached difference in float32; else 8 roundings of the largest logit"
# measured with int8 activations: 0.11 at logits up to 15 (torchao, an embedded model), 2.6 at logits up to 34 (SmolLM2, where
# the method itself changes 4.2); a wrong mask or position changes the logits by half of their size and more
_FLIPS = 0.15
# measured: the largest differences of two pairs of draws (stochastic rounding, random eviction) differ by less than three times
_DRAWS = 4.0
_SAME_WAY = 0.5  # derived: the cosine of two steps between three independent draws is -1/2, of a steady growth it is 1
_TOO_LATE = "; what acts when its context is left comes after the questions: prefill_context= is left before them"
TOKEN_ONLY = "token only"  # key of the session's memo: why the candidate takes one token per call
Soundness = tuple[int | None, float, float]


def rounding_bound(logits: Tensor) -> float:
    """Return how far two right computations of these logits may differ.

    measured: cached against uncached logits of SmolLM2 in float32 differ by up to 7e-5 at logits up to 38; 1e-3 leaves
    a factor of 14. Other dtypes: eight roundings of the largest logit.
    """
    eps = torch.finfo(logits.dtype).eps
    return max(1e-3, 8 * eps * float(logits.abs().max()))


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return max |a - b| as a float; NaN stays NaN."""
    return float((a.float() - b.float()).abs().max())


def drawn(runs: Sequence[Tensor]) -> float:
    """Return how far logits may differ because a candidate draws from a generator of its own; 0 where it does not.

    `runs`: the logits of three equal calls, one after the other. No two draws are equal, so the smallest difference counts (what
    changes with every second run is no draw), and none goes on from the one before, as what adds up does.
    """
    first, second = ((later - earlier).flatten().double() for earlier, later in itertools.pairwise(runs))
    if float(first @ second) > _SAME_WAY * float(first.norm() * second.norm()):
        return 0.0
    return _DRAWS * min(largest_difference(a, b) for a, b in itertools.combinations(runs, 2))


def indistinguishable(session: ModelSession, base: Tensor, cand: Tensor) -> bool:
    """Return whether the candidate did nothing that these values (logits, log-probabilities) show.

    For methods that round every value (FP8 attention, quantized weights) a difference within the rounding of a right
    computation is not the method either: another attention kernel would pass as FP8. Below float32 that bound is as wide
    as what int8 weights or FP8 attention do; there the layers themselves are asked (`model_weights`, `model_attention`).
    """
    if torch.equal(base, cand):
        return True
    always = bool(session.claims) and all(claim.always for claim in session.claims)
    asked = any(claim.weight_bits is not None or claim.attention for claim in session.claims)
    if asked and base.dtype is not torch.float32:
        return False
    return always and largest_difference(base, cand) <= rounding_bound(base)


def soundness(session: ModelSession, side: Side) -> Soundness:
    """Return (largest step that continues correctly, difference, bound) for the plain model of `side`.

    The step is None (any) when prefill, untouched cache and a continuation of several tokens equal one forward pass,
    and 1 when only token by token does (hybrids whose multi-token continuation is wrong).

    Raises
    ------
    EngineError
        When neither does: no check can be measured through such a cache.
    """
    key = f"soundness:{id(side.model)}"
    if key not in session.memo:
        # Rounded activations flip to the next code when sums are taken in another order: noise of the size of the rounding.
        rounds = any(claim.activation_bits is not None for claim in session.claims)
        other = session.baseline if rounds and side is session.candidate else None
        session.memo[key] = _measure_soundness(side, other)
    result: Soundness = session.memo[key]
    return result


def _measure_soundness(side: Side, other: Side | None = None) -> Soundness:
    """Measure `side`; with `other`, what it changes against that side bounds the difference too, up to 15 % of a logit."""
    plain = replace(side, around=Candidate())
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(side.model.get_input_embeddings().weight.shape[0])
    ids = torch.randint(0, vocabulary, (1, 48), generator=generator).to(next(side.model.parameters()).device)
    context = 33  # odd, so that no chunk length of a recurrent scan divides it
    with plain.running():
        whole, _ = call(side.model, side.form, ids, None, 0, side=side.name)
        whole = whole[:, context - 1 : -1]
        bound = rounding_bound(whole)
        if other is not None:
            base, _ = call(other.model, other.form, ids, None, 0, side=other.name)
            width = min(base.shape[-1], whole.shape[-1])
            change = largest_difference(base[:, context - 1 : -1, :width], whole[..., :width])
            bound = max(bound, min(change, _FLIPS * float(whole.abs().max())))
        gap = 0.0
        for step in (None, 1):
            pattern = Pattern(name="one-shot", prefill=None, step=step or ids.shape[1])
            gap = largest_difference(teacher_forced(plain, ids, context, pattern), whole)
            if gap <= bound:
                return step, gap, bound
    raise EngineError(
        f"{type(side.model).__name__} ({side.name}): prefill, untouched cache and continuation differ from one forward"
        f" pass by {gap:.3g} (bound {bound:.3g}), token by token too: this class cannot be measured through its cache in"
        " this version of transformers"
    )


def pattern_of(session: ModelSession, side: Side, name: str, step: int) -> Pattern:
    """Return the call pattern `name`, narrowed to token by token where only that continues correctly.

    One narrow side narrows both: a comparison must not differ in anything but the candidate.
    """
    pattern = parse_pattern(name, step)
    limits = [soundness(session, each)[0] for each in (session.baseline, session.candidate)]
    if session.memo.get(TOKEN_ONLY) is None and limits == [None, None]:
        return pattern
    return replace(pattern, prefill=1 if pattern.prefill is not None else None, step=1, multi=False)


def not_evidence(session: ModelSession, tokens: int, *, identical: bool, params: Params) -> tuple[Refusal, ...]:
    """Return why a comparison over `tokens` tokens proves nothing, or nothing.

    `identical`: every logit of the candidate equals the baseline's bit for bit. The parameter ``longest_tier`` is the
    longest tier of the whole plan: knobs that only another item reaches are no reason against this one.
    """
    if not session.approximate:
        return ()
    if session.claims and all(claim.is_identity for claim in session.claims):
        return (
            _refusal(Verdict.INVALID, f"{session.claim.source} keeps everything: an identity setting tests nothing"),
        )
    for claim in session.claims:
        missing = claim.missing_tokens(tokens)
        if missing and not claim.missing_tokens(longest_context(session, params)):
            return ()
        if missing:
            return (
                _refusal(
                    Verdict.INCONCLUSIVE, f"{claim.source} is not reached by {tokens} tokens: needs context > {missing}"
                ),
            )
    if identical:
        words = session.claim.source or "the candidate"
        late = session.candidate.around.context is not None and session.identity is None
        return (
            _refusal(
                Verdict.INVALID,
                f"{words} never ran: equal to the baseline over {tokens} tokens (bit-identical or within rounding), where it"
                f" must act{_TOO_LATE if late else ''}",
            ),
        )
    return ()


def longest_context(session: ModelSession, params: Params) -> int:
    """Return the longest context of the plan in tokens, 0 when the plan did not say."""
    if params.given.get("longest_tier") is None or session.trained_length is None:
        return 0
    length = round(params.number("longest_tier", 1.0) * session.trained_length)
    cap = params.optional_integer("max_tokens")
    return length if cap is None else min(length, cap)


def _refusal(verdict: Verdict, reason: str) -> Refusal:
    return Refusal(verdict=verdict, reason=reason)


def soundness_fact(session: ModelSession, side: Side) -> Fact:
    """Report how the model may be continued."""
    step, gap, bound = soundness(session, side)
    words = "any step" if step is None else "token by token only"
    if side.name == "baseline" and session.memo.get(TOKEN_ONLY):
        words = f"token by token only, because the {session.memo[TOKEN_ONLY]}"
    return Fact(name=f"{side.name}_cached_equals_uncached", value=f"{words}; difference {gap:.2g}, bound {bound:.2g}")
