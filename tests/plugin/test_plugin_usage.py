"""Mistakes of the user: found before any item, exit 4 serial and non-zero under xdist, with the fix in the message."""

import re

import pytest
from scripted import GATE, H2O, N, Project

MISTAKES = {
    "unknown method": ('approximate(method="h20", kv_budget=0.25)', "accept", "Did you mean 'h2o'?"),
    "unknown knob": ('approximate(method="h2o", kv_budgte=0.25)', "accept", "Did you mean 'kv_budget'?"),
    "missing knob": ('approximate(method="h2o")', "accept", "h2o needs kv_budget="),
    "knob out of range": ('approximate(method="h2o", kv_budget=1.5)', "accept", "at most 1"),
    "knob is a bool": ('approximate(method="h2o", kv_budget=True)', "accept", "must be float or int"),
    "knob is NaN": ('approximate(method="h2o", kv_budget=float("nan"))', "accept", "kv_budget=nan"),
    "knob of another method": ('approximate(method="kv4", kv_budget=0.5)', "accept", "unknown knob of kv4"),
    "tolerance as a knob": (
        'approximate(method="h2o", kv_budget=0.5, atol=0.05)',
        "accept",
        "unknown knob of h2o 'atol'",
    ),
    "bits against the name": ('approximate(method="kv4", bits=8)', "accept", "use method='kv8'"),
    "positional method": ('approximate("h2o")', "accept", "approximate(method='h2o')"),
    "no method": ("approximate(kv_budget=0.5)", "accept", "needs method="),
    "method is not text": ("approximate(method=3)", "accept", "unknown method '3'"),
    "lossy marked exact": ('exact(method="h2o", kv_budget=0.5)', "accept", "rule 3.2"),
    "exact marked lossy": ('approximate(method="flash_attention")', "accept", "@pytest.mark.exact"),
    "lossy through a kernel": ('approximate(method="h2o", kv_budget=0.5, surface="kernel")', "accept", "accept.model"),
    "unknown surface": ('exact(method="gqa", surface="kernle")', "accept", "Did you mean 'kernel'?"),
    "mark without fixture": ('exact(method="gqa")', "", "(accept): accept.model(...)"),
    "bad limit name": (
        'approximate(method="kv4", limits={"needel": {"max": 0.1, "origin": "policy: x"}})',
        "accept",
        "'needle'",
    ),
    "limit without origin": ('approximate(method="kv4", limits={"needle": {"max": 0.1}})', "accept", "needs origin"),
    "limit as a number": ('approximate(method="kv4", limits={"needle": 0.1})', "accept", "must be {'max'"),
    "limit is NaN": (
        'approximate(method="kv4", limits={"needle": {"max": float("nan"), "origin": "policy: x"}})',
        "accept",
        "must be a number in (0, 1]",
    ),
    "empty checkpoint": ('architecture(method="mamba", checkpoint="")', "accept", "must be a model spec"),
}


def write(project: Project, mark: str, argument: str) -> None:
    project.file("test_ok.py", H2O)
    project.file(
        "test_wrong.py", f"import pytest\n\n@pytest.mark.{mark}\ndef test_wrong({argument}):\n    accept.model()\n"
    )


@pytest.mark.parametrize("name", MISTAKES)
def test_mark_mistake(project: Project, name: str) -> None:
    mark, argument, text = MISTAKES[name]
    write(project, mark, argument)
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records)) == (4, 0, 0)
    assert text in out.text
    assert "test_wrong.py::test_wrong" in out.text
    assert "Traceback" not in out.text


def test_mark_mistake_without_profile_and_when_deselected(project: Project) -> None:
    write(project, *MISTAKES["unknown knob"][:2])
    for options in ((), ("-k", "test_h2o"), (GATE, "--deselect", "test_wrong.py")):
        out = project.run(*options)
        assert (out.ret, out.passed, len(out.records)) == (4, 0, 0)


def test_mark_mistake_under_xdist(project: Project) -> None:
    write(project, *MISTAKES["unknown knob"][:2])
    out = project.run(GATE, "-n2", apart=True)
    assert (out.ret, out.passed, len(out.records), out.gate) == (1, N, N, "INCOMPLETE")
    assert "Did you mean 'kv_budget'?" in out.text
    assert "INTERNALERROR" not in out.text


@pytest.mark.parametrize("options", [(GATE,), ()], ids=["gate", "no-gate"])
def test_deselected_mark_mistake_under_xdist(project: Project, options: tuple[str, ...]) -> None:
    write(project, *MISTAKES["unknown knob"][:2])
    out = project.run(*options, "-n2", "-k", "test_h2o", apart=True)
    assert (out.ret, out.passed, len(out.records)) == (1, N, N)
    assert "Did you mean 'kv_budget'?" in out.text


def test_several_mistakes_are_reported_together(project: Project) -> None:
    project.file("test_a.py", H2O.replace("h2o", "h20"))
    project.file("test_b.py", H2O.replace("0.25", "7.5"))
    out = project.run()
    assert out.ret == 4
    assert "Did you mean 'h2o'?" in out.text
    assert "at most 1" in out.text


