"""What a decoder promises, and how many calls each profile spends on it (`accept.decoder`, all keywords)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.state.keywords import as_int, refuse_missing, refuse_unknown

__all__ = ["SAMPLING", "DecoderContract", "DecoderPlan", "Target", "make_decoder_contract", "plan_for", "prompts_for"]

Target = Callable[[torch.Tensor], torch.Tensor]
SAMPLING = ("top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderContract:
    """The declared facts of one decoder.

    Attributes
    ----------
    temperatures
        Settings that are tested; 0 is greedy.
    prompts
        Token lists to start from; None: random ones.
    sampling
        Filters that the candidate and the reference apply after the temperature, in the order top_k, top_p, min_p.
    """

    vocab_size: int
    temperatures: tuple[float, ...] = (0.0, 1.0)
    prompts: tuple[tuple[int, ...], ...] | None = None
    sampling: tuple[tuple[str, float], ...] = ()

    @property
    def sampled(self) -> tuple[float, ...]:
        """Temperatures above 0."""
        return tuple(value for value in self.temperatures if value > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderPlan:
    """How much one check spends.

    Attributes
    ----------
    greedy_prompts, greedy_tokens
        Greedy continuations and their length.
    prompts
        Prompts of the distribution test.
    draws
        Sampled continuations per prompt and temperature.
    depth
        Tokens per continuation: more than any usual draft, so that rejections inside and behind a draft occur.
    paths
        Continuations whose every position is compared (the others only through their first tokens).
    """

    greedy_prompts: int
    greedy_tokens: int
    prompts: int
    draws: int
    depth: int = 6
    paths: int = 1000


_PLANS = {
    "smoke": DecoderPlan(greedy_prompts=12, greedy_tokens=24, prompts=1, draws=3000),
    "": DecoderPlan(greedy_prompts=16, greedy_tokens=64, prompts=2, draws=12_000, paths=3000),
}


def plan_for(profile: str) -> DecoderPlan:
    """Return the plan of a profile; every profile but smoke uses the large one."""
    return _PLANS.get(profile, _PLANS[""])


def make_decoder_contract(**keywords: object) -> DecoderContract:
    """Return the contract of `accept.decoder`; anything unknown, missing or impossible is a ContractError."""
    refuse_unknown("decoder", keywords, ("vocab_size", "temperatures", "prompts", "sampling"))
    refuse_missing("decoder", keywords, ("vocab_size",))
    vocab = as_int("decoder", "vocab_size", keywords["vocab_size"], low=2)
    return DecoderContract(
        vocab_size=vocab,
        temperatures=_temperatures(keywords.get("temperatures", (0.0, 1.0))),
        prompts=_prompts(keywords.get("prompts"), vocab),
        sampling=_sampling(keywords.get("sampling")),
    )


def _temperatures(value: object) -> tuple[float, ...]:
    given = value if isinstance(value, (tuple, list)) else (value,)
    for item in given:
        number = isinstance(item, (int, float)) and not isinstance(item, bool)
        if not number or not math.isfinite(item) or item < 0:
            raise ContractError(f"accept.decoder: temperatures must be finite numbers of at least 0, got {item!r}.")
    if not given:
        raise ContractError("accept.decoder: temperatures is empty.")
    return tuple(float(item) for item in dict.fromkeys(given))


def _prompts(value: object, vocab: int) -> tuple[tuple[int, ...], ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str) or not len(value):
        raise ContractError("accept.decoder: prompts must be a non-empty list of token lists or 1-D tensors.")
    prompts = []
    for prompt in value:
        tokens = prompt.tolist() if isinstance(prompt, torch.Tensor) else prompt
        if not isinstance(tokens, (list, tuple)) or not tokens:
            raise ContractError("accept.decoder: every prompt must be a non-empty list of tokens.")
        prompts.append(tuple(as_int("decoder", "a prompt's token", token, low=0, high=vocab - 1) for token in tokens))
    return tuple(prompts)


def _sampling(value: object) -> tuple[tuple[str, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise ContractError(f"accept.decoder: sampling must be a dict such as {{'top_k': 20}}, got {value!r}.")
    refuse_unknown("decoder(sampling=...)", value, SAMPLING)
    if "top_k" in value:
        as_int("decoder", "sampling['top_k']", value["top_k"], low=1)
    for name in ("top_p", "min_p"):
        share: Any = value.get(name, 1.0)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ContractError(f"accept.decoder: sampling[{name!r}] must be in (0, 1], got {share!r}.")
    return tuple((name, value[name]) for name in SAMPLING if name in value)


def prompts_for(contract: DecoderContract, count: int, seed: int) -> list[tuple[int, ...]]:
    """Return the declared prompts, or `count` random ones of unequal lengths, some with repetitions for lookup drafts."""
    if contract.prompts is not None:
        return list(contract.prompts[:count])
    rng = np.random.default_rng([seed, 5])
    prompts = []
    for index in range(count):
        tokens = rng.integers(contract.vocab_size, size=(3, 1, 7, 2, 12, 5, 20, 9)[index % 8]).tolist()
        prompts.append(tuple(tokens * 2 if index % 3 == 0 else tokens))
    return prompts
