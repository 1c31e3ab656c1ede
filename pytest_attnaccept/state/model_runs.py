"""How a transformers model is run with caches, masks and explicit positions for the state checks, and how far logits may shift.

Positions
---------
1. The reference is always the model itself without a cache: one forward over the whole list, alone in its batch.
2. Positions are explicit in every call; a mask is passed only where something is padded or evicted.
3. The allowed shift is a share of the largest logit: a gap between the two best tokens above twice the shift cannot flip.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_attnaccept.checks.model_evidence import rounding_bound
from pytest_attnaccept.engines.calls import call_form
from pytest_attnaccept.errors import AttnAcceptError, CandidateError

__all__ = [
    "ORIGIN_SHIFT",
    "ModelRun",
    "Shift",
    "allowed_share",
    "copy_cache",
    "has_sliding",
    "position_limit",
    "rotary_limit",
    "text_config",
]

# Measured: 1e-4 at logits of 38 between one and several tokens per forward (float32, 30 layers); eight times that.
_SHARE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 8 * 2.0**-11, torch.bfloat16: 8 * 2.0**-8}
ORIGIN_SHIFT = "measured: 2.6e-6 of the largest logit between call patterns (float32), times 8"


def allowed_share(dtype: torch.dtype) -> float:
    """Return the allowed shift as a share of the largest logit."""
    return _SHARE.get(dtype, _SHARE[torch.bfloat16])


def text_config(model: Any) -> Any:
    """Return the configuration of the text decoder."""
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def has_sliding(model: Any) -> int | None:
    """Return the window of the model's sliding layers, or None when it has none."""
    config = text_config(model)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not isinstance(window, int) or getattr(config, "use_sliding_window", True) is False:
        return None
    if kinds is not None and not any("sliding" in str(kind) for kind in kinds):
        return None
    return window


def rotary_limit(model: Any) -> int | None:
    """Return the positions that are rotated by a fixed base, or None for a model without rotary positions."""
    config = text_config(model)
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if parameters is None and getattr(config, "rope_theta", None) is None:
        return None
    return int(getattr(config, "max_position_embeddings", 2048))


