"""`--accept-resume`: equal evidence counts, everything stale is INCOMPLETE, and a FAIL is not re-run until it passes."""

import json
import sys
from pathlib import Path

import pytest
from scripted import GATE, H2O, TWO, N, Project

RESUME = (GATE, "--lf", "--accept-resume")
KV4 = H2O.replace("test_h2o", "test_kv4").replace('"h2o", kv_budget=0.25', '"kv4"')


@pytest.fixture
def failed(project: Project) -> Project:
    """One file that passed and one with a failing item, after a first run."""
    project.file("test_good.py", H2O)
    project.file("test_bad.py", KV4)
    project.script_items({"test_bad.py::test_kv4[footprint]": "engine"})
    out = project.run(GATE)
    assert (out.ret, len(out.records), out.tally) == (1, 2 * N, {"PASS": 2 * N - 1, "INCOMPLETE": 1})
    project.script()
    return project


def judged_from_disk(project: Project) -> tuple[int, str]:
    """Return exit status and text of the command that judges the folder later."""
    result = project.pytester.run(sys.executable, "-m", "pytest_attnaccept", "verdict", ".attnaccept")
    return int(result.ret), result.stdout.str()


def test_lf_alone_is_incomplete(failed: Project) -> None:
    out = failed.run(GATE, "--lf")
    assert (out.ret, out.passed, len(out.records), out.gate) == (1, 1, 1, "INCOMPLETE")
    assert any("add --accept-resume" in p for p in out.summary["problems"])
    assert judged_from_disk(failed)[0] == 1


def test_lf_with_resume_counts_equal_records(failed: Project) -> None:
    out = failed.run(*RESUME)
    assert (out.ret, out.passed, len(out.records)) == (0, 1, 2 * N + 1)
    assert out.tally == {"PASS": 2 * N}
    assert judged_from_disk(failed)[0] == 0


def test_resume_under_xdist(failed: Project) -> None:
    out = failed.run(*RESUME, "-n2", apart=True)
    assert (out.ret, out.passed, len(out.records), out.tally) == (0, 1, 2 * N + 1, {"PASS": 2 * N})
    assert judged_from_disk(failed)[0] == 0


def test_resume_twice(failed: Project) -> None:
    failed.script(default="engine")
    assert failed.run(*RESUME).ret == 1
    failed.script()
    out = failed.run(*RESUME)
    assert (out.ret, out.passed, len(out.records), out.tally) == (0, 1, 2 * N + 2, {"PASS": 2 * N})
    assert judged_from_disk(failed)[0] == 0


def stale(project: Project, *options: str) -> None:
    """Assert that a resumed run finds the records of the good file stale, now and when judged later."""
    out = project.run(*RESUME, *options)
    assert out.ret == 1
    assert out.gate == "INCOMPLETE"
    old = [v for i, v in out.verdicts.items() if i.startswith("test_good.py")]
    assert old == ["INCOMPLETE"] * N
    assert "stale record" in out.headline(next(i for i in out.verdicts if i.startswith("test_good.py")))
    status, text = judged_from_disk(project)
    assert status == 1
    assert "stale record" in text


def test_changed_test_file_is_stale(failed: Project) -> None:
    failed.file("test_good.py", H2O + "\n# another candidate\n")
    stale(failed)


def test_changed_conftest_is_stale(failed: Project) -> None:
    path = failed.path / "conftest.py"
    path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    stale(failed)


def test_changed_seed_is_stale(failed: Project) -> None:
    stale(failed, "--accept-seed=7")


def test_changed_dtype_is_stale(failed: Project) -> None:
    stale(failed, "--accept-dtype=bfloat16")


def test_changed_device_is_stale(failed: Project) -> None:
    stale(failed, "--accept-device=cpu")


def test_changed_model_is_stale(failed: Project) -> None:
    stale(failed, "--accept-model=some/where")


def test_changed_profile_is_stale(project: Project) -> None:
    text = (
        "schema: 1\nname: mine\nclaim: c\nchecks:\n  identity: {tier: 1}\n  perplexity: {tier: 1}\n"
        "limits:\n  needle: {max: 0.10, origin: 'policy: x'}\n"
    )
    project.file("mine.yaml", text)
    project.file("test_good.py", H2O)
    project.file("test_bad.py", KV4)
    project.script_items({"test_bad.py::test_kv4[perplexity]": "engine"})
    options = ("--accept-profile=mine.yaml", "--lf", "--accept-resume")
    assert project.run(*options[:1]).ret == 1
    project.script()
    project.file("mine.yaml", text.replace("0.10", "0.20"))
    out = project.run(*options)
    assert (out.ret, out.tally) == (1, {"INCOMPLETE": 3, "PASS": 1})


