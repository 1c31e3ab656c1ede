"""Whether a decoder follows its target: greedy up to certified near-ties, sampled in distribution, reproducible, reported.

Positions
---------
1. Greedy output is judged on its own prefix: every token must be the target's best one, or lie within what rounding of a
   correct decoder can turn around; how many such near-ties occurred is reported.
2. Sampling is tested against exact probabilities of the target, jointly over several tokens; level 1e-6 per check.
3. A target without entropy, without preference or with a single token cannot show anything: INVALID.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.decoder_calls import Answer, Caller, FormError
from pytest_attnaccept.state.decoder_checks import Setting, compare, gates, looks_like, resolution
from pytest_attnaccept.state.decoder_contract import (
    DecoderContract,
    DecoderPlan,
    Target,
    make_decoder_contract,
    plan_for,
    prompts_for,
)
from pytest_attnaccept.state.decoder_reference import TargetModel, Tokens, tie_tolerance
from pytest_attnaccept.state.multinomial import LEAST_EXPECTED
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["DECODER_CHECKS", "DecoderContract", "make_decoder_contract", "measure_decoder"]

DECODER_CHECKS: tuple[str, ...] = ("greedy", "distribution", "seeds", "state", "steps")

# A position whose best token leads by less than this many tolerances says nothing about the decoder.
_CLEAR = 10.0
_ORIGIN_TIE = "measured: 1e-4 at logits of 38 between one and several tokens per forward, times 3"


def measure_decoder(
    check: str,
    candidate: Callable[..., Any],
    target: Target,
    contract: DecoderContract,
    *,
    seed: int,
    device: str,
    profile: str,
    plan: DecoderPlan | None = None,
) -> Measured:
    """Run one check of a decoder.

    Parameters
    ----------
    check
        One of `DECODER_CHECKS`.
    candidate
        ``candidate(prompt=, max_new_tokens=, temperature=, seed=)``, and the declared sampling filters.
    target
        ``target(tokens) -> logits (vocab,)`` of the model that it must follow.
    contract
        From `make_decoder_contract`.
    seed
        Of prompts, of the seeds that the candidate is given, and of the tests' own noise.
    device
        Where prompts are.
    profile
        Decides how many calls are spent, unless `plan` does.

    Raises
    ------
    CandidateError
        The candidate or the target raised.
    """
    if check not in DECODER_CHECKS:
        raise ContractError(f"accept.decoder: unknown check {check!r}. Known: {', '.join(DECODER_CHECKS)}.")
    run = _Run(candidate, target, contract, seed, device, plan or plan_for(profile))
    if check == "greedy" and 0.0 not in contract.temperatures:
        return run.refused(Verdict.NOT_APPLICABLE, "the contract declares no temperature 0")
    if check in ("distribution", "seeds") and not contract.sampled:
        return run.refused(Verdict.NOT_APPLICABLE, "the contract declares no temperature above 0")
    try:
        return {
            "greedy": run.greedy,
            "distribution": run.distribution,
            "seeds": run.seeds,
            "state": run.state,
            "steps": run.steps,
        }[check]()
    except FormError as error:
        return run.refused(Verdict.FAIL, str(error))


class _Run:
    """One check of one decoder."""

    def __init__(
        self,
        candidate: Callable[..., Any],
        target: Target,
        contract: DecoderContract,
        seed: int,
        device: str,
        plan: DecoderPlan,
    ) -> None:
        self.contract, self.seed, self.plan = contract, seed, plan
        self.call = Caller(candidate, contract, device)
        self.target = TargetModel(target, contract.vocab_size, device)
        self.sampling = dict(contract.sampling)
        self._digest = hashlib.sha256(repr((contract, seed, plan)).encode()).hexdigest()[:16]

    def refused(self, verdict: Verdict, reason: str) -> Measured:
        """Return a measurement that is only a reason."""
        return Measured(refusals=(Refusal(verdict=verdict, reason=reason),), seed=self.seed, data_digest=self._digest)

    # -- greedy

    def greedy(self) -> Measured:
        """Judge every greedy token on the candidate's own prefix."""
        worst, where, near, clear, total = 0.0, "", 0, 0, 0
        tokens: set[int] = set()
        reproduce = ""
        for number, prompt in enumerate(prompts_for(self.contract, self.plan.greedy_prompts, self.seed)):
            count = self.plan.greedy_tokens if number else 1 + self.plan.greedy_tokens // 4
            answer = self.call(prompt, count, 0.0, self.seed + number)
            for place, token in enumerate(answer.tokens):
                lag, lead = self._lag(prompt + answer.tokens[:place], token)
                total += 1
                near += int(0.0 < lag <= 1.0)
                clear += int(lead > _CLEAR)
                tokens.add(token)
                if lag > worst:
                    worst = lag
                    where = f"prompt {number} ({len(prompt)} tokens), new token {place}: {token}"
                if lag > 1.0:
                    reproduce = reproduce or self._greedy_code(prompt, count, number, place, answer)
                    break  # what follows a wrong token is judged in another context
        return self._greedy_measured(worst, where, near, clear, total, tokens, reproduce)

    def _lag(self, context: Tokens, token: int) -> tuple[float, float]:
        """Return how far `token` is behind the best one, and the best before the second, in tolerances."""
        logits = self.target.logits(context)
        tolerance = tie_tolerance(logits)
        top = logits.double().topk(2).values
        return float(top[0] - logits.double()[token]) / tolerance, float(top[0] - top[1]) / tolerance

    def _greedy_code(self, prompt: Tokens, count: int, number: int, place: int, answer: Answer) -> str:
        return (
            f"out = candidate(prompt=torch.tensor({list(prompt)}), max_new_tokens={count}, temperature=0.0, "
            f"seed={self.seed + number})\n"
            f"target(torch.tensor({list(prompt + answer.tokens[:place])})).argmax()  "
            f"# not {answer.tokens[place]}, which is token {place} of out"
        )

    def _greedy_measured(
        self, worst: float, where: str, near: int, clear: int, total: int, tokens: set[int], reproduce: str
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
            data_digest=self._digest,
            seed=self.seed,
        )

    # -- distribution

    def distribution(self) -> Measured:
        """Compare sampled continuations with the target's exact probabilities."""
        evidence, flat, suspects, most_cells = [], 0, [], 0
        for number, prompt in enumerate(prompts_for(self.contract, self.plan.prompts, self.seed + 1)):
            for temperature in self.contract.sampled:
                setting = Setting(prompt, temperature, self.sampling)
                draws = self._draws(setting, number)
                self.target.end = self.call.end
                least = LEAST_EXPECTED / len(draws)
                cells = self.target.cells(prompt, self.plan.depth, temperature, self.sampling, least)
                flat += int((cells.probabilities >= least).sum() < 4)
                most_cells = max(most_cells, int((cells.probabilities >= least).sum()) + 1)
                found = compare(self.target, setting, draws, self.plan, self.seed)
                evidence += found
                if min(item.p for item in found) < 1e-9:
                    suspects.append((setting, draws))
        seems = looks_like(self.target, *suspects[0], self.plan.depth) if suspects else ""
        refusals: tuple[Refusal, ...] = ()
        if flat:
            reason = "the target has too little entropy at this temperature: fewer than four outcomes can be counted"
            refusals = (Refusal(verdict=Verdict.INVALID, reason=reason),)
        all_gates = gates(evidence, seems)
        failed = any(gate.value > gate.limit for gate in all_gates)
        return Measured(
            gates=all_gates,
            refusals=() if failed else refusals,
            facts=(
                Fact(name="continuations", value=self.call.calls),
                Fact(name="tests", value=len(evidence)),
                Fact(name="end token", value="none" if self.call.end is None else self.call.end),
            ),
            seems=seems,
            reproduce=self._draw_code() if failed else "",
            resolution=resolution(self.plan.draws, most_cells, len(evidence)),
            data_digest=self._digest,
            seed=self.seed,
        )

    def _draws(self, setting: Setting, number: int) -> list[Tokens]:
        first = 1_000_000 * (self.seed % 1000) + 100_000 * number
        return [
            self.call(setting.prompt, self.plan.depth, setting.temperature, first + draw).tokens
            for draw in range(self.plan.draws)
        ]

    def _draw_code(self) -> str:
        prompt = prompts_for(self.contract, self.plan.prompts, self.seed + 1)[0]
        extra = f", sampling={self.sampling}" if self.sampling else ""
        return (
            f"prompt = torch.tensor({list(prompt)})\n"
            f"draws = [candidate(prompt=prompt, max_new_tokens={self.plan.depth}, "
            f"temperature={self.contract.sampled[0]}, seed=s{extra}) for s in range({self.plan.draws})]\n"
            "# compare collections.Counter(tuple(d.tolist()) for d in draws) with the product of softmax(target(...))"
        )

    # -- seeds

    def seeds(self) -> Measured:
        """Check that the seed, and nothing but the seed, decides what is drawn."""
        setting = Setting(prompts_for(self.contract, 1, self.seed + 2)[0], max(self.contract.sampled), self.sampling)
        count, problems = 2 * self.plan.depth, []
        with _global_state_restored():
            same = [self._with_globals(setting, count, 7, state) for state in (1, 1, 2)]
            if same[0] != same[1]:
                problems.append("the same seed gives different tokens: the seed is ignored, or state is left over")
            elif same[0] != same[2]:
                problems.append("the tokens depend on the global random state and not on the seed alone")
            others = [self._with_globals(setting, count, 100 + draw, 1) for draw in range(24)]
        distinct = len({others[0], *others})
        refusals = []
        if distinct == 1:
            share = self._probability(setting, others[0])
            if share ** (len(others) - 1) < 1e-6:
                problems.append(f"{len(others)} different seeds give the same tokens, whose probability is {share:.3g}")
            else:
                reason = "the target has too little entropy: different seeds may well give the same tokens"
                refusals.append(Refusal(verdict=Verdict.INVALID, reason=reason))
        return self._counted(
            "seed faults", problems, tuple(refusals), Fact(name="distinct of 24 seeds", value=distinct)
        )

    def _with_globals(self, setting: Setting, count: int, seed: int, state: int) -> Tokens:
        torch.manual_seed(state)
        random.seed(state)
        np.random.seed(state)
        return self.call(setting.prompt, count, setting.temperature, seed).tokens

    def _probability(self, setting: Setting, draw: Tokens) -> float:
        share = 1.0
        for place, token in enumerate(draw):
            given = self.target.probabilities(setting.prompt + draw[:place], setting.temperature, self.sampling)
            share *= float(given[token])
        return share

    # -- state left between requests

    def state(self) -> Measured:
        """Ask the same thing before and after other requests; ask for one token, then for many."""
        problems: list[str] = []
        total = 0
        prompts = prompts_for(self.contract, max(3, self.plan.greedy_prompts // 2), self.seed + 3)
        for temperature in self.contract.temperatures:
            first = [self.call(prompt, 12, temperature, 40 + place).tokens for place, prompt in enumerate(prompts)]
            for count in (1, 3):
                self.call(prompts[0][:1], count, temperature, 5)
            again = [
                self.call(prompts[place], 12, temperature, 40 + place).tokens for place in reversed(range(len(prompts)))
            ]
            for place, (one, two) in enumerate(zip(first, reversed(again), strict=True)):
                total += 1
                if one != two and not (temperature == 0.0 and self._tie(prompts[place], one, two)):
                    problems.append(f"temperature {temperature:g}, prompt {place}: {list(one)}, later {list(two)}")
        return self._counted(
            "requests that changed after other requests", problems, (), Fact(name="requests repeated", value=total)
        )

    def _tie(self, prompt: Tokens, one: Tokens, two: Tokens) -> bool:
        place = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
        if place >= min(len(one), len(two)):
            return False
        return all(self._lag(prompt + one[:place], token)[0] <= 1.0 for token in (one[place], two[place]))

    # -- steps

    def steps(self) -> Measured:
        """Check that reported calls and acceptances can be true; report the step factor."""
        problems: list[str] = []
        tokens = calls = accepted = verified = requests = 0
        for number, prompt in enumerate(prompts_for(self.contract, self.plan.greedy_prompts, self.seed + 4)):
            for temperature in self.contract.temperatures:
                answer = self.call(prompt, self.plan.greedy_tokens, temperature, number)
                requests += 1
                if answer.report is None:
                    continue
                problems += _implausible(answer, f"temperature {temperature:g}, prompt {number}")
                tokens += len(answer.tokens)
                calls += answer.report.target_calls
                accepted += sum(answer.report.accepted)
                verified += len(answer.report.accepted)
        if not calls and not problems:
            return self.refused(
                Verdict.NOT_APPLICABLE, "the candidate reports no target calls: step factor not reported"
            )
        facts = (
            Fact(name="step factor", value=tokens / max(1, calls), unit="tokens per target call"),
            Fact(name="accepted per verification", value=accepted / max(1, verified), unit="draft tokens"),
        )
        return self._counted("reports that cannot be true", problems, (), *facts)

    def _counted(self, name: str, problems: list[str], refusals: tuple[Refusal, ...], *facts: Fact) -> Measured:
        gate = Threshold(
            name=name,
            value=float(len(problems)),
            limit=0.0,
            unit="faults",
            n=self.call.calls,
            where="; ".join(problems[:2]),
            origin="contract: the seed decides, requests are independent, reports are consistent",
            seems=problems[0] if problems else "",
        )
        return Measured(gates=(gate,), refusals=refusals, facts=facts, data_digest=self._digest, seed=self.seed)


def _implausible(answer: Answer, where: str) -> Iterator[str]:
    """Yield what cannot be true in a report.

    `accepted` may count accepted draft tokens per verification, or all tokens that the verification gave.
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
    drafts = sum(accepted[:-1]) + len(accepted) - 1 <= tokens <= sum(accepted) + len(accepted) + 1
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
