"""Whether sampled tokens still follow the target late in a continuation and behind other prompts, also long ones.

Positions
---------
1. The ranks of `decoder_reference` are uniform at any position behind any prefix, so tokens of different continuations and
   prompts go into one test; positions are chosen before anything is drawn.
2. Bands of positions double in width: a decoder that goes wrong at some point fills all bands behind it with wrong tokens.
3. Four neighbouring positions are compared together, so that reused random numbers show in pairs.
4. Ranks average over contexts; bets on a hotter or colder target do not, and are exact at any number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pytest_attnaccept.state.decoder_checks import Evidence, excluded, pairs_p, tails, uniform_p
from pytest_attnaccept.state.decoder_reference import Rank, Tokens
from pytest_attnaccept.state.decoder_run import DecoderRun
from pytest_attnaccept.state.multinomial import LEAST_EXPECTED, pearson_p, pool

__all__ = ["late_evidence"]

_BLOCK = 4
_END = 24
# Answers of one token, as a multiple of the middle ones: they cost one token each.
_SINGLES = 3
_LATE_BLOCKS = 16
# Where the target is this small it is also cheap: every position is compared.
_SMALL_VOCABULARY = 64
# At least so many continuations of every declared prompt.
_PER_PROMPT = 4
_SEEMS = "right for the first tokens behind a short prompt, wrong later or behind this prompt"


@dataclass(slots=True)
class _Late:
    """Ranks by group (band of positions, prompt, brief answers), and in pairs.

    Attributes
    ----------
    groups
        Ranks by what a group has in common, in words; a token is in as many groups as fit.
    furthest
        The last new token that was compared.
    """

    groups: dict[str, list[Rank]] = field(default_factory=dict)
    pairs: list[tuple[Rank, Rank]] = field(default_factory=list)
    all: list[Rank] = field(default_factory=list)
    impossible: list[tuple[int, Tokens]] = field(default_factory=list)
    ends: list[tuple[Tokens, Tokens]] = field(default_factory=list)
    draws: int = 0
    furthest: int = 0

    def evidence(self, at: str) -> Iterator[Evidence]:
        """Yield all tests; `at` names the temperature."""
        for kind, order in enumerate(("probability", "token number")):
            for name, ranks in self.groups.items():
                column = np.array([rank[kind] for rank in ranks])
                title, where = f"ranks by {order}, {name}, {at}", f"{at}, {name} ({order})"
                yield Evidence(name=title, p=uniform_p(column), n=len(column), where=where, seems=_SEEMS)
            both = np.array([(one[kind], two[kind]) for one, two in self.pairs]).reshape(-1, 2)
            name = f"later consecutive ranks by {order}, {at}"
            yield Evidence(name=name, p=pairs_p(both), n=len(both), where=f"{at}, pairs ({order})", seems=_SEEMS)
        for name, ranks in self.groups.items():
            where = f"{at}, {name} (surprise)"
            yield Evidence(name=f"surprise, {name}, {at}", p=_bet_p(ranks), n=len(ranks), where=where, seems=_SEEMS)
        yield from tails(np.array([rank.likelier for rank in self.all]), f"{at}, later tokens")
        yield Evidence(
            name=f"later tokens that the target excludes, {at}",
            p=0.0 if self.impossible else 1.0,
            n=self.draws,
            where=excluded(self.impossible, self.draws, at),
            seems=_SEEMS,
        )


def _bet_p(ranks: list[Rank]) -> float:
    """Return the p-value of the mean of all bets' wealth."""
    wealth = np.array([rank.bets for rank in ranks]).sum(0)
    return float(min(1.0, np.exp(-min(600.0, float(np.logaddexp.reduce(wealth) - math.log(len(wealth)))))))


class LateResult(NamedTuple):
    """All tests of one temperature, the last new token that was compared, and how many unlikely tokens the target expected."""

    evidence: list[Evidence]
    furthest: int
    doubt: float


def late_evidence(run: DecoderRun, temperature: float, first_seed: int) -> LateResult:
    """Test brief, middle and late continuations of all prompts at one temperature."""
    late = _Late()
    for number, asked in enumerate(_requests(run)):
        rng = np.random.default_rng([run.seed, 13, number])
        places = _places(asked.length, asked.blocks, rng)
        draw = run.call(asked.prompt, asked.length, temperature, first_seed + number).tokens
        if len(draw) == run.plan.late_depth and len(draw) > _END:
            late.ends.append((asked.prompt + draw[:-_END], draw[-_END:]))
        _judge(run, late, asked, draw, temperature, [place for place in places if place < len(draw)], rng)
    tests = [*late.evidence(f"temperature {temperature:g}"), _twins(run, late, temperature)]
    tests.append(_single(run, temperature, first_seed + 25_000))
    return LateResult(tests, late.furthest, sum(rank.doubt for rank in late.all))


