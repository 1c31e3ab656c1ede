"""What a decoder's tokens must be distributed like: filtered next-token probabilities, cells of prefixes, uniform ranks.

Positions
---------
1. Cells are prefixes chosen from the target alone (most probable first), so their probabilities are exact and the counts
   multinomial; above 64 tokens a node's children are its 63 most probable tokens and the rest.
2. Every position is compared through its randomised rank: with tokens ordered by probability, ``F(before) + v p`` is
   uniform and independent of all earlier positions if, and only if, the token follows the target there.
3. Filters are applied after the temperature in the order top_k, top_p, min_p (transformers' order).
4. A token at the very edge of a filter is neither right nor wrong: float32 and float64 may cut there differently.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.state.decoder_contract import Target

__all__ = ["BENDS", "Cells", "Rank", "TargetModel", "tie_tolerance"]

_MAX_CHILDREN = 63
_MAX_NODES = 400
# Logits that are remembered in all: 2^22 of them are 32 MB as float64, and enough for every context at small vocabularies.
_MEMORY = 2**22
# Temperatures of 0.67 to 1.43 times the declared one: colder and hotter ones are seen through their neighbours.
BENDS = (-0.5, -0.15, 0.1, 0.3)
# How far a filter's edge may move between float32 and float64 (sums of up to 1e5 probabilities).
_EDGE = 1e-4
Floats = NDArray[np.float64]
Tokens = tuple[int, ...]


def tie_tolerance(logits: torch.Tensor) -> float:
    """Return how far a correct decoder's logits may lie from these.

    One forward over several tokens and one over a single token differ by 1e-4 where logits reach 38 (measured, float32
    on CPU); three times that, relative to the largest logit. 16-bit logits: four units in the last place.
    """
    unit = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(logits.dtype)
    relative = 8e-6 if unit is None else 4 * unit
    return relative * float(logits.abs().max()) + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Disjoint prefixes with their probabilities; the last cell is everything else.

    Attributes
    ----------
    prefixes
        Token prefixes, none a beginning of another.
    probabilities
        ``(cells,)``, exact under the target; sums to 1.
    """

    prefixes: tuple[Tokens, ...]
    probabilities: Floats

    def count(self, draws: list[Tokens]) -> Floats:
        """Return how many draws fall into each cell."""
        place = {prefix: number for number, prefix in enumerate(self.prefixes)}
        longest = max((len(prefix) for prefix in self.prefixes), default=0)
        counts = np.zeros(len(self.probabilities))
        for draw in draws:
            cuts = (place.get(draw[:cut]) for cut in range(1, min(longest, len(draw)) + 1))
            counts[next((number for number in cuts if number is not None), len(self.prefixes))] += 1
        return counts


class Rank(NamedTuple):
    """Two uniform ranks of one token, by probability and by number: each sees shifts that the other averages out.

    Attributes
    ----------
    bets
        ``log q(token) / p(token)`` for the target p at other temperatures: ``q ~ p ** (1 - bend)``, one per `BENDS`. The
        exponential of a sum of one bend's bets has mean 1 under the target, so its inverse is a p-value (Markov).
    doubt
        Probability of any other than the likeliest token: what a decoder that has turned greedy would miss.
    """

    likelier: float
    lower: float
    bets: tuple[float, ...]
    doubt: float


Value = TypeVar("Value")
Key = TypeVar("Key")


class _Memo(Generic[Key, Value]):
    """The values of the last `most` keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return what is known for `key`, or make it."""
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            self._kept[key] = make()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return self._kept[key]