def test_other_profile_is_stale(failed: Project) -> None:
    out = failed.run("--accept-profile=edge", "--lf", "--accept-resume")
    assert out.ret == 1
    assert out.tally.get("INCOMPLETE", 0) >= N


def test_changed_module_that_the_test_imports_is_stale(project: Project) -> None:
    project.file("mylib/__init__.py", "")
    project.file("mylib/deep.py", "BUDGET = 1\n")
    project.file("mylib/kernel.py", "from . import deep\n")
    project.file("test_good.py", "from mylib.kernel import deep\n" + H2O)
    project.file("test_bad.py", KV4)
    project.script_items({"test_bad.py::test_kv4[footprint]": "engine"})
    project.pytester.syspathinsert()
    assert project.run(GATE).ret == 1
    project.script()
    project.file("mylib/deep.py", "BUDGET = 2\n")
    stale(project)


OWN_METHOD = """
def pytest_attnaccept_register(registry):
    from pytest_attnaccept import Kind, Knob, Layer, Method, Surface
    registry.method(Method(name="mykv", kind=Kind.APPROXIMATE, layer=Layer.CONTENT, surface=Surface.MODEL, note="mine",
                           applies="mykv_impl:apply"))
"""


def test_changed_code_of_a_method_of_ones_own_is_measured_again(project: Project) -> None:
    """Only the text of ``applies`` leads to it, and no import of the test."""
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    project.file("conftest.py", conftest + OWN_METHOD)
    project.file("mykv_impl.py", "import mykv_deep\n")
    project.file("mykv_deep.py", "KEEP = 0.5\n")
    project.file("test_gate.py", H2O.replace('"h2o", kv_budget=0.25', '"mykv"'))
    project.pytester.syspathinsert()
    assert project.run(GATE).ret == 0
    out = project.run(GATE, "--accept-resume")
    first = len(out.records)
    assert (out.ret, set(out.tally)) == (0, {"PASS"})
    project.file("mykv_deep.py", "KEEP = 0.01\n")
    out = project.run(GATE, "--accept-resume")
    assert len(out.records) == 2 * first


