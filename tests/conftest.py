"""Fixtures shared by all tests; `pytester` has to be asked for here, in the top conftest."""

pytest_plugins = ["pytester"]