def position_limit(model: Any) -> int | None:
    """Return how many positions the model has a number for (learned ones end there), or None when it says nothing."""
    config = text_config(model)
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    found = [value for name in names if isinstance(value := getattr(config, name, None), int) and value > 0]
    return min(found, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The largest difference of two logit tensors, in units of what is allowed.

    Attributes
    ----------
    flips
        Positions whose best token differs.
    got
        The logits themselves where they are too far off; None otherwise.
    """

    name: str
    value: float
    where: str
    positions: int
    flips: int
    got: torch.Tensor | None = field(default=None, repr=False, compare=False)


def copy_cache(cache: Any) -> Any:
    """Return an independent copy of a cache (what swapping a request out and in does)."""
    return copy.deepcopy(cache)


class ModelRun:
    """One model with a way to make caches.

    Parameters
    ----------
    model
        A causal language model of transformers, in evaluation mode.
    make_cache
        Returns a fresh cache; None: ``DynamicCache`` of the model's configuration.
    """

    def __init__(self, model: Any, make_cache: Callable[[], Any] | None, device: str, seed: int) -> None:
        self.model, self.device = model, device
        self.form = call_form(model)
        self.vocab = int(text_config(model).vocab_size)
        self.dtype = next(iter(model.parameters())).dtype
        self._make_cache = make_cache
        self._generator = torch.Generator().manual_seed(seed)
        self._alone: dict[tuple[int, ...], torch.Tensor] = {}

    def cache(self) -> Any:
        """Return a fresh cache."""
        if self._make_cache is not None:
            return self._make_cache()
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def tokens(self, count: int) -> torch.Tensor:
        """Return random tokens ``(count,)``; every call continues the seeded stream."""
        return torch.randint(1, self.vocab, (count,), generator=self._generator)

    def forward(
        self,
        ids: torch.Tensor,
        *,
        cache: Any = None,
        start: int = 0,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits ``(batch, n, vocab)`` in float32 (float64 for such a model) on the CPU for ids ``(batch, n)``.

        Parameters
        ----------
        ids
            Tokens of this call.
        cache
            What came before; None: nothing, and nothing is kept.
        start
            Position of the first token; ignored when `positions` ``(batch, n)`` is given.
        positions
            Explicit positions.
        mask
            ``(batch, length)`` with zeros at padding, or a float mask ``(batch, 1, n, length)``.
        """
        arguments: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            arguments[self.form.cache] = cache
        if self.form.positions:
            given = (
                torch.arange(start, start + ids.shape[1]).expand(ids.shape[0], -1) if positions is None else positions
            )
            arguments["position_ids"] = given.to(self.device)
        if mask is not None:
            arguments["attention_mask"] = mask.to(self.device)
        try:
            with torch.no_grad():
                logits: torch.Tensor = self.model(ids.to(self.device), **arguments).logits
        except AttnAcceptError:
            raise
        except Exception as error:  # foreign code; reported with its cause
            raise CandidateError(
                f"the model raised on {ids.shape[1]} tokens from position {start}: {type(error).__name__}: {error}"
            ) from error
        return logits.detach().to("cpu", torch.float64 if self.dtype is torch.float64 else torch.float32)

    def alone(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the reference logits ``(n, vocab)``: one forward, no cache, batch of one."""
        key = tuple(tokens.tolist())
        if key not in self._alone:
            self._alone[key] = self.forward(tokens[None])[0]
        return self._alone[key]

    def references(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield every list ``(n,)`` that was a reference, with its logits ``(n, vocab)``; the longest one last."""
        for key in sorted(self._alone, key=len):
            yield torch.tensor(key), self._alone[key]

    def through(self, tokens: torch.Tensor, cache: Any, sizes: Sequence[int], start: int = 0) -> torch.Tensor:
        """Return logits ``(n, vocab)`` of a list fed to a cache in calls of the given sizes."""
        parts, done = [], 0
        for size in sizes:
            part = tokens[done : done + size]
            parts.append(self.forward(part[None], cache=cache, start=start + done)[0])
            done += size
        return torch.cat(parts)

    def shift(
        self, name: str, got: torch.Tensor, want: torch.Tensor, share: float | None = None, first: int = 0
    ) -> Shift:
        """Return the largest difference of logits ``(n, vocab)``; NaN counts as infinite.

        Parameters
        ----------
        name
            What was done, in words.
        got, want
            Logits to compare.
        share
            Allowed share of the largest reference logit; None: that of the model's dtype.
        first
            Position of the first row, for the report.
        """
        allowed = (allowed_share(self.dtype) if share is None else share) * float(want.abs().max()) + 1e-12
        return _shift(name, got, want, allowed, first)

    def against(self, other: ModelRun, name: str, got: torch.Tensor, want: torch.Tensor) -> Shift:
        """Return the largest difference of this model's logits from another one's: two right computations may differ by both
        their roundings.
        """
        coarser = max((self.dtype, other.dtype), key=allowed_share)
        return _shift(name, got, want, rounding_bound(want.to(coarser)), 0)


def _shift(name: str, got: torch.Tensor, want: torch.Tensor, allowed: float, first: int) -> Shift:
    rows = (got - want).abs().amax(-1).nan_to_num(nan=float("inf"))
    place = int(rows.argmax())
    flips = got.argmax(-1) != want.argmax(-1)
    where = f"{name}: position {first + place}, logits differ by {float(rows[place]):.3g} ({allowed:.3g} allowed)"
    value = float(rows[place]) / allowed
    return Shift(
        name=name,
        value=value,
        where=where,
        positions=len(rows),
        flips=int(flips.sum()),
        got=None if value <= 1.0 else got,
    )
