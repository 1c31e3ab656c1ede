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
from dataclasses import dataclass, field
from typing import Any

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Fact, Measured, Refusal
from pytest_attnaccept.state.decoder_calls import FormError
from pytest_attnaccept.state.decoder_checks import Evidence, Setting, compare, gates, looks_like, resolution
from pytest_attnaccept.state.decoder_contract import (
    DecoderContract,
    DecoderPlan,
    Target,
    make_decoder_contract,
    plan_for,
)
from pytest_attnaccept.state.decoder_greedy import greedy
from pytest_attnaccept.state.decoder_late import late_evidence
from pytest_attnaccept.state.decoder_reference import Tokens
from pytest_attnaccept.state.decoder_requests import seeds, state, steps
from pytest_attnaccept.state.decoder_run import DecoderRun
from pytest_attnaccept.state.multinomial import LEAST_EXPECTED
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["DECODER_CHECKS", "DecoderContract", "make_decoder_contract", "measure_decoder"]

DECODER_CHECKS: tuple[str, ...] = ("greedy", "distribution", "seeds", "state", "steps")

# Derived: a decoder that has turned greedy passes unseen with probability below exp(-60).
_LEAST_DOUBT = 60.0


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
    found = _Found()
    for number, prompt in enumerate(run.prompts.short(run.plan.prompts, run.seed + 1)[: run.plan.prompts]):
        for temperature in run.contract.sampled:
            _early(run, Setting(prompt, temperature, run.sampling), number, found)
    for number, temperature in enumerate(run.contract.sampled):
        late = late_evidence(run, temperature, _first_seed(run) + 500_000 + 50_000 * number)
        run.target.end = run.call.end
        found.evidence += late.evidence
        found.doubt = min(found.doubt, late.doubt)
        found.furthest = max(found.furthest, late.furthest)
        found.prompts = len(run.prompts.sampled(run.seed + 6))
    return _measured(run, found)


def _first_seed(run: DecoderRun) -> int:
    return 1_000_000 * (run.seed % 1000)


@dataclass(slots=True)
class _Found:
    """What all settings added up to."""

    evidence: list[Evidence] = field(default_factory=list)
    suspects: list[tuple[Setting, list[Tokens]]] = field(default_factory=list)
    doubt: float = float("inf")
    cells: int = 0
    furthest: int = 0
    prompts: int = 0


def _early(run: DecoderRun, setting: Setting, number: int, found: _Found) -> None:
    """Compare the first tokens jointly; remember draws that contradict the target."""
    draws = _draws(run, setting, number)
    run.target.end = run.call.end
    least = LEAST_EXPECTED / len(draws)
    cells = run.target.cells(setting.prompt, run.plan.depth, setting.temperature, run.sampling, least)
    countable = int((cells.probabilities[:-1] >= least).sum())
    found.cells = max(found.cells, countable + 1)
    evidence = compare(run.target, setting, draws, run.plan, run.seed)
    found.evidence += evidence
    if min(item.p for item in evidence) < 1e-9:
        found.suspects.append((setting, draws))


def _measured(run: DecoderRun, found: _Found) -> Measured:
    seems = looks_like(run.target, *found.suspects[0], run.plan.depth) if found.suspects else ""
    refusals: tuple[Refusal, ...] = ()
    if found.doubt < _LEAST_DOUBT:
        reason = (
            f"the target expects only {found.doubt:.3g} tokens that are not its likeliest in all longer continuations: "
            f"too little entropy at this temperature (needs {_LEAST_DOUBT:g})"
        )
        refusals = (Refusal(verdict=Verdict.INVALID, reason=reason),)
    # Answers of a single token have no pairs: a test of nothing is no test.
    all_gates = gates([item for item in found.evidence if item.n > 0], seems)
    failed = any(gate.value > gate.limit for gate in all_gates)
    return Measured(
        gates=all_gates,
        refusals=() if failed else refusals,
        facts=(
            Fact(name="continuations", value=run.call.calls),
            Fact(name="prompts", value=found.prompts),
            Fact(name="last new token compared", value=found.furthest),
            Fact(name="tests", value=len(found.evidence)),
            Fact(name="end token", value="none" if run.call.end is None else run.call.end),
        ),
        seems=seems,
        reproduce=_draw_code(run) if failed else "",
        resolution=f"{resolution(run.plan.draws, found.cells, len(found.evidence))}; {run.plan.middle_draws} longer and "
        f"{run.plan.late_draws} late ones up to new token {found.furthest}; {run.reach()}",
        data_digest=run.digest,
        seed=run.seed,
    )


def _draws(run: DecoderRun, setting: Setting, number: int) -> list[Tokens]:
    first = _first_seed(run) + 100_000 * number
    count = run.prompts.room(setting.prompt, run.plan.depth)
    return [run.call(setting.prompt, count, setting.temperature, first + draw).tokens for draw in range(run.plan.draws)]


def _draw_code(run: DecoderRun) -> str:
    prompt = run.prompts.short(run.plan.prompts, run.seed + 1)[0]
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