def test_changed_weights_of_a_cell_are_stale(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(footprint="engine", weights="w1")
    assert project.run(GATE).ret == 1
    project.script(weights="w2")
    out = project.run(*RESUME)
    assert (out.ret, len(out.records), out.tally) == (1, N + 1, {"PASS": 1, "INCOMPLETE": N - 1})
    assert "weights changed" in out.text


def test_changed_candidate_of_a_cell_is_stale(project: Project) -> None:
    source = "from pathlib import Path\n" + H2O.replace("accept.model()", "accept.model(candidate)")
    project.file("plain.txt", "")
    project.file("test_gate.py", source.replace("import pytest", "import pytest, loader\ncandidate = loader.load()"))
    loader = (
        "import types, pathlib, linecache\n"
        "def load():\n    path = pathlib.Path(__file__).with_name('kernel.txt')\n"
        "    code = compile(path.read_text(), str(path), 'exec')\n    scope = {}\n    exec(code, scope)\n    return scope['f']\n"
    )
    project.file("loader.py", loader)
    project.file("kernel.txt", "def f():\n    return 1\n")
    project.pytester.syspathinsert()
    project.script(footprint="engine")
    assert project.run(GATE, apart=True).ret == 1
    project.script()
    project.file("kernel.txt", "def f():\n    return 2  # loaded in a way that no import graph shows\n")
    out = project.run(*RESUME, apart=True)
    assert (out.ret, out.tally) == (1, {"PASS": 1, "INCOMPLETE": N - 1})
    assert "candidate changed" in out.text


def test_fail_then_pass_with_equal_fingerprint_stays_fail(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(perplexity="fail")
    assert project.run(GATE).ret == 1
    project.script()
    out = project.run(*RESUME)
    assert (out.ret, out.passed, len(out.records)) == (1, 1, N + 1)
    assert out.tally == {"PASS": N - 1, "FAIL": 1}
    assert "2 attempts, worst counts" in out.text
    assert judged_from_disk(project)[0] == 1


def test_fail_fixed_by_a_changed_file_then_passes(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(perplexity="fail")
    assert project.run(GATE).ret == 1
    project.script()
    project.file("test_gate.py", H2O + "\n# repaired\n")
    out = project.run(GATE, "--accept-resume")
    assert (out.ret, out.passed, len(out.records), out.tally) == (0, N, 2 * N, {"PASS": N})


@pytest.mark.parametrize("first", ["few", "engine"])
def test_no_decision_may_be_followed_by_one(project: Project, first: str) -> None:
    project.file("test_gate.py", H2O)
    project.script(perplexity=first)
    assert project.run(GATE).ret == 1
    project.script()
    out = project.run(*RESUME)
    assert (out.ret, out.tally) == (0, {"PASS": N})


def test_resume_without_anything_before(project: Project) -> None:
    project.file("test_gate.py", H2O)
    out = project.run(GATE, "--accept-resume", "-k", "footprint")
    assert (out.ret, len(out.records), out.tally) == (1, 1, {"PASS": 1, "INCOMPLETE": N - 1})


def test_a_new_run_without_resume_starts_afresh(failed: Project) -> None:
    out = failed.run(GATE, "-k", "test_kv4")
    assert (out.ret, len(out.records), out.tally) == (1, N, {"PASS": N, "INCOMPLETE": N})
    assert len({r["run_id"] for r in out.records}) == 1


def test_resume_appends_and_changes_nothing_that_was_written(failed: Project) -> None:
    before = {p.name: p.read_bytes() for p in (failed.path / ".attnaccept").glob("records.*")}
    failed.run(*RESUME)
    after = {p.name: p.read_bytes() for p in (failed.path / ".attnaccept").glob("records.*")}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1


def test_records_of_another_plan_copied_in(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.run(GATE, "--accept-seed=1", "--accept-out=other")
    (project.path / ".attnaccept").mkdir()
    for path in (project.path / "other").iterdir():
        path.rename(project.path / ".attnaccept" / path.name)
    project.script(default="engine")
    out = project.run(GATE, "--accept-resume")
    assert (out.ret, len(out.records), out.tally) == (1, 2 * N, {"INCOMPLETE": N})
    out = project.run(GATE, "-k", "footprint")
    assert (out.ret, out.tally) == (1, {"INCOMPLETE": N})


def test_half_a_line_of_a_killed_process_is_not_damage(failed: Project) -> None:
    path = next((failed.path / ".attnaccept").glob("records.*"))
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"schema": 1, "item": "test_bad')
    out = failed.run(*RESUME)
    assert (out.ret, out.tally) == (0, {"PASS": 2 * N})


def test_damaged_line_is_a_problem(failed: Project) -> None:
    path: Path = next((failed.path / ".attnaccept").glob("records.*"))
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[0] = lines[0][:40]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = failed.run(*RESUME)
    assert out.ret == 1
    assert any("is not a record" in p for p in out.summary["problems"])


def test_stale_records_are_reported_and_never_deleted_under_xdist(failed: Project) -> None:
    failed.file("test_good.py", H2O + "\n# changed\n")
    out = failed.run(*RESUME, "-n2", apart=True)
    assert (out.ret, len(out.records)) == (1, 2 * N + 1)
    assert out.tally == {"PASS": N, "INCOMPLETE": N}
    assert "stale record" in out.text


def test_two_runs_in_one_second_keep_their_order(project: Project) -> None:
    project.file("test_gate.py", TWO)
    names = []
    for _ in range(2):
        project.run(GATE)
        names.append(json.loads((project.path / ".attnaccept/verdict.json").read_text(encoding="utf-8"))["run_id"])
    assert names == sorted(names)


def test_lf_whose_base_run_is_gone(failed: Project) -> None:
    for path in (failed.path / ".attnaccept").iterdir():
        path.unlink()
    out = failed.run(*RESUME)
    assert (out.ret, out.passed, len(out.records)) == (1, 1, 1)
    assert out.tally == {"PASS": 1, "INCOMPLETE": 2 * N - 1}


def test_lf_sees_a_file_that_no_run_has_seen(failed: Project) -> None:
    failed.file("test_new.py", H2O)
    out = failed.run(*RESUME)
    assert (out.ret, out.passed, out.tally) == (1, 1, {"PASS": 2 * N, "INCOMPLETE": N})


def test_lf_sees_a_file_that_no_run_has_seen_under_xdist(failed: Project) -> None:
    failed.file("test_new.py", H2O)
    out = failed.run(*RESUME, "-n2", apart=True)
    assert (out.ret, out.passed, out.tally) == (1, 1, {"PASS": 2 * N, "INCOMPLETE": N})


def test_killed_run_can_be_resumed(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script_items({"test_gate.py::test_h2o[perplexity]": "crash"})
    out = project.run(GATE, apart=True)
    assert out.ret == 3
    measured = len(out.records)
    assert 0 < measured < N
    assert judged_from_disk(project)[0] == 1
    project.script()
    done = {r["check"] for r in out.records}
    rest = " or ".join(c for c in ("identity", "footprint", "divergence", "perplexity", "needle") if c not in done)
    out = project.run(GATE, "--accept-resume", "-k", rest)
    assert (out.ret, len(out.records), out.tally) == (0, N, {"PASS": N})
    assert judged_from_disk(project)[0] == 0


def test_files_of_a_newer_run_are_left_alone(project: Project) -> None:
    project.file("test_gate.py", H2O)
    newer = project.file(".attnaccept/records.99990101T000000000000-abcdef.main.jsonl", "")
    older = project.file(".attnaccept/records.20000101T000000000000-abcdef.main.jsonl", "")
    assert project.run(GATE).ret == 0
    assert (newer.exists(), older.exists()) == (True, False)


def test_two_tests_of_one_id(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Outside of the root folder pytest names files relative to the arguments, so ids can coincide."""
    outside = tmp_path_factory.mktemp("outside")
    for name in ("a", "b"):
        (outside / name).mkdir()
        (outside / name / "one.accept.yaml").write_text(
            "schema: 1\nmodels: {m: toy-gqa}\nfactors: {kv: {four: {method: kv4}}}\nships: {prod: {kv: four}}\n"
        )
    out = project.run(GATE, f"--rootdir={project.path}", "-c", str(project.file("pytest.ini", "[pytest]\n")), "-p", "conftest",
                      str(outside / "a"), str(outside / "b"), apart=True)  # fmt: skip
    ids = list(out.verdicts)
    if len(ids) == 2 * N:
        assert out.gate == "PASS"
    else:
        assert (out.ret, out.gate) == (1, "INCOMPLETE")
        assert any("two tests have the id" in p for p in out.summary["problems"])


def test_resume_alone_measures_only_what_is_not_green(failed: Project) -> None:
    out = failed.run(GATE, "--accept-resume")
    assert (out.ret, out.passed, len(out.records), out.tally) == (0, 2 * N, 2 * N + 1, {"PASS": 2 * N})
    assert judged_from_disk(failed)[0] == 0


def test_a_killed_run_loses_the_item_in_progress_only(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(perplexity="crash")
    done = len(project.run(GATE, apart=True).records)
    assert 0 < done < N
    project.script()
    out = project.run(GATE, "--accept-resume")
    assert (out.ret, out.passed, len(out.records), out.tally) == (0, N, N, {"PASS": N})


def test_resume_measures_again_under_other_weights(project: Project) -> None:
    project.file("test_gate.py", H2O)
    assert project.run(GATE).ret == 0
    project.script(weights="w2")
    out = project.run(GATE, "--accept-resume")
    assert (out.ret, len(out.records), out.tally) == (0, 2 * N, {"PASS": N})


def test_resume_measures_a_failure_again_and_keeps_it(project: Project) -> None:
    project.file("test_gate.py", H2O)
    project.script(perplexity="fail")
    assert project.run(GATE).ret == 1
    project.script()
    out = project.run(GATE, "--accept-resume")
    assert (out.ret, len(out.records), out.tally) == (1, N + 1, {"PASS": N - 1, "FAIL": 1})


def test_a_test_that_stopped_standing_by_its_verdict_is_not_carried_over(project: Project) -> None:
    project.file("test_gate.py", H2O)
    assert project.run(GATE).ret == 0
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    other = conftest + "\nimport pytest\n@pytest.fixture(autouse=True)\ndef later():\n    yield\n"
    project.file("conftest.py", other)
    out = project.run(GATE, "--accept-resume")
    assert len(out.records) == 2 * N  # another conftest: nothing stands


def test_the_command_to_go_on_repeats_what_was_called(failed: Project) -> None:
    failed.script(footprint="engine")
    out = failed.run(GATE, "--accept-out=there", "-k", "test_kv4 or test_h2o", "--accept-seed=3")
    assert "pytest --accept-profile=smoke --accept-out=there -k 'test_kv4 or test_h2o' --accept-seed=3 --lf" in out.text


def test_the_command_to_go_on_reaches_what_was_deselected(project: Project) -> None:
    project.file("test_gate.py", TWO)
    out = project.run(GATE, "-k", "kv4 and not footprint", "--accept-seed=3")
    assert (out.ret, out.gate) == (1, "INCOMPLETE")
    assert "is not green: pytest --accept-profile=smoke --accept-seed=3 --accept-resume\n" in out.text
    assert project.run(GATE, "--accept-seed=3", "--accept-resume").gate == "PASS"


def test_a_compiled_candidate_is_measured_again(project: Project) -> None:
    """Only its name is known: it may have been built anew since."""
    project.file("test_gate.py", "import math\n" + H2O.replace("accept.model()", "accept.model(math.floor)"))
    assert project.run(GATE).ret == 0
    out = project.run(GATE, "--accept-resume")
    assert (out.ret, len(out.records), out.tally) == (0, 2 * N, {"PASS": N})
