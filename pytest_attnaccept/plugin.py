"""The pytest hooks, as a table of contents; what they do is in modules that are loaded when the first mark is seen.

`glue` (start and plan), `unseen` (files that were not collected), `generate` and `collect` (items), `item_hooks` (one
item), `ending` (verdict and exit status), `exits` (ways around them).

An idle run (no profile, no mark, no suite) imports this file, `options` and the hook specifications, registers options and marks,
and does nothing else: no output, no file, no torch, numpy, scipy or yaml.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_attnaccept import options

if TYPE_CHECKING:
    from pytest_attnaccept.accept import Accept

SUITE_SUFFIXES = (".accept.yaml", ".accept.yml")
MARKS = ("exact", "approximate", "architecture", "optimization")
# What a pytest run and its items remember for us; no module globals, because nested sessions share a process.
GATE: pytest.StashKey[Any] = pytest.StashKey()
RUN_ID: pytest.StashKey[str] = pytest.StashKey()
SPEC: pytest.StashKey[Any] = pytest.StashKey()
BROKEN: pytest.StashKey[str] = pytest.StashKey()
HANDLE: pytest.StashKey[Any] = pytest.StashKey()
SIBLINGS: pytest.StashKey[Any] = pytest.StashKey()


# -- start ----------------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option group "attnaccept"; ini names are the options without dashes."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Offer the hooks that a project may implement."""
    from pytest_attnaccept import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Under a profile, guard the exit status from before the first conftest on."""
    known = early_config.known_args_namespace  # the options themselves are not parsed yet
    if not (getattr(known, "attnaccept_profile", None) or early_config.getini("accept_profile")):
        return (yield)
    from pytest_attnaccept import exits

    return (yield from exits.around_conftests(early_config))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks; with a profile, check options and profile before anything is collected."""
    for line in (
        "exact(method, **knobs): the test gates an optimization that computes the same function (pytest-attnaccept)",
        "approximate(method, **knobs): the test gates an optimization that drops or rounds information (pytest-attnaccept)",
        "architecture(method, **knobs): the test gates another model architecture (pytest-attnaccept)",
        "optimization(method, **knobs): like the other three; the kind is looked up in the registry (pytest-attnaccept)",
    ):
        config.addinivalue_line("markers", line)
    if hasattr(config, "workerinput"):
        config.stash[RUN_ID] = config.workerinput.get("attnaccept_run", "")
        return
    if empty := options.empty_option(config):
        raise pytest.UsageError(f"{empty}= is empty (an unset variable?); give a value or leave the option out")
    if options.asked_for(config):
        from pytest_attnaccept import glue

        glue.configure(config)
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_XdistHooks(), "attnaccept-xdist")


class _XdistHooks:
    """Registered only where xdist is present."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give every worker the name of the run."""
        node.workerinput["attnaccept_run"] = run_id(node.config)


def run_id(config: pytest.Config) -> str:
    """Return the name of this run, made on first use; names sort by time."""
    if not config.stash.get(RUN_ID, ""):
        now = datetime.datetime.now(datetime.timezone.utc)
        config.stash[RUN_ID] = f"{now:%Y%m%dT%H%M%S%f}-{os.urandom(3).hex()}"
    return config.stash[RUN_ID]


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the self-test instead of tests when asked to; a plan is printed by one process."""
    if config.getoption("attnaccept_selftest"):
        from pytest_attnaccept import glue

        return glue.selftest(config)
    if config.getoption("attnaccept_plan") and hasattr(config.option, "dist"):
        config.option.dist, config.option.tx, config.option.numprocesses = "no", [], None
    return None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Announce a gate before anything is collected: whatever happens next, an older verdict no longer stands."""
    sees_all = _collect_whole_files(session.config)
    gate = session.config.stash.get(GATE, None)
    if gate is not None and not hasattr(session.config, "workerinput"):
        from pytest_attnaccept import glue

        gate.sees_all = sees_all
        glue.announce(session.config, gate)


def _collect_whole_files(config: pytest.Config) -> bool:
    """Under a profile, let ``--lf`` deselect but not skip files and functions at collection: the plan needs all of them."""
    skipper = config.pluginmanager.get_plugin("lfplugin-collwrapper")
    if not options.has_profile(config) or skipper is None:
        return False
    config.pluginmanager.unregister(skipper)
    return True


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say one line when a profile is active."""
    gate = config.stash.get(GATE, None)
    if gate is None or not gate.options.explicit:
        return None
    given = gate.options
    return (
        f"attnaccept: profile {gate.profile.name}, model {given.model or '-'}, seed {given.seed}, out {given.out.name}"
    )


# -- collection -----------------------------------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect ``*.accept.yaml`` (and ``.yml``, which would otherwise be passed over in silence)."""
    if not file_path.name.endswith(SUITE_SUFFIXES):
        return None
    from pytest_attnaccept.collect import AcceptFile

    return AcceptFile.from_parent(parent, path=file_path)


