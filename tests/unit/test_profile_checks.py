"""Families and benchmarks in a profile: which items they become, and which mistakes are found before anything runs."""

from __future__ import annotations

import hashlib

import pytest

from pytest_attnaccept import profile_checks
from pytest_attnaccept.errors import SchemaError, UnknownNameError, UsageError
from pytest_attnaccept.profile_checks import MOST_CONTEXTS, _named_files, check_id
from pytest_attnaccept.profiles import load_profile, parse_profile
from pytest_attnaccept.protocol import StackEntry, not_gated_yet, required_depth
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.strict_yaml import load_text
from pytest_attnaccept.tasks import families, task_families
from pytest_attnaccept.taxonomy import Kind, Surface

REGISTRY = Registry.builtin()


def profile(text: str, folder=None):
    return parse_profile(
        load_text(f"schema: 1\nname: mine\nclaim: c\n{text}", str((folder or "") and folder / "p.yaml") or "p.yaml")
    )


def depth(text: str, method: str = "kv8", folder=None):
    stack = [StackEntry(method=REGISTRY.get(method), knobs={})]
    return {r.check: r.params for r in required_depth(stack, Surface.MODEL, profile(text, folder), "here")}


def test_every_family_becomes_an_item():
    found = depth(
        "max_tokens: 500\nchecks:\n  identity: {tier: 1}\n"
        "  long-range: {families: [kv_recall, multi_hop], tiers: [0.5, 4], contexts: 30, score: choice, patterns: [one-shot, chunk-64]}\n"
    )
    assert list(found) == ["identity", "long-range-kv_recall", "long-range-multi_hop"]
    assert found["long-range-multi_hop"] == {
        "family": "multi_hop", "parameters": {}, "tiers": [0.5, 4], "contexts": 30, "score": "choice",
        "patterns": ["one-shot", "chunk-64"], "max_tokens": 500, "longest_tier": 4.0,
    }  # fmt: skip
    assert found["identity"]["longest_tier"] == 4.0


def test_one_family_may_come_twice_under_ids_of_its_own():
    found = depth(
        "checks:\n  long-range:\n    families:\n      passkey: {value: word}\n      Long_Key: {family: passkey, value: uuid}\n"
    )
    assert list(found) == ["long-range-passkey", "long-range-long_key"]
    assert found["long-range-long_key"]["family"] == "passkey"
    assert found["long-range-long_key"]["parameters"] == {"value": "uuid"}


