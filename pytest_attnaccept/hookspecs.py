"""The hooks that a project may implement in its root conftest.py or in a plugin.

Only *initial* conftest files are seen (the one in the root folder and in the folders named on the command line), so what
a gate requires would depend on where pytest is started if a method were registered in a deeper one. Packages should use
the entry-point group ``pytest_attnaccept.methods`` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_attnaccept.records import Record
    from pytest_attnaccept.registry import Registry


@pytest.hookspec(historic=False)
def pytest_attnaccept_register(registry: Registry) -> None:
    """Register methods: ``registry.method(Method(name="mykv", ...))``."""


@pytest.hookspec(historic=False)
def pytest_attnaccept_report(config: pytest.Config, record: Record) -> None:
    """Look at one record after it was written (in the process that measured it)."""