@pytest.hookimpl(wrapper=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Generator[None, bool | None, bool | None]:
    """Under a profile, note gated files that an option or a conftest keeps from being collected."""
    ignored = yield
    if ignored and options.has_profile(config):
        from pytest_attnaccept import unseen

        unseen.note_ignored(config, collection_path)
    return ignored


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Note a file or folder that is skipped while it is collected: its items are never seen, so the plan would lack them."""
    report = yield
    if report.skipped and isinstance(collector, (pytest.File, pytest.Directory)):
        from pytest_attnaccept import unseen

        unseen.note_skipped(collector)
    return report


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per check for every test that takes ``accept``."""
    if "accept" in metafunc.fixturenames:
        from pytest_attnaccept import generate

        generate.parametrize_checks(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> Generator[None, Any, Any]:
    """Attach to each item its check, and drop combinations that the item's own marks do not require."""
    made = yield
    if isinstance(made, list) and any("accept" in getattr(i, "fixturenames", ()) for i in made):
        from pytest_attnaccept import generate

        return generate.attach_specs(made)
    return made


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note what is required as it is collected: no later hook can take it out of the plan."""
    if SPEC in item.stash or BROKEN in item.stash or _has_method_mark(item):
        from pytest_attnaccept import generate

        generate.note_required(item)


def _has_method_mark(item: pytest.Item) -> bool:
    return any(m.name in MARKS and "method" in m.kwargs for m in item.iter_markers())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stop at mark mistakes, and order by cost under a time budget."""
    gate = config.stash.get(GATE, None)
    if gate is not None:
        from pytest_attnaccept import glue

        glue.before_run(config, gate, items)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember what ``-k``, ``-m`` or a plugin took out, for the reason beside "not measured"."""
    for item in items:
        if SPEC in item.stash and GATE in item.config.stash:
            item.config.stash[GATE].unmeasured[item.stash[SPEC].planned.id] = "deselected (-k, -m, --lf or a plugin)"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the plan before the first item runs."""
    gate = session.config.stash.get(GATE, None)
    if gate is not None:
        from pytest_attnaccept import glue

        glue.collected(session, gate)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Under ``--accept-plan`` nothing runs."""
    return True if session.config.getoption("attnaccept_plan") else None


# -- one item -------------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail items with a mark mistake (seen here only under xdist), and forget properties of an earlier attempt."""
    if BROKEN in item.stash:
        pytest.fail(item.stash[BROKEN], pytrace=False)
    if SPEC in item.stash:
        item.user_properties[:] = [p for p in item.user_properties if not str(p[0]).startswith("attnaccept.")]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """After the test: it must have called ``accept``, and a swallowed verdict still counts."""
    if SPEC not in pyfuncitem.stash:
        return (yield)
    from pytest_attnaccept import item_hooks

    return (yield from item_hooks.around_call(pyfuncitem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Give a verdict its place: first line complete, ``<error>`` for a bad contract."""
    report = yield
    if SPEC in item.stash and call.excinfo is not None:
        from pytest_attnaccept import item_hooks

        item_hooks.shape_report(item, call, report)
    return report


@pytest.fixture
def accept(request: pytest.FixtureRequest) -> Accept:
    """Gate one candidate: call exactly one of accept.kernel, .cache, .prefix_cache, .decoder, .model."""
    from pytest_attnaccept import item_hooks

    return item_hooks.make_accept(request)


@pytest.fixture(scope="session")
def accept_model(pytestconfig: pytest.Config) -> Any:
    """Return the baseline model of ``--accept-model`` (with ``.model`` and ``.tokenizer``); override it in a conftest."""
    from pytest_attnaccept import item_hooks

    return item_hooks.load_accept_model(pytestconfig)


# -- end ------------------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> Generator[None, object, object]:
    """Judge the run on the controller; under an explicit profile only PASS leaves exit status 0, whatever others set."""
    if not _judges(session.config):
        return (yield)
    from pytest_attnaccept import ending

    ending.finish(session, int(exitstatus))
    try:
        return (yield)
    except pytest.exit.Exception as leaving:
        leaving.returncode = ending.enforced(session.config, leaving.returncode)
        raise
    finally:
        session.exitstatus = ending.enforced(session.config, session.exitstatus)


def _judges(config: pytest.Config) -> bool:
    """Whether this process is the one that judges, and there is something to judge."""
    if hasattr(config, "workerinput"):
        return False
    if GATE in config.stash:
        return True
    # Under xdist only the workers collect: their plans on disk say whether anything was gated.
    return RUN_ID in config.stash and any(options.out_dir(config).glob(f"plan.{config.stash[RUN_ID]}.*.json"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the verdict first, then what blocks it."""
    gate = config.stash.get(GATE, None)
    if gate is not None and gate.result is not None:
        from pytest_attnaccept import ending

        ending.summarize(terminalreporter, gate)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Free the models of the last test."""
    gate = config.stash.get(GATE, None)
    if gate is not None:
        gate.close()
