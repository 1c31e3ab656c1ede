"""Whether sampled tokens follow the target, jointly and at every early position: the tests, their levels, what they look like.

The level of one check is 1e-6; it is divided among all tests of the check (Bonferroni), so a correct decoder fails it
with at most that probability over the choice of the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.state.decoder_contract import DecoderPlan
from pytest_attnaccept.state.decoder_reference import Cells, Rank, TargetModel, Tokens
from pytest_attnaccept.state.multinomial import LEAST_EXPECTED, detectable_distance, pearson_p, pool, worst_cell

__all__ = [
    "ALPHA",
    "Evidence",
    "Setting",
    "compare",
    "excluded",
    "gates",
    "looks_like",
    "pairs_p",
    "tails",
    "uniform_p",
]

ALPHA = 1e-6
_RANK_BINS = 20
_PAIR_BINS = 6
_TAILS = (0.05, 0.01, 0.001)
# An explanation is named when the draws do not contradict it at this level.
_PLAUSIBLE = 1e-3
Floats = NDArray[np.float64]


class Setting(NamedTuple):
    """One prompt at one temperature with the declared filters."""

    prompt: Tokens
    temperature: float
    sampling: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One test: its p-value and where it points.

    Attributes
    ----------
    seems
        What a failure of this test alone looks like.
    """

    name: str
    p: float
    n: int
    where: str
    seems: str = ""


def compare(target: TargetModel, setting: Setting, draws: list[Tokens], plan: DecoderPlan, seed: int) -> list[Evidence]:
    """Return all tests of one setting."""
    cells = target.cells(setting.prompt, plan.depth, setting.temperature, setting.sampling, LEAST_EXPECTED / len(draws))
    return [*_joint(cells, setting, draws), *_positions(target, setting, draws[: plan.paths], seed)]


def _joint(cells: Cells, setting: Setting, draws: list[Tokens]) -> Iterator[Evidence]:
    counts = cells.count(draws)
    pooled = pool(counts, cells.probabilities)
    at = f"temperature {setting.temperature:g}"
    yield Evidence(
        name=f"joint distribution of the first tokens, {at}",
        p=pearson_p(*pooled),
        n=len(draws),
        where=f"{at}, {len(pooled[0])} cells of {len(draws)} continuations",
    )
    p, place = worst_cell(counts, cells.probabilities)
    prefix = list(cells.prefixes[place]) if place < len(cells.prefixes) else "all other prefixes"
    share = counts[place] / len(draws)
    yield Evidence(
        name=f"share of one prefix, {at}",
        p=p,
        n=len(draws),
        where=f"{at}, prefix {prefix}: {share:.4f} of the continuations, target {cells.probabilities[place]:.4f}",
    )


