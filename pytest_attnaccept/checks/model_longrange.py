"""`long-range-<family>`: one task family asked through the cache, at every tier and pattern; the worst cell decides.

Every cell is a gate of its own (a tier, a pattern, an instruction), so an item passes only when its worst cell does. The
independent unit is the context. A baseline that does not beat a blind guess by enough makes the cell INVALID.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from pytest_attnaccept.checks.model_asking import SCORES, TaskAnswer, ask
from pytest_attnaccept.checks.model_data import context_tokens, encode
from pytest_attnaccept.checks.model_evidence import ROUNDING_ORIGIN, not_evidence, soundness_fact
from pytest_attnaccept.checks.model_losses import of_scores
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Fact, Gate, Measured, PairedScores, Threshold
from pytest_attnaccept.tasks import Parameter, TaskItem, generate
from pytest_attnaccept.tasks.blind import constant_score
from pytest_attnaccept.tasks.data.load import DATA_FAMILIES, load_items

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "REPEAT", "items_of", "measure"]

DEFAULTS: Mapping[str, object] = {
    "family": "",  # the check id names it
    "parameters": {},  # parameters of the family, where they are not its defaults
    "contexts": 50,  # independent clusters per tier
    "first": 0,  # index of the first one
    "tiers": (1.0,),  # lengths of context, question and answer, in trained lengths
    "max_tokens": None,  # cap of every length
    "tokens": None,  # one length in tokens, instead of tiers and cap
    "score": "generated",  # what the gate compares: "generated", "teacher_forced", or "choice" (over the foils)
    "patterns": ("one-shot",),
    "path": "",  # families of real data: a file, a folder written by datasets, or hub:OWNER/NAME
}
_CERTAIN = 1.0 - 1e-9  # a guess that is always right: no baseline beats it
REPEAT = "repeat:"  # label of a question that repeats an earlier one: "repeat:0" repeats the first

Rows = Sequence[Sequence[TaskAnswer]]
_Value = TypeVar("_Value")


def measure(session: ModelSession, params: Params) -> Measured:
    """Ask both sides every question of the family, at every tier and in every pattern."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    score = given.text("score", "generated")
    if score not in SCORES:
        raise ContractError(f"{params.check}: score={score!r} is unknown. Allowed: {', '.join(SCORES)}")
    gates: list[Gate] = []
    losses: dict[str, object] = {}
    facts: list[Fact] = [soundness_fact(session, session.baseline)]
    details: dict[str, object] = {}
    digests: list[str] = []
    identical = False
    longest = 0
    for tier, length in _lengths(session, given):
        items, notes = items_of(session, given, length)
        facts += notes
        digests += [item.digest for item in items]
        for pattern in given.texts("patterns", ("one-shot",)):
            base = ask(session, session.baseline, items, pattern)
            cand = ask(session, session.candidate, items, pattern)
            cell = ",".join([f"{tier:g}x", *([] if pattern == "one-shot" else [pattern])])
            cells = _gates(items, base, cand, score, cell, length)
            gates += cells
            losses.update(_losses(items, base, cand, score, cells))
            gates += _repeats(items, base, cand, cell)
            facts += _facts(base, cand, cell)
            details[cell] = _details(items, base, cand)
            if length >= longest:
                # Equal NLL to the last bit on every answer of the longest context: nothing in the cache differed.
                same = [a.nll for row in base for a in row] == [a.nll for row in cand for a in row]
                identical, longest = same or (identical and length == longest), length
    return Measured(
        gates=tuple(gates),
        facts=(Fact(name="length", value=longest, unit="tokens"), *facts),
        refusals=not_evidence(session, longest, identical=identical, params=given),
        data_digest=hashlib.sha256("".join(digests).encode()).hexdigest()[:16],
        details={"cells": details, "score": score, "losses": losses},
    )


def _losses(
    items: Sequence[TaskItem], base: Rows, cand: Rows, score: str, cells: Sequence[PairedScores]
) -> dict[str, object]:
    """Return what a record keeps of every context, for comparisons between cells of a matrix."""
    first: dict[str, str] = {}
    for item in items:
        first.setdefault(_source(item), item.digest[:12])
    ours, theirs = _by_source(items, base), _by_source(items, cand)
    return {
        gate.name: of_scores(
            gate, list(first.values()), baseline=[_mean([a.score(score) for a in row]) for row in ours],
            baseline_nll=[_mean([a.nll for a in row]) for row in ours],
            candidate_nll=[_mean([a.nll for a in row]) for row in theirs],
        )
        for gate in cells
    }  # fmt: skip


