"""The recorded logs of this folder come from lm-eval itself, run on generated sums with a scripted model.

``python tests/unit/data/lm_eval/make_logs.py`` rewrites them (needs lm-eval 0.4.13). The scripted model answers sums; the
"cand" variant misses one further item, and "bad" misses a third of them.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

HERE = Path(__file__).parent
ITEMS = 48
GENERATE = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "What is {{{{a}}}} + {{{{b}}}}? Answer:"
doc_to_target: "{{{{total}}}}"
generation_kwargs: {{until: ["\\n"], do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - {{name: strict-match, filter: [{{function: regex, regex_pattern: "^ (\\\\d+)$"}}, {{function: take_first}}]}}
  - {{name: flexible-extract, filter: [{{function: regex, regex_pattern: "(\\\\d+)"}}, {{function: take_first}}]}}
"""
CHOOSE = """
task: bigger
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Which is bigger, {{{{a}}}} or {{{{b}}}}? Answer:"
doc_to_choice: ["first", "second"]
doc_to_target: "{{{{0 if a > b else 1}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


class Scripted(LM):
    """Answers from the numbers in the prompt and is wrong on a fixed set of them."""

    def __init__(self, wrong: set[int], wordy: set[int]) -> None:
        super().__init__()
        self.wrong, self.wordy = wrong, wordy

    def generate_until(self, requests, disable_tqdm=False):
        answers = []
        for request in requests:
            a, b = map(int, re.findall(r"\d+", request.args[0])[:2])
            text = f" {a + b + (a in self.wrong)}"
            answers.append(f" The sum is{text}" if a in self.wordy else text)
        return answers

    def loglikelihood(self, requests, disable_tqdm=False):
        scores = []
        for request in requests:
            a, b = map(int, re.findall(r"\d+", request.args[0])[:2])
            right = ("first" if a > b else "second") in request.args[1]
            scores.append((-1.0 if right != (a in self.wrong) else -2.5, False))
        return scores

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return [-float(len(request.args[0])) for request in requests]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows = [{"a": 11 + i, "b": (37 * i) % 89 + 1, "total": 11 + i + (37 * i) % 89 + 1} for i in range(ITEMS)]
        (root / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        for name, text in (("sums", GENERATE), ("bigger", CHOOSE)):
            (root / f"{name}.yaml").write_text(text.format(data=root / "items.jsonl"), encoding="utf-8")
        wrong = {12, 20, 33}
        for label, extra in (("base", set()), ("cand", {41}), ("bad", set(range(11, 59, 3)))):
            tracker = EvaluationTracker(output_path=str(root / label))
            result = lm_eval.simple_evaluate(
                model=Scripted(wrong | extra, wordy={15, 16, 17}),
                tasks=["sums", "bigger"],
                task_manager=TaskManager(include_path=str(root), include_defaults=False),
                log_samples=True,
                bootstrap_iters=0,
            )
            tracker.save_results_aggregated(results=result, samples=result["samples"])
            for task, samples in result["samples"].items():
                tracker.save_results_samples(task_name=task, samples=samples)
                written = next((root / label).rglob(f"samples_{task}_*.jsonl"))
                (HERE / f"samples_{task}_{label}.jsonl").write_bytes(written.read_bytes())


if __name__ == "__main__":
    main()
