"""A gated run ends with exit status 0 only when its verdict is PASS, whoever ends it, and however.

Positions
---------
1. The guard is there under an explicit profile only, and acts in the process that judges. A forked child or a worker may
   leave as it likes: what it did not measure is missing from the records.
2. ``os._exit`` with a status that a shell reads as success, and ``os.exec*``, end with 1 and a line on the real stderr
   that names the item that was running. Any other status leaves as it was asked for.
3. The guard has the last word over what pytest returns, behind every hook of every plugin. Only a listing (``--co``) that
   stands on the command line itself may end with 0 without a verdict; one from ``addopts`` is a usage error.
4. Out of reach is native code that ends the process itself. The output folder then says that the run did not finish, and
   ``python -m pytest_attnaccept verdict DIR`` fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from operator import index
from typing import Any

import pytest

from pytest_attnaccept.ending import reads_as_success
from pytest_attnaccept.plugin import GATE

__all__ = ["ExitGuard", "around_conftests", "ensure"]

_NAME = "attnaccept-exits"
_EXEC = ("execv", "execve")  # the other six call these two
_LISTINGS = {
    "collectonly": ("--co", "--collect-only", "--collectonly"),
    "showfixtures": ("--fixtures", "--funcargs"),
    "show_fixtures_per_test": ("--fixtures-per-test",),
    "markers": ("--markers",),
    "help": ("-h", "--help"),
    "version": ("-V", "--version"),
    "cacheshow": ("--cache-show",),
    "attnaccept_plan": ("--accept-plan",),
    "attnaccept_selftest": ("--accept-selftest",),
}


def around_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Guard the process before the first conftest is imported, and register the guard behind the last one."""
    guard = ExitGuard(early_config)
    guard.replace("_exit")
    early_config.add_cleanup(guard.remove)
    try:
        yield
    except SystemExit as leaving:
        if not reads_as_success(leaving.code):
            raise
        raise pytest.UsageError("a conftest or plugin ended pytest (sys.exit) while it was imported") from leaving
    early_config.pluginmanager.register(guard, _NAME)


def ensure(config: pytest.Config) -> None:
    """Guard a run whose profile, or whose plugin, came too late for `around_conftests` (``pytest_plugins`` of a conftest)."""
    if config.pluginmanager.hasplugin(_NAME):
        return
    guard = ExitGuard(config)
    guard.replace("_exit")
    config.add_cleanup(guard.remove)
    config.pluginmanager.register(guard, _NAME)


