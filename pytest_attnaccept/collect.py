"""``*.accept.yaml`` -> pytest items, through public pytest API only.

A suite cell becomes ordinary `pytest.Function` items (one per check) whose function takes the fixture ``accept``; so
fixtures, marks, ``-k``, ``-m``, ``--lf``, node ids and xdist work as for any test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_attnaccept.accept import Accept
from pytest_attnaccept.errors import AttnAcceptError
from pytest_attnaccept.glue import gate_of
from pytest_attnaccept.items import ItemSpec, spec_of_logs, specs_of_test
from pytest_attnaccept.plugin import SIBLINGS, SPEC
from pytest_attnaccept.profiles import Profile, load_profile
from pytest_attnaccept.suite_logs import LogCell
from pytest_attnaccept.suites import Suite, SuiteCell, load_suite
from pytest_attnaccept.taxonomy import Surface

__all__ = ["AcceptFile", "AcceptItem"]


class AcceptItem(pytest.Function):
    """One check of one suite cell."""

    line: int = 0

    @property
    def id(self) -> Any:
        """Return the id as pytest 9.2 reads it from text (``--lf``): what stands in brackets are its parameters."""
        return type(super().id).parse(self.nodeid)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int, str]:
        """Point reports and annotations at the stack's line in the suite file."""
        return self.path, self.line - 1, self.name


class AcceptFile(pytest.File):
    """One suite file."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the items of every cell; a broken file is one clean collection error."""
        try:
            gate = gate_of(self.config)
            suite = load_suite(self.path, gate.registry)
            cells: list[tuple[SuiteCell | LogCell, tuple[ItemSpec, ...]]] = []
            cells += [(cell, self._specs(cell, suite)) for cell in suite.cells]
            cells += [(cell, self._log_specs(cell, suite)) for cell in suite.logs]
        except AttnAcceptError as error:
            raise self.CollectError(str(error)) from error
        # What ships is the whole file: a cell that is named by its node id does not make the others less required.
        gate.require(spec.planned for _, specs in cells for spec in specs)
        for cell, specs in cells:
            for spec in specs:
                yield self._item(cell, spec, specs)

    def _base(self, suite: Suite) -> Profile:
        """Return the profile of this suite: the command line's, else the file's own."""
        gate = gate_of(self.config)
        if suite.profile is not None and not gate.options.explicit:
            return load_profile(suite.profile, f"{suite.file.name}: profile")
        return gate.profile

    def _specs(self, cell: SuiteCell, suite: Suite) -> tuple[ItemSpec, ...]:
        gate, base = gate_of(self.config), self._base(suite)
        return specs_of_test(
            cell=f"{self.nodeid}::{cell.name}",
            stack=cell.stack,
            surface=Surface.MODEL,
            profile=base.with_overrides(limits=suite.limits, data=suite.data, max_tokens=suite.max_tokens),
            options=gate.options,
            source=Path(self.path),
            where=f"{self.path.name}:{cell.line}",
            root=gate.options.root,
            base=base,
            model=cell.model,
            checkpoint=cell.checkpoint,
        )

    def _log_specs(self, cell: LogCell, suite: Suite) -> tuple[ItemSpec, ...]:
        gate, base = gate_of(self.config), self._base(suite)
        return spec_of_logs(
            cell=f"{self.nodeid}::{cell.name}",
            stack=cell.stack,
            files=(Path(self.path), cell.baseline, cell.candidate),
            profile=base,
            limit=cell.limit,
            root=gate.options.root,
        )

    def _item(self, cell: SuiteCell | LogCell, spec: ItemSpec, specs: tuple[ItemSpec, ...]) -> AcceptItem:
        item: AcceptItem = AcceptItem.from_parent(
            self, name=f"{cell.name}[{spec.planned.check}]", callobj=_callable(cell)
        )
        item.line = cell.line
        item.stash[SPEC], item.stash[SIBLINGS] = spec, specs
        for entry in cell.stack:
            knobs = {k: v for k, v in entry.knobs.items() if v is not None}
            item.add_marker(getattr(pytest.mark, entry.method.kind.value)(method=entry.method.name, **knobs))
        return item


def _callable(cell: SuiteCell | LogCell) -> Callable[[Accept], None]:
    """Return the test function of a cell."""
    if isinstance(cell, SuiteCell):
        return _measure_cell

    def compare_logs(accept: Accept) -> None:
        accept.logs(cell.baseline, cell.candidate, metric=cell.metric)

    return compare_logs


def _measure_cell(accept: Accept) -> None:
    """Gate one suite cell: its methods are applied to its model column."""
    accept.model()
