"""Attempts to get exit status 0 without the evidence for it, and odd surroundings that must not change a verdict."""

import pytest
from scripted import GATE, H2O, SMOKE, N, Project

ITEM = "test_gate.py::test_h2o"


@pytest.fixture
def gated(project: Project) -> Project:
    project.file("test_gate.py", H2O)
    return project


def test_report_that_cannot_be_written(gated: Project) -> None:
    gated.file("folder/inside.txt", "")
    out = gated.run(GATE, "--accept-html=folder", apart=True)
    assert out.ret != 0
    assert len(out.records) == N


@pytest.mark.parametrize("mode", ["prepend", "append", "importlib"])
def test_import_modes(gated: Project, mode: str) -> None:
    out = gated.run(GATE, f"--import-mode={mode}", apart=True)
    assert (out.ret, len(out.records), out.gate) == (0, N, "PASS")


def test_same_file_named_twice(gated: Project) -> None:
    out = gated.run(GATE, "--keep-duplicates", "test_gate.py", "test_gate.py")
    assert (out.ret, out.gate) == (0, "PASS")
    assert set(out.verdicts) == {f"{ITEM}[{c}]" for c in SMOKE}


def test_duplicates_keep_the_worst(gated: Project) -> None:
    gated.script(footprint=["fail", "pass"])
    out = gated.run(GATE, "--keep-duplicates", "test_gate.py", "test_gate.py")
    assert (out.ret, out.gate) == (1, "FAIL")


def test_verdict_file_written_by_a_test(gated: Project) -> None:
    gated.script(footprint="engine")
    gated.file(
        "test_z.py",
        "import json, pathlib\ndef test_forge():\n"
        "    pathlib.Path('.attnaccept/verdict.json').write_text(json.dumps({'verdict': 'PASS'}))\n",
    )
    out = gated.run(GATE)
    assert (out.ret, out.gate) == (1, "INCOMPLETE")


def test_plan_file_emptied_by_a_test(gated: Project) -> None:
    gated.file(
        "test_z.py",
        "import pathlib\ndef test_forge():\n    for p in pathlib.Path('.attnaccept').glob('plan.*'):\n        p.write_text('')\n",
    )
    out = gated.run(GATE)
    assert (out.ret, out.gate) == (1, "INCOMPLETE")


def test_plan_file_shortened_by_a_test(gated: Project) -> None:
    gated.script(footprint="fail")
    gated.file(
        "test_gate.py",
        H2O.replace("@pytest.mark", "@pytest.mark.xfail\n@pytest.mark"),
    )
    gated.file(
        "test_z.py",
        "import json, pathlib\ndef test_forge():\n    for p in pathlib.Path('.attnaccept').glob('plan.*.main.json'):\n"
        "        body = json.loads(p.read_text())\n        body['items'] = [i for i in body['items'] if i['check'] != 'footprint']\n"
        "        p.write_text(json.dumps(body))\n",
    )
    out = gated.run(GATE)
    assert (out.ret, out.gate, len(out.verdicts)) == (1, "FAIL", N)
    assert any("digest differs" in p for p in out.summary["problems"])


def test_mark_removed_by_a_hook(gated: Project) -> None:
    hook = "\ndef pytest_itemcollected(item):\n    item.own_markers[:] = []\n"
    gated.file("conftest.py", (gated.path / "conftest.py").read_text(encoding="utf-8") + hook)
    out = gated.run(GATE, "-k", "footprint")
    assert (out.ret, len(out.records), len(out.verdicts)) == (1, 1, N)


def test_collection_hook_that_hides_all_but_one_check(project: Project) -> None:
    hook = (
        "import pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_pycollect_makeitem(collector, name, obj):\n"
        "    made = yield\n    return made[:1] if isinstance(made, list) else made\n"
    )
    project.file("sub/conftest.py", hook)
    project.file("sub/test_gate.py", H2O)
    out = project.run(GATE)
    assert (out.ret, len(out.records)) == (1, 1)
    assert out.tally == {"PASS": 1, "INCOMPLETE": N - 1}


def test_protocol_hook_that_runs_nothing(gated: Project) -> None:
    hook = "\ndef pytest_runtest_protocol(item, nextitem):\n    return True\n"
    gated.file("conftest.py", (gated.path / "conftest.py").read_text(encoding="utf-8") + hook)
    out = gated.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, 0, {"INCOMPLETE": N})


def test_report_hook_that_turns_failures_into_passes(gated: Project) -> None:
    gated.script(footprint="fail")
    hook = (
        "\nimport pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_runtest_makereport(item, call):\n"
        "    report = yield\n    report.outcome = 'passed'\n    return report\n"
    )
    gated.file("conftest.py", (gated.path / "conftest.py").read_text(encoding="utf-8") + hook)
    out = gated.run(GATE)
    assert (out.ret, out.passed, out.gate) == (1, N, "FAIL")


def test_hook_that_raises_while_a_record_is_reported(gated: Project) -> None:
    hook = "\ndef pytest_attnaccept_report(config, record):\n    raise RuntimeError('dashboard is down')\n"
    gated.file("conftest.py", (gated.path / "conftest.py").read_text(encoding="utf-8") + hook)
    out = gated.run(GATE)
    assert (out.ret, out.failed, len(out.records)) == (1, N, N)


def test_empty_parameter_set(project: Project) -> None:
    text = H2O.replace("@pytest.mark.approx", '@pytest.mark.parametrize("p", [])\n@pytest.mark.approx').replace(
        "(accept)", "(accept, p)"
    )
    project.file("test_gate.py", text)
    out = project.run(GATE)
    assert (out.ret, len(out.records)) == (1, 0)
    assert out.gate == "INCOMPLETE"


def test_all_workers_lost(gated: Project) -> None:
    gated.script(default="crash")
    out = gated.run(GATE, "-n2", "--max-worker-restart=0", apart=True)
    assert (out.ret != 0, len(out.records), out.gate) == (True, 0, "INCOMPLETE")


def test_worker_lost_while_collecting(gated: Project) -> None:
    gated.file("test_zz.py", "import os, sys\nif os.environ.get('PYTEST_XDIST_WORKER') == 'gw1':\n    os._exit(7)\n")
    out = gated.run(GATE, "-n2", "--max-worker-restart=0", apart=True)
    assert out.ret != 0


def test_unstable_collection_under_xdist(gated: Project) -> None:
    gated.file(
        "test_zz.py",
        "import os\nif os.environ.get('PYTEST_XDIST_WORKER') == 'gw1':\n"
        + "\n".join("    " + x for x in H2O.splitlines()),
    )
    out = gated.run(GATE, "-n2", apart=True)
    assert out.ret != 0


def test_non_explicit_run_over_an_explicit_one(gated: Project) -> None:
    """A later run without a profile replaces the evidence, and the folder then says that it was no gate."""
    assert gated.run(GATE).gate == "PASS"
    out = gated.run("-k", "footprint")
    assert (out.ret, out.gate, out.summary["explicit"]) == (0, "INCOMPLETE", False)


def test_baseexceptions_of_a_candidate(gated: Project) -> None:
    gated.file("test_gate.py", H2O.replace("accept.model()", "raise BaseException('odd')"))
    out = gated.run(GATE)
    assert (out.ret, out.tally) == (1, {"INCOMPLETE": N})
