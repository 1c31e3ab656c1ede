"""Runs of a candidate that draws random numbers are comparable: each gets the same ones, and nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["same_draws"]


@contextmanager
def same_draws(seed: int | None = None) -> Iterator[None]:
    """Begin the global generators anew and give them back as they were, on every device in use.

    Parameters
    ----------
    seed
        None: the one that the generators began with, so that a run cannot be told from another by its seed.
    """
    running = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if running else ()
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(torch.initial_seed() if seed is None else seed)
        yield
