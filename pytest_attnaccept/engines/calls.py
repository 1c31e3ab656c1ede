"""How a transformers model is called in every supported version: cache keyword, explicit positions, finite logits.

Positions
---------
1. ``position_ids`` are always explicit: after an eviction the model would count from the shortened length.
2. ``cache_position`` is never passed to attention models: in transformers 5.2 it builds a mask through which tokens see
   the future. Recurrent classes of that version (``cache_params``) have no mask and cannot continue without it.
3. A logit that is not finite ends the item: no average can hide it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_attnaccept.errors import AttnAcceptError, CandidateError, EngineError

__all__ = ["CallForm", "NonFiniteError", "Padding", "call", "call_form"]

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")  # newest first: old names warn where both exist


class NonFiniteError(AttnAcceptError):
    """A model returned NaN or infinite logits; says which side and which position."""

    def __init__(self, message: str, *, side: str = "candidate") -> None:
        super().__init__(message)
        self.side = side


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """Keywords that a model class understands."""

    cache: str
    positions: bool
    keep_logits: bool
    counts: bool
    mask: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """What a padded batch tells the model.

    ``mask`` (batch, all tokens so far) is 1 where a token is real, ``positions`` (batch, tokens of this call) count real
    tokens only.
    """

    mask: Tensor
    positions: Tensor


def call_form(model: Any) -> CallForm:
    """Return the keywords of ``model.forward``.

    Raises
    ------
    EngineError
        When no known cache keyword is there: the state would be lost without an error.
    """
    names = inspect.signature(model.forward).parameters
    cache = next((name for name in _CACHE_NAMES if name in names), None)
    if cache is None and any(p.kind is p.VAR_KEYWORD for p in names.values()):
        # A wrapped forward (a hook with *args, **kwargs): ask the class instead.
        names = inspect.signature(type(model).forward).parameters
        cache = next((name for name in _CACHE_NAMES if name in names), None)
    if cache is None:
        raise EngineError(
            f"{type(model).__name__}.forward takes none of {', '.join(_CACHE_NAMES)}: it cannot be measured through its"
            " cache"
        )
    return CallForm(
        cache=cache,
        positions="position_ids" in names,
        keep_logits="logits_to_keep" in names,
        counts=cache == "cache_params" and "cache_position" in names,
        mask="attention_mask" in names,
    )


def call(
    model: Any,
    form: CallForm,
    ids: Tensor,
    cache: Any,
    start: int,
    *,
    last_only: bool = False,
    side: str = "candidate",
    padding: Padding | None = None,
) -> tuple[Tensor, Any]:
    """Run `ids` (batch, n) from position `start` on top of `cache` (None: a fresh one of the model).

    Returns
    -------
    tuple
        Logits (batch, n, vocab), or (batch, 1, vocab) with `last_only`, and the cache.
    """
    arguments: dict[str, Any] = {"use_cache": True}
    if cache is not None:
        arguments[form.cache] = cache
    if form.positions:
        arguments["position_ids"] = torch.arange(start, start + ids.shape[1], device=ids.device).expand(
            ids.shape[0], -1
        )
    if padding is not None:
        arguments.update(_padded(model, form, padding, side))
    if form.counts:
        arguments["cache_position"] = torch.arange(start, start + ids.shape[1], device=ids.device)
    if last_only and form.keep_logits:
        arguments["logits_to_keep"] = 1
    try:
        with torch.no_grad():
            # Its own tensor: a view would show the tokens behind it, and what a model writes into it would change them.
            output = model(ids.clone(), **arguments)
    except AttnAcceptError:
        raise
    except Exception as error:
        # The boundary to foreign code: whatever it raises is the candidate's (or the baseline's) own failure.
        wrapped = CandidateError if side == "candidate" else EngineError
        raise wrapped(f"the {side} raised at position {start}: {type(error).__name__}: {error}") from error
    logits = output.logits
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[0] != ids.shape[0]:
        raise _wrong_shape(logits, ids, side)
    if logits.shape[1] != ids.shape[1] and not (last_only and logits.shape[1] == 1):
        raise _wrong_shape(logits, ids, side)
    logits = logits[:, -1:] if last_only else logits
    _require_finite(logits, start + ids.shape[1] - logits.shape[1], side)
    return logits, _returned_cache(output, form, cache)


def _wrong_shape(logits: Any, ids: Tensor, side: str) -> AttnAcceptError:
    wrapped = CandidateError if side == "candidate" else EngineError
    return wrapped(
        f"the {side} returned logits of shape {tuple(getattr(logits, 'shape', ()))} for ids {tuple(ids.shape)}"
    )


def _padded(model: Any, form: CallForm, padding: Padding, side: str) -> dict[str, Tensor]:
    if not (form.mask and form.positions):
        wrapped = CandidateError if side == "candidate" else EngineError
        raise wrapped(
            f"{type(model).__name__} takes no attention_mask or no position_ids: it cannot be told of padding"
        )
    return {"attention_mask": padding.mask.clone(), "position_ids": padding.positions.clone()}


def _require_finite(logits: Tensor, first: int, side: str) -> None:
    bad = ~torch.isfinite(logits).all(dim=-1)
    if bool(bad.any()):
        position = first + int(bad.any(dim=0).nonzero()[0])
        kind = "NaN" if bool(torch.isnan(logits).any()) else "infinite"
        raise NonFiniteError(
            f"{kind} logits of the {side} at position {position} ({int(bad.sum())} of {bad.numel()} in this call)",
            side=side,
        )


def _returned_cache(output: Any, form: CallForm, given: Any) -> Any:
    for name in (form.cache, *_CACHE_NAMES):
        if name in output.keys():  # noqa: SIM118 - ModelOutput
            found = output[name]
            if found is not None:
                return found
    if given is not None:
        return given
    raise EngineError("the model returned no cache: its continuation cannot be measured through the cache")