def test_fixture_without_mark(project: Project) -> None:
    project.file("test_gate.py", "def test_x(accept):\n    accept.model()\n")
    out = project.run()
    assert (out.ret, out.passed, len(out.records)) == (4, 0, 0)
    assert "@pytest.mark.approximate(method='h2o', kv_budget=0.25)" in out.text


def test_fixture_requested_dynamically(project: Project) -> None:
    project.file("test_gate.py", "def test_x(request):\n    request.getfixturevalue('accept').model()\n")
    out = project.run()
    assert (out.ret, out.passed) == (1, 0)
    assert "take it as an argument of the test" in out.text


OPTIONS = {
    "--accept-profile=longctxx": "Did you mean 'longctx'?",
    "--accept-profile=nowhere.yaml": "does not exist, seen from",
    "--accept-seed=-1": "--accept-seed",
    "--accept-seed=1.5": "--accept-seed",
    "--accept-dtype=float8": "--accept-dtype",
    "--accept-time=soon": "--accept-time",
    "--accept-time=0s": "longer than zero",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_option_mistake(project: Project, option: str) -> None:
    project.file("test_gate.py", H2O)
    out = project.run(option)
    assert (out.ret, out.passed, len(out.records)) == (4, 0, 0)
    assert OPTIONS[option] in out.text
    assert "Traceback" not in out.text


def test_option_mistake_under_xdist(project: Project) -> None:
    project.file("test_gate.py", H2O)
    out = project.run("--accept-profile=longctxx", "-n2", apart=True)
    assert (out.ret, out.passed, len(out.records)) == (4, 0, 0)
    assert "Did you mean 'longctx'?" in out.text
    assert "INTERNALERROR" not in out.text


def test_ini_mistake(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.file("pytest.ini", "[pytest]\naccept_profile = smok\n")
    out = project.run()
    assert (out.ret, out.passed) == (4, 0)
    assert "Did you mean 'smoke'?" in out.text


def test_selftest_option_mistake(project: Project) -> None:
    out = project.run("--accept-selftest", "--accept-dtype=float8")
    assert out.ret == 4
    assert "Traceback" not in out.text


def test_profile_file_with_a_mistake(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.file("mine.yaml", "schema: 1\nname: mine\nclaim: x\nlimts: {}\n")
    out = project.run("--accept-profile=mine.yaml")
    assert (out.ret, out.passed) == (4, 0)
    assert "mine.yaml:4: unknown key 'limts'. Did you mean 'limits'?" in out.text


def test_conftest_that_registers_a_taken_name(project: Project) -> None:
    project.file("test_gate.py", H2O)
    hook = (
        "\ndef pytest_attnaccept_register(registry):\n    from pytest_attnaccept import Kind, Layer, Method, Surface\n"
        "    registry.method(Method(name='h2o', kind=Kind.EXACT, layer=Layer.KERNEL, surface=Surface.KERNEL, note=''))\n"
    )
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + hook)
    out = project.run(GATE)
    assert (out.ret, out.passed) == (4, 0)
    assert "registered twice" in out.text
    out = project.run()
    assert (out.ret in (2, 4), out.passed) == (True, 0)
    assert "registered twice" in out.text


def test_plan_prints_and_runs_nothing(project: Project) -> None:
    project.file("test_gate.py", H2O)
    for mode in ((), ("-n2",)):
        out = project.run("--accept-plan", GATE, *mode, apart=bool(mode))
        assert (out.ret, out.passed, out.folder.exists()) == (0, 0, False)
        assert f"{N} items" in out.text
        assert "needle-1x" in out.text
        assert "contexts" in out.text or "n=" in out.text


TWO_EVICTIONS = """
import pytest

@pytest.mark.approximate(method="h2o", kv_budget=0.25)
@pytest.mark.approximate(method="tova", kv_budget=0.25)
def test_two(accept):
    CALL
"""


@pytest.mark.parametrize("call", ["accept.model()", "accept.model(baseline='toy-gqa')"])
def test_two_evictions_that_the_package_would_apply(project: Project, call: str) -> None:
    project.file("test_gate.py", TWO_EVICTIONS.replace("CALL", call))
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records)) == (4, 0, 0)
    assert "h2o and tova: two evictions" in out.text or "tova and h2o: two evictions" in out.text
    assert "accept.model(candidate=...)" in out.text
    assert project.run(GATE, "-n2", apart=True).ret != 0


@pytest.mark.parametrize(
    "call", ["accept.model(object)", "accept.model(candidate=object)", "accept.model(**{'candidate': object})"]
)
def test_a_candidate_of_the_users_own_combines_what_it_likes(project: Project, call: str) -> None:
    project.file("test_gate.py", TWO_EVICTIONS.replace("CALL", call))
    out = project.run(GATE)
    assert (out.ret, out.gate) == (0, "PASS")


def test_the_verdict_stands_right_below_its_heading(project: Project) -> None:
    project.file("test_gate.py", H2O)
    assert re.search(r"\n=+ attention acceptance =+\nGATE PASS under", project.run(GATE).text)
