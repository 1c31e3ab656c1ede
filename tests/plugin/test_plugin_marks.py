"""Where marks may stand, how they form one stack, and what is left alone."""

import pytest
from scripted import GATE, N, Project, checks_of


def gate(project: Project, text: str, *args: str):
    project.file("test_gate.py", "import pytest\n" + text)
    return project.run(GATE, *args)


def stacks(out) -> dict[str, str]:
    return {r["cell"].rpartition("::")[2]: r["stack"] for r in out.records}


def test_marks_in_pytest_param(project: Project) -> None:
    out = gate(
        project,
        """
@pytest.mark.parametrize("p", [
    pytest.param(1, marks=pytest.mark.approximate(method="h2o", kv_budget=0.25), id="lossy"),
    pytest.param(2, marks=pytest.mark.exact(method="chunked_prefill"), id="exact"),
])
def test_any(accept, p):
    accept.model()
""",
    )
    exact = checks_of("chunked_prefill")
    assert (out.ret, len(out.records)) == (0, N + len(exact))
    assert {i for i in out.verdicts if "[exact]" in i} == {f"test_gate.py::test_any[exact][{c}]" for c in exact}
    assert stacks(out) == {"test_any[lossy]": "h2o(kv_budget=0.25, sinks=4)", "test_any[exact]": "chunked_prefill"}


def test_closest_mark_wins_over_class_and_module(project: Project) -> None:
    out = gate(
        project,
        """
pytestmark = pytest.mark.approximate(method="h2o", kv_budget=0.9)

@pytest.mark.approximate(method="h2o", kv_budget=0.5)
class TestAll:
    def test_class(self, accept):
        accept.model()

    @pytest.mark.approximate(method="h2o", kv_budget=0.25)
    def test_own(self, accept):
        accept.model()

    @pytest.mark.parametrize("p", [pytest.param(1, marks=pytest.mark.approximate(method="h2o", kv_budget=0.125))])
    def test_param(self, accept, p):
        accept.model()

def test_module(accept):
    accept.model()
""",
    )
    assert (out.ret, len(out.records)) == (0, 4 * N)
    budgets = {k: v.split("=")[1].split(",")[0] for k, v in stacks(out).items()}
    assert budgets == {"test_class": "0.5", "test_own": "0.25", "test_param[1]": "0.125", "test_module": "0.9"}


def test_stack_of_two_methods(project: Project) -> None:
    out = gate(
        project,
        """
pytestmark = pytest.mark.approximate(method="kv4")

@pytest.mark.optimization(method="h2o", kv_budget=0.25)
def test_both(accept):
    accept.model()

@pytest.mark.exact(method="chunked_prefill")
def test_mixed(accept):
    accept.model()
""",
    )
    assert (out.ret, len(out.records)) == (0, 2 * N)
    assert stacks(out)["test_both"] == "kv4(residual=0) + h2o(kv_budget=0.25, sinks=4)"
    assert {r["kind"] for r in out.records} == {"approximate"}
    assert {tuple(r["methods"]) for r in out.records} == {("kv4", "h2o"), ("kv4", "chunked_prefill")}


def test_foreign_marks_are_left_alone(project: Project) -> None:
    project.file(
        "test_foreign.py",
        """
import pytest

@pytest.mark.exact
def test_bare(): pass

@pytest.mark.exact("something")
def test_positional(): pass

@pytest.mark.approximate(method="simpson")
def test_other_method(): pass

@pytest.mark.architecture(method=3)
def test_number(): pass

@pytest.mark.optimization(level=3)
def test_keyword(): pass
""",
    )
    out = project.run("--strict-markers")
    assert (out.ret, out.passed) == (0, 5)
    assert not out.folder.exists()
    assert "acceptance" not in out.text


def test_mark_on_a_class_of_plain_tests_names_the_fix(project: Project) -> None:
    out = gate(project, "@pytest.mark.exact(method='gqa')\nclass TestX:\n    def test_plain(self): pass\n")
    assert (out.ret, out.passed) == (4, 0)
    assert "def test_plain(accept): accept.model(...)" in out.text