def test_every_task_becomes_an_item(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a.yaml").write_text("task: a\n", encoding="utf-8")
    text = "checks:\n  benchmark: {tasks: [mmlu, leaderboard|X], include_path: tasks, limit: 50, num_fewshot: 0, run_code: true, metric: acc}\n"
    found = depth(text, folder=tmp_path)
    assert list(found) == ["benchmark-mmlu", "benchmark-leaderboard-x"]
    params = found["benchmark-leaderboard-x"]
    assert (params["task"], params["limit"], params["num_fewshot"], params["run_code"]) == (
        "leaderboard|X",
        50,
        0,
        True,
    )
    assert params["include_path"] == str(tmp_path / "tasks")
    (tmp_path / "tasks" / "a.yaml").write_text("task: b\n", encoding="utf-8")
    assert depth(text, folder=tmp_path)["benchmark-mmlu"]["content"] != params["content"]


def test_code_runs_only_when_the_profile_says_so():
    assert depth("checks: {benchmark: {tasks: [humaneval]}}")["benchmark-humaneval"]["run_code"] is False


def test_an_architecture_is_compared_on_families_and_benchmarks_too():
    found = depth(
        "checks: {identity: {tier: 1}, long-range: {families: [mqar]}, benchmark: {tasks: [arc_easy]}}", "mamba"
    )
    assert list(found) == ["long-range-mqar", "benchmark-arc_easy", "full-evaluation"]


def test_exact_methods_need_neither():
    found = depth(
        "checks: {equality: {tier: 1}, long-range: {families: [mqar]}, benchmark: {tasks: [arc_easy]}}",
        "paged_attention",
    )
    assert not [check for check in found if check.startswith(("long-range", "benchmark"))]


def test_what_is_gated_is_not_listed_as_missing():
    listed = not_gated_yet(Kind.APPROXIMATE, Surface.MODEL, profile("checks: {long-range: {families: [mqar]}}"))
    assert "benchmark" in listed
    assert "long-range" not in listed
    assert {"long-range", "benchmark"} <= set(not_gated_yet(Kind.APPROXIMATE, Surface.MODEL, load_profile("smoke")))


def test_shipped_profiles_name_families_with_a_margin():
    for name in ("longctx",):
        found = load_profile(name)
        assert set(found.checks["long-range"]["families"]) == {"kv_recall", "variable_tracking"}
        assert found.limits["long-range"].max == 0.10
    assert "long-range" not in load_profile("smoke").checks


def test_every_setting_changes_the_digest():
    base = "checks: {long-range: {families: {mqar: {pairs: 8}}, contexts: 30}}"
    digests = {
        profile(text).digest()
        for text in (
            base,
            base.replace("pairs: 8", "pairs: 9"),
            base.replace("30", "31"),
            base.replace("}}, ", "}}, score: choice, "),
        )
    }
    assert len(digests) == 4


BAD = {
    "no families": "long-range: {contexts: 3}",
    "empty families": "long-range: {families: []}",
    "a word": "long-range: {families: mqar}",
    "twice": "long-range: {families: [mqar, mqar]}",
    "same id": "long-range: {families: {Mqar: {family: mqar}, mqar: {}}}",
    "a number": "long-range: {families: [3]}",
    "no mapping": "long-range: {families: {mqar: 3}}",
    "no tiers": "long-range: {families: [mqar], tiers: []}",
    "infinite tier": "long-range: {families: [mqar], tiers: [.inf]}",
    "no contexts": "long-range: {families: [mqar], contexts: 0}",
    "half a context": "long-range: {families: [mqar], contexts: 0.5}",
    "pattern": "long-range: {families: [mqar], patterns: [chunks]}",
    "key": "long-range: {families: [mqar], depths: 5}",
    "no tasks": "benchmark: {limit: 3}",
    "empty tasks": "benchmark: {tasks: []}",
    "task twice": "benchmark: {tasks: [arc_easy, ARC_EASY]}",
    "no documents": "benchmark: {tasks: [arc_easy], limit: 0}",
    "fewer shots": "benchmark: {tasks: [arc_easy], num_fewshot: -1}",
    "perhaps code": "benchmark: {tasks: [humaneval], run_code: 1}",
    "no folder": "benchmark: {tasks: [arc_easy], include_path: nowhere}",
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD)
def test_what_measures_nothing_is_refused(line):
    with pytest.raises(UsageError, match=r"p\.yaml:5"):
        profile(f"checks:\n  {line}\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{kv_recall: {pears: 3}}", "unknown parameter of kv_recall 'pears'. Did you mean 'pairs'"),
        ("{long: {family: passkey, values: uuid}}", "unknown parameter of passkey 'values'. Did you mean 'value'"),
        ("{kv_recall: {pairs: true}}", "pairs=True must be of type int"),
        ("{kv_recall: {pairs: 3.5}}", "pairs=3.5 must be of type int in 2..64."),
        ("{kv_recall: {pairs: 8.0}}", "pairs=8.0 must be of type int in 2..64. Did you mean 8?"),
        ("{kv_recall: {pairs: '8'}}", "pairs='8' must be of type int in 2..64. Did you mean 8?"),
        ("{kv_recall: {pairs: null}}", "pairs=None must be of type int"),
        ("{kv_recall: {pairs: [8]}}", "pairs=[8] must be of type int"),
        ("{kv_recall: {pairs: 0}}", "kv_recall: pairs=0 is outside 2..64. The nearest is 2."),
        ("{kv_recall: {pairs: -3}}", "pairs=-3 is outside 2..64. The nearest is 2."),
        ("{kv_recall: {pairs: 1000000000000}}", "pairs=1000000000000 is outside 2..64. The nearest is 64."),
        (f"{{kv_recall: {{pairs: 1{'0' * 5000}}}}}", "(5003 characters) must be of type int"),
        (f"{{kv_recall: {{pairs: 1{'0' * 300}}}}}", "(301 characters) is outside 2..64. The nearest is 64."),
        ("{kv_recall: {questions: 9}}", "questions=9 is outside 1..8 (pairs=8). The nearest is 8."),
        ("{kv_recall: {pairs: 3}}", "questions=4 (the default) is outside 1..3 (pairs=3). The nearest is 3."),
        ("{kv_recall: {filler: chinese}}", "filler='chinese' is unknown. Allowed: varied, repeat."),
        ("{mine: {family: json_dump, pairs: 1}}", "pairs=1 is neither 0 (as many as fit) nor in 2..100000"),
        ("{passkey: {depth: .nan}}", "depth=nan is neither -1 (rotating) nor in 0..1."),
        ("{passkey: {depth: .inf}}", "depth=inf is neither -1 (rotating) nor in 0..1. The nearest is 1."),
        (
            "{passkey: {value: digit7}}",
            "is unknown. Allowed: word, digits4, digits7, digits64, uuid. Did you mean 'digits7'?",
        ),
        ("{text: {questions: 0}}", "text: questions=0 asks nothing"),
        ("[{kv_recall: {pairs: 3}}]", "must be a list of names; parameters need a mapping"),
        ("{passkey: {value: 7}}", "value=7 must be of type str"),
        ("{passkey: {depth: deep}}", "depth='deep' must be of type float"),
        ("{passkey: {path: passkeys.jsonl}}", "unknown parameter of passkey 'path'"),
        ("{hotpotqa: {path: p.jsonl, pairs: 3}}", "unknown key of hotpotqa 'pairs'"),
        ("{hotpotqa: {path: p.jsonl, sha: 12}}", "unknown key of hotpotqa 'sha'. Did you mean 'sha256'"),
        ("{hotpotqa: {path: p.jsonl, sha256: abc}}", "must be 16 to 64 hex digits"),
        ("{hotpotqa: {path: p.jsonl, sha256: 00000000deadbeef}}", "it is another file"),
        ("{hotpotqa: {path: 'hub:a/b', sha256: 00000000deadbeef}}", "of the digest of a file"),
    ],
)
def test_a_mistake_in_a_parameter_is_found_when_the_profile_is_read(tmp_path, line, message):
    (tmp_path / "p.jsonl").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match=r"p\.yaml:5") as caught:
        profile(f"checks:\n  long-range: {{families: {line}}}\n", tmp_path)
    assert message in str(caught.value)


