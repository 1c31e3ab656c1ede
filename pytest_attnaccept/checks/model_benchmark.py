"""`benchmark-<task>`: a task of lm-eval (or HumanEval), every document answered by both sides through their caches.

Positions
---------
1. Paired per document. Documents with the same prompt are one independent unit; a document that one side did not answer
   ends the item.
2. A task whose data or library is not there is INCOMPLETE with the reason, never left out.
3. The chance level is the largest of: one over the number of choices, what models score that read nothing, and what the
   profile declares.
"""

from __future__ import annotations

import hashlib
import importlib.util
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_attnaccept.checks.benchmark_docs import METRICS, Outcome, lm_eval_outcomes
from pytest_attnaccept.checks.model_evidence import not_evidence, soundness_fact
from pytest_attnaccept.checks.model_losses import of_scores
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.errors import CandidateError, ContractError, EngineError
from pytest_attnaccept.measurement import Fact, Measured, PairedScores

if TYPE_CHECKING:
    from pytest_attnaccept.checks.benchmark_lm import CacheLM
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "measure"]

DEFAULTS: Mapping[str, object] = {
    "task": "",  # the check id names it
    "include_path": "",  # folder of the user's YAML tasks; for humaneval: where HumanEval.jsonl.gz is
    "content": "",  # digest of what is in it
    "limit": None,  # documents per task, all when None
    "num_fewshot": None,  # examples in the prompt, the task's own number when None
    "metric": "",  # "name" or "name,filter"; the first known one when empty
    "run_code": False,  # whether generated code may be run (humaneval), in a process of its own
    "max_gen_toks": 512,  # cap of every generation
    "chance": None,  # score of a blind guess, where it is known to be above what is found
}
_CERTAIN = 1.0 - 1e-9  # a guess that is always right: no baseline beats it
_blind: dict[tuple[object, ...], float] = {}
HUMANEVAL = "humaneval"


