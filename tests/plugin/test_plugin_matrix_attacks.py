"""Selections and edits after which a shipped stack or a member of it is not measured: the gate never exits 0."""

import pytest
from scripted import GATE, N, Project

SUITE = """schema: 1
models: {gqa: toy-gqa}
factors:
  weights: {bf16: null, w4: {method: w4a16}}
  kv: {bf16: null, four: {method: kv4}}
ships:
  production: {weights: w4, kv: four}
"""
CELLS = 1 + 2
STACK, SINGLE = "release.accept.yaml::gqa.production", "release.accept.yaml::gqa.only-kv4-residual-0"


@pytest.fixture
def release(project: Project) -> Project:
    project.file("release.accept.yaml", SUITE)
    return project


@pytest.mark.parametrize("cells", [(STACK,), (SINGLE,), (STACK, SINGLE)], ids=["stack", "single", "stack and a single"])
def test_cells_named_by_node_id_are_a_part_of_what_ships(release: Project, cells: tuple[str, ...]) -> None:
    out = release.run(GATE, *cells)
    assert (out.ret, out.gate, len(out.verdicts), out.passed) == (1, "INCOMPLETE", CELLS * N, len(cells) * N)
    assert out.headline("release.accept.yaml::gqa.only-w4a16[needle-1x]").endswith("not measured: not selected")


def test_cells_named_by_node_id_complete_a_resumed_run(release: Project) -> None:
    release.script_items({f"{SINGLE}[needle-1x]": "engine"})
    assert release.run(GATE).ret == 1
    release.script()
    out = release.run(GATE, "--accept-resume", SINGLE)
    assert (out.ret, out.gate, out.tally) == (0, "PASS", {"PASS": CELLS * N})


def test_cells_named_by_node_id_under_xdist(release: Project) -> None:
    out = release.run(GATE, "-n1", STACK, apart=True)
    assert (out.ret, out.gate, len(out.verdicts)) == (1, "INCOMPLETE", CELLS * N)


GATED = """
import pytest

@pytest.mark.approximate(method="kv8")
def test_kv8(accept):
    accept.model()
"""


@pytest.mark.parametrize(
    "option",
    ["--ignore=release.accept.yaml", "--ignore-glob=*.accept.yaml", "--ignore=gates", "--ignore-glob=*gates*"],
)
def test_what_is_ignored_is_not_measured(release: Project, option: str) -> None:
    release.file("test_other.py", GATED)
    release.file("gates/test_gate.py", GATED)
    release.file("gates/more.accept.yaml", SUITE)
    assert release.run(GATE).ret == 0
    out = release.run(GATE, option)
    assert (out.ret, out.gate) == (1, "INCOMPLETE")
    assert "ignored" in out.text


def test_a_conftest_that_ignores_a_suite(release: Project) -> None:
    conftest = (release.path / "conftest.py").read_text(encoding="utf-8")
    release.file("conftest.py", conftest + '\ncollect_ignore = ["release.accept.yaml"]\n')
    release.file("test_other.py", GATED)
    out = release.run(GATE)
    assert (out.ret, out.gate) == (1, "INCOMPLETE")
    assert "release.accept.yaml" in out.text


def test_ignored_files_without_gates_and_runs_without_a_profile_are_left_alone(release: Project) -> None:
    release.file("gates/test_plain.py", "def test_plain():\n    pass\n")
    assert release.run(GATE, "--ignore=gates").ret == 0
    assert release.run("--ignore=release.accept.yaml").ret == 0


def test_a_suite_with_the_short_ending_is_a_suite(project: Project) -> None:
    project.file("release.accept.yml", SUITE)
    project.file("test_other.py", GATED)
    out = project.run(GATE)
    assert (out.ret, len(out.verdicts)) == (0, (CELLS + 1) * N)
    project.script_items({"release.accept.yml::gqa.production[needle-1x]": "fail"})
    assert project.run(GATE).ret == 1


def test_a_missing_baseline_is_said_once(project: Project) -> None:
    project.file("test_two.py", GATED + GATED.replace("test_kv8", "test_again"))
    project.script(baseline="needed")
    out = project.run(GATE, "--junitxml=out.xml")
    assert (out.ret, out.gate, out.errors) == (1, "INCOMPLETE", 2 * N)
    # pytest repeats its line in the short summary, whole where CI is set and cut elsewhere
    lines = [line for line in out.text.splitlines() if not line.startswith("ERROR ")]
    assert "\n".join(lines).count("or name one with --accept-model") == 2  # once by pytest, once by the gate
    assert all("no baseline" in e.get("message", "") for e in project.junit().iter("error"))
    assert all("no baseline" in out.headline(item) for item in out.verdicts)


@pytest.mark.parametrize("what", ["release.accept.yaml", "test_gate.py", "gates"])
def test_a_plugin_that_skips_a_file_or_folder_while_it_is_collected(release: Project, what: str) -> None:
    folder = "gates/" if what == "gates" else ""
    release.file(f"{folder}test_gate.py", GATED)
    release.file("test_other.py", GATED)
    hook = f"""
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector):
    if collector.name == {what!r}:
        return pytest.CollectReport(collector.nodeid, "skipped", (str(collector.path), 1, "not today"), [])
"""
    release.file("skipper.py", hook)
    release.pytester.syspathinsert()
    out = release.run(GATE, "-p", "skipper")
    assert (out.ret, out.gate) == (1, "INCOMPLETE")
    assert "not measured" in out.text


@pytest.mark.parametrize("option", ["profile", "model", "device", "dtype", "seed", "out", "time", "html"])
def test_an_option_whose_variable_was_empty_is_a_mistake(release: Project, option: str) -> None:
    """``--accept-profile=$PROFILE`` without a PROFILE must not run as if nobody had asked for a gate."""
    out = release.run(*(() if option == "profile" else (GATE,)), f"--accept-{option}=")
    assert out.ret == 4
    assert f"--accept-{option}" in out.text
