"""How lm-eval asks a side: an ``LM`` whose log-likelihoods and generations go through the side's changed cache.

lm-eval's own log-likelihood is one forward pass, which never sees what a cache dropped or rounded. Here the prompt is
prefilled but for its last token, which goes through the cache together with what is scored; choices of one prompt share
its prefill. Prompts that are too long lose their beginning, on both sides alike, and are counted.

Imported only when a benchmark runs: lm-eval is an optional dependency.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.model import LM
from torch import Tensor

from pytest_attnaccept.checks.model_data import encode, to_row
from pytest_attnaccept.checks.model_evidence import pattern_of
from pytest_attnaccept.checks.model_heard import generate_tokens, reader_of
from pytest_attnaccept.checks.model_held import note_stored
from pytest_attnaccept.checks.model_read import note_read
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import State, extend, first_choice, fork, prefill
from pytest_attnaccept.errors import ContractError, EngineError

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["CacheLM"]

# As it was before any candidate was built: requests are answered while a candidate's context is active.
_log_softmax = torch.log_softmax
_TOKENS = 256  # what lm-eval's own models generate when a task names no limit


class CacheLM(LM):  # type: ignore[misc]
    """One side of a session as a model of lm-eval.

    Attributes
    ----------
    trace
        One number per request that any difference in the cache moves: equal traces mean that nothing differed.
    longest, truncated
        Tokens of the longest prompt, and how many prompts lost their beginning.
    """

    def __init__(self, session: ModelSession, side: Side, *, max_tokens: int = _TOKENS) -> None:
        super().__init__()
        self._side, self._session, self._max_tokens = side, session, max_tokens
        self._decode = reader_of(session, side).decode
        self._pattern = pattern_of(session, side, "one-shot", 1)
        self._room = session.trained_length
        self.trace: list[float] = []
        self.longest = 0
        self.truncated = 0

    # -- requests of lm-eval -----------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return (log-likelihood in nats, is the greedy continuation) per request."""
        groups: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
        for number, request in enumerate(requests):
            context, continuation = self._pair(*request.args)
            groups.setdefault(tuple(context), []).append((number, continuation))
        found: dict[int, tuple[float, bool]] = {}
        with self._side.running():
            for ids, members in groups.items():
                key = ("loglikelihood", ids, [c for _, c in members])
                rows = self._remembered(key, partial(self._scores, ids, members))
                for (number, _), (value, greedy) in zip(members, rows.tolist(), strict=True):
                    found[number] = (value, bool(greedy))
        self.trace += [found[number][0] for number in range(len(requests))]
        return [found[number] for number in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Refuse: a perplexity has no score per document in [0, 1]."""
        raise ContractError(
            f"{len(requests)} requests for a rolling log-likelihood: perplexity tasks have no paired score per document."
            " Use the check perplexity, with data: {text: FILE}"
        )

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return what greedy decoding gives per request, cut at its stop texts."""
        made: list[str] = []
        with self._side.running():
            for request in requests:
                prompt, given = request.args
                made.append(self.complete(str(prompt), dict(given)))
        return made

    def complete(self, prompt: str, given: Mapping[str, Any]) -> str:
        """Generate greedily after `prompt`; call inside ``side.running()``."""
        if given.get("do_sample") and float(given.get("temperature") or 1.0) > 0:
            raise EngineError(
                "the task asks for sampling: outcomes of two random runs are not paired; use do_sample: false"
            )
        until = given.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        limit = min(int(given.get("max_gen_toks") or self._max_tokens), self._max_tokens)
        ids = encode(self._side.loaded.tokenizer, prompt)
        if self._room is not None:  # the answer takes no more than half of the trained length from the prompt
            limit = max(1, min(limit, max(self._room // 2, self._room - len(ids) - len(self._side.loaded.prefix_ids))))
        ids = self._cut(ids, limit)
        tensor = self._remembered(("generate", tuple(ids), stops, limit), lambda: self._generated(ids, stops, limit))
        self.trace.append(float(tensor[0]))
        return self._until([int(token) for token in tensor[1:].tolist()], stops)

    # -- through the cache -------------------------------------------------------------------------------------------

    def _remembered(self, key: tuple[object, ...], compute: Callable[[], Sequence[Any]]) -> Tensor:
        """Compute, or take what an earlier cell of the matrix computed for the same plain baseline."""
        if self._side.name != "baseline" or self._side.changes:
            return torch.tensor(compute(), dtype=torch.float64)
        digest = ("benchmark", self._session.baseline_key, hashlib.sha256(repr(key).encode()).hexdigest())
        known = baseline_memo.get(digest)
        if known is None:
            known = torch.tensor(compute(), dtype=torch.float64)
            baseline_memo.put(digest, known)
        return known

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Split as lm-eval does: spaces at the end of the context belong to the continuation."""
        tokenizer = self._side.loaded.tokenizer
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        whole, start = encode(tokenizer, context + continuation), len(encode(tokenizer, context))
        if not context:
            end = getattr(tokenizer, "eos_token_id", None)
            if end is None and not self._side.loaded.prefix_ids:
                raise EngineError("a prompt is empty and the tokenizer has no token to begin with")
            whole, start = ([int(end)] if end is not None else []) + whole, int(end is not None)
        if len(whole) <= start:
            raise ContractError(f"the continuation {continuation!r} has no token of its own after its prompt")
        scored = whole[start:]
        return self._cut(whole[:start], len(scored)), scored

    def _cut(self, ids: list[int], after: int) -> list[int]:
        """Drop the beginning of a prompt that does not fit into the trained length with what comes after it."""
        prefix = len(self._side.loaded.prefix_ids)
        room = len(ids) if self._room is None else self._room - after - prefix
        if ids and room < 1:
            raise EngineError(f"an answer of {after} tokens leaves no room for a prompt in {self._room} trained ones")
        self.truncated += len(ids) > room
        self.longest = max(self.longest, prefix + min(len(ids), room) + after)
        return ids[-room:] if ids else ids

    def _start(self, ids: Sequence[int]) -> tuple[State, Tensor]:
        """Prefill a prompt but for its last token, feed that one; return the state and the next token's logits."""
        row = to_row(self._side.loaded, ids)
        if row.shape[1] == 0:
            raise EngineError("a prompt is empty for this tokenizer")
        if row.shape[1] == 1:
            state = self._prefilled(row)
            if state.last is None:
                raise EngineError("the model returned no logits for a prompt of one token")
            return state, state.last[0]
        state = self._prefilled(row[:, :-1])
        note_read(self._session, self._side, state, row[:, :-1], row[:, -1:], step=1, forked=False)
        return state, extend(self._side, state, row[:, -1:], step=1)[0, -1]

    def _prefilled(self, row: Tensor) -> State:
        state = prefill(self._side, row, self._pattern)
        note_stored(self._session, self._side, state)
        return state

    def _scores(self, ids: Sequence[int], members: Sequence[tuple[int, list[int]]]) -> list[tuple[float, bool]]:
        """Return (log-likelihood, greedy) of every continuation of one prompt."""
        state, first = self._start(ids)
        results = []
        for _, wanted in members:
            target = torch.tensor([wanted], device=state.source.device)
            logits = first[None]
            if len(wanted) > 1:
                copy = fork(self._side, state)
                note_stored(self._session, self._side, copy)
                more = extend(self._side, copy, target[:, :-1], step=1)
                logits = torch.cat([logits, more[0]])
            chosen = _log_softmax(logits.double(), dim=-1).gather(1, target[0][:, None])
            results.append((float(chosen.sum()), bool((first_choice(logits) == target[0]).all())))
        return results

    def _generated(self, ids: Sequence[int], stops: Sequence[str], limit: int) -> list[float]:
        """Return a number that shows any difference in the cache, then the generated ids."""
        state, first = self._start(ids)
        made = generate_tokens(
            self._side, state, limit, lambda done: any(stop in self._decoded(done[0].tolist()) for stop in stops)
        )
        mark = float(torch.logsumexp(first.double(), dim=-1))
        if state.last is not None:
            mark += float(torch.logsumexp(state.last.double(), dim=-1).sum())
        return [mark, *map(float, made[0].tolist())]

    def _decoded(self, ids: list[int]) -> str:
        end = getattr(self._side.loaded.tokenizer, "eos_token_id", None)
        return str(self._decode(ids[: ids.index(end)] if end in ids else ids))

    def _until(self, ids: list[int], stops: Sequence[str]) -> str:
        text = self._decoded(ids)
        for stop in stops:
            text = text.split(stop)[0] if stop else text
        return text
