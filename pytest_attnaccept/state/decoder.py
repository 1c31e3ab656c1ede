"""Whether a decoder follows its target: greedy up to certified near-ties, sampled in distribution, reproducible, reported.

Positions
---------
1. Greedy output is judged on its own prefix: every token must be the target's best one, or lie within what rounding of a
   correct decoder can turn around; how many such near-ties occurred is reported.
2. Sampling is tested against exact probabilities of the target, jointly over several tokens; level 1e-6 per check.
3. A target without entropy, without preference or with a single token cannot show anything: INVALID.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Fact, Measured, Refusal
from pytest_attnaccept.state.decoder_calls import FormError
from pytest_attnaccept.state.decoder_checks import Setting, compare, gates, looks_like, resolution
from pytest_attnaccept.state.decoder_contract import (
    DecoderContract,
    DecoderPlan,
    Target,
    make_decoder_contract,
    plan_for,
    prompts_for,
)
from pytest_attnaccept.state.decoder_greedy import greedy
from pytest_attnaccept.state.decoder_reference import Tokens
from pytest_attnaccept.state.decoder_requests import seeds, state, steps
from pytest_attnaccept.state.decoder_run import DecoderRun
from pytest_attnaccept.state.multinomial import LEAST_EXPECTED
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["DECODER_CHECKS", "DecoderContract", "make_decoder_contract", "measure_decoder"]

DECODER_CHECKS: tuple[str, ...] = ("greedy", "distribution", "seeds", "state", "steps")


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
    run = DecoderRun(candidate, target, contract, seed, device, plan or plan_for(profile))
    if check == "greedy" and 0.0 not in contract.temperatures:
        return run.refused(Verdict.NOT_APPLICABLE, "the contract declares no temperature 0")
    if check in ("distribution", "seeds") and not contract.sampled:
        return run.refused(Verdict.NOT_APPLICABLE, "the contract declares no temperature above 0")
    try:
        return _CHECKS[check](run)
    except FormError as error:
        return run.refused(Verdict.FAIL, str(error))


def _distribution(run: DecoderRun) -> Measured:
    """Compare sampled continuations with the target's exact probabilities."""
    evidence, flat, suspects, most_cells = [], 0, [], 0
    for number, prompt in enumerate(prompts_for(run.contract, run.plan.prompts, run.seed + 1)):
        for temperature in run.contract.sampled:
            setting = Setting(prompt, temperature, run.sampling)
            draws = _draws(run, setting, number)
            run.target.end = run.call.end
            least = LEAST_EXPECTED / len(draws)
            cells = run.target.cells(prompt, run.plan.depth, temperature, run.sampling, least)
            flat += int((cells.probabilities >= least).sum() < 4)
            most_cells = max(most_cells, int((cells.probabilities >= least).sum()) + 1)
            found = compare(run.target, setting, draws, run.plan, run.seed)
            evidence += found
            if min(item.p for item in found) < 1e-9:
                suspects.append((setting, draws))
    seems = looks_like(run.target, *suspects[0], run.plan.depth) if suspects else ""
    refusals: tuple[Refusal, ...] = ()
    if flat:
        reason = (
            f"fewer than four outcomes reach {LEAST_EXPECTED:g} expected counts in {run.plan.draws} continuations: "
            "too little entropy of the target at this temperature, or too few draws"
        )
        refusals = (Refusal(verdict=Verdict.INVALID, reason=reason),)
    all_gates = gates(evidence, seems)
    failed = any(gate.value > gate.limit for gate in all_gates)
    return Measured(
        gates=all_gates,
        refusals=() if failed else refusals,
        facts=(
            Fact(name="continuations", value=run.call.calls),
            Fact(name="tests", value=len(evidence)),
            Fact(name="end token", value="none" if run.call.end is None else run.call.end),
        ),
        seems=seems,
        reproduce=_draw_code(run) if failed else "",
        resolution=resolution(run.plan.draws, most_cells, len(evidence)),
        data_digest=run.digest,
        seed=run.seed,
    )


def _draws(run: DecoderRun, setting: Setting, number: int) -> list[Tokens]:
    first = 1_000_000 * (run.seed % 1000) + 100_000 * number
    return [
        run.call(setting.prompt, run.plan.depth, setting.temperature, first + draw).tokens
        for draw in range(run.plan.draws)
    ]


def _draw_code(run: DecoderRun) -> str:
    prompt = prompts_for(run.contract, run.plan.prompts, run.seed + 1)[0]
    extra = f", sampling={run.sampling}" if run.sampling else ""
    return (
        f"prompt = torch.tensor({list(prompt)})\n"
        f"draws = [candidate(prompt=prompt, max_new_tokens={run.plan.depth}, "
        f"temperature={run.contract.sampled[0]}, seed=s{extra}) for s in range({run.plan.draws})]\n"
        "# compare collections.Counter(tuple(d.tolist()) for d in draws) with the product of softmax(target(...))"
    )


_CHECKS: Mapping[str, Callable[[DecoderRun], Measured]] = {
    "greedy": greedy,
    "distribution": _distribution,
    "seeds": seeds,
    "state": state,
    "steps": steps,
}
