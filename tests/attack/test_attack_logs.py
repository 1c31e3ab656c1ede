"""Recorded logs and stored plans that must not end in a PASS."""

import hashlib
import json

import pytest

from pytest_attnaccept.compare import compare_main
from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.matrix import Plan, PlannedItem


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def line(i, score, *, prompt=None, choices=0, number=True, **more):
    """One row of a sample log; with `choices`, log-likelihoods of that many answers."""
    prompt = f"question {i}" if prompt is None else prompt
    if choices:
        arguments = {f"gen_args_{k}": {"arg_0": prompt, "arg_1": f" choice {k}"} for k in range(choices)}
        answers = [[[f"{-1.0 - k - 0.1 * score}", "False"]] for k in range(choices)]
    else:
        arguments, answers = {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n"]}}}, [[f"answer {score} to {i}"]]
    row = {
        "doc": {"q": i}, "target": "x", "arguments": arguments, "resps": answers, "filter": "none", "metrics": ["acc"],
        "acc": score, "doc_hash": digest(f"document {i}"), "prompt_hash": digest(prompt), "target_hash": digest("x"),
    }  # fmt: skip
    return {**({"doc_id": i} if number else {}), **row, **more}


@pytest.fixture
def run(tmp_path):
    def compare(base, cand, *options, margin="0.05"):
        paths = []
        for name, rows in (("base.jsonl", base), ("cand.jsonl", cand)):
            paths.append(tmp_path / name)
            paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return compare_main([*map(str, paths), "--margin", margin, *options])

    return compare


def test_half_of_the_baseline_is_missing_where_the_candidate_lost(run):
    cand = [line(i, 0.0 if i < 200 else 1.0) for i in range(400)]
    assert run([line(i, 1.0) for i in range(200, 400)], cand) == 2


def test_half_of_the_baseline_has_no_score_where_the_candidate_lost(run):
    base = [line(i, None if i < 200 else 1.0) for i in range(400)]
    assert run(base, [line(i, 0.0 if i < 200 else 1.0) for i in range(400)]) == 2


def test_forty_prompts_ten_times_are_forty_items(run):
    def rows(lost):
        return [line(i, 0.0 if i % 40 in lost else 1.0, prompt=f"question {i % 40}") for i in range(400)]

    assert run(rows({38, 39}), rows({0, 39})) == 2


def test_four_choices_at_chance_measure_nothing(run):
    base = [line(i, float(i % 4 == 0), choices=4) for i in range(1000)]
    cand = [line(i, float(i % 4 == 0), choices=4) for i in range(1000)]
    cand[0], cand[1] = line(0, 0.0, choices=4), line(1, 1.0, choices=4)
    assert run(base, cand, "--method", "w4a16", margin="0.02") == 2


def test_a_second_run_without_numbers_behind_the_first(run):
    good = [line(i, 1.0 if i < 380 else 0.0, number=False) for i in range(400)]
    bad = [line(i, 0.0, number=False) for i in range(400)]
    assert run(good, [*good[1:], line(0, 1.0, number=False, resps=[["other"]]), *bad]) == 2


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, json.dumps({**line(0, 1.0), "metrics": [{}]})])
def test_odd_json_is_bad_input(tmp_path, text):
    path = tmp_path / "odd.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    other = tmp_path / "good.jsonl"
    other.write_text(json.dumps(line(0, 1.0)) + "\n", encoding="utf-8")
    assert compare_main([str(other), str(path), "--margin", "0.05"]) == 2


def test_a_plan_whose_items_were_removed():
    items = tuple(
        PlannedItem(
            cell=cell, check="value", kind="exact", surface="kernel", methods=("gqa",), stack="gqa", reason="r",
            profile="smoke", static="s",
        )
        for cell in ("a", "b")
    )  # fmt: skip
    body = json.loads(Plan(items=items, profile="smoke").to_json())
    body["items"] = body["items"][:1]
    with pytest.raises(RecordError):
        Plan.from_json(json.dumps(body), "plan")


def test_a_second_run_behind_the_first_when_only_the_candidate_lacks_numbers(run):
    good = [line(i, 1.0 if i < 380 else 0.0) for i in range(400)]
    twice = [line(i, score, number=False) for score in (1.0, 0.0) for i in range(400)]
    assert run(good, twice) == 2


def test_a_filter_that_only_the_candidate_has(run):
    rows = [line(i, float(i < 380)) for i in range(400)]
    worse = [line(i, 0.0, filter="strict") for i in range(400)]
    assert run(rows, [*rows[:-1], line(399, 0.0, resps=[["other"]]), *worse]) == 2
    assert run(rows, [*rows[:-1], line(399, 0.0, resps=[["other"]]), *worse], "--filter", "none") == 0


def test_a_byte_order_mark_is_no_damage(tmp_path):
    rows = "".join(json.dumps(line(i, float(i < 380))) + "\n" for i in range(400))
    base, cand = tmp_path / "base.jsonl", tmp_path / "cand.jsonl"
    base.write_text(rows, encoding="utf-8-sig")
    cand.write_text(rows, encoding="utf-8")
    assert compare_main([str(base), str(cand), "--margin", "0.05"]) == 0


@pytest.mark.parametrize(
    ("loss", "tokens", "first"),
    [(200.0, 1_000_000_000, 600.0), (2.0, 500, 3.1), (0.3, 500, 3.1)],
    ids=["tokens-are-not-tokens", "means-as-sums", "most-are-means"],
)
def test_tables_whose_unit_hides_the_loss(tmp_path, loss, tokens, first):
    paths = []
    for name, more in (("base.csv", 0.0), ("cand.csv", loss)):
        body = [f"d{i},{tokens},{first + more + i * 1e-3}" for i in range(60)]
        body += [f"long{i},500,{1500 + i}" for i in range(20)]
        paths.append(tmp_path / name)
        paths[-1].write_text("document,tokens,nll\n" + "\n".join(body) + "\n", encoding="utf-8")
    assert compare_main([*map(str, paths), "--margin", "0.05"]) == 2
