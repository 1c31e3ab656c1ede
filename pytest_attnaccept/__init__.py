"""pytest-attnaccept: the release gate for attention and inference optimizations.

Public names are resolved on first use, so that importing the package (which pytest does in every run where the plugin is
installed) loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_attnaccept.accept import Accept
    from pytest_attnaccept.candidate import Candidate
    from pytest_attnaccept.errors import (
        AcceptanceFailure,
        AttnAcceptError,
        CandidateError,
        ContractError,
        EngineError,
        UsageError,
    )
    from pytest_attnaccept.kernel.call import AttentionCall
    from pytest_attnaccept.registry import Registry
    from pytest_attnaccept.taxonomy import Kind, Knob, Layer, Method, Surface, Verdict

_WHERE = {
    "Accept": "accept",
    "AcceptanceFailure": "errors",
    "AttentionCall": "kernel.call",
    "AttnAcceptError": "errors",
    "Candidate": "candidate",
    "CandidateError": "errors",
    "ContractError": "errors",
    "EngineError": "errors",
    "Kind": "taxonomy",
    "Knob": "taxonomy",
    "Layer": "taxonomy",
    "Method": "taxonomy",
    "Registry": "registry",
    "Surface": "taxonomy",
    "UsageError": "errors",
    "Verdict": "taxonomy",
}

__all__ = [
    "Accept",
    "AcceptanceFailure",
    "AttentionCall",
    "AttnAcceptError",
    "Candidate",
    "CandidateError",
    "ContractError",
    "EngineError",
    "Kind",
    "Knob",
    "Layer",
    "Method",
    "Registry",
    "Surface",
    "UsageError",
    "Verdict",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the module that holds a public name when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
