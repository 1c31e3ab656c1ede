"""Shards on disk: what may be merged, and what one job may conclude from the folders of many."""

import json
import shutil
from pathlib import Path

import pytest
from scripted import GATE, H2O, TWO, N, Project

from pytest_attnaccept.__main__ import main
from pytest_attnaccept.completeness import judge
from pytest_attnaccept.shards import collect_tree
from pytest_attnaccept.taxonomy import Verdict

KV4 = H2O.replace("test_h2o", "test_kv4").replace('"h2o", kv_budget=0.25', '"kv4"')


@pytest.fixture
def shards(project: Project) -> Path:
    """Two shards of one release, each with its own folder, both green."""
    project.file("test_a.py", H2O)
    project.file("test_b.py", KV4)
    for name in ("a", "b"):
        assert project.run(GATE, f"test_{name}.py", f"--accept-out=shards/{name}").ret == 0
    return project.path / "shards"


def verdict(folder: Path) -> tuple[Verdict, int, int, list[str]]:
    """Return verdict, planned items, records and problems of a tree of folders."""
    plan, records, problems = collect_tree(folder)
    assert plan is not None
    result = judge(plan, records, problems)
    assert main(["verdict", str(folder)]) == (0 if result.verdict is Verdict.PASS else 1)
    return result.verdict, len(plan.items), len(records), problems


def the(folder: Path, pattern: str) -> Path:
    return next(folder.glob(pattern))


def test_two_green_shards(shards: Path) -> None:
    assert verdict(shards) == (Verdict.PASS, 2 * N, 2 * N, [])


def test_a_shard_that_failed(project: Project, shards: Path) -> None:
    project.script(footprint="fail")
    assert project.run(GATE, "test_b.py", "--accept-out=shards/b").ret == 1
    assert verdict(shards)[:3] == (Verdict.FAIL, 2 * N, 2 * N)


def test_a_shard_that_lost_items(project: Project, shards: Path) -> None:
    assert project.run(GATE, "test_b.py", "-k", "footprint", "--accept-out=shards/b").ret == 1
    assert verdict(shards)[:3] == (Verdict.INCOMPLETE, 2 * N, N + 1)


def test_shards_that_select_from_one_plan(project: Project) -> None:
    project.file("test_gate.py", TWO)
    assert project.run(GATE, "-k", "h2o", "--accept-out=shards/a").ret == 1
    assert project.run(GATE, "-k", "kv4", "--accept-out=shards/b").ret == 1
    assert verdict(project.path / "shards") == (Verdict.PASS, 2 * N, 2 * N, [])
    shutil.rmtree(project.path / "shards/b")
    assert verdict(project.path / "shards")[:3] == (Verdict.INCOMPLETE, 2 * N, N)


def test_damaged_line(shards: Path) -> None:
    path = the(shards / "b", "records.*")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"verdict": "PASS"', '"verdict": "PERFECT"', 1), encoding="utf-8")
    found, _, records, problems = verdict(shards)
    assert (found, records) == (Verdict.INCOMPLETE, 2 * N - 1)
    assert any("is not a record" in p for p in problems)


def test_damaged_line_of_a_repeated_item(shards: Path) -> None:
    path = the(shards / "b", "records.*")
    with path.open("a", encoding="utf-8") as stream:
        stream.write("{]\n")
    assert verdict(shards)[0] is Verdict.INCOMPLETE


def test_missing_plan(shards: Path) -> None:
    for path in (shards / "b").glob("plan.*"):
        path.unlink()
    found, planned, _, problems = verdict(shards)
    assert (found, planned) == (Verdict.INCOMPLETE, N)
    assert any("records without a plan" in p for p in problems)


def test_no_plan_at_all(shards: Path) -> None:
    for path in shards.rglob("plan.*"):
        path.unlink()
    assert main(["verdict", str(shards)]) == 2


def test_missing_records(shards: Path) -> None:
    the(shards / "b", "records.*").unlink()
    assert verdict(shards)[:3] == (Verdict.INCOMPLETE, 2 * N, N)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 9}', '{"schema": 1, "items": [{}]}'])
def test_damaged_plan(shards: Path, content: str) -> None:
    for path in (shards / "b").glob("plan.*"):
        path.write_text(content, encoding="utf-8")
    found, planned, _, problems = verdict(shards)
    assert (found, planned) == (Verdict.INCOMPLETE, N)
    assert problems


def test_different_profiles(project: Project, shards: Path) -> None:
    project.run("--accept-profile=edge", "test_b.py", "--accept-out=shards/b")
    found, _, _, problems = verdict(shards)
    assert found is Verdict.INCOMPLETE
    assert any("different profiles" in p for p in problems)


def test_different_settings_of_one_item(project: Project, shards: Path) -> None:
    assert project.run(GATE, "--accept-seed=4", "--accept-out=shards/c").ret == 0
    found, _, _, problems = verdict(shards)
    assert found is Verdict.INCOMPLETE
    assert any("not shards of one release" in p for p in problems)


def test_records_of_another_shard_do_not_fill_a_gap(shards: Path) -> None:
    the(shards / "b", "records.*").unlink()
    shutil.copy(the(shards / "a", "records.*"), shards / "b")
    found, planned, _, _ = verdict(shards)
    assert (found, planned) == (Verdict.INCOMPLETE, 2 * N)


def test_run_that_ended_at_a_usage_error_outdates_the_folder(project: Project, shards: Path) -> None:
    project.file("test_b.py", KV4.replace("kv4", "kv44"))
    assert project.run(GATE, "test_b.py", "--accept-out=shards/b").ret == 4
    found, _, _, problems = verdict(shards)
    assert found is Verdict.INCOMPLETE
    assert any("did not finish" in p or "kv44" in p for p in problems)


def test_run_without_items_outdates_the_folder(project: Project, shards: Path) -> None:
    project.file("test_b.py", "def test_plain(): pass\n")
    assert project.run(GATE, "test_b.py", "--accept-out=shards/b").ret == 1
    assert verdict(shards)[:2] == (Verdict.INCOMPLETE, N)


def test_merge_of_folders(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    assert main(["merge", str(shards / "a"), str(shards / "b"), "--out", str(out)]) == 0
    assert verdict(out)[:3] == (Verdict.PASS, 2 * N, 2 * N)


def test_one_shard_given_twice_counts_once(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    assert main(["merge", str(shards / "a"), str(shards / "a"), "--out", str(out)]) == 0
    found, planned, _, _ = verdict(out)
    assert (found, planned) == (Verdict.PASS, N)


def test_plans_hold_their_digest_and_context(shards: Path) -> None:
    body = json.loads(the(shards / "a", "plan.*.final.json").read_text(encoding="utf-8"))
    assert len(body["digest"]) == 16
    assert set(body["items"][0]["context"]["files"]) == {"test_a.py", "conftest.py"}
    assert body["problems"] == body["usage_errors"] == []