def _source(item: TaskItem) -> str:
    """Return what the independent unit is: the text that was read. Another question about it is no further evidence."""
    if item.task in DATA_FAMILIES and "source" in item.parameters:
        return str(item.parameters["source"])  # the text before it was cut
    return hashlib.sha256(item.context.encode("utf-8")).hexdigest()[:16]


def _by_source(items: Sequence[TaskItem], rows: Sequence[Sequence[_Value]]) -> list[list[_Value]]:
    """Join the rows of items about one text, in order of first appearance."""
    joined: dict[str, list[_Value]] = {}
    for item, row in zip(items, rows, strict=True):
        joined.setdefault(_source(item), []).extend(row)
    return list(joined.values())


def _lengths(session: ModelSession, given: Params) -> list[tuple[float, int]]:
    """Return (tier, tokens), shortest first; tiers that a cap makes equal are measured once."""
    found: dict[int, float] = {}
    for tier in sorted(given.numbers("tiers", (1.0,))):
        found.setdefault(context_tokens(session, given, tier=tier), tier)
    return [(tier, length) for length, tier in found.items()]


def items_of(session: ModelSession, given: Params, length: int) -> tuple[list[TaskItem], list[Fact]]:
    """Return the contexts of one length with their questions, and what has to be said about their source."""
    loaded = session.baseline.loaded
    family, parameters = given.text("family", ""), given.given.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ContractError(f"{given.check}: parameters={parameters!r} must be a mapping")
    first, count = given.integer("first", 0, low=0), given.integer("contexts", 50)
    room = length - len(loaded.prefix_ids)

    def fit(text: str) -> int:
        return len(encode(loaded.tokenizer, text))

    def writes(text: str) -> bool:
        unknown = getattr(loaded.tokenizer, "unk_token_id", None)
        return unknown is None or unknown not in encode(loaded.tokenizer, text)

    if family in DATA_FAMILIES:
        if parameters:
            raise ContractError(f"{given.check}: {family} is real data and has no parameters, got {dict(parameters)!r}")
        source = str(given.given["path"] or "")
        if not source:
            raise ContractError(f"{given.check}: {family} is real data and needs path: FILE or hub:OWNER/NAME")
        found = load_items(family, source, fit=fit, target_tokens=room, first=first, count=count, writes=writes)
        return list(found.items), [Fact(name=f"data[{length}]", value=found.report)]
    chosen: dict[str, Parameter] = dict(parameters)
    items = [
        generate(family, fit=fit, target_tokens=room, seed=session.seed, index=index, **chosen)
        for index in range(first, first + count)
    ]
    if not all(item.questions for item in items):
        raise ContractError(f"{given.check}: a context without a question measures nothing")
    lost = next((q.answer for item in items for q in item.questions if not writes(q.answer)), None)
    # Generated, such an answer is never right, and the baseline's score says so. Forced, it is one unknown token after
    # another, which are right whatever was read.
    if lost is not None and given.text("score", "generated") == "teacher_forced":
        raise ContractError(
            f"{given.check}: the tokenizer of {loaded.spec} has no tokens for the answer {lost.strip()!r}; choose parameters"
            " of the family whose values it can write"
        )
    return items, []


def _chance(items: Sequence[TaskItem], score: str) -> float:
    """Return the mean score of a blind guesser: of the whole family, or of one who picks among answer and foils.

    A mean, as the baseline's score is one: yes-or-no questions among many others are no coin flip for the whole. Who gives
    the same answer every time is a blind guesser too.
    """
    if score == "choice" and any(not question.foils for item in items for question in item.questions):
        raise ContractError("score: choice needs foils, and this family has questions without them")
    guess = _mean([q.choice_chance if score == "choice" else item.chance for item in items for q in item.questions])
    return min(max(guess, constant_score(items, generated=score == "generated")), _CERTAIN)


def _gates(items: Sequence[TaskItem], base: Rows, cand: Rows, score: str, cell: str, length: int) -> list[PairedScores]:
    """Return one gate per cell, and one per part where every part must hold (instructions)."""
    by_rule = score == "generated" and all(q.metric == "rules" for item in items for q in item.questions)
    if not by_rule:
        ours = [[answer.score(score) for answer in row] for row in base]
        theirs = [[answer.score(score) for answer in row] for row in cand]
        return [_gate(items, ours, theirs, score, cell, length)]
    gates = []
    for place, label in enumerate(question.label for question in items[0].questions):
        for rule in range(len(base[0][place].parts)):
            ours = [[row[place].parts[rule]] for row in base]
            theirs = [[row[place].parts[rule]] for row in cand]
            gates.append(_gate(items, ours, theirs, score, f"{cell},{label}{rule + 1}", length))
    return gates