class TargetModel:
    """The target as next-token distributions; remembers the contexts it was last asked for.

    Parameters
    ----------
    target
        ``target(tokens) -> logits (vocab,)``, tokens a 1-D LongTensor of prompt and continuation.
    vocab_size
        Expected length of the logits.
    end
        Token behind which nothing follows, or None.
    """

    def __init__(self, target: Target, vocab_size: int, device: str, end: int | None = None) -> None:
        self.end = end
        self.calls = 0
        self._target, self._vocab, self._device = target, vocab_size, device
        most = max(64, _MEMORY // vocab_size)
        self._logits: _Memo[Tokens, torch.Tensor] = _Memo(most)
        self._shares: _Memo[tuple[Tokens, float, tuple[tuple[str, float], ...]], Floats] = _Memo(most)

    def logits(self, tokens: Tokens) -> torch.Tensor:
        """Return the logits ``(vocab,)`` after a context, as the target gave them, on the CPU."""
        return self._logits.get(tokens, lambda: self._ask(tokens))

    def _ask(self, tokens: Tokens) -> torch.Tensor:
        self.calls += 1
        try:
            out = self._target(torch.tensor(tokens, dtype=torch.long, device=self._device))
        except Exception as error:  # the target is user code; it is reported with its cause
            raise CandidateError(f"target(tokens of {len(tokens)}) raised {type(error).__name__}: {error}") from error
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != (self._vocab,) or not out.is_floating_point():
            shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise ContractError(
                f"accept.decoder: target must return float logits of shape ({self._vocab},), got {shape}."
            )
        logits = out.detach().cpu()
        if bool(torch.isnan(logits).any()) or not bool(torch.isfinite(logits).any()):
            raise ContractError("accept.decoder: target returned NaN, or no finite logit.")
        return logits

    def probabilities(self, tokens: Tokens, temperature: float, sampling: Mapping[str, float]) -> Floats:
        """Return the next-token distribution ``(vocab,)`` in float64."""
        key = (tokens, temperature, tuple(sampling.items()))
        return self._shares.get(key, lambda: self._filtered(tokens, temperature, sampling))

    def _filtered(self, tokens: Tokens, temperature: float, sampling: Mapping[str, float]) -> Floats:
        scores = self.logits(tokens).to(torch.float64) / temperature
        if "top_k" in sampling:
            kth = scores.topk(min(int(sampling["top_k"]), self._vocab)).values[-1]
            scores = scores.masked_fill(scores < kth, -math.inf)
        if "top_p" in sampling:
            ordered, places = scores.sort(descending=True)
            before = ordered.softmax(0).cumsum(0) - ordered.softmax(0)
            scores = scores.masked_fill(_scatter(before >= sampling["top_p"], places), -math.inf)
        if "min_p" in sampling:
            shares = scores.softmax(0)
            scores = scores.masked_fill(shares < sampling["min_p"] * shares.max(), -math.inf)
        return np.asarray(scores.softmax(0).numpy(), dtype=np.float64)

    def cells(
        self, prompt: Tokens, depth: int, temperature: float, sampling: Mapping[str, float], least: float
    ) -> Cells:
        """Return prefixes of up to `depth` tokens: whatever is at least four times as probable as `least` is divided."""
        leaves: list[tuple[Tokens, float]] = []
        heap: list[tuple[float, Tokens]] = [(-1.0, ())]
        nodes = 0
        while heap:
            negative, prefix = heapq.heappop(heap)
            ended = bool(prefix) and prefix[-1] == self.end
            if -negative < 4 * least or len(prefix) == depth or ended or nodes == _MAX_NODES:
                if prefix:
                    leaves.append((prefix, -negative))
                continue
            nodes += 1
            for token, share in self._children(prompt + prefix, temperature, sampling):
                heapq.heappush(heap, (negative * share, (*prefix, token)))
        shares = [share for _, share in leaves]
        return Cells(
            prefixes=tuple(prefix for prefix, _ in leaves),
            probabilities=np.array([*shares, max(0.0, 1.0 - math.fsum(shares))]),
        )

    def _children(
        self, tokens: Tokens, temperature: float, sampling: Mapping[str, float]
    ) -> Iterator[tuple[int, float]]:
        shares = self.probabilities(tokens, temperature, sampling)
        most = _MAX_CHILDREN if self._vocab > _MAX_CHILDREN + 1 else self._vocab
        for token in np.argsort(-shares, kind="stable")[:most]:
            if shares[token] > 0:
                yield int(token), float(shares[token])

    def rank(
        self, context: Tokens, token: int, temperature: float, sampling: Mapping[str, float], noise: float
    ) -> Rank | None:
        """Return the ranks of `token` behind `context`, or None when the target excludes it.

        A token that lies at the edge of a filter gets ranks that are uniform by construction: it is not judged.
        """
        shares = self.probabilities(context, temperature, sampling)
        own = float(shares[token])
        if own == 0.0:
            loose = {name: _loosened(name, value) for name, value in sampling.items()}
            at_edge = bool(sampling) and self._filtered(context, temperature, loose)[token] > 0
            return Rank(noise, noise, (0.0,) * len(BENDS), 0.0) if at_edge else None
        below = np.arange(len(shares)) < token
        likelier = float(shares[(shares > own) | ((shares == own) & below)].sum())
        lower = float(shares[:token].sum())
        return Rank(likelier + noise * own, lower + noise * own, _bets(shares, own), 1 - float(shares.max()))

    def ranks(
        self, prompt: Tokens, draw: Tokens, temperature: float, sampling: Mapping[str, float], noise: Floats
    ) -> tuple[list[Rank], int | None]:
        """Return the ranks of every position, and the first position whose token is impossible (or None)."""
        ranks: list[Rank] = []
        for place, token in enumerate(draw):
            rank = self.rank(prompt + draw[:place], token, temperature, sampling, float(noise[place]))
            if rank is None:
                return ranks, place
            ranks.append(rank)
        return ranks, None


def _bets(shares: Floats, own: float) -> tuple[float, ...]:
    logs = np.log(shares[shares > 0])
    return tuple(-bend * math.log(own) - math.log(float(np.exp((1 - bend) * logs).sum())) for bend in BENDS)


def _loosened(name: str, value: float) -> float:
    return {"top_k": value, "top_p": min(1.0, value + _EDGE), "min_p": value * (1 - _EDGE)}[name]


def _scatter(mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(mask).scatter(0, places, mask)
