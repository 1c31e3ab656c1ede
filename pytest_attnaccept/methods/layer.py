"""The cache of a stack: one transformers cache layer with an eviction policy and a storage codec.

The layer is a `DynamicLayer`, so masks and models treat it as one. `get_seq_length` is the number of *stored* entries
(masks are built from it in every supported version), so positions must be given explicitly, as the engine does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.methods.attention import announce
from pytest_attnaccept.methods.codec import Codec
from pytest_attnaccept.methods.eviction import LayerView, Policy
from pytest_attnaccept.methods.rotation import Move
from pytest_attnaccept.methods.store import Store

__all__ = ["PolicyLayer", "policy_cache"]


class PolicyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """One layer: what the policy keeps, as the codec stores it."""

    is_croppable = False

    def __init__(
        self,
        *,
        policy: Policy | None,
        codec: Codec | None,
        layer_idx: int,
        seed: int,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        self.policy, self.codec, self.layer_idx, self.seed = policy, codec, layer_idx, seed
        self.rank, self.layers = place
        self.seen = 0
        self.streams: tuple[int, ...] = ()
        self.scores: Tensor | None = None
        self.awaits_scores = False
        self.moved: Tensor | None = None  # int32, (entries,): how many positions were evicted behind each entry
        self.key_store = Store(codec=codec, across_tokens=codec is not None and codec.axis == "channel")
        self.value_store = Store(codec=codec)

    @property
    def window(self) -> int | None:
        """Most recent keys that a query may see inside one call."""
        return None if self.policy is None else self.policy.window

    @property
    def wants_scores(self) -> bool:
        """Whether attention has to report column sums."""
        return self.policy is not None and self.policy.needs_scores

    @property
    def observes(self) -> int | None:
        """How many of the last queries vote; None: all."""
        return getattr(self.policy, "observes", None)

    @property
    def ragged(self) -> bool:
        """Whether other layers may hold another number of entries."""
        return bool(getattr(self.policy, "ragged", False))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Remember the device; tensors are made by the stores."""
        self.device, self.dtype = key_states.device, key_states.dtype
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new states (batch, heads, n, dim) and return what attention reads: the stored values.

        What is evicted is still visible to the queries of this call, which computed it; it is gone for the next one.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.awaits_scores:
            raise EngineError(
                f"layer {self.layer_idx}: the attention function that reports column sums did not run; the candidate's"
                " attn_implementation must be the one that the stack chose"
            )
        if not self.streams:
            # Random choices differ from text to text, and are the same in every batch that the text is part of.
            sums = key_states.double().sum(dim=(1, 2, 3)) * 8
            self.streams = tuple(int(total) for total in sums.nan_to_num().round().tolist())
        self.key_store.append(key_states)
        self.value_store.append(value_states)
        self.seen += int(key_states.shape[2])
        keys, values = self._read(int(key_states.shape[2]))
        if self.wants_scores or self.window is not None:
            announce(self)
        self.awaits_scores = self.wants_scores
        if not self.awaits_scores:
            self._evict(keys)
        return keys, values

    def _read(self, new: int) -> tuple[Tensor, Tensor]:
        """Return what is stored, the last `new` entries of it just added, at the positions that the policy wants."""
        keys, values = self.key_store.read(), self.value_store.read()
        move: Move | None = getattr(self.policy, "move", None)
        if move is None:
            return keys, values
        fresh = torch.zeros(new, dtype=torch.int32, device=self.device)
        self.moved = fresh if self.moved is None else torch.cat([self.moved, fresh])
        by = self.moved[self.moved > 0]  # the oldest entries: behind a younger one no more was evicted than behind it
        return (keys, values) if by.numel() == 0 else move(keys, values, by)

    def observe(self, sums: Tensor, queries: int) -> None:
        """Add column sums (batch, q_heads, keys) of `queries` tokens to the scores per stored head, then evict."""
        batch, heads, keys = sums.shape
        stored = self._heads()
        grouped = sums.reshape(batch, stored, heads // stored, keys).sum(dim=2)
        if self.scores is not None:
            remembered = 1.0 if self.observes is None else max(0.0, 1.0 - queries / self.observes)
            grouped[..., : self.scores.shape[-1]] += remembered * self.scores
        self.scores = grouped
        self.awaits_scores = False
        self._evict(None)

    def _heads(self) -> int:
        store = self.key_store
        tensor = store.tail if store.tail is not None else store.coded.codes if store.coded is not None else None
        if tensor is None:
            raise ContractError("an empty cache layer was read")
        return int(tensor.shape[1])

    def _evict(self, keys: Tensor | None) -> None:
        if self.policy is None:
            return
        batch = int(keys.shape[0]) if keys is not None else int(self.scores.shape[0]) if self.scores is not None else 1
        view = LayerView(
            stored=self.key_store.tokens, seen=self.seen, layer_idx=self.layer_idx, seed=self.seed, batch=batch,
            heads=self._heads(), device=self.device, scores=self.scores, streams=self.streams,
            rank=self.rank, layers=self.layers,
        )  # fmt: skip
        keep = self.policy.keep(view)
        if keep is None:
            return
        if self.moved is not None:
            gone = torch.ones_like(self.moved).index_fill(0, keep, 0)
            behind = gone.flip(0).cumsum(0, dtype=torch.int32).flip(0)
            self.moved = (self.moved + behind)[keep]
        self.key_store.gather(keep)
        self.value_store.gather(keep)
        if self.scores is not None:
            index = keep if keep.dim() == 3 else keep.expand(*self.scores.shape[:2], keep.shape[0])
            self.scores = self.scores.gather(2, index)

    def stored_entries(self) -> int:
        """Return the entries in the layer, counted from its tensors (the larger of keys and values)."""
        return max(self.key_store.tokens, self.value_store.tokens)

    def get_seq_length(self, *args: Any) -> int:
        """Return the number of stored entries."""
        return self.key_store.tokens

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return (keys that attention will read, offset); older transformers pass positions instead of a length."""
        length = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        return self.key_store.tokens + length, 0

    def crop(self, *args: Any) -> None:
        """Refuse: evicted or coded entries cannot be rolled back."""
        raise EngineError("a compressed cache cannot be rolled back (crop); copy it before the call instead")

    def reset(self) -> None:
        """Forget everything."""
        place = (self.rank, self.layers)
        self.__init__(  # type: ignore[misc]
            policy=self.policy, codec=self.codec, layer_idx=self.layer_idx, seed=self.seed, place=place
        )


def policy_cache(model: Any, *, policy: Policy | None, codec: Codec | None, seed: int) -> DynamicCache:
    """Return a fresh cache for `model` whose full-attention layers follow `policy` and `codec`.

    Layers of other types (native sliding windows, recurrent states) stay as the model has them.

    Raises
    ------
    EngineError
        When the model has no full-attention layer with a K/V cache: then the method cannot act.
    """
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    if not cache.layers:  # a configuration without layer types: plain full attention
        cache.layers.extend(DynamicLayer() for _ in range(config.num_hidden_layers))
        cache.layer_class_to_replicate = None
    full = [idx for idx, layer in enumerate(cache.layers) if type(layer) is DynamicLayer]
    for rank, idx in enumerate(full):
        cache.layers[idx] = PolicyLayer(policy=policy, codec=codec, layer_idx=idx, seed=seed, place=(rank, len(full)))
    if not full:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in cache.layers})) or "none"
        raise EngineError(
            f"{type(model).__name__} has no full-attention K/V layer for this method to act on (layers: {kinds})"
        )
    return cache