def _gate(
    items: Sequence[TaskItem],
    base: list[list[float]],
    cand: list[list[float]],
    score: str,
    cell: str,
    length: int,
) -> PairedScores:
    base, cand = _by_source(items, base), _by_source(items, cand)
    losses = [sum(a) / len(a) - sum(b) / len(b) for a, b in zip(base, cand, strict=True)]
    pairs = [(a, b) for ours, theirs in zip(base, cand, strict=True) for a, b in zip(ours, theirs, strict=True)]
    return PairedScores(
        name=f"long-range[{cell}]",
        losses=tuple(losses),
        base_mean=sum(a for a, _ in pairs) / len(pairs),
        chance=_chance(items, score),
        n_items=len(pairs),
        discordant=sum(a != b for a, b in pairs),
        where=f"{items[0].task}: {len(losses)} contexts of {length} tokens, {score}, {cell}",
    )


def _repeats(items: Sequence[TaskItem], base: Rows, cand: Rows, cell: str) -> list[Threshold]:
    """Return how far the answer to a repeated question moved: nothing was asked in between that may stay in the state."""
    moved: list[tuple[float, str]] = []
    for side, rows in (("baseline", base), ("candidate", cand)):
        for number, (item, row) in enumerate(zip(items, rows, strict=True)):
            for question, answer in zip(item.questions, row, strict=True):
                if question.label.startswith(REPEAT):
                    earlier = row[int(question.label.removeprefix(REPEAT))]
                    moved.append((abs(answer.nll - earlier.nll), f"{side}, context {number}"))
    if not moved:
        return []
    value, where = max(moved)
    return [
        Threshold(
            name=f"repeated_question[{cell}]", value=value, limit=1e-3, unit="nats/token", n=len(moved), where=where,
            origin=ROUNDING_ORIGIN, seems="a state that remembers the questions asked before",
        )
    ]  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _facts(base: Rows, cand: Rows, cell: str) -> list[Fact]:
    facts: list[Fact] = []
    for side, rows in (("baseline", base), ("candidate", cand)):
        flat = [answer for row in rows for answer in row]
        margins = [answer.margin for answer in flat if not math.isnan(answer.margin)]
        facts += [
            Fact(name=f"{side}_generated[{cell}]", value=round(_mean([a.value for a in flat]), 4)),
            Fact(name=f"{side}_teacher_forced[{cell}]", value=round(_mean([a.forced for a in flat]), 4)),
            Fact(name=f"{side}_parse_failures[{cell}]", value=sum(not a.parsed for a in flat)),
            Fact(name=f"{side}_wrong_answers[{cell}]", value=sum(a.parsed and a.value < 1 for a in flat)),
            Fact(name=f"{side}_answer_nll[{cell}]", value=_mean([a.nll for a in flat]), unit="nats/token"),
            Fact(name=f"{side}_answer_rank[{cell}]", value=_mean([a.rank for a in flat])),
        ]
        if margins:
            facts.append(Fact(name=f"{side}_margin[{cell}]", value=_mean(margins), unit="nats"))
            facts.append(Fact(name=f"{side}_choice[{cell}]", value=round(_mean([m > 0 for m in margins]), 4)))
    return facts


def _details(items: Sequence[TaskItem], base: Rows, cand: Rows) -> dict[str, object]:
    """Return scores by place of the question among its context's questions, by depth and by part."""
    table: dict[str, object] = {}
    for side, rows in (("baseline", base), ("candidate", cand)):
        places = max(len(row) for row in rows)
        strata: list[list[float]] = [[] for _ in range(5)]
        for item, row in zip(items, rows, strict=True):
            for question, answer in zip(item.questions, row, strict=True):
                strata[min(4, int(question.depth * 5))].append(answer.value)
        parts = max(len(answer.parts) for row in rows for answer in row)
        table[side] = {
            "by_question": [round(_mean([row[i].value for row in rows if i < len(row)]), 4) for i in range(places)],
            "by_depth": [round(_mean(values), 4) if values else None for values in strata],
            "by_part": [
                round(_mean([a.parts[i] for row in rows for a in row if i < len(a.parts)]), 4) for i in range(parts)
            ],
        }
    return table
