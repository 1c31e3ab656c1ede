"""The text pass: both sides predict the end of each document through their caches; perplexity and divergence read it.

One pass serves both checks of a session, so the second one costs nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_data import Documents, batches, context_tokens, documents, encode, to_row
from pytest_attnaccept.checks.model_evidence import indistinguishable, pattern_of
from pytest_attnaccept.checks.model_held import continued_text
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_patterns import MeanNLL, Screening, chosen_patterns
from pytest_attnaccept.checks.stack_memo import shared_key, stack_memo
from pytest_attnaccept.engines.fingerprints import tokenizer_digest
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern
from pytest_attnaccept.errors import CandidateError

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "PatternScores", "TextPass", "text_pass"]

DEFAULTS: Mapping[str, object] = {
    "documents": 20,  # independent clusters
    "tier": 1.0,  # length of a document, in trained lengths
    "max_tokens": None,  # cap of that length
    "tokens": None,  # length in tokens, instead of tier and cap
    "continuation": 64,  # scored tokens at the end of each document
    "step": 8,  # tokens per call in the continuation: what a call adds is seen uncompressed by that call only
    "patterns": ("one-shot",),  # also "chunk-N", "token"
    "screen": None,  # documents on which the patterns are screened; then the worst one is gated
    "text": "builtin",  # or a path
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternScores:
    """Scores of one call pattern: per document, one float32 value per scored token.

    ``kl`` is KL(baseline || candidate) in nats, ``flips`` 1.0 where the most likely token differs.
    """

    pattern: str
    base_nll: tuple[Tensor, ...]
    cand_nll: tuple[Tensor, ...]
    kl: tuple[Tensor, ...]
    flips: tuple[Tensor, ...]
    identical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPass:
    """The documents and the scores of every gated pattern.

    ``shared_tokens`` is false where the sides tokenize differently; ``screening`` says why these patterns are gated.
    """

    data: Documents
    length: int
    patterns: tuple[PatternScores, ...]
    shared_tokens: bool
    screening: Screening | None = None


def text_pass(session: ModelSession, params: Params) -> TextPass:
    """Run the pass, or return the one that the session already has for these parameters."""
    capped = Params(check=params.check, given={"max_tokens": DEFAULTS["max_tokens"], **params.given})
    length = context_tokens(session, capped, tier=params.number("tier", 1.0))
    count, continuation = params.integer("documents", 20), params.integer("continuation", 64)
    step, screen = params.integer("step", 8), params.optional_integer("screen")
    patterns = params.texts("patterns", ("one-shot",))
    key = f"text:{length}:{count}:{continuation}:{patterns}:{screen}:{step}:{params.text('text', 'builtin')}"
    if key not in session.memo:
        data = documents(session, params, count=count, length=length, continuation=continuation)
        shared = _shares_tokens(session, data)
        found = None
        if shared:
            params, found = chosen_patterns(session, params, f"text:{length}", _mean_nll(session, length, continuation))
        names = params.texts("patterns", ("one-shot",)) if shared or screen is None else patterns[:1]
        scores = tuple(_scored(session, data, name, step, shared=shared) for name in names)
        session.memo[key] = TextPass(data=data, length=length, patterns=scores, shared_tokens=shared, screening=found)
    result: TextPass = session.memo[key]
    return result


def _mean_nll(session: ModelSession, length: int, continuation: int) -> MeanNLL:
    """Return what measures the mean NLL of a side on fresh documents in one pattern, nats per token."""

    def measured(side: Side, name: str, fresh: Params) -> float:
        data = documents(session, fresh, count=fresh.integer("documents", 8), length=length, continuation=continuation)
        how = pattern_of(session, side, name, fresh.integer("step", 8))
        losses: list[Tensor] = []
        for group in batches([row.shape[1] for row in data.rows], how.rows or session.batch):
            rows = torch.cat([data.rows[number] for number in group])
            context = rows.shape[1] - continuation
            losses.append(_nll(_log_probabilities(session, side, rows, context, how), rows[:, context:]).flatten())
        return float(torch.cat(losses).double().mean())

    return measured


def _shares_tokens(session: ModelSession, data: Documents) -> bool:
    """Whether both sides cut these documents into the same tokens (files may differ in form and mean the same)."""
    ours, theirs = session.baseline.loaded, session.candidate.loaded
    if ours.tokenizer is theirs.tokenizer or tokenizer_digest(ours.tokenizer) == tokenizer_digest(theirs.tokenizer):
        return True
    if ours.tokenizer.get_vocab() != theirs.tokenizer.get_vocab() or ours.prefix_ids != theirs.prefix_ids:
        return False
    texts = [ours.tokenizer.decode(row[0, len(ours.prefix_ids) :].tolist()) for row in data.rows]
    return all(encode(ours.tokenizer, text) == encode(theirs.tokenizer, text) for text in texts)


def _scored(session: ModelSession, data: Documents, name: str, step: int, *, shared: bool) -> PatternScores:
    found: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
    identical = shared
    ours, theirs = (pattern_of(session, side, name, step) for side in (session.baseline, session.candidate))
    size = ours.rows or session.batch
    for group in batches([row.shape[1] for row in data.rows], size if shared else 1):
        rows = torch.cat([data.rows[number] for number in group])
        context = rows.shape[1] - data.continuation
        base = _log_probabilities(session, session.baseline, rows, context, ours)
        base_nll = _nll(base, rows[:, context:])
        if not shared:
            cand_nll = _other_tokens(session, rows, context, theirs)
            found[group[0]] = (base_nll[0], cand_nll, torch.zeros(0), torch.zeros(0))
            continue
        scores = _compared(session, rows, context, base, (ours, theirs))
        identical = identical and bool(scores[3].all())
        scores = torch.cat([base_nll[None].to(scores.device), scores[:3]])
        found.update({number: tuple(part[at] for part in scores) for at, number in enumerate(group)})
    columns = tuple(zip(*(found[number] for number in range(len(data.rows))), strict=True))
    return PatternScores(
        pattern=name, base_nll=columns[0], cand_nll=columns[1], kl=columns[2], flips=columns[3], identical=identical
    )


def _compared(session: ModelSession, rows: Tensor, context: int, base: Tensor, how: tuple[Pattern, Pattern]) -> Tensor:
    """Return (4, batch, n): the candidate's NLL, KL, flips, and ones where it cannot be told from the baseline.

    What another cell with the same lossy stack has measured on the same rows is read.
    """
    stack = shared_key(session, session.candidate)
    key = ("text", stack, rows.cpu().numpy().tobytes(), rows.shape[0], context, how)
    known = stack_memo.get(key) if stack is not None else None
    if known is not None:
        return known
    cand = _log_probabilities(session, session.candidate, rows, context, how[1]).to(base.device)
    nll = _nll(cand, rows[:, context:])
    same = torch.full_like(nll, float(indistinguishable(session, base, cand)))
    scores = torch.stack([nll, *_divergence(base, cand), same])
    if stack is not None:
        stack_memo.put(key, scores)
    return scores


def _divergence(base: Tensor, cand: Tensor) -> tuple[Tensor, Tensor]:
    """Return KL(base || cand) and whether the most likely token differs, each (batch, n).

    Checkpoints may pad the vocabulary of one tokenizer to different sizes: what both have is compared.
    """
    width = min(base.shape[-1], cand.shape[-1])
    if base.shape[-1] != cand.shape[-1]:
        base, cand = (torch.log_softmax(side[..., :width], dim=-1) for side in (base, cand))
    kl = (base.exp() * (base - cand)).sum(dim=-1).clamp(min=0.0)
    return kl, (base.argmax(dim=-1) != cand.argmax(dim=-1)).float()


def _nll(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the NLL of `targets` (batch, n) under (batch, n, vocab)."""
    return -log_probabilities.gather(-1, targets[..., None].to(log_probabilities.device))[..., 0]