def measure(session: ModelSession, params: Params) -> Measured:
    """Answer every document of the task on both sides."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    if importlib.util.find_spec("lm_eval") is None:
        raise EngineError(f"{params.check} needs lm-eval: pip install 'pytest-attnaccept[hf]'")
    base, first = _answered(session, session.baseline, given)
    cand, second = _answered(session, session.candidate, given)
    if [o.unit for o in base] != [o.unit for o in cand]:
        raise ContractError(
            f"{params.check}: the two sides were asked different documents; they must share a tokenizer"
        )
    _require_one_metric(given.text("task", ""), base, cand)
    blind = _blind_score(given, base)
    gate, units = _gate(given.text("task", ""), base, cand, max(blind, given.optional_number("chance") or 0.0))
    length = max(first.longest, second.longest)
    return Measured(
        gates=(gate,),
        facts=(
            Fact(name="length", value=length, unit="tokens"),
            Fact(name="documents", value=len(base)),
            Fact(name="truncated_prompts", value=first.truncated),
            Fact(name="blind_score", value=round(blind, 4)),
            *_facts("baseline", base),
            *_facts("candidate", cand),
            soundness_fact(session, session.baseline),
        ),
        refusals=not_evidence(session, length, identical=first.trace == second.trace, params=given),
        data_digest=hashlib.sha256("".join(o.unit for o in base).encode()).hexdigest()[:16],
        details={
            "tasks": {name: _by_task(name, base, cand) for name in dict.fromkeys(o.task for o in base)},
            "losses": {gate.name: of_scores(gate, units)},
        },
    )


def _require_one_metric(task: str, base: Sequence[Outcome], cand: Sequence[Outcome]) -> None:
    """Refuse scores of different metrics: where the first one has no finite value, another is found on that side alone."""
    other = next(((a, b) for a, b in zip(base, cand, strict=True) if a.metric != b.metric), None)
    if other is None:
        return
    side, kept = (
        ("candidate", other[0].metric)
        if _preferred(other[0].metric, other[1].metric)
        else ("baseline", other[1].metric)
    )
    raise (CandidateError if side == "candidate" else EngineError)(
        f"the {side}'s answers to {task} have no {kept} in [0, 1], which the other side's have: nothing is compared"
    )


def _preferred(ours: str, theirs: str) -> bool:
    """Whether the first metric comes before the second in the order in which they are chosen."""
    return METRICS.index(ours) < METRICS.index(theirs)


def _answered(session: ModelSession, side: Side, given: Params) -> tuple[list[Outcome], CacheLM]:
    from pytest_attnaccept.checks.benchmark_lm import CacheLM

    model = CacheLM(session, side, max_tokens=given.integer("max_gen_toks", 512))
    task, path = given.text("task", ""), str(given.given["include_path"] or "")
    limit = given.optional_integer("limit")
    if task == HUMANEVAL:
        return _humaneval(side, model, path, limit, run_code=given.given["run_code"] is True), model
    return _of_lm_eval(given, model), model


def _of_lm_eval(given: Params, model: Any) -> list[Outcome]:
    return lm_eval_outcomes(
        given.text("task", ""), model, include_path=str(given.given["include_path"] or ""),
        content=str(given.given["content"] or ""), limit=given.optional_integer("limit"),
        num_fewshot=given.optional_integer("num_fewshot", low=0), metric=str(given.given["metric"] or ""),
    )  # fmt: skip


def _blind_score(given: Params, base: Sequence[Outcome]) -> float:
    """Return what models score that read nothing; remembered, because every cell of a matrix asks the same documents."""
    if given.text("task", "") == HUMANEVAL:
        return 0.0  # every document has its own chance: whether an empty body passes
    from pytest_attnaccept.checks.benchmark_blind import blind_score

    key = (*(str(given.given[name]) for name in DEFAULTS), tuple((o.unit, o.target) for o in base))
    if key not in _blind:
        _blind[key] = blind_score(base, lambda model: _of_lm_eval(given, model))
    return _blind[key]


def _humaneval(side: Side, model: CacheLM, path: str, limit: int | None, *, run_code: bool) -> list[Outcome]:
    from pytest_attnaccept.checks.benchmark_code import STOPS, humaneval_problems, passes

    if not run_code:
        raise EngineError("humaneval runs generated code, which has to be asked for: benchmark: {run_code: true}")
    outcomes = []
    with side.running():
        for problem in humaneval_problems(path, limit):
            prompt = str(problem["prompt"])
            body = model.complete(prompt, {"until": list(STOPS)})
            tests = f"\n{problem['test']}\ncheck({problem['entry_point']})\n"
            right = passes(f"{prompt}{body}{tests}")
            # Tests that a function passes which does nothing test nothing; asked only where there is something to lose.
            empty = right and side.name == "baseline" and passes(f"{prompt}    pass{tests}")
            mark = hashlib.sha256(f"{prompt}{problem['test']}".encode()).hexdigest()[:12]
            outcomes.append(
                Outcome(
                    unit=f"{HUMANEVAL}:{problem['task_id']}:{mark}", task=HUMANEVAL, score=float(right),
                    parsed=bool(body.strip()), chance=float(empty),
                )
            )  # fmt: skip
    return outcomes


def _gate(
    task: str, base: Sequence[Outcome], cand: Sequence[Outcome], chance: float = 0.0
) -> tuple[PairedScores, list[str]]:
    """Return the gate and the names of its units: documents with one prompt share a unit.

    `chance` is what a blind guess is known to score; the documents' own chances may say more.
    """
    clusters: dict[str, list[tuple[float, float]]] = {}
    for ours, theirs in zip(base, cand, strict=True):
        # The last part of a unit's name is the digest of its prompt.
        clusters.setdefault(f"{ours.task}:{ours.unit.rsplit(':', 1)[-1]}", []).append((ours.score, theirs.score))
    losses = [statistics.fmean(a - b for a, b in pairs) for pairs in clusters.values()]
    gate = PairedScores(
        name=f"benchmark[{task}]",
        losses=tuple(losses),
        base_mean=statistics.fmean(o.score for o in base),
        chance=min(max(chance, statistics.fmean(o.chance for o in base)), _CERTAIN),
        n_items=len(base),
        discordant=sum(a.score != b.score for a, b in zip(base, cand, strict=True)),
        where=f"{task}: {len(base)} documents, {len(losses)} different prompts",
    )
    return gate, list(clusters)


def _facts(side: str, outcomes: Sequence[Outcome]) -> list[Fact]:
    return [
        Fact(name=f"{side}_score", value=round(statistics.fmean(o.score for o in outcomes), 4)),
        Fact(name=f"{side}_parse_failures", value=sum(not o.parsed for o in outcomes)),
        Fact(name=f"{side}_wrong_answers", value=sum(o.parsed and o.score < 1 for o in outcomes)),
    ]


def _by_task(name: str, base: Sequence[Outcome], cand: Sequence[Outcome]) -> dict[str, float | int]:
    ours, theirs = ([o.score for o in side if o.task == name] for side in (base, cand))
    return {
        "n": len(ours),
        "baseline": round(statistics.fmean(ours), 4),
        "candidate": round(statistics.fmean(theirs), 4),
    }
