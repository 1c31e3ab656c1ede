"""Which prompts a decoder is asked to continue, how far, and how many tokens its target takes at all.

Positions
---------
1. Declared prompts are all used. Longer ones are made of them by repetition, so that they hold no token the user avoided.
2. A target that raises on a long context has a limit: it is searched once, requests stay below it, and the verdict says so.
"""

from __future__ import annotations

import numpy as np

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.state.decoder_contract import DecoderContract, DecoderPlan
from pytest_attnaccept.state.decoder_reference import TargetModel, Tokens

__all__ = ["Prompts"]

# Below, at and above what pages, tiles and buffers of a decoder usually hold.
_EDGES = (1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_EDGE_TOKENS = 5
# A speculative decoder asks its target a draft further than it was asked itself.
_DRAFT_ROOM = 16


class Prompts:
    """All prompts of one check.

    Parameters
    ----------
    contract, plan
        What is declared, and what may be spent.
    target
        Tells how many tokens it takes.
    """

    def __init__(self, contract: DecoderContract, plan: DecoderPlan, target: TargetModel) -> None:
        self.contract, self.plan = contract, plan
        self._target = target
        self._limit: int | None = None

    @property
    def limit(self) -> int:
        """Prompt and new tokens together that are asked at most."""
        if self._limit is None:
            self._limit = self._reach()
        return self._limit

    def room(self, prompt: Tokens, count: int) -> int:
        """Return how many of `count` new tokens may be asked behind a prompt; at least 1."""
        return max(1, min(count, self.limit - len(prompt)))

    def short(self, count: int, seed: int) -> list[Tokens]:
        """Return all declared prompts, or `count` random ones of unequal lengths, some with repetitions for lookup drafts."""
        if self.contract.prompts is not None:
            return list(self.contract.prompts)
        rng = np.random.default_rng([seed, 5])
        prompts = []
        for index in range(count):
            size = (3, 1, 7, 2, 12, 5, 20, 9)[index % 8]
            tokens = rng.integers(self.contract.vocab_size, size=size).tolist()
            prompts.append(tuple(tokens * 2 if index % 3 == 0 else tokens)[: self.limit - 1])
        return prompts

    def stretched(self, length: int, seed: int) -> Tokens:
        """Return a prompt of `length` tokens, or of as many as there is room for."""
        length = max(1, min(length, self.limit - 1))
        if self.contract.prompts is not None:
            tokens = [token for prompt in self.contract.prompts for token in prompt]
            return tuple((tokens * (1 + length // len(tokens)))[:length])
        rng = np.random.default_rng([seed, length, 6])
        return tuple(rng.integers(self.contract.vocab_size, size=length).tolist())

    def greedy(self, seed: int) -> list[tuple[Tokens, int]]:
        """Return the greedy requests: short prompts, prompts at edges, one long prompt, two long continuations."""
        plan, requests = self.plan, []
        for number, prompt in enumerate(self.short(plan.greedy_prompts, seed)):
            requests.append((prompt, plan.greedy_tokens if number else 1 + plan.greedy_tokens // 4))
        edges = sorted({min(edge, self.limit - 1) for edge in _EDGES})
        requests += [(self.stretched(edge, seed), 1 + number % _EDGE_TOKENS) for number, edge in enumerate(edges)]
        requests.append((self.stretched(plan.long_prompt, seed), plan.greedy_tokens))
        # Short prompts, so that long continuations are the candidate's own; two, so that a cut at some length is no end token.
        for number, count in enumerate((plan.long_run, 3 * plan.long_run // 4)):
            requests.append((self.stretched(min(6 - number, max(1, self.limit // 4)), seed + number), count))
        return [(prompt, self.room(prompt, count)) for prompt, count in requests]

    def sampled(self, seed: int) -> list[Tokens]:
        """Return the prompts of longer sampled continuations; the last one is the longest."""
        lengths = (self.plan.long_prompt,) if self.contract.prompts is not None else (48, 130, self.plan.long_prompt)
        prompts = [*self.short(4, seed), *(self.stretched(length, seed) for length in lengths)]
        return list(dict.fromkeys(prompts))

    def _reach(self) -> int:
        plan = self.plan
        longest = max(map(len, self.contract.prompts or ((),)))
        wanted = max(
            plan.long_prompt + max(plan.greedy_tokens, plan.middle_depth), 32 + max(plan.long_run, plan.late_depth)
        )
        wanted = max(wanted, longest + plan.greedy_tokens)
        if self.contract.max_length is not None:
            return min(wanted, self.contract.max_length)
        if self._takes(wanted + _DRAFT_ROOM):
            return wanted
        low, high = 1, wanted + _DRAFT_ROOM
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._takes(middle) else (low, middle)
        return max(2, low - min(_DRAFT_ROOM, low // 4))

    def _takes(self, length: int) -> bool:
        base = self.contract.prompts[0] if self.contract.prompts else tuple(range(min(8, self.contract.vocab_size)))
        tokens = (base * (1 + length // len(base)))[:length]
        try:
            self._target.logits(tokens)
        except (CandidateError, ContractError):
            return False
        return True
