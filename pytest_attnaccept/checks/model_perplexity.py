"""`perplexity` and `divergence`: how much worse, and how different, the candidate predicts text through its cache.

Perplexity: NLL of the candidate minus the baseline's, summed per document; the independent unit is the document.
Divergence: KL(baseline || candidate) in nats per token and the share of tokens whose most likely token differs. KL says
how much changed, not whether it is worse: it fails early and never passes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_evidence import not_evidence, soundness_fact
from pytest_attnaccept.checks.model_losses import of_sums, row_names
from pytest_attnaccept.checks.model_near import needs_context
from pytest_attnaccept.checks.model_noise import noise_floors
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_patterns import screening_facts
from pytest_attnaccept.checks.model_text import PatternScores, TextPass, text_pass
from pytest_attnaccept.measurement import ClusteredSums, Fact, Measured, Refusal
from pytest_attnaccept.taxonomy import Kind, Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

# policy: a uniform guess has the vocabulary as its perplexity; a baseline that is not ten times better has read the text
# with the wrong tokenizer or without its weights (a misread GGUF tokenizer gives 54063 at a vocabulary of 49152)
_GUESSING = 10

__all__ = ["measure_divergence", "measure_perplexity"]


def measure_perplexity(session: ModelSession, params: Params) -> Measured:
    """Measure NLL through the cache; parameters are `model_text.DEFAULTS`."""
    done = text_pass(session, params)
    vocabulary = int(session.baseline.model.get_input_embeddings().weight.shape[0])
    gates = tuple(_perplexity_gate(done, scores, vocabulary) for scores in done.patterns)
    needing = needs_context(session, done, params.integer("step", 8)) if done.shared_tokens else None
    facts = (*_facts(session, done), *_perplexity_facts(done), *_key_facts(done, needing))
    return Measured(
        gates=gates,
        facts=facts,
        refusals=_refusals(session, done, params),
        data_digest=done.data.digest,
        details={"by_position": _by_position(done), "nll_by_position": _nll_curve(done), **_kept(done, gates)},
    )


def _perplexity_gate(done: TextPass, scores: PatternScores, vocabulary: int) -> ClusteredSums:
    pairs = list(zip(scores.base_nll, scores.cand_nll, strict=True))
    base_mean = _mean(scores.base_nll)
    return ClusteredSums(
        name=_gate_name("perplexity", scores.pattern),
        sums=tuple(float(cand.double().sum() - base.double().sum()) for base, cand in pairs),
        tokens=tuple(base.numel() for base, _ in pairs),
        base_level=math.exp(base_mean) if base_mean < 700 else math.inf,
        base_limit=vocabulary / _GUESSING,
        where=f"{len(pairs)} documents of {done.length} tokens, {done.data.source}, {scores.pattern}",
    )


def measure_divergence(session: ModelSession, params: Params) -> Measured:
    """Measure KL and top-1 through the cache; parameters are `model_text.DEFAULTS`."""
    done = text_pass(session, params)
    if not done.shared_tokens:
        reason = "baseline and candidate tokenize differently: their next-token distributions cannot be compared"
        # Another architecture may have another tokenizer; a lossy method that changes it is compared with nothing.
        other = any(method.kind is Kind.ARCHITECTURE for method, _ in session.stack)
        refusal = Refusal(verdict=Verdict.NOT_APPLICABLE if other else Verdict.INVALID, reason=reason)
        return Measured(refusals=(refusal,), data_digest=done.data.digest)
    gates: list[ClusteredSums] = []
    for scores in done.patterns:
        where = f"{len(scores.kl)} documents of {done.length} tokens, {done.data.source}, {scores.pattern}"
        gates.append(_mean_gate(_gate_name("kl", scores.pattern), scores.kl, "nats/token", where))
        gates.append(_mean_gate(_gate_name("top1", scores.pattern), scores.flips, "share of tokens", where))
    step = params.integer("step", 8)
    facts = (
        *_facts(session, done),
        *_tail_facts(done),
        *noise_floors(session, done.data.rows[0], done.data.continuation, step),
    )
    return Measured(
        gates=tuple(gates),
        facts=facts,
        refusals=(*_refusals(session, done, params), *_blind(session, done)),
        data_digest=done.data.digest,
        details=_kept(done, gates),
    )


def _kept(done: TextPass, gates: Iterable[ClusteredSums]) -> dict[str, object]:
    """Return the loss of every document under every gate."""
    units = row_names(done.data.rows)
    return {"losses": {gate.name: of_sums(gate, units) for gate in gates}, "data_digest": done.data.digest}


def _mean_gate(name: str, values: tuple[Tensor, ...], unit: str, where: str) -> ClusteredSums:
    return ClusteredSums(
        name=name,
        sums=tuple(float(value.double().sum()) for value in values),
        tokens=tuple(value.numel() for value in values),
        scale="mean",
        base_level=0.0,
        unit=unit,
        where=where,
    )


def _gate_name(name: str, pattern: str) -> str:
    return name if pattern == "one-shot" else f"{name}[{pattern}]"


def _mean(values: tuple[Tensor, ...]) -> float:
    return float(torch.cat(values).double().mean())


def _blind(session: ModelSession, done: TextPass) -> tuple[Refusal, ...]:
    """Refuse a divergence from a baseline that has not read the text: both sides may guess alike."""
    vocabulary = int(session.baseline.model.get_input_embeddings().weight.shape[0])
    level = _mean(done.patterns[0].base_nll)
    if level <= math.log(vocabulary / _GUESSING):
        return ()
    reason = (
        f"the baseline's perplexity is {math.exp(min(level, 700)):.4g} at a vocabulary of {vocabulary}: a model or tokenizer"
        " that cannot predict this text cannot show a difference on it"
    )
    return (Refusal(verdict=Verdict.INVALID, reason=reason),)


def _refusals(session: ModelSession, done: TextPass, params: Params) -> tuple[Refusal, ...]:
    # One pattern in which nothing happens is enough: the claim holds on every call pattern.
    identical = any(scores.identical for scores in done.patterns)
    return not_evidence(session, done.length, identical=identical, params=params)


def _facts(session: ModelSession, done: TextPass) -> tuple[Fact, ...]:
    facts = [
        Fact(name="documents", value=len(done.data.rows)),
        Fact(name="context", value=done.length - done.data.continuation, unit="tokens"),
        Fact(name="scored", value=done.data.continuation, unit="tokens per document"),
        soundness_fact(session, session.baseline),
    ]
    facts += screening_facts(done.screening)
    if len(done.data.rows) < done.data.asked:
        facts.append(Fact(name="documents_missing", value=done.data.asked - len(done.data.rows)))
    return tuple(facts)


def _perplexity_facts(done: TextPass) -> list[Fact]:
    facts: list[Fact] = []
    for scores in done.patterns:
        base, cand = _mean(scores.base_nll), _mean(scores.cand_nll)
        facts.append(Fact(name=_gate_name("ppl_baseline", scores.pattern), value=math.exp(min(base, 700))))
        facts.append(Fact(name=_gate_name("ppl_candidate", scores.pattern), value=math.exp(min(cand, 700))))
    return facts


def _by_position(done: TextPass) -> dict[str, list[float]]:
    """Return mean NLL loss per eighth of the continuation: a jump at the start is local, a growing one accumulates."""
    table: dict[str, list[float]] = {}
    for scores in done.patterns:
        if not done.shared_tokens:
            continue
        losses = torch.stack([c - b for b, c in zip(scores.base_nll, scores.cand_nll, strict=True)]).mean(dim=0)
        table[scores.pattern] = [round(float(part.mean()), 6) for part in losses.chunk(8)]
    return table


def _nll_curve(done: TextPass) -> dict[str, dict[str, list[float]]]:
    """Return the NLL of both sides per eighth of the continuation, nats per token."""
    table: dict[str, dict[str, list[float]]] = {}
    for scores in done.patterns:
        if not done.shared_tokens:
            continue
        sides = {"baseline": scores.base_nll, "candidate": scores.cand_nll}
        table[scores.pattern] = {
            name: [round(float(part.mean()), 6) for part in torch.stack(rows).mean(dim=0).chunk(8)]
            for name, rows in sides.items()
        }
    return table


def _key_facts(done: TextPass, needing: list[Tensor] | None) -> list[Fact]:
    """Report the loss on the tokens that need the context; whole-text perplexity hides it."""
    if needing is None:
        return []
    chosen = torch.cat(needing)
    facts = [Fact(name="key_tokens", value=int(chosen.sum()), unit=f"of {chosen.numel()} scored tokens")]
    if bool(chosen.any()):
        for scores in done.patterns:
            losses = torch.cat(scores.cand_nll)[chosen] - torch.cat(scores.base_nll)[chosen]
            facts.append(
                Fact(name=_gate_name("key_token_loss", scores.pattern), value=float(losses.mean()), unit="nats/token")
            )
    return facts


def _tail_facts(done: TextPass) -> list[Fact]:
    facts: list[Fact] = []
    for scores in done.patterns:
        values = torch.cat(scores.kl)
        facts.append(Fact(name=_gate_name("kl_p99", scores.pattern), value=float(values.quantile(0.99)), unit="nats"))
        facts.append(Fact(name=_gate_name("kl_max", scores.pattern), value=float(values.max()), unit="nats"))
    return facts
