"""Benchmarks through the changed cache: numbers that one forward pass confirms, and everything that must not pass."""

from __future__ import annotations

import copy
import importlib.util
import json
import random

import pytest
import torch
from transformers import DynamicCache

pytest.importorskip("lm_eval", reason="benchmarks need the optional lm-eval")

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.checks.benchmark_lm import CacheLM
from pytest_attnaccept.checks.model_benchmark import _gate
from pytest_attnaccept.checks.model_data import encode
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import ContractError, EngineError, UnknownNameError
from pytest_attnaccept.profiles import Limit
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.tasks import generate
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
LIMITS = {"benchmark": Limit(max=0.1, origin="policy: test")}
CHOICE = """
task: toy_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
GENERATE = """
task: toy_generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 4, do_sample: {sample}}}
filter_list: [{{name: word, filter: [{{function: regex, regex_pattern: "([a-z]+)"}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


@pytest.fixture(scope="module")
def tasks(toy, tmp_path_factory):
    """A folder with two tasks of lm-eval over the same 40 documents."""
    folder = tmp_path_factory.mktemp("tasks")
    draw = random.Random(0)
    rows = []
    for index in range(40):
        item = generate(
            "kv_recall",
            fit=lambda t: len(encode(toy.tokenizer, t)),
            target_tokens=200,
            seed=3,
            index=index,
            questions=1,
        )
        question = item.questions[0]
        choices = [text.strip() for text in (question.answer, *question.foils[:3])]
        draw.shuffle(choices)
        rows.append(
            {
                "context": item.context + question.prompt,
                "choices": choices,
                "answer": choices.index(question.answer.strip()),
            }
        )
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "choice.yaml").write_text(CHOICE.format(file=file), encoding="utf-8")
    (folder / "generate.yaml").write_text(GENERATE.format(file=file, sample="false"), encoding="utf-8")
    sampled = GENERATE.format(file=file, sample="true, temperature: 0.7").replace("toy_generate", "toy_sampled")
    (folder / "sampled.yaml").write_text(sampled, encoding="utf-8")
    rolling = CHOICE.format(file=file).split("doc_to_choice")[0].replace("multiple_choice", "loglikelihood_rolling")
    (folder / "rolling.yaml").write_text(
        rolling.replace("toy_choice", "toy_rolling").replace('doc_to_text: "{{context}}"', 'doc_to_text: ""\ndoc_to_target: "{{context}}"'),
        encoding="utf-8",
    )  # fmt: skip
    broken = CHOICE.format(file=file).replace("toy_choice", "toy_broken").replace("{{answer}}", "{{answer | nothing}}")
    (folder / "broken.yaml").write_text(broken, encoding="utf-8")
    gone = CHOICE.format(file=folder / "gone.jsonl").replace("toy_choice", "toy_gone")
    (folder / "gone.yaml").write_text(gone, encoding="utf-8")
    return folder


def session(toy, name, **knobs):
    method = REGISTRY.get(name)
    return open_session(baseline=toy, stack=[(method, check_knobs(method, knobs, "test"))])


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


@pytest.mark.parametrize("task", ["toy_choice", "toy_generate"])
def test_a_harmless_cache_passes_and_half_of_it_loses(toy, tasks, task):
    results = {}
    for name, knobs in (("kv8", {}), ("streaming_llm", {"kv_budget": 0.25})):
        with session(toy, name, **knobs) as opened:
            measured = opened.measure(f"benchmark-{task}", {"include_path": str(tasks)})
        decision = decide(measured, LIMITS)
        results[name] = decision.verdict
        assert measured.gates[0].base_mean == 1.0
        # Who takes the same choice every time is right a little more often than one over the number of choices.
        low, high = (0.25, 0.4) if task == "toy_choice" else (0.0, 0.1)
        assert low <= measured.gates[0].chance <= high
        assert facts(measured)["documents"] == 40
        assert facts(measured)["truncated_prompts"] == 0
        assert len(measured.gates[0].losses) == 40
    assert results == {"kv8": Verdict.PASS, "streaming_llm": Verdict.FAIL}


def test_log_likelihoods_are_those_of_one_forward_pass_for_an_untouched_cache(toy):
    class Request:
        def __init__(self, *args):
            self.args = args

    pairs = [
        ("Alice has the lamp. Bob has the kite. Alice has the", word) for word in (" lamp", " kite", " lamp. Bob has")
    ]
    pairs += [("Alice", " has the lamp"), ("", "Alice has the lamp"), ("Bob has the ", "kite")]
    with session(toy, "kv8") as opened:
        found = CacheLM(opened, opened.baseline).loglikelihood([Request(*pair) for pair in pairs])
    for (context, continuation), (value, greedy) in zip(pairs, found, strict=True):
        ids = encode(toy.tokenizer, context + continuation)
        start = len(encode(toy.tokenizer, context.rstrip()))
        if not context:
            ids, start = [toy.tokenizer.eos_token_id, *ids], 1
        with torch.no_grad():
            logits = toy.model(torch.tensor([ids])).logits[0, start - 1 : -1].double()
        target = torch.tensor(ids[start:])
        assert value == pytest.approx(
            float(-torch.nn.functional.cross_entropy(logits, target, reduction="sum")), abs=1e-3
        )
        assert greedy == bool((logits.argmax(-1) == target).all())


def test_the_score_is_read_through_the_cache_and_not_from_one_pass(toy):
    """Zeroed storage: one forward pass over the whole text would not notice."""

    class Forgetful(DynamicCache):
        def update(self, keys, values, layer, *args, **kwargs):
            full = super().update(keys, values, layer, *args, **kwargs)
            self.layers[layer].values = torch.zeros_like(self.layers[layer].values)
            return full

    item = generate("kv_recall", fit=lambda t: len(encode(toy.tokenizer, t)), target_tokens=200, seed=3, index=0)

    class Request:
        args = (item.context + item.questions[0].prompt, item.questions[0].answer)

    method = REGISTRY.get("kv8")
    with open_session(baseline=toy, candidate=Candidate(cache=Forgetful), stack=[(method, {})]) as opened:
        right = CacheLM(opened, opened.baseline).loglikelihood([Request])[0]
        wrong = CacheLM(opened, opened.candidate).loglikelihood([Request])[0]
    assert right[0] > -0.1
    assert wrong[0] < right[0] - 1


def test_a_candidate_that_never_ran_is_invalid(toy, tasks):
    method = REGISTRY.get("h2o")
    with open_session(
        baseline=toy,
        candidate=Candidate(cache=DynamicCache),
        stack=[(method, check_knobs(method, {"kv_budget": 0.5}, "t"))],
    ) as opened:
        for task in ("toy_choice", "toy_generate"):
            measured = opened.measure(f"benchmark-{task}", {"include_path": str(tasks), "limit": 30})
            assert decide(measured, LIMITS).verdict is Verdict.INVALID
            assert any("never ran" in refusal.reason for refusal in measured.refusals)


def test_a_baseline_at_chance_is_invalid(toy, tasks, tmp_path):
    rows = [json.loads(line) for line in (tasks / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows):
        row["answer"] = number % 4  # the marked answer has nothing to do with the context
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "choice.yaml").write_text(CHOICE.format(file=file), encoding="utf-8")
    with session(toy, "kv8") as opened:
        measured = opened.measure("benchmark-toy_choice", {"include_path": str(tmp_path)})
    assert decide(measured, LIMITS).verdict is Verdict.INVALID


def test_prompts_that_are_too_long_lose_their_beginning_and_are_counted(toy, tasks):
    with session(toy, "kv8") as opened:
        model = CacheLM(opened, opened.baseline)
        long = " Alice has the lamp." * 80
        with opened.baseline.running():
            model.complete(long, {"until": ["."], "max_gen_toks": 3})
    assert (model.truncated, model.longest) == (1, toy.trained_length)


@pytest.mark.parametrize(
    ("task", "params", "error", "message"),
    [
        ("toy_sampled", {}, EngineError, "asks for sampling"),
        ("toy_rolling", {}, ContractError, "Use the check perplexity"),
        ("toy_gone", {}, EngineError, "cannot be had"),
        ("toy_broken", {}, ContractError, "No filter named 'nothing'"),
        ("toy_choise", {}, UnknownNameError, "Did you mean 'toy_choice'"),
        ("toy_choice", {"metric": "f1"}, ContractError, "has no metric 'f1'"),
        ("toy_generate", {"metric": "exact_match,number"}, UnknownNameError, "word"),
    ],
)
def test_what_cannot_be_compared_ends_with_its_reason(toy, tasks, monkeypatch, task, params, error, message):
    from pytest_attnaccept.checks import benchmark_docs

    if task == "toy_choise":  # indexing all tasks of lm-eval takes many seconds
        monkeypatch.setattr(
            benchmark_docs, "_manager", lambda *_: (_ for _ in ()).throw(UnknownNameError("task", task, ["toy_choice"]))
        )
    with session(toy, "kv8") as opened, pytest.raises(error, match=message):
        opened.measure(f"benchmark-{task}", {"include_path": str(tasks), "limit": 4, **params})


def test_without_lm_eval_the_extra_is_named(toy, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "lm_eval" else real(name, *a))
    with session(toy, "kv8") as opened, pytest.raises(EngineError, match=r"pip install 'pytest-attnaccept\[hf\]'"):
        opened.measure("benchmark-toy_choice", {})


def test_generated_code_runs_only_when_asked_for(toy, tmp_path):
    row = {"task_id": "H/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(g):\n    assert g() == 1\n"}
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(row), encoding="utf-8")
    params = {"include_path": str(tmp_path), "max_gen_toks": 2}
    with session(toy, "kv8") as opened:
        with pytest.raises(EngineError, match="run_code: true"):
            opened.measure("benchmark-humaneval", params)
        measured = opened.measure("benchmark-humaneval", {**params, "run_code": True})
    # The embedded model writes no Python: a baseline that solves nothing cannot gate anything.
    assert measured.gates[0].base_mean == 0.0
    assert decide(measured, LIMITS).verdict is Verdict.INVALID


def test_a_metric_of_which_less_is_better_is_turned_around():
    from pytest_attnaccept.checks.benchmark_docs import _outcomes

    row = {
        "doc_id": 0,
        "doc_hash": "d" * 64,
        "prompt_hash": "p" * 64,
        "arguments": {"a": 1},
        "error": 0.25,
        "filter": "none",
    }
    for higher, score in (({"error": False}, 0.75), ({"error": True}, 0.25), ({}, 0.25)):
        assert _outcomes("t", [row], "error", higher)[0].score == score
    for value in (float("nan"), 1.5, -0.1, "x", None):
        with pytest.raises(ContractError, match="has no metric 'error'"):
            _outcomes("t", [{**row, "error": value}], "error", {})


# What makes a task say "right" to somebody who has read nothing: change of the YAML, change of the rows.
NOTHING_READ = {
    "a metric that ignores everything": (
        GENERATE, lambda text: text.replace("metric: exact_match", 'metric: exact_match, regexes_to_ignore: [".*"]'), None,
    ),
    "a filter that says the same of every text": (
        GENERATE,
        lambda text: text.replace('"([a-z]+)"', '"(zzz)", fallback: lamp').replace("{{choices[answer]}}", "lamp"),
        None,
    ),
    "less is better and silence is best": (
        GENERATE, lambda text: text.replace("higher_is_better: true", "higher_is_better: false"), None,
    ),
    "the shortest choice is always right": (
        CHOICE, lambda text: text, lambda row: {**row, "choices": [c if n == row["answer"] else c * 9 for n, c in enumerate(row["choices"])]},
    ),
    "the answer is always the same": (
        CHOICE, lambda text: text, lambda row: {**row, "choices": ["kite", "bell", "lamp"], "answer": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("yaml", "change", "rows"), NOTHING_READ.values(), ids=NOTHING_READ)
def test_what_somebody_gets_right_who_reads_nothing_gates_nothing(toy, tasks, tmp_path, yaml, change, rows):
    given = [json.loads(line) for line in (tasks / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(rows(row) if rows else row) for row in given), encoding="utf-8")
    text = change(yaml.format(file=file, sample="false"))
    (tmp_path / "task.yaml").write_text(text, encoding="utf-8")
    name = "toy_choice" if yaml is CHOICE else "toy_generate"
    with session(toy, "kv8") as opened:
        measured = opened.measure(f"benchmark-{name}", {"include_path": str(tmp_path)})
    assert measured.gates[0].chance > 0.99
    decision = decide(measured, LIMITS)
    assert decision.verdict is Verdict.INVALID
    assert "chance" in decision.headline


def test_a_model_without_a_preference_does_not_take_the_first_choice(toy, tasks, tmp_path):
    """In some tasks the first choice is the right one every time, and the first of equal likelihoods is taken."""
    given = [json.loads(line) for line in (tasks / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    file = tmp_path / "rows.jsonl"
    rows = [
        {
            **r,
            "choices": [r["choices"][r["answer"]], *(c for c in r["choices"] if c != r["choices"][r["answer"]])],
            "answer": 0,
        }
        for r in given
    ]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "choice.yaml").write_text(CHOICE.format(file=file), encoding="utf-8")
    blank = copy.deepcopy(toy.model)
    blank.lm_head = torch.nn.Linear(blank.config.hidden_size, blank.config.vocab_size, bias=False)
    torch.nn.init.zeros_(blank.lm_head.weight)
    method = REGISTRY.get("kv8")
    with open_session(
        baseline=toy, candidate=Candidate(model=blank, tokenizer=toy.tokenizer), stack=[(method, {})]
    ) as opened:
        measured = opened.measure("benchmark-toy_choice", {"include_path": str(tmp_path)})
    assert measured.gates[0].base_mean == 1.0
    assert measured.gates[0].chance < 0.5  # whose place it is cannot be seen by a model, so nobody guesses it
    assert min(measured.gates[0].losses) == pytest.approx(0.75)
    assert decide(measured, LIMITS).verdict is Verdict.FAIL


def test_letters_that_are_written_are_guessed_as_often_as_letters_that_are_chosen(toy, tasks, tmp_path):
    """A generated multiple choice: the task has one request per document, and says nothing about four letters."""
    given = [json.loads(line) for line in (tasks / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({**row, "answer": n % 4}) for n, row in enumerate(given)), encoding="utf-8")
    text = GENERATE.format(file=file, sample="false").replace("{{choices[answer]}}", "{{['A', 'B', 'C', 'D'][answer]}}")
    (tmp_path / "task.yaml").write_text(text.replace("([a-z]+)", "([A-D])"), encoding="utf-8")
    with session(toy, "kv8") as opened:
        measured = opened.measure("benchmark-toy_generate", {"include_path": str(tmp_path)})
        declared = opened.measure("benchmark-toy_generate", {"include_path": str(tmp_path), "chance": 0.5})
    # Ten of forty have the letter; the one that it is taken from does not count.
    assert measured.gates[0].chance == pytest.approx(9 / 39)
    assert declared.gates[0].chance == 0.5


def test_a_declared_chance_never_lowers_what_is_found(toy, tasks):
    with session(toy, "kv8") as opened:
        measured = opened.measure("benchmark-toy_choice", {"include_path": str(tasks), "limit": 20, "chance": 0.01})
    assert measured.gates[0].chance >= 0.25


def test_groups_few_shots_and_limits(toy, tasks, tmp_path):
    """Every subtask is limited and scored on its own, and their documents are one item."""
    file = tasks / "rows.jsonl"
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            CHOICE.format(file=file).replace("toy_choice", f"toy_{name}") + "fewshot_split: test\n", encoding="utf-8"
        )
    (tmp_path / "group.yaml").write_text("group: toy_group\ntask: [toy_one, toy_two]\n", encoding="utf-8")
    with session(toy, "kv8") as opened:
        params = {"include_path": str(tmp_path), "limit": 4}
        plain = opened.measure("benchmark-toy_group", params)
        shots = opened.measure("benchmark-toy_one", {**params, "num_fewshot": 1})
    assert facts(plain)["documents"] == 8
    assert {name: row["n"] for name, row in plain.details["tasks"].items()} == {"toy_one": 4, "toy_two": 4}
    # The example is longer than what is left of the trained length: its beginning goes, which is counted for every choice.
    assert facts(plain)["truncated_prompts"] == 0
    assert (facts(shots)["truncated_prompts"], facts(shots)["length"]) == (4 * 4, toy.trained_length)


def test_a_task_without_documents_is_no_success(toy, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("", encoding="utf-8")
    (tmp_path / "task.yaml").write_text(CHOICE.format(file=file), encoding="utf-8")
    with session(toy, "kv8") as opened, pytest.raises((ContractError, EngineError)):
        opened.measure("benchmark-toy_choice", {"include_path": str(tmp_path)})


def test_problems_that_an_empty_function_solves_test_nothing(toy, tmp_path, monkeypatch):
    rows = [
        {"task_id": f"H/{n}", "prompt": f"def f{n}():\n", "entry_point": f"f{n}", "test": "def check(g):\n    pass\n"}
        for n in range(3)
    ]
    rows.append({**rows[0], "task_id": "H/3", "test": "def check(g):\n    assert g() == 1\n"})
    (tmp_path / "HumanEval.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.setattr(CacheLM, "complete", lambda *_: "    return 1\n")
    with session(toy, "kv8") as opened:
        measured = opened.measure("benchmark-humaneval", {"include_path": str(tmp_path), "run_code": True})
    assert (measured.gates[0].base_mean, measured.gates[0].chance) == (1.0, 0.75)


def test_documents_with_one_prompt_are_one_unit(toy):
    from pytest_attnaccept.checks.benchmark_docs import Outcome

    def outcomes(*scores):
        return [
            Outcome(unit=f"t:{n}:doc{n}:{'same' if n < 3 else n}", task="t", score=s, parsed=True, chance=0.25)
            for n, s in enumerate(scores)
        ]

    gate, units = _gate("t", outcomes(1, 1, 1, 1, 0), outcomes(0, 1, 1, 0, 0))
    assert gate.losses == (pytest.approx(1 / 3), 1.0, 0.0)
    assert (gate.n_items, gate.discordant, len(units)) == (5, 2, 3)


def test_global_state_stays_and_a_baseline_is_asked_once(toy, tasks, monkeypatch):
    from pytest_attnaccept.checks import benchmark_lm

    calls = []
    real = benchmark_lm.prefill
    monkeypatch.setattr(benchmark_lm, "prefill", lambda side, *a: calls.append(side.name) or real(side, *a))
    baseline_memo.clear()
    random.seed(4)
    before = random.getstate()
    for name in ("kv8", "kv4"):
        with session(toy, name) as opened:
            opened.measure("benchmark-toy_choice", {"include_path": str(tasks), "limit": 5})
    assert random.getstate() == before
    assert calls.count("baseline") == 5
    assert calls.count("candidate") == 10
