"""`speculation`: drafted and verified tokens over a lossy stack are the tokens of that stack without drafts.

The candidate generates greedily with the drafts of transformers (prompt lookup, or the baseline as draft model) on its own
cache; every new token is then judged on its own prefix by the same stack, token by token, without drafts.

Positions
---------
1. The reference is the stack, not the baseline: what the stack loses is the business of the quality checks.
2. A cache that cannot be rolled back (evicted entries, a recurrent state) is refused, which is INCOMPLETE: the combination
   ships and was not measured. A rollback that leaves other tokens behind FAILS.
3. The same drafts over the plain baseline are a control; where they go wrong, transformers is what is wrong.
4. Draft and target share one view: the draft model keeps a cache of the side's own kind, so what the target has lost the
   draft has lost too, and the memory of an uncompressed second cache is not smuggled in.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_attnaccept.checks.model_data import context_tokens, documents
from pytest_attnaccept.checks.model_evidence import ROUNDING_ORIGIN, rounding_bound
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.rollback import make_croppable
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import Pattern, teacher_forced
from pytest_attnaccept.errors import AttnAcceptError, CandidateError, EngineError
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.methods.applied import Applied
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "apply", "identity", "measure"]

DEFAULTS: Mapping[str, object] = {
    "documents": 8,
    "tier": 0.75,  # prompt and new tokens, in trained lengths: what is generated stays inside the trained length
    "max_tokens": 1024,
    "new_tokens": 32,
    "drafted": 4,  # tokens per draft
    "text": "builtin",
}
# measured: one code of a quantized cache that flips moves a logit by up to 1.1 % of the range of all logits (kv2; kv4 0.5 %)
_CODED_SHARE = 0.02
_CODED_ORIGIN = (
    "measured: a flipped code moves a logit by up to 1.1 % of their range; a wrong rollback by a third of it"
)
_REFUSALS = (EngineError, NotImplementedError, ValueError)
_TOKEN = Pattern(name="token", prefill=None, step=1, multi=False)


def apply(model: Any, knobs: Mapping[str, object]) -> Applied:
    """Apply nothing to the model: drafts change how tokens are asked for, which only this check does."""
    return Applied(method="speculation")


def identity(knobs: Mapping[str, object]) -> dict[str, object]:
    """Return knobs at which nothing may change: drafts never change anything."""
    return dict(knobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What was generated with drafts.

    Attributes
    ----------
    tokens
        New tokens, shape (n,).
    calls
        Forward passes of the target, the first over prompt and draft included.
    offered
        Drafted tokens that were verified.
    """

    tokens: Tensor
    calls: int
    offered: int

    @property
    def accepted(self) -> int:
        """Return how many drafted tokens were kept: every call gives one token of its own."""
        return max(0, int(self.tokens.numel()) - self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How far drafted tokens are from the best token of the same stack: in tolerances, and how clear the choice was."""

    worst: float
    where: str
    clear: int
    total: int
    distinct: int


def measure(session: ModelSession, params: Params) -> Measured:
    """Generate with drafts on both sides and judge every token; parameters are `DEFAULTS`."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    if session.candidate.around.prefill_context is not None:
        raise EngineError(
            "generate() of transformers goes on from the prompt by itself, so a prefill_context cannot be left before the first"
            " draft: speculation over it is not measured"
        )
    new = given.integer("new_tokens", 32)
    length = context_tokens(session, given, tier=given.number("tier", 0.75))
    data = documents(session, given, count=given.integer("documents", 8), length=length, continuation=new)
    prompts = [row[:, : row.shape[1] - new] for row in data.rows]
    draft, drafted = _draft_model(session), given.integer("drafted", 4)
    base = _all(session, session.baseline, prompts, new, drafted, draft)
    control = _judge(session.baseline, prompts, base, share=0.0)
    if not control.worst <= 1.0:
        raise EngineError(
            f"assisted generation of this transformers version changes the plain baseline's output ({control.where}): what"
            " speculation does to the stack cannot be measured with it"
        )
    cand = _all(session, session.candidate, prompts, new, drafted, draft)
    if draft is not None and sum(d.accepted for d in cand) >= sum(d.offered for d in cand):
        # a draft that is always right never rolls anything back; drafts from the prompt do
        prompts, cand = [*prompts, *prompts], [*cand, *_all(session, session.candidate, prompts, new, drafted, None)]
    judged = _judge(session.candidate, prompts, cand, share=_CODED_SHARE if session.claim.bits is not None else 0.0)
    coded = session.claim.bits is not None
    gate = Threshold(
        name="lag behind the stack's own best token", value=judged.worst, limit=1.0, unit="tie tolerances", n=judged.total,
        where=judged.where, origin=_CODED_ORIGIN if coded else ROUNDING_ORIGIN,
        seems="a rollback that leaves rejected tokens behind, or tokens accepted without verification",
    )  # fmt: skip
    return Measured(
        gates=(gate,),
        facts=(
            *_facts("baseline", base),
            *_facts("candidate", cand),
            Fact(name="context", value=length, unit="tokens"),
        ),
        refusals=_vacuous(cand, judged) if judged.worst <= 1.0 else (),
        data_digest=data.digest,
    )


def _all(session: ModelSession, side: Side, prompts: list[Tensor], new: int, drafted: int, draft: Any) -> list[Drafted]:
    """Generate after every prompt; a side that refuses is not measured, and so is a baseline that breaks."""
    try:
        return [_generate(side, prompt, new, drafted, draft) for prompt in prompts]
    except _REFUSALS as error:
        who = session.claim.source if side.name == "candidate" else "the plain baseline"
        raise EngineError(f"{who} refuses speculation: {error}") from error
    except CandidateError as error:
        if side.name == "candidate":
            raise
        raise EngineError(f"{error}: speculation cannot be measured on this model") from error


def _draft_model(session: ModelSession) -> Any:
    """Return the draft model: a twin of the baseline that shares its tensors; None for prompt lookup."""
    if not any(method.name == "speculative_decoding" for method, _ in session.stack):
        return None
    model = session.baseline.model
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    config = twin.generation_config
    config.num_assistant_tokens_schedule, config.assistant_confidence_threshold = "constant", 0.0
    return twin


def _generate(side: Side, prompt: Tensor, new: int, drafted: int, draft: Any) -> Drafted:
    """Generate `new` tokens greedily with drafts on a fresh cache of `side`; counts the target's forward passes."""
    from transformers import GenerationConfig

    lengths: list[int] = []

    def count(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ids = keywords.get("input_ids", arguments[0] if arguments else None)
        lengths.append(int(ids.shape[1]) if isinstance(ids, Tensor) else 0)

    config = GenerationConfig(do_sample=False, max_new_tokens=new, use_cache=True, pad_token_id=0)
    how: dict[str, Any] = {}
    if draft is None:
        config.prompt_lookup_num_tokens = drafted
    else:
        draft.generation_config.num_assistant_tokens = drafted
        draft.generate = _on_the_view_of(side, draft)
        how["assistant_model"] = draft
    cache = make_croppable(side.new_cache())
    if cache is not None:
        how[side.form.cache] = cache
    hook = side.model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        with side.running(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers warns about its own keywords; nothing of it is measured
            out = side.model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config, **how)
    except (AttnAcceptError, *_REFUSALS):
        raise
    except Exception as error:
        raise CandidateError(f"the {side.name} raised with drafts: {type(error).__name__}: {error}") from error
    finally:
        hook.remove()
        if draft is not None:
            del draft.generate  # the class's own method again
    tokens = out[0, prompt.shape[1] :]
    offered = sum(lengths) - prompt.shape[1] - (len(lengths) - 1)
    return Drafted(tokens=tokens, calls=len(lengths), offered=max(0, offered))


def _on_the_view_of(side: Side, draft: Any) -> Callable[..., Any]:
    """Return the draft's `generate` with a cache of `side`'s kind where none was handed on: its first call of a prompt.

    transformers drops the target's cache for the draft and lets it make a full one of its own.
    """
    own = type(draft).generate

    def generate(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get(side.form.cache) is None:
            cache = make_croppable(side.new_cache())
            if cache is not None:
                keywords[side.form.cache] = cache
                if keywords.get("generation_config") is not None:  # 5.2 names the full cache here and refuses another
                    keywords["generation_config"].cache_implementation = None
        return own(draft, *arguments, **keywords)

    return generate


def _judge(side: Side, prompts: list[Tensor], made: list[Drafted], *, share: float) -> Judged:
    """Judge every token on its own prefix by `side` without drafts; `share` of the logits' range is a tie as well."""
    worst, where, clear, total = 0.0, "", 0, 0
    seen: set[int] = set()
    for number, (prompt, drafted) in enumerate(zip(prompts, made, strict=True)):
        whole = torch.cat([prompt, drafted.tokens[None].to(prompt.device)], dim=1)
        with side.running():
            logits = teacher_forced(side, whole, prompt.shape[1], _TOKEN)[0].float().cpu()
        chosen = logits.gather(-1, drafted.tokens.cpu()[:, None])[:, 0]
        best = logits.topk(2, dim=-1).values
        tie = max(rounding_bound(logits), share * float(logits.max() - logits.min()))
        lag = (best[:, 0] - chosen) / tie
        seen |= set(drafted.tokens.tolist())
        clear += int(((best[:, 0] - best[:, 1]) > 2 * tie).sum())
        total += int(lag.numel())
        place = int(lag.argmax())
        if not float(lag[place]) <= worst:
            worst, where = float(lag[place]), f"prompt {number} ({prompt.shape[1]} tokens), new token {place}"
    return Judged(worst=worst, where=where, clear=clear, total=total, distinct=len(seen))


def _vacuous(made: list[Drafted], judged: Judged) -> tuple[Refusal, ...]:
    """Return why equal tokens would prove nothing."""
    offered, accepted = sum(d.offered for d in made), sum(d.accepted for d in made)
    reasons = []
    if not offered:
        reasons.append("no token was ever drafted, so speculation never ran")
    elif accepted >= offered:
        reasons.append("every draft was accepted, so nothing was ever rolled back")
    if 2 * judged.clear < judged.total:
        reasons.append(f"the stack prefers a token clearly at only {judged.clear} of {judged.total} positions")
    if judged.distinct < 2:
        reasons.append("all continuations repeat one single token")
    return tuple(Refusal(verdict=Verdict.INVALID, reason=reason) for reason in reasons)


def _facts(side: str, made: list[Drafted]) -> list[Fact]:
    """Report acceptance: new tokens per call of the target, and the share of drafted tokens that were kept."""
    calls, tokens = sum(d.calls for d in made), sum(int(d.tokens.numel()) for d in made)
    offered, accepted = sum(d.offered for d in made), sum(d.accepted for d in made)
    return [
        Fact(name=f"{side}_acceptance_length", value=round(tokens / calls, 4), unit="tokens per call"),
        Fact(name=f"{side}_drafts_accepted", value=round(accepted / offered, 4) if offered else 0.0, unit="share"),
        Fact(name=f"{side}_drafted", value=offered, unit="tokens"),
    ]