class _Request(NamedTuple):
    """One continuation: `blocks` of four positions of it are compared; `name` is its group."""

    prompt: Tokens
    length: int
    blocks: int
    name: str


def _requests(run: DecoderRun) -> Iterator[_Request]:
    plan, prompts = run.plan, run.prompts.sampled(run.seed + 6)
    middle = max(plan.middle_draws, _PER_PROMPT * len(prompts))
    for number in range(middle):
        prompt = prompts[number % len(prompts)]
        count = run.prompts.room(prompt, plan.middle_depth)
        name = f"prompt {number % len(prompts)} ({len(prompt)} tokens)"
        yield _Request(prompt, count, max(1, count // (2 * _BLOCK)), name)
    # The longest continuations begin behind short prompts: what is late is then the candidate's own.
    short = sorted(prompts, key=len)[: max(1, len(prompts) // 2)]
    blocks = plan.late_depth if run.contract.vocab_size <= _SMALL_VOCABULARY else _LATE_BLOCKS
    for number in range(plan.late_draws):
        prompt = short[number % len(short)]
        yield _Request(prompt, run.prompts.room(prompt, plan.late_depth), blocks, "long continuations")
    for number in range(middle):
        prompt = prompts[number % len(prompts)]
        yield _Request(prompt, run.prompts.room(prompt, 2 + number % 2), 1, "answers of two or three tokens")


def _twins(run: DecoderRun, late: _Late, temperature: float) -> Evidence:
    """Test whether two seeds ended in the same tokens, which shared random numbers do, sooner or later.

    The probability that one end repeats another is the target's probability of it behind the one's own beginning.
    """
    worst, words, at = 1.0, "", f"temperature {temperature:g}"
    pairs = len(late.ends) * (len(late.ends) - 1) // 2
    for number, (begin, end) in enumerate(late.ends):
        if any(end == other for _, other in late.ends[:number]):
            shares = (
                float(run.target.probabilities(begin + end[:place], temperature, run.sampling)[token])
                for place, token in enumerate(end)
            )
            p = min(1.0, pairs * math.prod(shares))
            if p < worst:
                worst, words = p, f", e.g. {list(end[-8:])}"
    name = f"equal ends of different seeds, {at}"
    seems = "different seeds share their later random numbers"
    return Evidence(name=name, p=worst, n=max(1, pairs), where=f"{at}, the last {_END} new tokens{words}", seems=seems)


def _single(run: DecoderRun, temperature: float, first_seed: int) -> Evidence:
    """Test answers of one token jointly with their prompt: asked for so little, a decoder may not verify at all."""
    prompts, draws = run.prompts.sampled(run.seed + 6)[:2], _SINGLES * run.plan.middle_draws // 2
    worst, words, at = 1.0, "", f"temperature {temperature:g}"
    for number, prompt in enumerate(prompts):
        answers = [run.call(prompt, 1, temperature, first_seed + number * draws + draw).tokens for draw in range(draws)]
        cells = run.target.cells(prompt, 1, temperature, run.sampling, LEAST_EXPECTED / max(1, draws))
        p = min(1.0, len(prompts) * pearson_p(*pool(cells.count(answers), cells.probabilities)))
        if p <= worst:
            worst, words = p, f"prompt of {len(prompt)} tokens"
    return Evidence(
        name=f"answers of one token, {at}",
        p=worst,
        n=draws,
        where=f"{at}, max_new_tokens=1, {words}",
        seems="an answer of a single token is not verified",
    )


def _places(count: int, blocks: int, rng: np.random.Generator) -> list[int]:
    """Return the positions that are compared: blocks of neighbours, chosen without looking at the tokens."""
    starts = rng.permutation(-(-count // _BLOCK))[:blocks]
    return sorted(int(start) * _BLOCK + step for start in starts for step in range(_BLOCK))


def _judge(
    run: DecoderRun,
    late: _Late,
    asked: _Request,
    draw: Tokens,
    temperature: float,
    places: list[int],
    rng: np.random.Generator,
) -> None:
    late.draws += 1
    before: tuple[int, Rank] | None = None
    for place in places:
        rank = run.target.rank(asked.prompt + draw[:place], draw[place], temperature, run.sampling, float(rng.random()))
        if rank is None:
            late.impossible.append((place, draw))
            return
        late.all.append(rank)
        for name in (asked.name, _band(place)):
            late.groups.setdefault(name, []).append(rank)
        late.furthest = max(late.furthest, place + 1)
        if before is not None and before[0] == place - 1:
            late.pairs.append((before[1], rank))
            before = None
        else:
            before = (place, rank)


def _band(place: int) -> str:
    end = max(8, 1 << place.bit_length())
    return f"new tokens {0 if end == 8 else end // 2} to {end - 1}"
