"""The scripted project as a fixture."""

import pytest
from scripted import Project

# An in-process pytester run forgets every module that was first imported inside it. What the plugin imports lazily is
# therefore imported here, once: numpy cannot be loaded twice, and a class imported twice is two classes.
import pytest_attnaccept.collect
import pytest_attnaccept.ending
import pytest_attnaccept.exits
import pytest_attnaccept.generate
import pytest_attnaccept.item_hooks
import pytest_attnaccept.reports.plan
import pytest_attnaccept.reports.terminal
import pytest_attnaccept.stats.paired
import pytest_attnaccept.unseen  # noqa: F401
from pytest_attnaccept import fingerprint
from pytest_attnaccept.accept import Accept

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"  # where it is set, every subprocess would compile all of pytest anew


@pytest.fixture(autouse=True)
def measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what the conftest of a project replaced: where its session breaks, its `pytest_unconfigure` is not called."""
    for owner, name in ((Accept, "_model_session"), (Accept, "_measured"), (fingerprint, "_own_code")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return an empty scripted project; options of the outer run do not reach it."""
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "GITHUB_ACTIONS", _NO_BYTECODE):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)
