"""`*.accept.yaml` as pytest items: cells, ids, selection, and broken files as one clean collection error."""

import pytest
from scripted import GATE, N, Project

SUITE = """schema: 1
title: a release
models:
  gqa: toy-gqa
  mha: {spec: toy-mha, dtype: float32}
factors:
  kv:
    off: null
    four: {method: kv4}
  eviction:
    h2o-quarter: {method: h2o, kv_budget: 0.25}
    none: null
ships:
  production: {kv: four, eviction: h2o-quarter}
  chat: {kv: four, eviction: none}
"""
CELLS = 2 * 4  # two columns; two stacks, and both lossy members of the stack of two alone


def test_cells_items_and_records(project: Project) -> None:
    project.file("release.accept.yaml", SUITE)
    out = project.run(GATE)
    assert (out.ret, out.passed, len(out.records), out.gate) == (0, CELLS * N, CELLS * N, "PASS")
    cells = {i.split("::")[1].split("[")[0] for i in out.verdicts}
    assert cells == {
        f"{m}.{c}"
        for m in ("gqa", "mha")
        for c in ("production", "chat", "only-kv4-residual-0", "only-h2o-kv_budget-0.25-sinks-4")
    }
    assert all(len(i.rpartition("::")[2]) < 100 for i in out.verdicts)


@pytest.mark.parametrize("mode", [("-n2",), ("-n2", "--dist", "loadfile")], ids=" ".join)
def test_under_xdist(project: Project, mode: tuple[str, ...]) -> None:
    project.file("release.accept.yaml", SUITE)
    project.script(perplexity="fail")
    out = project.run(GATE, *mode, "--junitxml=out.xml", apart=True)
    assert (out.ret, out.failed, len(out.records), out.tally) == (
        1,
        CELLS,
        CELLS * N,
        {"PASS": CELLS * (N - 1), "FAIL": CELLS},
    )
    assert len(list(project.junit().iter("testcase"))) == CELLS * N


def test_selection_like_any_test(project: Project) -> None:
    project.file("release.accept.yaml", SUITE)
    for options, ran in (
        (("-k", "chat and footprint"), 2),
        (("-m", "approximate(method='h2o')"), 4 * N),
        (("release.accept.yaml::gqa.chat[footprint]",), 1),
    ):
        out = project.run(GATE, *options)
        assert (out.ret, out.passed, len(out.records), out.gate) == (1, ran, ran, "INCOMPLETE")
    assert project.run("--co", "-q").text.count("release.accept.yaml::") == CELLS * N


def test_lf_and_x(project: Project) -> None:
    project.file("release.accept.yaml", SUITE)
    project.script_items({"release.accept.yaml::gqa.chat[footprint]": "engine"})
    assert project.run(GATE).ret == 1
    project.script()
    out = project.run(GATE, "--lf", "--accept-resume")
    assert (out.ret, out.passed, out.tally) == (0, 1, {"PASS": CELLS * N})
    project.script(default="fail")
    assert len(project.run(GATE, "-x").records) == 1


def test_reports_point_at_the_line_of_the_stack(project: Project) -> None:
    project.file("release.accept.yaml", SUITE)
    project.script(footprint="fail")
    project.run(GATE, "--junitxml=out.xml", "-o", "junit_family=xunit1", "-k", "chat and footprint")
    case = next(project.junit().iter("testcase"))
    assert (case.get("file"), case.get("line")) == (
        "release.accept.yaml",
        str(SUITE.splitlines().index("  chat: {kv: four, eviction: none}")),
    )


def test_fixtures_of_the_project_act_on_suite_items(project: Project) -> None:
    project.file("release.accept.yaml", SUITE)
    more = "\nimport pytest\n@pytest.fixture(autouse=True)\ndef note(request):\n    with open('seen.txt', 'a') as s:\n        s.write(request.node.name + '\\n')\n"
    project.file("conftest.py", (project.path / "conftest.py").read_text(encoding="utf-8") + more)
    assert project.run(GATE).ret == 0
    assert len((project.path / "seen.txt").read_text().splitlines()) == CELLS * N


