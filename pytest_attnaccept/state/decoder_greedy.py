"""Whether every greedy token is the target's best one within rounding: early, late, behind short and long prompts."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.decoder_calls import Answer
from pytest_attnaccept.state.decoder_reference import Tokens
from pytest_attnaccept.state.decoder_run import DecoderRun
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["greedy"]

# A position whose best token leads by less than this many tolerances says nothing about the decoder.
_CLEAR = 2.0
_ORIGIN_TIE = "measured: 1e-4 at logits of 38 between one and several tokens per forward, times 3"


@dataclass(slots=True)
class _Tally:
    """What the judged tokens added up to."""

    worst: float = 0.0
    where: str = ""
    near: int = 0
    clear: int = 0
    total: int = 0
    longest: int = 0
    furthest: int = 0
    tokens: set[int] = field(default_factory=set)
    reproduce: str = ""


def greedy(run: DecoderRun) -> Measured:
    """Judge every greedy token on the candidate's own prefix."""
    tally = _Tally()
    for number, (prompt, count) in enumerate(run.prompts.greedy(run.seed)):
        answer = run.call(prompt, count, 0.0, run.seed + number)
        tally.longest = max(tally.longest, len(prompt) + len(answer.tokens))
        tally.furthest = max(tally.furthest, len(answer.tokens))
        for place, token in enumerate(answer.tokens):
            lag, lead = run.lag(prompt + answer.tokens[:place], token)
            tally.total += 1
            tally.near += int(0.0 < lag <= 1.0)
            tally.clear += int(lead > _CLEAR)
            tally.tokens.add(token)
            if lag > tally.worst:
                tally.worst = lag
                tally.where = f"prompt {number} ({len(prompt)} tokens), new token {place}: {token}"
            if lag > 1.0:
                tally.reproduce = tally.reproduce or _greedy_code(run, prompt, count, number, place, answer)
                break  # what follows a wrong token is judged in another context
    return _greedy_measured(run, tally)


def _greedy_code(run: DecoderRun, prompt: Tokens, count: int, number: int, place: int, answer: Answer) -> str:
    return (
        f"out = candidate(prompt=torch.tensor({list(prompt)}), max_new_tokens={count}, temperature=0.0, "
        f"seed={run.seed + number})\n"
        f"target(torch.tensor({list(prompt + answer.tokens[:place])})).argmax()  "
        f"# not {answer.tokens[place]}, which is token {place} of out"
    )


def _greedy_measured(run: DecoderRun, tally: _Tally) -> Measured:
    refusals = []
    if 2 * tally.clear < tally.total:
        reason = f"the target prefers a token clearly at only {tally.clear} of {tally.total} positions"
        refusals.append(Refusal(verdict=Verdict.INVALID, reason=reason))
    if len(tally.tokens) < 2:
        refusals.append(Refusal(verdict=Verdict.INVALID, reason="all continuations repeat one single token"))
    gate = Threshold(
        name="lag behind the target's best token",
        value=tally.worst,
        limit=1.0,
        unit="tie tolerances",
        n=tally.total,
        where=tally.where,
        origin=_ORIGIN_TIE,
        seems="not the target's greedy choice (accepted without verification, wrong row, or stale state)",
    )
    return Measured(
        gates=(gate,),
        refusals=tuple(refusals) if tally.worst <= 1.0 else (),
        facts=(
            Fact(name="certified_to", value=tally.longest, unit="tokens of context"),
            Fact(name="longest continuation", value=tally.furthest, unit="new tokens"),
            Fact(name="tokens compared", value=tally.total),
            Fact(name="certified near-ties", value=tally.near),
        ),
        reproduce=tally.reproduce,
        resolution=f"every token up to {tally.longest} tokens of context and {tally.furthest} new ones; {run.reach()}",
        data_digest=run.digest,
        seed=run.seed,
    )
