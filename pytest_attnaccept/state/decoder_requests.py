"""Whether the seed alone decides, requests leave nothing behind, and step reports can be true."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from pytest_attnaccept.measurement import Fact, Measured, Refusal
from pytest_attnaccept.state.decoder_calls import Answer
from pytest_attnaccept.state.decoder_checks import Setting
from pytest_attnaccept.state.decoder_reference import Tokens
from pytest_attnaccept.state.decoder_run import DecoderRun
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["seeds", "state", "steps"]


def seeds(run: DecoderRun) -> Measured:
    """Check that the seed, and nothing but the seed, decides what is drawn."""
    setting = Setting(run.prompts.short(1, run.seed + 2)[0], max(run.contract.sampled), run.sampling)
    count, problems = run.prompts.room(setting.prompt, 2 * run.plan.depth), []
    with _global_state_restored():
        same = [_with_globals(run, setting, count, 7, state) for state in (1, 1, 2)]
        if same[0] != same[1]:
            problems.append("the same seed gives different tokens: the seed is ignored, or state is left over")
        elif same[0] != same[2]:
            problems.append("the tokens depend on the global random state and not on the seed alone")
        others = [_with_globals(run, setting, count, 100 + draw, 1) for draw in range(24)]
    distinct = len({others[0], *others})
    refusals = []
    if distinct == 1:
        share = _probability(run, setting, others[0])
        if share ** (len(others) - 1) < 1e-6:
            problems.append(f"{len(others)} different seeds give the same tokens, whose probability is {share:.3g}")
        else:
            reason = "the target has too little entropy: different seeds may well give the same tokens"
            refusals.append(Refusal(verdict=Verdict.INVALID, reason=reason))
    return run.counted("seed faults", problems, tuple(refusals), Fact(name="distinct of 24 seeds", value=distinct))


def _with_globals(run: DecoderRun, setting: Setting, count: int, seed: int, state: int) -> Tokens:
    torch.manual_seed(state)
    random.seed(state)
    np.random.seed(state)
    return run.call(setting.prompt, count, setting.temperature, seed).tokens


def _probability(run: DecoderRun, setting: Setting, draw: Tokens) -> float:
    share = 1.0
    for place, token in enumerate(draw):
        given = run.target.probabilities(setting.prompt + draw[:place], setting.temperature, run.sampling)
        share *= float(given[token])
    return share


def state(run: DecoderRun) -> Measured:
    """Ask the same thing before and after other requests: one token, many, behind one token and behind a long prompt."""
    problems: list[str] = []
    total = 0
    prompts = run.prompts.short(max(3, run.plan.greedy_prompts // 2), run.seed + 3)
    others = [(prompts[0][:1], 1), (prompts[0][:1], 3), (run.prompts.stretched(run.plan.long_prompt, run.seed), 9)]
    others.append((prompts[0][:1], run.plan.long_run // 2))
    for temperature in run.contract.temperatures:
        first = [_asked(run, prompt, temperature, 40 + place) for place, prompt in enumerate(prompts)]
        for prompt, count in others:
            run.call(prompt, run.prompts.room(prompt, count), temperature, 5)
        again = [_asked(run, prompts[place], temperature, 40 + place) for place in reversed(range(len(prompts)))]
        for place, (one, two) in enumerate(zip(first, reversed(again), strict=True)):
            total += 1
            if one != two and not (temperature == 0.0 and _tie(run, prompts[place], one, two)):
                problems.append(f"temperature {temperature:g}, prompt {place}: {list(one)}, later {list(two)}")
    return run.counted(
        "requests that changed after other requests", problems, (), Fact(name="requests repeated", value=total)
    )


def _asked(run: DecoderRun, prompt: Tokens, temperature: float, seed: int) -> Tokens:
    return run.call(prompt, run.prompts.room(prompt, 12), temperature, seed).tokens


def _tie(run: DecoderRun, prompt: Tokens, one: Tokens, two: Tokens) -> bool:
    place = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    if place >= min(len(one), len(two)):
        return False
    return all(run.lag(prompt + one[:place], token)[0] <= 1.0 for token in (one[place], two[place]))


def steps(run: DecoderRun) -> Measured:
    """Check that reported calls and acceptances can be true; report the step factor."""
    problems: list[str] = []
    tokens = calls = accepted = verified = requests = 0
    for number, prompt in enumerate(run.prompts.short(run.plan.greedy_prompts, run.seed + 4)):
        for temperature in run.contract.temperatures:
            answer = run.call(prompt, run.prompts.room(prompt, run.plan.greedy_tokens), temperature, number)
            requests += 1
            if answer.report is None:
                continue
            problems += _implausible(answer, f"temperature {temperature:g}, prompt {number}")
            tokens += len(answer.tokens)
            calls += answer.report.target_calls
            accepted += sum(answer.report.accepted)
            verified += len(answer.report.accepted)
    claim, factor = run.contract.step_factor, tokens / max(1, calls)
    if not calls and not problems:
        if claim is not None:
            reason = f"step_factor={claim:g} is declared, but the candidate reports no target calls"
            return run.refused(Verdict.FAIL, reason)
        return run.refused(Verdict.NOT_APPLICABLE, "the candidate reports no target calls: step factor not reported")
    if claim is not None and factor < claim:
        problems.append(f"step factor {factor:.3g}, {claim:g} declared ({tokens} tokens in {calls} target calls)")
    facts = (
        Fact(name="step factor", value=factor, unit="tokens per target call"),
        Fact(name="accepted per verification", value=accepted / max(1, verified), unit="draft tokens"),
    )
    return run.counted("reports that cannot be true", problems, (), *facts)


def _implausible(answer: Answer, where: str) -> Iterator[str]:
    """Yield what cannot be true in a report.

    `accepted` may count accepted draft tokens per verification, or all tokens that the verification gave; calls without
    a draft may be left out of it. Every call adds at most one token to what it accepted.
    """
    if answer.report is None:
        return
    calls, accepted, tokens = answer.report.target_calls, answer.report.accepted, len(answer.tokens)
    if not 1 <= calls <= tokens + 1:
        yield f"{where}: {calls} target calls for {tokens} tokens"
    if not accepted:
        return
    if len(accepted) > calls:
        yield f"{where}: {len(accepted)} verifications in {calls} target calls"
    drafts = sum(accepted[:-1]) + len(accepted) - 1 <= tokens <= sum(accepted) + calls + 1
    gains = sum(accepted[:-1]) <= tokens <= sum(accepted) + 1 and sum(accepted) <= tokens + max(accepted)
    if not drafts and not gains:
        yield f"{where}: accepted {list(accepted)} does not add up to {tokens} tokens"


@contextmanager
def _global_state_restored() -> Iterator[None]:
    """Leave the process-wide random states as they were."""
    kept = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        np.random.set_state(kept[2])