def test_two_suites_with_equal_cell_names(project: Project) -> None:
    project.file("a/release.accept.yaml", SUITE)
    project.file("b/release.accept.yaml", SUITE)
    out = project.run(GATE)
    assert (out.ret, len(out.records), len(out.verdicts)) == (0, 2 * CELLS * N, 2 * CELLS * N)
    out = project.run(GATE, "--deselect", "b/release.accept.yaml")
    assert (out.ret, out.tally) == (1, {"PASS": CELLS * N, "INCOMPLETE": CELLS * N})


def test_chinese_names_stay_apart(project: Project) -> None:
    text = SUITE.replace("production:", "生产:").replace("chat:", "聊天:").replace("  gqa:", "  小模型:")
    project.file("发布.accept.yaml", text)
    out = project.run(GATE, "--junitxml=out.xml", apart=True)
    assert (out.ret, len(out.records), len(out.verdicts)) == (0, CELLS * N, CELLS * N)
    cells = {i.split("::")[1].split("[")[0] for i in out.verdicts}
    assert len(cells) == CELLS
    assert all(set(c) <= set("abcdefghijklmnopqrstuvwxyz0123456789._+-") for c in cells)


BROKEN = {
    "unknown key": (("title:", "titel:"), "2: unknown key 'titel'. Did you mean 'title'?"),
    "duplicate key": (("  chat: {", "  production: {"), "15: key 'production' stands twice (first at line 14)"),
    "unknown method": (("h2o, kv_budget", "h20, kv_budget"), "11: unknown method 'h20'. Did you mean 'h2o'?"),
    "unknown knob": (("kv_budget", "kv_buget"), "11: unknown knob of h2o 'kv_buget'. Did you mean 'kv_budget'?"),
    "unknown factor": (("{kv: four, eviction: none}", "{kw: four}"), "15: unknown factor 'kw'. Did you mean 'kv'?"),
    "unknown option": (("eviction: none}", "eviction: nine}"), "15: unknown option of factor eviction 'nine'"),
    "unused option": (
        ("    none: null", "    none: null\n    tova: {method: streaming_llm, kv_budget: 0.5}"),
        "13: option 'tova' of factor 'eviction' is in no shipped stack",
    ),
    "baseline only": (
        ("chat: {kv: four, eviction: none}", "chat: {kv: off, eviction: none}"),
        "15: chat: every factor is off",
    ),
    "ships nothing": (
        ("  production: {kv: four, eviction: h2o-quarter}\n  chat: {kv: four, eviction: none}\n", "  {}\n"),
        "names no stack",
    ),
    "no schema": (("schema: 1\n", ""), "key 'schema' is missing"),
    "other schema": (("schema: 1", "schema: 2"), "1: schema: this version reads schema 1, the file says 2"),
    "schema is text": (("schema: 1", 'schema: "1"'), "must be int, got str"),
    "kind contradicts": (("{method: kv4}", "{method: kv4, kind: exact}"), "kv4 is approximate, not exact"),
    "knob as text": (("kv_budget: 0.25", 'kv_budget: "0.25"'), "must be float or int"),
    "off is not a number": (("kv_budget: 0.25", "kv_budget: off"), "kv_budget='off' must be float or int"),
    "trust is not a word": (("dtype: float32", "trust_remote_code: yes"), "trust_remote_code: 'yes' must be bool"),
    "model key": (("dtype: float32", "dtpye: float32"), "unknown key 'dtpye'. Did you mean 'dtype'?"),
    "profile": (("title: a release", "profile: longctxx"), "Did you mean 'longctx'?"),
    "limit without origin": (("title: a release", "limits: {needle: {max: 0.2}}"), "needs origin"),
    "limit name": (("title: a release", "limits: {needel: {max: 0.2, origin: 'policy: x'}}"), "unknown key 'needel'"),
    "limit too large": (
        ("title: a release", "limits: {needle: {max: 2, origin: 'policy: x'}}"),
        "must be a number in (0, 1]",
    ),
    "missing text": (("title: a release", "data: {text: nowhere.txt}"), "nowhere.txt does not exist"),
    "not yaml": (("title: a release", "title: [a"), "not valid YAML"),
    "a list": ((SUITE, "- a\n- b\n"), "must hold a mapping"),
    "empty": ((SUITE, ""), "must hold a mapping"),
    "two ids in one": (("  chat:", "  Production:"), "'gqa.production' exists already (line 14)"),
    "contains itself": (("title: a release", "title: &a [*a]"), "contains itself"),
    "python tag": (("title: a release", "title: !!python/name:os.system x"), "is not allowed"),
    "missing log": (
        (
            "title: a release",
            "logs: {baseline: a.jsonl, candidate: b.jsonl, method: kv4, margin: 0.02, origin: 'policy: x'}",
        ),
        "does not exist",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_suite_is_one_clean_collection_error(project: Project, name: str) -> None:
    (old, new), text = BROKEN[name]
    assert old in SUITE
    project.file("release.accept.yaml", SUITE.replace(old, new))
    # an unknown profile is only read where no option overrides it
    out = project.run(*(() if name == "profile" else (GATE,)))
    assert (out.ret, out.passed, out.errors) == (2, 0, 1)
    assert text in out.text.replace("\n", " ")
    assert "release.accept.yaml" in out.text
    assert "Traceback" not in out.text
    assert "strict_yaml.py" not in out.text


def test_broken_suite_under_xdist(project: Project) -> None:
    project.file("release.accept.yaml", SUITE.replace("title:", "titel:"))
    project.file("good.accept.yaml", SUITE)
    out = project.run(GATE, "-n2", apart=True)  # pytest-xdist runs what it could collect
    assert (out.ret, out.passed, out.errors, out.gate, len(out.records)) == (1, CELLS * N, 1, "INCOMPLETE", CELLS * N)
    assert "release.accept.yaml:2: unknown key 'titel'. Did you mean 'title'?" in out.text
    assert "INTERNALERROR" not in out.text
    out = project.run(GATE, "--continue-on-collection-errors")
    assert (out.ret, out.gate, len(out.records)) == (1, "INCOMPLETE", CELLS * N)


def test_numbers_are_numbers(project: Project) -> None:
    project.file(
        "release.accept.yaml",
        SUITE.replace("title: a release", "limits: {needle: {max: 1e-3, origin: 'policy: strict'}}"),
    )
    project.script(footprint="paired")
    out = project.run(GATE)
    assert out.ret == 1  # 2000 answers without a loss cannot exclude a loss of 0.001
    assert {m["limit"] for r in out.records if r["check"] == "footprint" for m in r["metrics"]} == {0.001}


def test_profile_of_the_file_holds_unless_an_option_names_one(project: Project) -> None:
    project.file("release.accept.yaml", SUITE.replace("title: a release", "profile: edge"))
    assert {r["profile"] for r in project.run().records} == {"edge"}
    assert {r["profile"] for r in project.run(GATE).records} == {"smoke"}


def test_recorded_logs_are_planned(project: Project) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        project.file(name, "{}\n")
    logs = "logs: {baseline: a.jsonl, candidate: b.jsonl, method: kv4, margin: 0.02, origin: 'policy: x'}"
    project.file("logs.accept.yaml", f"schema: 1\n{logs}\n")
    out = project.run(GATE, "-k", "nothing")
    assert (out.ret, len(out.verdicts), out.gate) == (1, 1, "INCOMPLETE")
    project.file("logs.accept.yaml", SUITE.replace("title: a release", logs))
    out = project.run(GATE, "-k", "not samples")
    assert (out.ret, len(out.verdicts), len(out.records), out.gate) == (1, CELLS * N + 1, CELLS * N, "INCOMPLETE")
