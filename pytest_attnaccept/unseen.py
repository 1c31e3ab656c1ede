"""Which gated files a run never saw: they skipped themselves, or an option or a conftest kept them from being collected.

What such a file requires is in no plan, so the run as a whole is kept from passing and the file is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_attnaccept.glue import gate_of
from pytest_attnaccept.marks import gates_in_source
from pytest_attnaccept.plugin import SUITE_SUFFIXES

__all__ = ["note_ignored", "note_skipped"]


def note_skipped(collector: pytest.File | pytest.Directory) -> None:
    """Keep a run from passing when a suite or gated tests skipped themselves (``importorskip`` of the engine under test)."""
    if any(True for _ in _gated_files(collector.config, collector.path)):
        gate_of(collector.config).problems.append(
            f"{collector.nodeid} skipped itself at import; what it requires is unknown and was not measured"
        )


def note_ignored(config: pytest.Config, path: Path) -> None:
    """Keep a run from passing when ``--ignore`` or ``collect_ignore`` hides a suite or a file with gated tests."""
    if path.is_file() and not _is_test_file(config, path):
        return
    environment = any((path / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
    if path.is_dir() and (environment or any(fnmatch(path.name, p) for p in config.getini("norecursedirs"))):
        return  # no folder of tests, whatever it holds
    problems = gate_of(config).problems
    for file in _gated_files(config, path):
        shown = file.relative_to(config.rootpath) if config.rootpath in file.parents else file
        text = f"{shown} was ignored (--ignore or collect_ignore); what it requires was not measured"
        problems += [] if text in problems else [text]


def _gated_files(config: pytest.Config, path: Path) -> Iterator[Path]:
    """Yield suites and test files that gate something: `path` itself, or what lies below the folder `path`."""
    for file in sorted(p for p in path.rglob("*") if _is_test_file(config, p)) if path.is_dir() else [path]:
        if file.suffix == ".py" and not gates_in_source(file.read_text(encoding="utf-8", errors="replace")):
            continue
        if file.suffix == ".py" or file.name.endswith(SUITE_SUFFIXES):
            yield file


def _is_test_file(config: pytest.Config, path: Path) -> bool:
    patterns = [*config.getini("python_files"), *(f"*{suffix}" for suffix in SUITE_SUFFIXES)]
    return any(fnmatch(path.name, pattern) for pattern in patterns)