def test_surface_from_source_mark_and_registry(project: Project) -> None:
    out = gate(
        project,
        """
@pytest.mark.exact(method="gqa")
def test_source(accept):
    accept.model()

@pytest.mark.exact(method="gqa", surface="model")
def test_mark(accept):
    call(accept)

@pytest.mark.exact(method="gqa")
def test_registry(accept):
    call(accept)

def call(gate):
    gate.model()
""",
    )
    model = len(checks_of("gqa"))
    by_test = {
        t: [v for i, v in out.verdicts.items() if f"::{t}[" in i] for t in ("test_source", "test_mark", "test_registry")
    }
    assert by_test["test_source"] == by_test["test_mark"] == ["PASS"] * model
    assert set(by_test["test_registry"]) == {"FAIL"}
    assert "surface='model'" in out.headline(next(i for i in out.verdicts if "test_registry[value]" in i))
    assert out.ret == 1


def test_parametrized_tests_and_ids(project: Project) -> None:
    out = gate(
        project,
        """
@pytest.mark.parametrize("b", ["y", "z"])
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.approximate(method="h2o", kv_budget=0.25)
def test_grid(accept, a, b):
    accept.model()
""",
    )
    assert (out.ret, len(out.records), len(out.verdicts)) == (0, 4 * N, 4 * N)
    assert {i.split("[", 1)[1].split("]")[0] for i in out.verdicts} == {"1-y", "1-z", "2-y", "2-z"}
    selected = gate(project, (project.path / "test_gate.py").read_text(encoding="utf-8"), "-k", "1-y and footprint")
    assert (selected.ret, len(selected.records)) == (1, 1)


def test_marks_added_by_metafunc_are_a_usage_error(project: Project) -> None:
    project.file(
        "sub/conftest.py",
        """
import pytest
def pytest_generate_tests(metafunc):
    if "p" in metafunc.fixturenames:
        metafunc.parametrize("p", [pytest.param(1, marks=pytest.mark.approximate(method="h2o", kv_budget=0.5))])
""",
    )
    project.file("sub/test_late.py", "def test_late(accept, p):\n    accept.model()\n")
    out = project.run(GATE)
    assert (out.ret, out.passed) == (4, 0)
    assert "read too late" in out.text


def test_limits_of_one_mark_do_not_reach_another(project: Project) -> None:
    project.script(footprint="some")
    out = gate(
        project,
        """
@pytest.mark.approximate(method="h2o", kv_budget=0.25, limits={"needle": {"max": 0.3, "origin": "policy: demo"}})
def test_loose(accept):
    accept.model()

@pytest.mark.approximate(method="h2o", kv_budget=0.25)
def test_strict(accept):
    accept.model()
""",
    )
    assert (out.ret, len(out.records)) == (1, 2 * N)
    assert out.verdicts["test_gate.py::test_loose[footprint]"] == "PASS"
    assert out.verdicts["test_gate.py::test_strict[footprint]"] == "FAIL"
    assert "limit of needle loosened from 0.1 to 0.3 (policy: demo)" in out.text


def test_method_registered_by_the_root_conftest(project: Project) -> None:
    hook = """
def pytest_attnaccept_register(registry):
    from pytest_attnaccept import Kind, Knob, Layer, Method, Surface
    registry.method(Method(name="mykv", kind=Kind.APPROXIMATE, layer=Layer.CONTENT, surface=Surface.MODEL, note="",
                           knobs=(Knob(name="level", types=(int,), doc="level", default=3),)))
"""
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + hook)
    out = gate(project, '@pytest.mark.approximate(method="mykv", level=2)\ndef test_it(accept):\n    accept.model()\n')
    assert (out.ret, len(out.records), stacks(out)) == (0, N, {"test_it": "mykv(level=2)"})


def test_accept_exposes_check_and_knobs(project: Project) -> None:
    out = gate(
        project,
        """
@pytest.mark.approximate(method="h2o", kv_budget=0.25)
def test_it(accept, request):
    assert request.node.name == f"test_it[{accept.check}]"
    assert accept.knobs["h2o"]["kv_budget"] == 0.25
    accept.model()
""",
    )
    assert (out.ret, out.passed) == (0, N)


@pytest.mark.parametrize("way", ["usefixtures", "autouse"])
def test_fixture_that_is_requested_but_not_called(project: Project, way: str) -> None:
    mark = '@pytest.mark.approximate(method="h2o", kv_budget=0.25)\n'
    text = {
        "usefixtures": f'{mark}@pytest.mark.usefixtures("accept")\ndef test_it(): pass\n',
        "autouse": f"@pytest.fixture(autouse=True)\ndef auto(accept): pass\n\n{mark}def test_it(): pass\n",
    }[way]
    out = gate(project, text)
    assert (out.ret, out.failed, len(out.records), out.tally) == (1, N, 0, {"INCOMPLETE": N})
