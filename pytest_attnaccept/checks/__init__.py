"""Checks measure; each returns one `Measured` and decides nothing.

Model-level checks run inside a `ModelSession`, opened with `open_session` (loaded lazily: it imports torch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession, open_session

__all__ = ["ModelSession", "open_session"]


def __getattr__(name: str) -> Any:
    """Load the session's module on first use."""
    if name in __all__:
        from pytest_attnaccept.checks import model_session

        return getattr(model_session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