class ExitGuard:
    """Registered as a plugin, outermost around everything that could decide how a run ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pid = os.getpid()
        self._replaced: dict[str, tuple[object, object]] = {}  # name -> original, guarded
        self._exit = os._exit
        self._free = False  # nothing is gated here
        self._stderr = _duplicate_of_stderr()  # while an item runs, pytest captures the descriptor itself
        self._session: pytest.Session | None = None
        self._running = ""
        self._ended: object = None

    # -- the process ------------------------------------------------------------------------------------------------

    def replace(self, name: str) -> None:
        """Put a guarded function in the place of ``os.<name>``."""
        original: Callable[..., Any] = getattr(os, name)

        def guarded(*args: Any, **named: Any) -> Any:
            # A program that takes the place of this one ends with a status of its own.
            asked = index((*args, *named.values())[0]) if name == "_exit" else 0
            if os.getpid() == self._pid and reads_as_success(asked) and not self._may_leave():
                self._refuse(f"os._exit({asked})" if name == "_exit" else f"os.{name}(...)")
            return original(*args, **named)

        self._replaced[name] = (original, guarded)
        _exchange(name, original, guarded)

    def remove(self) -> None:
        """Put every function back."""
        for name, (original, guarded) in self._replaced.items():
            _exchange(name, guarded, original)
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None

    def _may_leave(self) -> bool:
        return self._free or (self._ended is None and self._green())

    def _refuse(self, call: str) -> None:
        status = self._ended if self._session is None or self._ended is not None else self._session.exitstatus
        left = int(status) if isinstance(status, int) and not reads_as_success(status) else 1
        self._say(f"{call} {self._where()}: {self._state()}; exit status {left}")
        self._exit(left)

    def _say(self, text: str) -> None:
        line = f"\nattnaccept: {text}\n".encode(errors="replace")
        with suppress(OSError):  # nobody reads it: the status still says it
            os.write(2 if self._stderr is None else self._stderr, line)

    def _where(self) -> str:
        return f"while {self._running} ran" if self._running else "outside of an item"

    def _state(self) -> str:
        """Say what is known of the verdict at this moment."""
        gate = self._config.stash.get(GATE, None)
        if gate is None:
            return "nothing was measured"
        if gate.result is not None:
            return f"the verdict is {gate.result.verdict.value}"
        planned = {item.id for item in gate.plan().items}
        if not planned:  # also under xdist, where the workers plan
            return "nothing was judged"
        missing = planned - {record.item for record in gate.recorded}
        return f"{len(missing)} of {len(planned)} items were not measured"

    def _green(self) -> bool:
        """Whether the run was judged to be PASS, and pytest agrees."""
        gate = self._config.stash.get(GATE, None)
        judged = gate is not None and gate.result is not None and gate.result.verdict.value == "PASS"
        return judged and self._session is not None and reads_as_success(self._session.exitstatus)

    # -- hooks ------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """Have the last word over the exit status."""
        if hasattr(config, "workerinput") or _listing_on_command_line(config):
            self._free = True
            return (yield)
        try:
            status = yield
        except SystemExit as leaving:
            if not reads_as_success(leaving.code):
                raise
            status = leaving.code
        if reads_as_success(status) and not self._green():
            self._say(f"pytest would have ended with exit status 0, but {self._state()}; exit status 1")
            status = pytest.ExitCode.TESTS_FAILED
        if not reads_as_success(status) and sys.argv[1:] == [str(a) for a in config.invocation_params.args]:
            self._ended = status  # the process ends with this run: what comes after pytest (atexit) keeps its status
            self.replace("_exit")
        return status

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """From here on the process must not be replaced by another one (a conftest may have done so: it starts anew)."""
        self._session = session
        for name in _EXEC:
            self.replace(name)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep the reason for the items behind the end of the run (``pytest.exit``, Ctrl-C)."""
        gate = self._config.stash.get(GATE, None)
        if gate is not None:
            name = "pytest.exit" if isinstance(excinfo.value, pytest.exit.Exception) else excinfo.typename
            gate.stopped = f"{name}: {excinfo.value}".removesuffix(": ")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Remember which item runs."""
        self._running = item.nodeid
        try:
            return (yield)
        finally:
            self._running = ""


def _listing_on_command_line(config: pytest.Config) -> bool:
    """Whether this call only lists something; what measures nothing under a gate must have been typed."""
    given = {str(a).split("=")[0] for a in config.invocation_params.args}
    asked = [flags for name, flags in _LISTINGS.items() if getattr(config.option, name, None)]
    untyped = next((" / ".join(flags) for flags in asked if not given & set(flags)), None)
    if untyped is not None and not any(given & set(flags) for flags in asked):
        raise pytest.UsageError(
            f"{untyped} (from addopts or PYTEST_ADDOPTS) measures nothing, and a gate was asked for (--accept-profile or"
            " accept_profile); remove one of them, or give it on the command line"
        )
    return bool(asked)


def _exchange(name: str, old: object, new: object) -> None:
    """Put `new` where `old` is, in ``os`` and in the built-in module behind it (posix, nt)."""
    for module in (os, sys.modules.get(os.name)):
        if getattr(module, name, None) is old:
            setattr(module, name, new)


def _duplicate_of_stderr() -> int | None:
    try:
        return os.dup(2)
    except OSError:  # closed
        return None
