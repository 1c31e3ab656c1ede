"""`Candidate`: a transformers model together with what was changed around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

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
    """

    model: Any = None
    cache: Callable[[], Any] | None = None
    context: Callable[..., AbstractContextManager[Any]] | None = None
    attn_implementation: str | None = None
    generate_kwargs: Mapping[str, Any] | None = None
    tokenizer: Any = None
    kv_footprint: Callable[[Any], Sequence[tuple[int, int]]] | None = None
