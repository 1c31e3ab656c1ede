"""Command-line options and ini settings -> one frozen value, with the precedence option > ini > default.

Every option value is plain text or a flag, because xdist sends options to its workers as plain data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_attnaccept.errors import UsageError

__all__ = ["Options", "parse_duration", "read_options"]

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?$")
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What this run was asked for.

    Attributes
    ----------
    explicit
        Whether a profile was chosen by option or ini: then the run is a gate and fails closed.
    profile
        Name or file; "smoke" when nothing was chosen.
    root
        Root folder of the project; relative paths in plans are taken from here.
    time_s
        Time budget in seconds, or None.
    """

    profile: str
    explicit: bool
    model: str | None
    device: str
    dtype: str | None
    seed: int
    out: Path
    plan_only: bool
    time_s: float | None
    selftest: bool
    resume: bool
    html: str | None
    root: Path = Path()

    def resolve_device(self) -> str:
        """Return the device to measure on; "auto" is cuda where there is one (this imports torch)."""
        if self.device != "auto":
            return self.device
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"


def read_options(config: Any) -> Options:
    """Return the options of a pytest config, or raise a `UsageError`."""

    def value(name: str) -> Any:
        given = config.getoption(f"attnaccept_{name}")
        if given is None and name in ("profile", "model", "device", "dtype", "seed", "out", "time", "html"):
            given = str(config.getini(f"accept_{name}")) or None
        return given

    profile = value("profile")
    dtype = value("dtype")
    if dtype is not None and dtype.removeprefix("torch.") not in _DTYPES:
        raise UsageError(f"--accept-dtype={dtype!r} must be one of {', '.join(_DTYPES)}")
    return Options(
        profile=profile or "smoke",
        explicit=profile is not None,
        model=value("model"),
        device=value("device") or "auto",
        dtype=dtype.removeprefix("torch.") if dtype else None,
        seed=_seed(value("seed")),
        out=Path(config.rootpath) / (value("out") or ".attnaccept"),
        plan_only=bool(config.getoption("attnaccept_plan")),
        time_s=parse_duration(value("time")),
        selftest=bool(config.getoption("attnaccept_selftest")),
        resume=bool(config.getoption("attnaccept_resume")),
        html=value("html"),
        root=Path(config.rootpath),
    )


def _seed(text: str | None) -> int:
    if text is None:
        return 0
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"--accept-seed={text!r} must be a whole number from 0 to 999999999")
    return int(text)


def parse_duration(text: str | None) -> float | None:
    """Return seconds for ``90``, ``90s``, ``20m``, ``1h30m``.

    >>> parse_duration("1h30m")
    5400.0
    """
    if text is None:
        return None
    match = _DURATION.match(text)
    if not match or not any(match.groups()):
        raise UsageError(f"--accept-time={text!r} must look like 90s, 20m or 1h30m")
    hours, minutes, seconds = (int(g or 0) for g in match.groups())
    total = float(hours * 3600 + minutes * 60 + seconds)
    if total <= 0:
        raise UsageError(f"--accept-time={text!r} must be longer than zero")
    return total