def _positions(target: TargetModel, setting: Setting, draws: list[Tokens], seed: int) -> Iterator[Evidence]:
    noise = np.random.default_rng([seed, 11]).random((len(draws), max(map(len, draws))))
    rows: list[list[Rank]] = []
    impossible: list[tuple[int, Tokens]] = []
    for number, draw in enumerate(draws):
        ranks, stop = target.ranks(setting.prompt, draw, setting.temperature, setting.sampling, noise[number])
        rows.append(ranks)
        if stop is not None:
            impossible.append((stop, draw))
    at = f"temperature {setting.temperature:g}"
    yield Evidence(
        name=f"tokens that the target excludes, {at}",
        p=0.0 if impossible else 1.0,
        n=len(draws),
        where=excluded(impossible, len(draws), at),
    )
    yield from tails(np.array([rank.likelier for row in rows for rank in row]), at)
    for kind, order in enumerate(("probability", "token number")):
        for place in range(noise.shape[1]):
            column = np.array([row[place][kind] for row in rows if len(row) > place])
            name = f"ranks by {order} at position {place}, {at}"
            yield Evidence(name=name, p=uniform_p(column), n=len(column), where=f"{at}, new token {place} ({order})")
        pairs = np.array([row[place][kind] for row in rows for place in range(len(row) // 2 * 2)]).reshape(-1, 2)
        name = f"consecutive ranks by {order}, {at}"
        yield Evidence(name=name, p=pairs_p(pairs), n=len(pairs), where=f"{at}, pairs of new tokens ({order})")


def tails(ranks: Floats, at: str) -> Iterator[Evidence]:
    """Yield exact binomial tests of how often unlikely tokens come, over all positions."""
    for tail in _TAILS:
        seen = int((ranks > 1 - tail).sum())
        p = min(
            1.0, 2 * float(min(stats.binom.sf(seen - 1, len(ranks), tail), stats.binom.cdf(seen, len(ranks), tail)))
        )
        where = f"{at}, tokens in the last {tail:g} of the probability: {seen} of {len(ranks)}, expected {tail * len(ranks):.0f}"
        yield Evidence(name=f"tokens in the last {tail:g} of the probability, {at}", p=p, n=len(ranks), where=where)


def excluded(impossible: list[tuple[int, Tokens]], total: int, at: str) -> str:
    """Return where the first continuation with an impossible token is, in words."""
    if not impossible:
        return at
    place, draw = impossible[0]
    return f"{at}, {len(impossible)} of {total} continuations, first: token {draw[place]} after {list(draw[:place])}"


def uniform_p(ranks: Floats) -> float:
    """Return the p-value of Pearson's test that ranks ``(n,)`` are uniform; 1.0 for too few."""
    bins = min(_RANK_BINS, int(len(ranks) / LEAST_EXPECTED))
    if bins < 2:
        return 1.0
    counts = np.bincount(np.minimum((ranks * bins).astype(int), bins - 1), minlength=bins).astype(float)
    return pearson_p(counts, np.full(bins, 1 / bins))


def pairs_p(pairs: Floats) -> float:
    """Return the p-value of Pearson's test that pairs of ranks ``(n, 2)`` are uniform; 1.0 for too few."""
    bins = min(_PAIR_BINS, int(math.sqrt(len(pairs) / LEAST_EXPECTED)))
    if bins < 2:
        return 1.0
    places = np.minimum((pairs * bins).astype(int), bins - 1)
    counts = np.bincount(places[:, 0] * bins + places[:, 1], minlength=bins * bins).astype(float)
    return pearson_p(counts, np.full(bins * bins, 1 / (bins * bins)))


def gates(evidence: list[Evidence], seems: str) -> tuple[Threshold, ...]:
    """Return one threshold per test: ``-log10 p`` against ``-log10`` of its share of the level."""
    limit = -math.log10(ALPHA / len(evidence))
    origin = f"derived: level {ALPHA:g} for the whole check over {len(evidence)} tests"
    return tuple(
        Threshold(
            name=item.name,
            value=min(300.0, -math.log10(item.p)) if item.p > 0 else 300.0,
            limit=limit,
            unit="-log10 p",
            n=item.n,
            where=item.where,
            origin=origin,
            seems=(seems or item.seems) if item.p <= ALPHA / len(evidence) else "",
        )
        for item in evidence
    )


def looks_like(target: TargetModel, setting: Setting, draws: list[Tokens], depth: int) -> str:
    """Return which wrong rule the draws agree with, or that none of the usual ones explains them."""
    named = dict(setting.sampling)
    stories: list[tuple[str, float, Mapping[str, float]]] = []
    if named:
        stories.append(("the sampling filters are ignored", setting.temperature, {}))
        for name in named if len(named) > 1 else ():
            others = {key: value for key, value in named.items() if key != name}
            stories.append((f"{name} is ignored", setting.temperature, others))
    for factor, words in ((setting.temperature, "ignored"), (1 / setting.temperature, "applied twice")):
        if factor != 1.0:
            stories.append((f"the temperature is {words}", setting.temperature * (1 / factor), setting.sampling))
    stories += [
        ("greedy decoding", 1e-4, {}),
        ("a temperature of 0.9 times the declared one", 0.9 * setting.temperature, setting.sampling),
        ("a temperature of 1.1 times the declared one", 1.1 * setting.temperature, setting.sampling),
    ]
    for words, temperature, sampling in stories:
        cells = target.cells(setting.prompt, depth, temperature, sampling, LEAST_EXPECTED / len(draws))
        counts = cells.count(draws)
        if counts[-1] > 0 and cells.probabilities[-1] * len(draws) < 1e-9:
            continue
        if pearson_p(*pool(counts, cells.probabilities)) > _PLAUSIBLE:
            return f"it looks like {words}"
    return ""


def resolution(draws: int, cells: int, tests: int) -> str:
    """Return the known limit of the joint test in words."""
    distance = detectable_distance(draws, cells, ALPHA / max(1, tests))
    return (
        f"a total-variation distance of {distance:.3f} over {cells} cells is found with probability 0.9 ({draws} draws)"
    )
