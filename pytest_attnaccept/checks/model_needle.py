"""`needle`: length x depth retrieval with the question *after* compression, several questions per shared context.

Each question gets a copy of the cache that the context left, so no question sees another and the compressor saw none.
Answers are scored twice: teacher-forced (every answer token is the most likely one) and generated greedily (the answer
is contained in what is generated). The independent unit is the context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_data import batches, context_tokens, encode, to_row
from pytest_attnaccept.checks.model_evidence import not_evidence, pattern_of, soundness_fact
from pytest_attnaccept.checks.model_losses import of_scores
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern, State, extend, fork, greedy, prefill
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.measurement import Fact, Measured, PairedScores
from pytest_attnaccept.tasks import Question, TaskItem, generate

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "Answer", "measure"]

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
    "patterns": ("one-shot",),
    "depths": 5,  # strata of the table in the details
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one question was answered; `nll` is the mean over answer tokens in nats."""

    teacher_forced: bool
    generated: bool
    nll: float


def measure(session: ModelSession, params: Params) -> Measured:
    """Ask both sides every question of every context, in every pattern."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    length = context_tokens(session, given, tier=given.number("tier", 1.0))
    items = _items(session, given, length)
    score = given.text("score", "generated")
    if score not in ("generated", "teacher_forced"):
        raise ContractError(f"{params.check}: score={score!r} must be 'generated' or 'teacher_forced'")
    gates: list[PairedScores] = []
    facts: list[Fact] = [Fact(name="length", value=length, unit="tokens"), soundness_fact(session, session.baseline)]
    details: dict[str, object] = {}
    losses: dict[str, object] = {}
    identical = False
    for name in given.texts("patterns", ("one-shot",)):
        base = _answers(session, session.baseline, items, name)
        cand = _answers(session, session.candidate, items, name)
        gates.append(_gate(items, base, cand, score, name, length))
        facts.extend(_facts(base, cand, name))
        details[name] = _by_depth(items, base, cand, score, given.integer("depths", 5))
        losses[gates[-1].name] = of_scores(
            gates[-1], [item.digest[:12] for item in items],
            baseline=_per_context(base, score), baseline_nll=_nll(base), candidate_nll=_nll(cand),
        )  # fmt: skip
        # Equal NLL to the last bit on every answer: nothing in the cache differed.
        identical = identical or [a.nll for row in base for a in row] == [a.nll for row in cand for a in row]
    digest = hashlib.sha256("".join(item.digest for item in items).encode()).hexdigest()[:16]
    return Measured(
        gates=tuple(gates),
        facts=tuple(facts),
        refusals=not_evidence(session, length, identical=identical, params=given),
        data_digest=digest,
        details={"depths": details, "losses": losses, "data_digest": digest},
    )


def _items(session: ModelSession, given: Params, length: int) -> list[TaskItem]:
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


def _answers(session: ModelSession, side: Side, items: Sequence[TaskItem], pattern: str) -> list[list[Answer]]:
    """Answer every question of every item; contexts of equal length go through the model together."""
    how = pattern_of(session, side, pattern, 1)
    rows = [to_row(side.loaded, encode(side.loaded.tokenizer, item.context)) for item in items]
    found: dict[int, list[Answer]] = {}
    for group in batches(
        [(row.shape[1], _shape(side, item)) for row, item in zip(rows, items, strict=True)], session.batch
    ):
        members = [items[number] for number in group]
        answered = _remembered(session, side, members, torch.cat([rows[number] for number in group]), how)
        found.update(zip(group, answered, strict=True))
    return [found[number] for number in range(len(items))]


def _shape(side: Side, item: TaskItem) -> tuple[tuple[int, int], ...]:
    """Return the token counts of every question and answer: only equal ones can share a batch."""
    tokenizer = side.loaded.tokenizer
    return tuple((len(encode(tokenizer, q.prompt)), len(encode(tokenizer, q.answer))) for q in item.questions)


def _remembered(
    session: ModelSession, side: Side, items: Sequence[TaskItem], rows: Tensor, how: Pattern
) -> list[list[Answer]]:
    """Answer the questions of a batch of contexts; a plain baseline's answers are remembered across sessions."""
    plain = side.name == "baseline" and not side.changes
    key = ("needle", session.baseline_key, tuple(item.digest for item in items), how)
    known = baseline_memo.get(key) if plain else None
    if known is None:
        with side.running():
            state = prefill(side, rows, how)
            asked = [
                _answer(side, fork(side, state), [item.questions[number] for item in items])
                for number in range(len(items[0].questions))
            ]
        known = torch.stack(asked, dim=1)
        if plain:
            baseline_memo.put(key, known)
    return [[Answer(teacher_forced=bool(f), generated=bool(g), nll=nll) for f, g, nll in row] for row in known.tolist()]


