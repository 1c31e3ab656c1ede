"""What came back from a decoder: new tokens in the promised form, and the step report in a form that can be true."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.state.decoder_contract import DecoderContract

__all__ = ["Answer", "Caller", "FormError", "Report"]


class FormError(Exception):
    """The candidate returned something that the contract does not allow; the text is the failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the candidate says about its own steps."""

    target_calls: int
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The new tokens of one call and its report, if there is one."""

    tokens: tuple[int, ...]
    report: Report | None = None


class Caller:
    """Calls the candidate with keywords and refuses answers of the wrong form.

    An answer shorter than asked for must end with an end token: the contract has none, so the first short answer's last token
    is taken for it, and every other short answer must end with the same one, and no longer one may contain it earlier.
    """

    def __init__(self, candidate: Callable[..., Any], contract: DecoderContract, device: str) -> None:
        self.contract = contract
        self.device = device
        self.calls = 0
        self.end: int | None = None
        self._seen_inside: set[int] = set()
        self._candidate = candidate
        self._extra = _sampling_keywords(candidate, dict(contract.sampling))

    def __call__(self, prompt: tuple[int, ...], count: int, temperature: float, seed: int) -> Answer:
        """Return the answer to one request; FormError when its form is wrong, CandidateError when it raised."""
        given = torch.tensor(prompt, dtype=torch.long, device=self.device)
        self.calls += 1
        what = f"candidate(prompt of {len(prompt)}, max_new_tokens={count}, temperature={temperature}, seed={seed})"
        try:
            out = self._candidate(prompt=given, max_new_tokens=count, temperature=temperature, seed=seed, **self._extra)
        except Exception as error:  # the candidate may raise anything; it is reported with its cause
            raise CandidateError(f"{what} raised {type(error).__name__}: {error}") from error
        if given.tolist() != list(prompt):
            raise FormError(f"{what} changed the prompt that it was given")
        report = None
        if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Mapping):
            out, report = out[0], _report(out[1], what)
        tokens = self._tokens(out, prompt, count, what)
        return Answer(tokens=tokens, report=report)

    def _tokens(self, out: object, prompt: tuple[int, ...], count: int, what: str) -> tuple[int, ...]:
        if not isinstance(out, torch.Tensor):
            raise FormError(f"{what} returned {type(out).__name__}, not a LongTensor of the new tokens")
        if out.dtype != torch.long or out.ndim != 1:
            raise FormError(f"{what} returned {out.dtype} of shape {tuple(out.shape)}, not a 1-D LongTensor")
        tokens = tuple(out.tolist())
        if len(tokens) > count:
            with_prompt = tokens[: len(prompt)] == prompt
            hint = "; it begins with the prompt, return the new tokens only" if with_prompt else ""
            raise FormError(f"{what} returned {len(tokens)} tokens{hint}")
        if not tokens:
            raise FormError(f"{what} returned no token")
        wrong = [token for token in tokens if not 0 <= token < self.contract.vocab_size]
        if wrong:
            raise FormError(f"{what} returned token {wrong[0]}; the vocabulary has {self.contract.vocab_size}")
        self._end_token(tokens, count, what)
        return tokens

    def _end_token(self, tokens: tuple[int, ...], count: int, what: str) -> None:
        if len(tokens) < count:
            if self.end is None:
                self.end = tokens[-1]
            if tokens[-1] != self.end:
                raise FormError(
                    f"{what} returned {len(tokens)} tokens that end with {tokens[-1]}; other short answers end with {self.end}"
                )
        self._seen_inside.update(tokens[:-1])
        if self.end is not None and self.end in self._seen_inside:
            raise FormError(f"{what}: some answers stop at token {self.end}, others go on behind it (tokens are lost)")


def _sampling_keywords(candidate: Callable[..., Any], sampling: dict[str, float]) -> dict[str, Any]:
    """Return the keywords that carry the sampling dict: ``sampling=`` where the candidate has it, else each by its name."""
    if not sampling:
        return {}
    try:
        parameters = inspect.signature(candidate).parameters
    except (TypeError, ValueError):
        return dict(sampling)
    if "sampling" in parameters:
        return {"sampling": dict(sampling)}
    open_ended = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
    if open_ended or all(name in parameters for name in sampling):
        return dict(sampling)
    raise ContractError(
        f"accept.decoder: sampling={sampling!r} is declared, but the candidate takes neither `sampling` nor "
        f"{', '.join(sampling)}; add a keyword argument `sampling`."
    )


def _report(given: Mapping[Any, Any], what: str) -> Report:
    calls, accepted = given.get("target_calls"), given.get("accepted", [])
    if isinstance(calls, bool) or not isinstance(calls, int):
        raise FormError(f"{what}: report['target_calls'] is {calls!r}, not an int")
    if isinstance(accepted, torch.Tensor):
        accepted = accepted.tolist()
    good = isinstance(accepted, (list, tuple)) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in accepted
    )
    if not good:
        raise FormError(f"{what}: report['accepted'] is {accepted!r}, not a list of counts")
    return Report(target_calls=calls, accepted=tuple(accepted))
