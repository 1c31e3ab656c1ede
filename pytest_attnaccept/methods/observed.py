"""Evictions that ask recent queries which entries they use: SnapKV, PyramidKV and TOVA as policies.

Scores are attention weights of the last `observes` queries, summed. A call with fewer queries than that lets the older
scores fade in proportion (a call of n queries keeps 1 - n / observes of them): a window over calls at the price of one
number per entry, and exactly the paper's window where the prompt comes in one call.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from pytest_attnaccept.methods.claims import budget_entries
from pytest_attnaccept.methods.eviction import LayerView

__all__ = ["LastQuery", "ObservationWindow", "pyramid_entries"]


def pyramid_entries(budget: float | int, seen: int, layers: int, steepness: float, observation: int = 0) -> list[int]:
    """Return the entries of each layer: linear in depth, the mean is exactly ``budget_entries(budget, seen)``.

    Every layer keeps the window of `observation` entries (at most half of the mean). What the budget holds beyond it falls with
    depth: the deepest layer keeps a `steepness`-th of it (at least one entry) and the first one as much more, unless that is
    more than there are: then the slope is as large as possible.

    >>> pyramid_entries(0.25, 400, 4, 20.0, 32), pyramid_entries(0.75, 100, 3, 20.0, 32)
    ([165, 121, 79, 35], [100, 75, 50])
    """
    mean = budget_entries(budget, seen)
    window = window_entries(observation, mean)
    low = min(mean, window + max(1.0, (mean - window) / steepness))
    high = min(float(seen), 2 * mean - low)
    low = 2 * mean - high
    edges, total = [0], 0.0
    for layer in range(layers):
        at = layer / (layers - 1) if layers > 1 else 0.5
        total += high + (low - high) * at
        edges.append(math.floor(total + 0.5))
    return [after - before for before, after in itertools.pairwise(edges)]


def window_entries(observation: int, count: int) -> int:
    """Return how many recent entries are kept whatever their scores: the window, in a small budget half of it."""
    return min(observation, max(1, count // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationWindow:
    """The most recent entries and those that the last queries attend to, chosen per KV head (SnapKV).

    ``pool``: scores are averaged over so many neighbours first. ``steepness``: budgets fall with depth (PyramidKV); None:
    every layer has the same.
    """

    budget: float | int
    sinks: int
    observation: int = 32
    pool: int = 5
    steepness: float | None = None
    needs_scores: bool = True
    window: int | None = None

    @property
    def observes(self) -> int:
        """How many of the last queries are asked."""
        return self.observation

    @property
    def ragged(self) -> bool:
        """Whether layers hold different numbers of entries."""
        return self.steepness is not None

    def keep(self, view: LayerView) -> Tensor | None:
        """Keep the window, the sinks, and the entries with the largest pooled scores."""
        count = budget_entries(self.budget, view.seen)
        recent = window_entries(self.observation, count)
        if self.steepness is not None:
            count = pyramid_entries(self.budget, view.seen, view.layers, self.steepness, self.observation)[view.rank]
        if count >= view.stored or view.scores is None:
            return None
        older = view.scores[..., : view.stored - recent]
        pooled = avg_pool1d(older, self.pool, stride=1, padding=self.pool // 2)
        pooled[..., : min(self.sinks, count - recent)] = torch.inf
        best = pooled.topk(count - recent, dim=-1).indices.sort(dim=-1).values
        tail = torch.arange(view.stored - recent, view.stored, device=view.device)
        return torch.cat([best, tail.expand(view.batch, view.heads, recent)], dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastQuery:
    """The entries that the last query attends to most, averaged over the heads of a layer (TOVA)."""

    budget: float | int
    sinks: int
    needs_scores: bool = True
    window: int | None = None
    observes: int = 1
    ragged: bool = False

    def keep(self, view: LayerView) -> Tensor | None:
        """Keep the newest entry, the sinks, and the entries with the largest weights, the same for all heads."""
        count = budget_entries(self.budget, view.seen)
        if count >= view.stored or view.scores is None:
            return None
        mean = view.scores.mean(dim=1, keepdim=True)
        mean[..., -1] = torch.inf
        mean[..., : min(self.sinks, count - 1)] = torch.inf
        return mean.topk(count, dim=-1).indices.sort(dim=-1).values.expand(-1, view.heads, -1)
