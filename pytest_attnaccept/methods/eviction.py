"""Which entries of a layer an eviction keeps: policies as values, asked after every call of the model.

Positions
---------
1. A policy sees how many tokens the layer has seen and decides on what is stored *now*: what was dropped earlier cannot
   come back, so chunked prefill is a harder case than one-shot prefill, as in a real engine.
2. A policy is stateless; randomness comes from (seed, layer, tokens seen, text), so a copied cache continues identically.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pytest_attnaccept.methods.claims import budget_entries
from pytest_attnaccept.methods.rotation import Move

__all__ = ["HeavyHitters", "LayerView", "Policy", "RandomKeep", "SinksAndRecent", "Window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerView:
    """What a policy may look at.

    Attributes
    ----------
    stored
        Entries in the layer now, oldest first.
    seen
        Tokens that the layer has been given so far.
    scores
        Accumulated attention of each entry, shape (batch, kv_heads, stored), float32; None unless asked for.
    rank, layers
        Place of this layer among the layers that are edited, and their number.
    streams
        A number per row of the batch that depends on its text only.
    """

    stored: int
    seen: int
    layer_idx: int
    seed: int
    batch: int
    heads: int
    device: torch.device
    scores: Tensor | None = None
    rank: int = 0
    layers: int = 1
    streams: tuple[int, ...] = (0,)


class Policy(Protocol):
    """Chooses the entries to keep.

    Three attributes are optional: ``observes`` (scores are those of so many last queries; None: of all, accumulated),
    ``ragged`` (layers hold different numbers of entries) and ``move`` (entries take the positions that they have inside the
    cache; `keep` must then return indices of shape (n,)).
    """

    @property
    def needs_scores(self) -> bool:
        """Whether accumulated attention is needed (then the layer is edited after attention, not before)."""

    @property
    def window(self) -> int | None:
        """How many most recent keys a query may see, its own included; None: no limit inside a call."""

    def keep(self, view: LayerView) -> Tensor | None:
        """Return indices to keep, ascending, of shape (n,) or (batch, kv_heads, n); None keeps all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The most recent keys only; what the next query sees next to itself is stored: size - 1 entries."""

    size: int
    needs_scores: bool = False

    @property
    def window(self) -> int | None:
        """Inside a call a query is masked to the same window, so the result does not depend on the call pattern."""
        return self.size

    def keep(self, view: LayerView) -> Tensor | None:
        """Keep the last size - 1 entries."""
        kept = min(view.stored, self.size - 1)
        return None if kept == view.stored else torch.arange(view.stored - kept, view.stored, device=view.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksAndRecent:
    """The first `sinks` tokens and the most recent ones, together the budget."""

    budget: float | int
    sinks: int
    move: Move | None = None
    needs_scores: bool = False
    window: int | None = None

    def keep(self, view: LayerView) -> Tensor | None:
        """Keep sinks and the most recent entries."""
        count = budget_entries(self.budget, view.seen)
        if count >= view.stored:
            return None
        sinks = min(self.sinks, count - 1)
        recent = torch.arange(view.stored - (count - sinks), view.stored, device=view.device)
        return torch.cat([torch.arange(sinks, device=view.device), recent])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyHitters:
    """Half of the budget for the most recent entries, the rest for those that received most attention (H2O)."""

    budget: float | int
    sinks: int
    needs_scores: bool = True
    window: int | None = None

    def keep(self, view: LayerView) -> Tensor | None:
        """Keep recent entries, sinks and the entries with the largest scores, chosen per KV head."""
        count = budget_entries(self.budget, view.seen)
        if count >= view.stored or view.scores is None:
            return None
        recent = max(1, count // 2)
        older = view.scores[..., : view.stored - recent].clone()
        older[..., : min(self.sinks, count - recent)] = torch.inf
        heavy = older.topk(count - recent, dim=-1).indices.sort(dim=-1).values
        tail = torch.arange(view.stored - recent, view.stored, device=view.device)
        return torch.cat([heavy, tail.expand(view.batch, view.heads, recent)], dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomKeep:
    """Random entries next to the sinks and the newest one: the control that every eviction has to beat."""

    budget: float | int
    sinks: int
    needs_scores: bool = False
    window: int | None = None

    def keep(self, view: LayerView) -> Tensor | None:
        """Keep sinks, the newest entry and a uniform choice of the others, the same for all heads of a layer."""
        count = budget_entries(self.budget, view.seen)
        if count >= view.stored:
            return None
        sinks = min(self.sinks, count - 1)
        rows = [self._row(view, stream, count, sinks) for stream in view.streams]
        return torch.stack(rows)[:, None].expand(len(rows), view.heads, count).to(view.device)

    def _row(self, view: LayerView, stream: int, count: int, sinks: int) -> Tensor:
        mixed = ((view.seed * 4099 + view.layer_idx + 1) * 1_000_003 + view.seen) * 1_000_033 + stream
        generator = torch.Generator().manual_seed(mixed % 2**63)
        middle = torch.randperm(view.stored - sinks - 1, generator=generator)[: count - sinks - 1] + sinks
        return torch.cat([torch.arange(sinks), middle.sort().values, torch.tensor([view.stored - 1])])
