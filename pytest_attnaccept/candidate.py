"""`Candidate`: a transformers model together with what was changed around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.errors import ContractError

__all__ = ["Candidate"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One side of a comparison.

    Parameters
    ----------
    model
        A transformers causal language model, a SPEC string, or None for "the baseline's model".
    cache
        Makes a fresh ``transformers`` Cache for every context; None: the model's default (DynamicCache).
    context
        Called with the model, or without argument, gives a context manager around model calls (the kvpress convention:
        ``lambda model: press(model)``).
    attn_implementation
        Name of a registered attention function; set while the candidate runs and restored after it.
    generate_kwargs
        Passed to generation.
    tokenizer
        Tokenizer of this side; None: by name_or_path, else the baseline's.
    kv_footprint
        ``kv_footprint(cache) -> list of (entries, bytes)`` per layer for caches whose storage cannot be read from tensors.
    prefill_context
        As `context`, but around the calls that fill a cache, and left before anything is asked: for what compresses when
        it is left (KVzip and its kin).
    """

    model: Any = None
    cache: Callable[[], Any] | None = None
    context: Callable[..., AbstractContextManager[Any]] | None = None
    attn_implementation: str | None = None
    generate_kwargs: Mapping[str, Any] | None = None
    tokenizer: Any = None
    kv_footprint: Callable[[Any], Sequence[tuple[int, int]]] | None = None
    prefill_context: Callable[..., AbstractContextManager[Any]] | None = None

    def __post_init__(self) -> None:
        """Find the usual mistakes where they are made, not in the first call of the model."""
        for name in ("cache", "context", "kv_footprint", "prefill_context"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                kind = type(value).__name__
                fix = {
                    "cache": f"give a factory, so that every context gets a fresh cache: cache=lambda: {kind}(...)",
                    "context": f"give a callable that makes it: context=lambda model: {kind}(...)",
                    "prefill_context": f"give a callable that makes it: prefill_context=lambda model: {kind}(...)",
                    "kv_footprint": "give a function kv_footprint(cache) -> [(entries, bytes), ...], one pair per layer",
                }[name]
                raise ContractError(f"Candidate({name}=...) is a {kind} object; {fix}")
        if self.generate_kwargs is not None and not isinstance(self.generate_kwargs, Mapping):
            raise ContractError(
                f"Candidate(generate_kwargs=...) is a {type(self.generate_kwargs).__name__}; give a mapping of keywords"
            )
        if self.attn_implementation is not None and not isinstance(self.attn_implementation, str):
            raise ContractError(
                "Candidate(attn_implementation=...) must be a name; register the function first:"
                " transformers.AttentionInterface.register(NAME, function)"
            )
