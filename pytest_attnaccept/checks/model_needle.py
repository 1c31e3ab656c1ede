"""`needle`: length x depth retrieval with the question *after* compression, several questions per shared context.

The independent unit is the context. What a question and an answer are is in `model_answers`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_attnaccept.checks.model_answers import Answer, answers, right, share_right_with_question_first
from pytest_attnaccept.checks.model_data import context_tokens, encode
from pytest_attnaccept.checks.model_evidence import not_evidence, soundness_fact
from pytest_attnaccept.checks.model_losses import of_scores
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_patterns import MeanNLL, chosen_patterns, screening_facts
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Fact, Measured, PairedScores
from pytest_attnaccept.tasks import TaskItem, generate

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "measure", "needle_items", "paired", "score_of"]

DEFAULTS: Mapping[str, object] = {
    "contexts": 50,  # independent clusters
    "first": 0,  # index of the first one; a sample that is measured in looks goes on from there
    "questions_per_context": 4,  # they share one prefill, each about its own needle in its own depth stratum
    "tier": 1.0,  # length of context, question and answer, in trained lengths (the check id names it)
    "max_tokens": None,  # cap of that length
    "tokens": None,  # length in tokens, instead of tier and cap
    "digits": 4,
    "filler": "varied",
    "score": "generated",  # or "teacher_forced": what the gate compares; the other is reported
    "patterns": ("one-shot",),  # each has a gate of its own, or with `screen` only the worst one
    "screen": None,  # contexts on which the patterns are screened
    "question_first": None,  # contexts that are also asked with the question inside the compressed text; never gated
    "depths": 5,  # strata of the table in the details
}


def measure(session: ModelSession, params: Params) -> Measured:
    """Ask both sides every question of every context, in every pattern."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    length = context_tokens(session, given, tier=given.number("tier", 1.0))
    score = score_of(given)
    given, screening = chosen_patterns(session, given, f"needle:{length}", _mean_nll(session, length))
    items = needle_items(session, given, length)
    gates: list[PairedScores] = []
    facts: list[Fact] = [Fact(name="length", value=length, unit="tokens"), soundness_fact(session, session.baseline)]
    facts += screening_facts(screening)
    details: dict[str, object] = {}
    losses: dict[str, object] = {}
    identical = False
    for name in given.texts("patterns", ("one-shot",)):
        base = answers(session, session.baseline, items, name)
        cand = answers(session, session.candidate, items, name)
        gate = paired(items, base, cand, score, "needle" if name == "one-shot" else f"needle[{name}]")
        gates.append(replace(gate, where=f"{len(items)} contexts of {length} tokens, {score}, {name}"))
        facts.extend(_facts(base, cand, name))
        details[name] = _by_depth(items, base, cand, score, given.integer("depths", 5))
        losses[gate.name] = of_scores(
            gate, [item.digest[:12] for item in items],
            baseline=_per_context(base, score), baseline_nll=_nll(base), candidate_nll=_nll(cand),
        )  # fmt: skip
        # Equal NLL to the last bit on every answer: nothing in the cache differed.
        identical = identical or [a.nll for row in base for a in row] == [a.nll for row in cand for a in row]
    facts += _question_first(session, given, items)
    digest = hashlib.sha256("".join(item.digest for item in items).encode()).hexdigest()[:16]
    return Measured(
        gates=tuple(gates),
        facts=tuple(facts),
        refusals=not_evidence(session, length, identical=identical, params=given),
        data_digest=digest,
        details={"depths": details, "losses": losses, "data_digest": digest},
    )


def _mean_nll(session: ModelSession, length: int) -> MeanNLL:
    """Return what measures the mean answer NLL of a side on fresh contexts in one pattern, nats per token."""

    def measured(side: Side, name: str, fresh: Params) -> float:
        rows = _nll(answers(session, side, needle_items(session, fresh, length), name))
        return sum(rows) / len(rows)

    return measured


def score_of(given: Params) -> str:
    """Return which score the gate compares."""
    score = given.text("score", "generated")
    if score not in ("generated", "teacher_forced"):
        raise ContractError(f"{given.check}: score={score!r} must be 'generated' or 'teacher_forced'")
    return score