def _log_probabilities(session: ModelSession, side: Side, rows: Tensor, context: int, pattern: Pattern) -> Tensor:
    """Return log-probabilities (batch, scored tokens, vocab), float32; a plain baseline's are remembered."""
    plain = side.name == "baseline" and not side.changes
    key = (session.baseline_key, rows.cpu().numpy().tobytes(), rows.shape[0], context, pattern) if plain else None
    found = baseline_memo.get(key) if plain else None
    if found is not None:
        return found
    device = next(side.model.parameters()).device
    with side.running():
        logits = continued_text(session, side, rows.to(device), context, pattern)
    result = torch.log_softmax(logits.float(), dim=-1)
    if plain:
        baseline_memo.put(key, result)
    return result


def _letters(text: str) -> str:
    """Return `text` without what tokenizers may tidy up: white space, and characters that stand for others (NFKC)."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _other_tokens(session: ModelSession, row: Tensor, context: int, pattern: Pattern) -> Tensor:
    """Return the candidate's NLL (n,) of the same text in its own tokens (another architecture, another tokenizer)."""
    ours, theirs = session.baseline.loaded, session.candidate.loaded
    head = to_row(
        theirs, encode(theirs.tokenizer, ours.tokenizer.decode(row[0, len(ours.prefix_ids) : context].tolist()))
    )
    text = ours.tokenizer.decode(row[0, context:].tolist())
    tail = torch.tensor([encode(theirs.tokenizer, text)], device=head.device)
    if _letters(theirs.tokenizer.decode(tail[0].tolist())) != _letters(text):
        raise CandidateError(
            "the candidate's tokenizer does not give back the text that it encodes (unknown or dropped words): what it predicts"
            " is another, easier text"
        )
    whole = torch.cat([head, tail], dim=1)
    return _nll(_log_probabilities(session, session.candidate, whole, head.shape[1], pattern), tail)[0]