def test_the_line_is_that_of_the_parameter():
    with pytest.raises(UnknownNameError, match=r"p\.yaml:8: unknown parameter of kv_recall"):
        profile("checks:\n  long-range:\n    families:\n      kv_recall:\n        pears: 3\n")


def test_the_right_file_is_recognized(tmp_path):
    (tmp_path / "p.jsonl").write_text("{}", encoding="utf-8")
    digest = hashlib.sha256(b"{}").hexdigest()
    for wanted in (digest, digest[:16]):
        text = f"checks:\n  long-range: {{families: {{hotpotqa: {{path: p.jsonl, sha256: '{wanted}'}}}}}}\n"
        found = profile(text, tmp_path).checks["long-range"]["families"]["hotpotqa"]
        assert (found["content"], found["parameters"]) == (digest[:16], {})


def test_a_chance_is_a_share():
    assert depth("checks: {benchmark: {tasks: [arc_easy], chance: 0.25}}")["benchmark-arc_easy"]["chance"] == 0.25
    for value in ("0", "1", "-0.1", "true", "often"):
        with pytest.raises(UsageError, match=r"p\.yaml:4"):
            profile(f"checks: {{benchmark: {{tasks: [arc_easy], chance: {value}}}}}\n")


def test_unknown_names_get_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean 'multi_hop'"):
        profile("checks: {long-range: {families: [multihop]}}")
    with pytest.raises(UnknownNameError, match="Did you mean 'choice'"):
        profile("checks: {long-range: {families: [mqar], score: choices}}")
    with pytest.raises(SchemaError, match="unknown key 'include'"):
        profile("checks: {benchmark: {tasks: [arc_easy], include: x}}")


