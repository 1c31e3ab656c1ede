"""Options: precedence, durations, and what is refused."""

from pathlib import Path

import pytest

from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.options import parse_duration, read_options


class Config:
    """As much of a pytest config as `read_options` uses."""

    rootpath = Path("/project")

    def __init__(self, ini: dict[str, str] | None = None, **given: object) -> None:
        self.given = given
        self.ini = ini or {}

    def getoption(self, name: str) -> object:
        flags = ("plan", "selftest", "resume")
        short = name.removeprefix("attnaccept_")
        return self.given.get(short, False if short in flags else None)

    def getini(self, name: str) -> str:
        return self.ini.get(name.removeprefix("accept_"), "")


def test_defaults() -> None:
    found = read_options(Config())
    assert (found.profile, found.explicit, found.model, found.device, found.dtype, found.seed) == (
        "smoke", False, None, "auto", None, 0,
    )  # fmt: skip
    assert (found.out, found.root) == (Path("/project/.attnaccept"), Path("/project"))
    assert (found.plan_only, found.selftest, found.resume, found.time_s, found.html) == (
        False,
        False,
        False,
        None,
        None,
    )


def test_option_beats_ini_beats_default() -> None:
    ini = {"profile": "edge", "seed": "5", "out": "evidence", "dtype": "float16"}
    found = read_options(Config(ini))
    assert (found.profile, found.explicit, found.seed, found.out) == ("edge", True, 5, Path("/project/evidence"))
    found = read_options(Config(ini, profile="smoke", seed="6", out="/elsewhere", dtype="torch.bfloat16"))
    assert (found.profile, found.seed, found.out, found.dtype) == ("smoke", 6, Path("/elsewhere"), "bfloat16")


@pytest.mark.parametrize("seed", ["-1", "1.5", "x", "", " 1", "1234567890"])
def test_seeds_that_are_refused(seed: str) -> None:
    with pytest.raises(UsageError, match="--accept-seed"):
        read_options(Config(seed=seed))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("1h30m", 5400), ("2h", 7200), ("1h1m1s", 3661)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "0", "0m", "-5", "1.5h", "20 m", "1d", "5m2h", "nan"])
def test_durations_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--accept-time"):
        parse_duration(text)
    assert parse_duration(None) is None


@pytest.mark.parametrize("dtype", ["float64", "fp16", "int8", "float8_e4m3fn"])
def test_dtypes_that_are_refused(dtype: str) -> None:
    with pytest.raises(UsageError, match="--accept-dtype"):
        read_options(Config(dtype=dtype))
