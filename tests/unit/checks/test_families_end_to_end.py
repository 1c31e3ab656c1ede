"""A marked test under a profile with families and a benchmark: item ids, verdicts, records and exit status of real runs.

Heavy modules are imported first: pytester forgets what a run imported, and torch cannot be imported twice in one process.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("lm_eval", reason="benchmarks need the optional lm-eval")

import datasets
import scipy.stats  # noqa: F401
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

from pytest_attnaccept.checks import benchmark_lm, model_session  # noqa: F401
from pytest_attnaccept.checks.model_data import encode
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.tasks import generate

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()

PROFILE = """
schema: 1
name: families
title: families
claim: no collapse
alpha: 0.05
checks:
  long-range:
    families: {{kv_recall: {{pairs: 8, questions: 2}}, Books: {{family: phone_book}}, words: {{family: lambada, path: words.jsonl}}}}
    contexts: 32
  benchmark: {{tasks: [toy_choice, {second}], include_path: tasks, limit: 32}}
limits:
  long-range: {{max: 0.10, origin: "policy: test"}}
  benchmark: {{max: 0.10, origin: "policy: test"}}
"""
TASK = """
task: toy_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture
def folder(pytester):
    """A project with a marked test, a profile, a task of lm-eval and a file of rows."""
    toy = load(parse_spec("toy-gqa"))
    rows, words = [], []
    for index in range(40):
        item = generate(
            "kv_recall", fit=lambda t: len(encode(toy.tokenizer, t)), target_tokens=180, seed=5, index=index
        )
        question = item.questions[0]
        texts = [text.strip() for text in (question.answer, *question.foils[:3])]
        rows.append({"context": item.context + question.prompt, "choices": texts})
        words.append({"context": item.context + question.prompt, "continuation": texts[0]})
    for name, made in (("rows.jsonl", rows), ("words.jsonl", words)):
        (pytester.path / name).write_text("\n".join(map(json.dumps, made)), encoding="utf-8")
    (pytester.path / "tasks").mkdir()
    (pytester.path / "tasks" / "toy.yaml").write_text(TASK.format(file=pytester.path / "rows.jsonl"), encoding="utf-8")
    gone = TASK.format(file=pytester.path / "gone.jsonl").replace("toy_choice", "toy_gone")
    (pytester.path / "tasks" / "gone.yaml").write_text(gone, encoding="utf-8")
    return pytester


def run(folder, mark: str, *options: str, second: str = "toy_gone"):
    (folder.path / "families.yaml").write_text(PROFILE.format(second=second), encoding="utf-8")
    folder.makepyfile(
        test_case=f"import pytest\n\n@pytest.mark.approximate({mark})\ndef test_it(accept):\n    accept.model()\n"
    )
    result = folder.runpytest_inprocess(
        "--accept-profile=families.yaml", "--accept-model=toy-gqa", "-p", "no:cacheprovider", *options
    )
    file = folder.path / ".attnaccept" / "verdict.json"
    items = json.loads(file.read_text(encoding="utf-8"))["items"] if file.is_file() else []
    return result, {i["item"].rsplit("[", 1)[1][:-1]: i["headline"] for i in items}


def test_every_family_and_task_is_an_item_with_a_verdict_of_its_own(folder):
    result, found = run(folder, "method='kv8'")
    assert list(found) == [
        "long-range-kv_recall", "long-range-books", "long-range-words", "benchmark-toy_choice", "benchmark-toy_gone",
    ]  # fmt: skip
    assert found["long-range-kv_recall"].startswith("PASS")
    assert found["long-range-words"].startswith("PASS")
    assert found["benchmark-toy_choice"].startswith("PASS")
    # A family that the baseline cannot answer, and data that are not there, are never green.
    assert found["long-range-books"].startswith("INVALID")
    assert "baseline scores" in found["long-range-books"]
    assert found["benchmark-toy_gone"].startswith("INCOMPLETE")
    assert "cannot be had" in found["benchmark-toy_gone"]
    assert result.ret == 1
    lines = (folder.path / ".attnaccept").glob("records.*.jsonl")
    records = [json.loads(line) for file in lines for line in file.read_text(encoding="utf-8").splitlines()]
    words = next(r for r in records if r.get("item", "").endswith("[long-range-words]"))
    assert words["facts"]["data[256]"].startswith("32 of 40 rows")


def test_a_quarter_of_the_cache_fails_on_all_of_them(folder):
    result, found = run(folder, "method='streaming_llm', kv_budget=0.25", "-k", "not books")
    assert result.ret == 1
    for name in ("long-range-kv_recall", "long-range-words", "benchmark-toy_choice"):
        assert found[name].startswith("FAIL"), found


def test_the_plan_lists_them_without_running_anything(folder):
    result, _ = run(folder, "method='kv8'", "--accept-plan")
    text = result.stdout.str()
    for name in ("long-range-kv_recall", "long-range-books", "benchmark-toy_choice"):
        assert name in text
    assert "not gated yet: budget-curve" in text
