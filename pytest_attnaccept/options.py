"""Which command-line options and ini settings there are, and what a run was asked for: option > ini > default.

Every option value is plain text or a flag, because xdist sends options to its workers as plain data. This module is loaded in
every pytest run that has the plugin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_attnaccept.errors import UsageError

if TYPE_CHECKING:
    import pytest

__all__ = [
    "Options",
    "add_options",
    "asked_for",
    "empty_option",
    "has_profile",
    "out_dir",
    "parse_duration",
    "read_options",
]

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?$")
_DTYPES = ("float32", "bfloat16", "float16")
# Options with a value, each with an ini setting: name -> what its value is called, help.
_TEXTS = {
    "profile": (
        "NAME|FILE",
        "gate under this profile (smoke, longctx, serving, edge, research, release, or a YAML file)",
    ),
    "model": (
        "SPEC",
        "baseline model of accept.model(): an embedded name (toy-gqa), smollm2-135m, a path or a Hub name",
    ),
    "device": ("DEVICE", "device to measure on (default: cuda if present, else cpu)"),
    "dtype": ("DTYPE", "dtype of loaded models: float32, bfloat16 or float16 (default: float32)"),
    "seed": ("N", "seed of all generated data and item orders (default: 0)"),
    "out": ("DIR", "folder of plan, records and verdict (default: .attnaccept)"),
    "time": ("DURATION", "time budget such as 20m: worst cells first, what does not fit is INCONCLUSIVE"),
    "html": ("FILE", "write a single-file HTML report"),
}
_FLAGS = {
    "plan": "print the planned items with reasons, sample sizes, power and cost; run nothing",
    "selftest": "run the gate's own known-bad and known-good controls instead of tests",
    "resume": "count earlier records in --accept-out whose fingerprint is equal",
}


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


def add_options(parser: pytest.Parser) -> None:
    """Add the option group "attnaccept"; ini names are the options without dashes."""
    group = parser.getgroup("attnaccept", "attention acceptance gate")
    for name, (metavar, text) in _TEXTS.items():
        group.addoption(f"--accept-{name}", dest=f"attnaccept_{name}", metavar=metavar, default=None, help=text)
        parser.addini(f"accept_{name}", help=text, default="")
    for name, text in _FLAGS.items():
        group.addoption(f"--accept-{name}", dest=f"attnaccept_{name}", action="store_true", default=False, help=text)


def empty_option(config: pytest.Config) -> str:
    """Return an option that was given without a value, or nothing."""
    return next((f"--accept-{name}" for name in _TEXTS if config.getoption(f"attnaccept_{name}") == ""), "")


def asked_for(config: pytest.Config) -> bool:
    """Whether an option or ini of ours is set: then its mistakes are reported before collection."""
    flags = any(config.getoption(f"attnaccept_{name}") for name in _FLAGS)
    return flags or any(_value(config, name) is not None for name in _TEXTS)


def has_profile(config: pytest.Config) -> bool:
    """Whether a profile was chosen by option or ini, so that the run fails closed."""
    return _value(config, "profile") is not None


def out_dir(config: pytest.Config) -> Path:
    """Return the folder of plan, records and verdict."""
    return config.rootpath / (_value(config, "out") or ".attnaccept")


def _value(config: pytest.Config, name: str) -> str | None:
    """Return the value of an option, else of its ini setting (where an empty text is none)."""
    given: str | None = config.getoption(f"attnaccept_{name}")
    return given if given is not None else str(config.getini(f"accept_{name}")) or None


def read_options(config: pytest.Config) -> Options:
    """Return the options of a pytest config, or raise a `UsageError`."""
    profile, dtype = _value(config, "profile"), _value(config, "dtype")
    if dtype is not None and dtype.removeprefix("torch.") not in _DTYPES:
        raise UsageError(f"--accept-dtype={dtype!r} must be one of {', '.join(_DTYPES)}")
    return Options(
        profile=profile or "smoke",
        explicit=profile is not None,
        model=_value(config, "model"),
        device=_value(config, "device") or "auto",
        dtype=dtype.removeprefix("torch.") if dtype else None,
        seed=_seed(_value(config, "seed")),
        out=out_dir(config),
        plan_only=bool(config.getoption("attnaccept_plan")),
        time_s=parse_duration(_value(config, "time")),
        selftest=bool(config.getoption("attnaccept_selftest")),
        resume=bool(config.getoption("attnaccept_resume")),
        html=_value(config, "html"),
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
