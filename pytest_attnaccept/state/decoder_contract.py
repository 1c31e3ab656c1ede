"""What a decoder promises, and how many calls each profile spends on it (`accept.decoder`, all keywords)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.state.keywords import as_int, refuse_missing, refuse_unknown

__all__ = ["SAMPLING", "DecoderContract", "DecoderPlan", "Target", "make_decoder_contract", "plan_for"]

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
    max_length
        Prompt and new tokens together that candidate and target take; None: what the profile asks for.
    step_factor
        Tokens per target call that the candidate claims to reach at least; None: reported, not judged.
    """

    vocab_size: int
    temperatures: tuple[float, ...] = (0.0, 1.0)
    prompts: tuple[tuple[int, ...], ...] | None = None
    sampling: tuple[tuple[str, float], ...] = ()
    max_length: int | None = None
    step_factor: float | None = None

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
        Greedy continuations of random prompts and their length (declared prompts are all used).
    prompts
        Prompts of the joint test of the first tokens.
    draws
        Sampled continuations per prompt and temperature.
    depth
        Tokens per continuation: more than any usual draft, so that rejections inside and behind a draft occur.
    paths
        Continuations whose every position is compared (the others only through their first tokens).
    middle_draws, middle_depth
        Longer sampled continuations, in turns over all prompts, half of whose positions are compared.
    late_draws, late_depth
        The longest ones; 64 positions of each are compared.
    long_prompt, long_run
        Tokens of the longest prompt and of the longest greedy continuation, as far as the target takes them.
    """

    greedy_prompts: int
    greedy_tokens: int
    prompts: int
    draws: int
    depth: int = 6
    paths: int = 1000
    middle_draws: int = 100
    middle_depth: int = 32
    late_draws: int = 16
    late_depth: int = 200
    long_prompt: int = 320
    long_run: int = 208


_PLANS = {
    "smoke": DecoderPlan(
        greedy_prompts=12, greedy_tokens=24, prompts=1, draws=3000, paths=800, middle_draws=210, late_draws=40
    ),
    "": DecoderPlan(
        greedy_prompts=16,
        greedy_tokens=64,
        prompts=2,
        draws=12_000,
        paths=3000,
        middle_draws=700,
        middle_depth=48,
        late_draws=100,
        late_depth=500,
        long_prompt=900,
        long_run=520,
    ),
}


def plan_for(profile: str) -> DecoderPlan:
    """Return the plan of a profile; every profile but smoke uses the large one."""
    return _PLANS.get(profile, _PLANS[""])


def make_decoder_contract(**keywords: object) -> DecoderContract:
    """Return the contract of `accept.decoder`; anything unknown, missing or impossible is a ContractError."""
    known = ("vocab_size", "temperatures", "prompts", "sampling", "max_length", "step_factor")
    refuse_unknown("decoder", keywords, known)
    refuse_missing("decoder", keywords, ("vocab_size",))
    vocab = as_int("decoder", "vocab_size", keywords["vocab_size"], low=2)
    prompts, most = _prompts(keywords.get("prompts"), vocab), keywords.get("max_length")
    longest = max(map(len, prompts or ((0,),)))
    return DecoderContract(
        vocab_size=vocab,
        temperatures=_temperatures(keywords.get("temperatures", (0.0, 1.0))),
        prompts=prompts,
        sampling=_sampling(keywords.get("sampling")),
        max_length=None if most is None else as_int("decoder", "max_length", most, low=max(8, longest + 1)),
        step_factor=_step_factor(keywords.get("step_factor")),
    )


def _step_factor(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < math.inf:
        raise ContractError(f"accept.decoder: step_factor must be a number of at least 1, got {value!r}.")
    return float(value)


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
