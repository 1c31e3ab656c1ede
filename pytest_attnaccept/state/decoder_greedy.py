"""Whether every greedy token is the target's best one, or lies within what rounding can turn around."""

from __future__ import annotations

from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.decoder_calls import Answer
from pytest_attnaccept.state.decoder_contract import prompts_for
from pytest_attnaccept.state.decoder_reference import Tokens
from pytest_attnaccept.state.decoder_run import DecoderRun
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["greedy"]

# A position whose best token leads by less than this many tolerances says nothing about the decoder.
_CLEAR = 10.0
_ORIGIN_TIE = "measured: 1e-4 at logits of 38 between one and several tokens per forward, times 3"


def greedy(run: DecoderRun) -> Measured:
    """Judge every greedy token on the candidate's own prefix."""
    worst, where, near, clear, total = 0.0, "", 0, 0, 0
    tokens: set[int] = set()
    reproduce = ""
    for number, prompt in enumerate(prompts_for(run.contract, run.plan.greedy_prompts, run.seed)):
        count = run.plan.greedy_tokens if number else 1 + run.plan.greedy_tokens // 4
        answer = run.call(prompt, count, 0.0, run.seed + number)
        for place, token in enumerate(answer.tokens):
            lag, lead = run.lag(prompt + answer.tokens[:place], token)
            total += 1
            near += int(0.0 < lag <= 1.0)
            clear += int(lead > _CLEAR)
            tokens.add(token)
            if lag > worst:
                worst = lag
                where = f"prompt {number} ({len(prompt)} tokens), new token {place}: {token}"
            if lag > 1.0:
                reproduce = reproduce or _greedy_code(run, prompt, count, number, place, answer)
                break  # what follows a wrong token is judged in another context
    return _greedy_measured(run, worst, where, near, clear, total, tokens, reproduce)


def _greedy_code(run: DecoderRun, prompt: Tokens, count: int, number: int, place: int, answer: Answer) -> str:
    return (
        f"out = candidate(prompt=torch.tensor({list(prompt)}), max_new_tokens={count}, temperature=0.0, "
        f"seed={run.seed + number})\n"
        f"target(torch.tensor({list(prompt + answer.tokens[:place])})).argmax()  "
        f"# not {answer.tokens[place]}, which is token {place} of out"
    )


def _greedy_measured(
    run: DecoderRun, worst: float, where: str, near: int, clear: int, total: int, tokens: set[int], reproduce: str
) -> Measured:
    refusals = []
    if 2 * clear < total:
        reason = f"the target prefers a token clearly at only {clear} of {total} positions"
        refusals.append(Refusal(verdict=Verdict.INVALID, reason=reason))
    if len(tokens) < 2:
        refusals.append(Refusal(verdict=Verdict.INVALID, reason="all continuations repeat one single token"))
    gate = Threshold(
        name="lag behind the target's best token",
        value=worst,
        limit=1.0,
        unit="tie tolerances",
        n=total,
        where=where,
        origin=_ORIGIN_TIE,
        seems="not the target's greedy choice (accepted without verification, wrong row, or stale state)",
    )
    return Measured(
        gates=(gate,),
        refusals=tuple(refusals) if worst <= 1.0 else (),
        facts=(Fact(name="tokens compared", value=total), Fact(name="certified near-ties", value=near)),
        reproduce=reproduce,
        data_digest=run.digest,
        seed=run.seed,
    )
