"""A file that skips itself while it is imported hides its items from the plan; a gate must not pass without them."""

import pytest
from scripted import GATE, H2O, N, Project

from pytest_attnaccept.marks import gates_in_source

SKIP = "import pytest\npytest.importorskip('no_such_engine')\n"


@pytest.mark.parametrize("options", [(), ("-n2",)])
def test_a_skipped_file_of_gated_tests_blocks_the_gate(project: Project, options: tuple[str, ...]) -> None:
    project.file("test_gate.py", H2O)
    project.file("test_engine.py", SKIP + H2O)
    out = project.run(GATE, *options, apart=bool(options))
    assert (out.ret, out.passed, out.gate) == (1, N, "INCOMPLETE")
    assert any("test_engine.py skipped itself" in p for p in out.summary["problems"])


def test_only_skipped_files(project: Project) -> None:
    project.file("test_engine.py", SKIP + H2O)
    assert project.run(GATE).ret == 1


def test_other_files_may_skip_themselves(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.file("test_engine.py", SKIP + "def test_other():\n    pass\n")
    out = project.run(GATE)
    assert (out.ret, out.passed, out.gate) == (0, N, "PASS")


def test_without_a_profile_the_exit_status_stands(project: Project) -> None:
    project.file("test_engine.py", SKIP + H2O)
    project.file("test_plain.py", "def test_plain():\n    pass\n")
    out = project.run()
    assert (out.ret, out.passed) == (0, 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def test(accept): pass", True),
        ("import pytest\npytestmark = pytest.mark.exact(method='gqa')", True),
        ("# accept the terms\nx = exact = 1", False),
        ("def broken(:", False),
    ],
)
def test_what_counts_as_a_file_of_gated_tests(text: str, found: bool) -> None:
    assert gates_in_source(text) is found