def _answer(side: Side, state: State, questions: Sequence[Question]) -> Tensor:
    """Score one question per row on its own copy of the context's cache; returns (batch, 3): forced, generated, NLL.

    The question is one call, the answer goes token by token. When every answer token is the most likely one, greedy
    generation would repeat exactly these calls and produce the answer, so it runs only where teacher forcing fails.
    """
    tokenizer, device = side.loaded.tokenizer, state.source.device
    prompt = torch.tensor([encode(tokenizer, q.prompt) for q in questions], device=device)
    target = torch.tensor([encode(tokenizer, q.answer) for q in questions], device=device)
    asked = extend(side, state, prompt, step=prompt.shape[1] if state.pattern.multi else 1)
    free = fork(side, state)
    logits = asked[:, -1:]
    if target.shape[1] > 1:
        logits = torch.cat([logits, extend(side, state, target[:, :-1], step=1)], dim=1)
    forced = (logits.argmax(dim=-1) == target).all(dim=1)
    nll = torch.nn.functional.cross_entropy(logits.double().transpose(1, 2), target, reduction="none").mean(dim=1)
    generated = forced.clone()
    if not bool(forced.all()):
        made = greedy(side, free, max(question.max_new_tokens for question in questions))
        for row, question in enumerate(questions):
            text = tokenizer.decode(made[row, : question.max_new_tokens].tolist())
            generated[row] = bool(forced[row]) or question.answer.strip() in text
    return torch.stack([forced.double(), generated.double(), nll], dim=1).cpu()


def _right(answer: Answer, score: str) -> bool:
    return answer.generated if score == "generated" else answer.teacher_forced


def _per_context(rows: Sequence[Sequence[Answer]], score: str) -> list[float]:
    return [sum(_right(answer, score) for answer in row) / len(row) for row in rows]


def _nll(rows: Sequence[Sequence[Answer]]) -> list[float]:
    """Return the mean answer NLL of each context, nats per answer token."""
    return [sum(answer.nll for answer in row) / len(row) for row in rows]


def _gate(
    items: Sequence[TaskItem], base: list[list[Answer]], cand: list[list[Answer]], score: str, pattern: str, length: int
) -> PairedScores:
    losses: list[float] = []
    right = discordant = total = 0
    for ours, theirs in zip(base, cand, strict=True):
        pairs = [(_right(a, score), _right(b, score)) for a, b in zip(ours, theirs, strict=True)]
        losses.append(sum(a - b for a, b in pairs) / len(pairs))
        right += sum(a for a, _ in pairs)
        discordant += sum(a != b for a, b in pairs)
        total += len(pairs)
    return PairedScores(
        name="needle" if pattern == "one-shot" else f"needle[{pattern}]",
        losses=tuple(losses),
        base_mean=right / total,
        chance=max(item.chance for item in items),
        n_items=total,
        discordant=discordant,
        where=f"{len(items)} contexts of {length} tokens, {score}, {pattern}",
    )


def _facts(base: list[list[Answer]], cand: list[list[Answer]], pattern: str) -> list[Fact]:
    suffix = "" if pattern == "one-shot" else f"[{pattern}]"
    facts: list[Fact] = []
    for side, rows in (("baseline", base), ("candidate", cand)):
        flat = [answer for row in rows for answer in row]
        for score in ("generated", "teacher_forced"):
            share = sum(_right(answer, score) for answer in flat) / len(flat)
            facts.append(Fact(name=f"{side}_{score}{suffix}", value=round(share, 4)))
        facts.append(
            Fact(name=f"{side}_answer_nll{suffix}", value=sum(a.nll for a in flat) / len(flat), unit="nats/token")
        )
    return facts


def _by_depth(
    items: Sequence[TaskItem], base: list[list[Answer]], cand: list[list[Answer]], score: str, strata: int
) -> list[dict[str, float | int]]:
    """Return accuracy per depth stratum, start of the context first."""
    table: list[dict[str, float | int]] = []
    for number in range(strata):
        low, high = number / strata, (number + 1) / strata
        found = [
            (_right(a, score), _right(b, score))
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