def test_ids_hold_only_what_ids_may_hold():
    assert check_id("benchmark", "Leaderboard|BBH/x y") == "benchmark-leaderboard-bbh-x-y"


@pytest.mark.parametrize("value", ["0", "65", "-1", "'4'", "4.0", "true", "1000000000000"])
def test_a_needle_is_asked_as_often_as_it_has_names(value):
    allowed = profile("checks: {needle: {tiers: [1], questions_per_context: 64, depths: 100}}")
    assert (
        allowed.checks["needle"]["questions_per_context"]
        == task_families()["needle"].ranges["needles"].bounds({"filler": "varied"})[1]
    )
    with pytest.raises(SchemaError, match=r"p\.yaml:6: questions_per_context: "):
        profile(f"checks:\n  needle:\n    questions_per_context: {value}\n    tiers: [1]\n")


@pytest.mark.parametrize(
    "line",
    [
        "needle: {tiers: [1], contexts: N}",
        "needle: {tiers: [1], question_first: N}",
        "long-range: {families: [mqar], contexts: N}",
    ],
)
def test_more_contexts_than_anybody_measures_are_refused(line):
    assert profile(f"checks: {{{line.replace('N', str(MOST_CONTEXTS))}}}")
    with pytest.raises(
        SchemaError, match=rf"p\.yaml:4: \w+: {MOST_CONTEXTS + 1} must be a whole number from 1 to {MOST_CONTEXTS}"
    ):
        profile(f"checks: {{{line.replace('N', str(MOST_CONTEXTS + 1))}}}")


def test_another_data_file_of_a_task_is_another_plan(tmp_path):
    (tmp_path / "tasks").mkdir()
    data = tmp_path / "facts.jsonl"
    data.write_text("{}\n", encoding="utf-8")
    task = f"task: a\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ndoc_to_text: 'x. y/z {{{{a}}}}.'\n"
    (tmp_path / "tasks" / "a.yaml").write_text(task, encoding="utf-8")
    text = "checks:\n  benchmark: {tasks: [a], include_path: tasks}\n"
    before = depth(text, folder=tmp_path)["benchmark-a"]
    assert depth(text, folder=tmp_path)["benchmark-a"] == before
    data.write_text('{"harder": true}\n', encoding="utf-8")
    assert depth(text, folder=tmp_path)["benchmark-a"]["content"] != before["content"]


@pytest.mark.parametrize(
    "named",
    [
        "data_files: data/*.jsonl",
        "data_files: ./dat*/x.jsonl",
        "data_files: data/**/*.jsonl",
        "data_dir: data",
        "data_dir: ./data",
        "x: data/",
    ],
)
def test_data_that_a_pattern_or_a_folder_names_are_part_of_the_plan(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "tasks" / "a.yaml").write_text(
        f"task: a\ndataset_kwargs: {{{named}}}\nx: ./ .. / **/x **bold.** and/or\n", "utf-8"
    )
    (tmp_path / "data" / "x.jsonl").write_text("1", encoding="utf-8")
    (tmp_path / "other.txt").write_text("1", encoding="utf-8")
    before = _named_files(tmp_path / "tasks")
    (tmp_path / "other.txt").write_text("2", encoding="utf-8")
    assert _named_files(tmp_path / "tasks") == before
    (tmp_path / "data" / "x.jsonl").write_text("2", encoding="utf-8")
    assert _named_files(tmp_path / "tasks") != before


def test_families_of_other_packages_name_the_module_that_makes_them(monkeypatch):
    class Point:
        name, value = "doors", "mytasks.house:DOORS"

    monkeypatch.setattr(families, "entry_points", lambda group: [Point])
    asked = {"families": {"kv_recall": {"family": "kv_recall"}, "mine": {"family": "doors"}}}
    assert profile_checks.foreign_modules(asked) == ("mytasks.house",)
    assert profile_checks.foreign_modules({"families": {"kv_recall": {"family": "kv_recall"}}}) == ()
    assert profile_checks.foreign_modules({}) == ()