def needle_items(session: ModelSession, given: Params, length: int) -> list[TaskItem]:
    """Return the contexts ``first`` to ``first + contexts`` at `length` tokens, question and answer included."""
    loaded = session.baseline.loaded
    first = given.integer("first", 0, low=0)
    return [
        generate(
            "needle",
            fit=lambda text: len(encode(loaded.tokenizer, text)),
            target_tokens=length - len(loaded.prefix_ids),
            seed=session.seed,
            index=index,
            needles=given.integer("questions_per_context", 4),
            digits=given.integer("digits", 4),
            filler=given.text("filler", "varied"),
        )
        for index in range(first, first + given.integer("contexts", 50))
    ]


def _per_context(rows: Sequence[Sequence[Answer]], score: str) -> list[float]:
    return [sum(right(answer, score) for answer in row) / len(row) for row in rows]


def _nll(rows: Sequence[Sequence[Answer]]) -> list[float]:
    """Return the mean answer NLL of each context, nats per answer token."""
    return [sum(answer.nll for answer in row) / len(row) for row in rows]


def paired(
    items: Sequence[TaskItem],
    base: Sequence[Sequence[Answer]],
    cand: Sequence[Sequence[Answer]],
    score: str,
    name: str,
) -> PairedScores:
    """Return the loss of every context as one gate."""
    losses: list[float] = []
    found = discordant = total = 0
    for ours, theirs in zip(base, cand, strict=True):
        pairs = [(right(a, score), right(b, score)) for a, b in zip(ours, theirs, strict=True)]
        losses.append(sum(a - b for a, b in pairs) / len(pairs))
        found += sum(a for a, _ in pairs)
        discordant += sum(a != b for a, b in pairs)
        total += len(pairs)
    return PairedScores(
        name=name,
        losses=tuple(losses),
        base_mean=found / total,
        chance=max(item.chance for item in items),
        n_items=total,
        discordant=discordant,
    )


def _facts(base: Sequence[Sequence[Answer]], cand: Sequence[Sequence[Answer]], pattern: str) -> list[Fact]:
    suffix = "" if pattern == "one-shot" else f"[{pattern}]"
    facts: list[Fact] = []
    for side, rows in (("baseline", base), ("candidate", cand)):
        flat = [answer for row in rows for answer in row]
        shares = {
            "generated": sum(a.generated for a in flat),
            "teacher_forced": sum(a.teacher_forced for a in flat),
            "exact": sum(a.exact for a in flat),
            "not_parsed": sum(not a.parsed for a in flat),
        }
        facts += [Fact(name=f"{side}_{name}{suffix}", value=round(n / len(flat), 4)) for name, n in shares.items()]
        nll, rank = sum(a.nll for a in flat) / len(flat), sum(a.rank for a in flat) / len(flat)
        facts.append(Fact(name=f"{side}_answer_nll{suffix}", value=nll, unit="nats/token"))
        facts.append(Fact(name=f"{side}_answer_rank{suffix}", value=round(rank, 2), unit="place of the token"))
    return facts


def _question_first(session: ModelSession, given: Params, items: Sequence[TaskItem]) -> list[Fact]:
    """Report what both sides answer when the compressor has seen the question; a fact, so it can lift no verdict."""
    count = given.optional_integer("question_first")
    if count is None or given.integer("first", 0, low=0):
        return []
    asked, label = items[:count], "share of answers, question inside the compressed text (easier; not gated)"
    return [
        Fact(
            name=f"question_first_{side.name}",
            value=round(share_right_with_question_first(session, side, asked), 4),
            unit=label,
        )
        for side in (session.baseline, session.candidate)
    ]


def _by_depth(
    items: Sequence[TaskItem], base: list[list[Answer]], cand: list[list[Answer]], score: str, strata: int
) -> list[dict[str, float | int]]:
    """Return accuracy per depth stratum, start of the context first."""
    table: list[dict[str, float | int]] = []
    for number in range(strata):
        low, high = number / strata, (number + 1) / strata
        found = [
            (right(a, score), right(b, score))
            for item, ours, theirs in zip(items, base, cand, strict=True)
            for question, a, b in zip(item.questions, ours, theirs, strict=True)
            if low <= question.depth < high or (high == 1.0 and question.depth >= 1.0)
        ]
        n = len(found)
        table.append({
            "from": low, "to": high, "n": n,
            "baseline": round(sum(a for a, _ in found) / n, 4) if n else 0.0,
            "candidate": round(sum(b for _, b in found) / n, 4) if n else 0.0,
        })  # fmt: skip
    return table
