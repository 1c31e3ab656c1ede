"""What came back from a decoder: new tokens in the promised form, and the step report in a form that can be true."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.state.decoder_contract import DecoderContract

__all__ = ["Answer", "Caller", "FormError", "Report"]


# Requests up to this size are not what a decoder's limit is about.
_SHORT = 128


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
        self._ways = _sampling_keywords(candidate, dict(contract.sampling))

    def __call__(self, prompt: tuple[int, ...], count: int, temperature: float, seed: int) -> Answer:
        """Return the answer to one request; FormError when its form is wrong, CandidateError when it raised."""
        given = torch.tensor(prompt, dtype=torch.long, device=self.device)
        self.calls += 1
        what = f"candidate(prompt of {len(prompt)}, max_new_tokens={count}, temperature={temperature}, seed={seed})"
        try:
            out = self._ask(prompt=given, max_new_tokens=count, temperature=temperature, seed=seed)
        except Exception as error:  # the candidate may raise anything; it is reported with its cause
            hint = "" if len(prompt) + count <= _SHORT else "; a decoder with a limit declares it as max_length="
            raise CandidateError(f"{what} raised {type(error).__name__}: {error}{hint}") from error
        if given.tolist() != list(prompt):
            raise FormError(f"{what} changed the prompt that it was given")
        report = None
        if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Mapping):
            out, report = out[0], _report(out[1], what)
        tokens = self._tokens(out, prompt, count, what)
        return Answer(tokens=tokens, report=report)

    def _ask(self, **given: Any) -> object:
        """Call the candidate; its first call finds out how it takes the sampling filters."""
        while len(self._ways) > 1:
            try:
                out = self._candidate(**given, **self._ways[0])
            except (TypeError, ValueError):
                self._ways = self._ways[1:]
            else:
                self._ways = self._ways[:1]
                return out
        return self._candidate(**given, **self._ways[0])

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


def _sampling_keywords(candidate: Callable[..., Any], sampling: dict[str, float]) -> list[dict[str, Any]]:
    """Return the keywords that carry the filters: ``sampling=`` where the candidate has it, else each by its name.

    A candidate that takes any keyword is given both, and only one of the two where it refuses that.
    """
    if not sampling:
        return [{}]
    whole, names = {"sampling": dict(sampling)}, dict(sampling)
    try:
        parameters = inspect.signature(candidate).parameters
    except (TypeError, ValueError):
        return [whole, names]
    if "sampling" in parameters:
        return [whole]
    if all(name in parameters for name in sampling):
        return [names]
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        return [{**whole, **names}, names, whole]
    raise ContractError(
        f"accept.decoder: sampling={sampling!r} is declared, but the candidate takes neither `sampling` nor "
        f"{', '.join(sampling)}; add a keyword argument `sampling`."
    )


def _report(given: Mapping[Any, Any], what: str) -> Report:
    accepted = given.get("accepted", [])
    calls = _whole(given.get("target_calls"))
    if calls is None:
        raise FormError(f"{what}: report['target_calls'] is {given.get('target_calls')!r}, not an int")
    items = accepted.tolist() if hasattr(accepted, "tolist") else accepted
    counts = [_whole(item) for item in items] if isinstance(items, (list, tuple)) else [None]
    if any(count is None or count < 0 for count in counts):
        raise FormError(f"{what}: report['accepted'] is {accepted!r}, not a list of counts")
    return Report(target_calls=calls, accepted=tuple(count for count in counts if count is not None))


def _whole(value: object) -> int | None:
    """Return an int of Python, NumPy or PyTorch as an int, anything else as None."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
