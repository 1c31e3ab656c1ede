"""No profile and no mark: no output, no file, no import, also where other plugins are at work."""

import pytest
from scripted import GATE, H2O, N, Project

PLAIN = "def test_plain():\n    pass\n"
PROBE = """
import sys
def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        ours = sorted(m for m in sys.modules if m.startswith("pytest_attnaccept"))
        print("OURS", ours, "HEAVY", sorted({"torch", "numpy", "scipy", "yaml"} & set(sys.modules)))
"""
NOTHING = (
    "OURS ['pytest_attnaccept', 'pytest_attnaccept.errors', 'pytest_attnaccept.hookspecs', 'pytest_attnaccept.options',"
    " 'pytest_attnaccept.plugin'] HEAVY []"
)


@pytest.mark.parametrize("mode", [(), ("-n2",), ("--co",), ("-p", "no:terminal", "-s")], ids=" ".join)
def test_idle_run(project: Project, mode: tuple[str, ...]) -> None:
    project.file("conftest.py", PROBE)
    project.file("test_plain.py", PLAIN)
    out = project.run("-s", *mode, apart=True)
    assert out.ret == 0
    assert NOTHING in out.text
    assert "acceptance" not in out.text
    assert "GATE" not in out.text
    assert not out.folder.exists()


def test_plain_tests_beside_an_empty_folder(project: Project) -> None:
    project.file("conftest.py", PROBE)
    out = project.run("-s", apart=True)
    assert out.ret == 5
    assert NOTHING in out.text


def test_nothing_on_disk_until_a_gated_item_runs(project: Project) -> None:
    project.file("test_gate.py", H2O)
    for options in (
        ("--co",),
        (GATE, "--co"),
        (GATE, "--fixtures"),
        ("--accept-plan",),
        ("--markers",),
        ("--help",),
        ("--fixtures",),
    ):
        out = project.run(*options)
        assert out.ret == 0
        assert not out.folder.exists()
    assert project.run().folder.exists()


def test_settings_in_the_ini_file_without_a_profile_are_idle(project: Project) -> None:
    project.file("pytest.ini", "[pytest]\naccept_model = toy-gqa\naccept_seed = 3\n")
    project.file("test_plain.py", PLAIN)
    out = project.run()
    assert (out.ret, out.passed, out.folder.exists()) == (0, 1, False)
    assert "acceptance" not in out.text


def test_one_header_line_with_a_profile_and_none_without(project: Project) -> None:
    project.file("test_gate.py", H2O)
    assert project.run(GATE).text.count("attnaccept: profile smoke, model -, seed 0, out .attnaccept") == 1
    assert "attnaccept: profile" not in project.run().text


def test_no_network_and_no_other_side_effect(project: Project) -> None:
    project.file("test_gate.py", H2O)
    guard = (
        "\nimport socket\ndef _refuse(*a, **k):\n    raise OSError('network')\nsocket.socket.connect = _refuse\n"
        "socket.getaddrinfo = _refuse\n"
    )
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + guard)
    before = set(project.path.rglob("*"))
    out = project.run(GATE, "-p", "no:cacheprovider", apart=True)
    assert (out.ret, len(out.records)) == (0, N)
    new = {p.relative_to(project.path).parts[0] for p in set(project.path.rglob("*")) - before}
    assert {n for n in new if not n.startswith("runpytest-")} <= {".attnaccept", "__pycache__", "stdout", "stderr"}


def test_options_and_markers_are_documented(project: Project) -> None:
    help_text = project.run("--help").text
    for option in ("profile", "model", "device", "dtype", "seed", "out", "plan", "time", "selftest", "resume", "html"):
        assert f"--accept-{option}" in help_text
    for ini in ("accept_profile", "accept_model", "accept_time"):
        assert ini in help_text
    marks = project.run("--markers").text
    for mark in ("exact", "approximate", "architecture", "optimization"):
        assert f"@pytest.mark.{mark}(method, **knobs)" in marks


def test_unknown_option_of_a_neighbour_is_not_ours(project: Project) -> None:
    assert project.run("--accept").ret == 4  # pytest-accept owns it; ours are never abbreviated
    assert project.run("--accept-update-baseline").ret == 4  # nothing here rewrites evidence
