"""Data files, parameters and metrics that are broken, empty or repeated: a clear error or less evidence, never a PASS."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace

import pytest
import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import benchmark_docs, model_benchmark, model_controls, open_session
from pytest_attnaccept.checks.benchmark_code import humaneval_problems
from pytest_attnaccept.checks.benchmark_docs import Outcome
from pytest_attnaccept.checks.model_data import documents
from pytest_attnaccept.checks.model_longrange import _chance
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.calls import NonFiniteError
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import CandidateError, ContractError, EngineError
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.tasks import Question
from pytest_attnaccept.tasks.data.load import load_items
from pytest_attnaccept.tasks.data.rows import read_rows
from pytest_attnaccept.tasks.items import make_item
from pytest_attnaccept.tasks.scoring import score_answer
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
KV8 = [(REGISTRY.get("kv8"), check_knobs(REGISTRY.get("kv8"), {}, "test"))]
BROKEN = {
    "cut.jsonl.gz": gzip.compress(b'{"a": 1}\n' * 500)[:-30],
    "plain.jsonl.gz": b'{"a": 1}\n',
    "latin.jsonl": '{"prompt": "caf\u00e9"}'.encode("latin-1"),
    "zeros.jsonl.gz": b"\x1f\x8b" + bytes(40),
    "deep.json": b"[" * 100_000,
    "number.jsonl": b"1" * 5000,
}


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_cannot_be_read_are_the_users_and_are_named(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BROKEN[name])
    with pytest.raises(ContractError, match="data: .*(cannot be read|not valid JSON|no readable row)"):
        read_rows(str(path))
    with pytest.raises(ContractError, match="humaneval: "):
        humaneval_problems(str(path))


def test_a_text_that_is_no_text(tmp_path, toy):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xff\xfe\x00 no text")
    with (
        open_session(baseline=toy, stack=KV8) as session,
        pytest.raises(ContractError, match="cannot be read as UTF-8"),
    ):
        session.measure("perplexity", {"text": str(path), "documents": 2, "tokens": 64, "continuation": 16})


def test_a_byte_order_mark_is_no_broken_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}\n{"a": 2}\n')
    assert len(read_rows(str(path)).rows) == 2


def test_one_document_many_times_is_one_document(tmp_path, toy):
    """120 copies give an interval without width, and say what one says."""
    path = tmp_path / "copies.txt"
    path.write_text("\f".join([" ".join(f"word{n % 7}" for n in range(300))] * 120), encoding="utf-8")
    with open_session(baseline=toy, stack=KV8) as session:
        given = Params(check="perplexity", given={"text": str(path)})
        found = documents(session, given, count=120, length=64, continuation=16)
    assert len(found.rows) == 1


@pytest.mark.parametrize("answers", [[""], [" "], ["right", ""]])
def test_a_reference_that_every_answer_contains(tmp_path, answers):
    row = {"context": "One. Two.", "input": "Which?", "answers": answers, "all_classes": None}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(ContractError, match=r"row 1: .*(empty|reference)"):
        load_items("longbench.multifieldqa_en", str(path), fit=len, target_tokens=2000)


def test_saying_nothing_is_no_exact_match():
    asked = Question(text="?", answer_prefix="", answer=" The", references=("The", "."), max_new_tokens=4, depth=0.0,
                     foils=(), metric="exact_match")  # fmt: skip
    assert score_answer(asked, "").value == 0.0
    assert score_answer(replace(asked, references=("The cat",)), "cat").value == 1.0


@pytest.mark.parametrize(
    ("check", "params"),
    [("long-range-kv_recall", {"tiers": ["a"]}), ("long-range-kv_recall", {"tiers": [math.inf]}),
     ("long-range-kv_recall", {"tiers": [math.nan]}), ("long-range-kv_recall", {"tiers": [0]}),
     ("needle", {"tier": math.inf}), ("length-curve", {"lengths": [math.inf]}), ("budget-curve", {"budgets": [2.0]}),
     ("budget-curve", {"budgets": ["half"]})],
)  # fmt: skip
def test_impossible_numbers_are_refused_with_the_name_of_the_check(toy, check, params):
    entry = REGISTRY.get("h2o"), check_knobs(REGISTRY.get("h2o"), {"kv_budget": 0.5}, "test")
    with open_session(baseline=toy, stack=[entry]) as session, pytest.raises(ContractError, match=check):
        session.measure(check, {"contexts": 1, **params})


def test_a_few_coin_flips_do_not_make_a_family_one():
    """Two of twenty questions are yes or no: a blind guesser scores 5 %, not 50 %."""
    asked = [Question(text="?", answer_prefix="", answer=a, foils=(), max_new_tokens=2, depth=0.0)
             for a in (" yes", " no", *(f" w{n}" for n in range(18)))]  # fmt: skip
    items = [make_item(task="t", context=f"{n}", questions=(ask,), key_spans=(), chance=0.5 if n < 2 else 0.0,
                       parameters={}) for n, ask in enumerate(asked)]  # fmt: skip
    assert _chance(items, "generated") == pytest.approx(0.05)


def test_many_questions_about_one_text_are_one_unit(tmp_path, toy):
    """Qasper and NarrativeQA ask ten questions about a text: ten rows, one context that an eviction spoils or not."""
    texts = [" ".join(f"The number of case {n} is {n + 4000}." for n in range(at, at + 5)) for at in (0, 5)]
    rows = [
        {
            "context": texts[n // 5],
            "input": f"What is the number of case {n}?",
            "answers": [str(n + 4000)],
            "all_classes": None,
        }
        for n in range(10)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with open_session(baseline=toy, stack=KV8) as session:
        measured = session.measure(
            "long-range-longbench.qasper", {"path": str(path), "tokens": 900, "contexts": 10, "score": "teacher_forced"}
        )
    gate = measured.gates[0]
    assert (len(gate.losses), gate.n_items) == (2, 10)
    assert len(measured.details["losses"][gate.name]["units"]) == 2


# -- benchmarks ----------------------------------------------------------------------------------------------------------


def outcomes(metric):
    return [Outcome(unit=f"t:{n}:x", task="t", score=1.0, parsed=True, chance=0.0, metric=metric) for n in range(3)]


def test_two_sides_are_never_scored_by_different_metrics():
    with pytest.raises(CandidateError, match=r"the candidate's answers to t have no acc in \[0, 1\]"):
        model_benchmark._require_one_metric("t", outcomes("acc"), outcomes("f1"))
    with pytest.raises(EngineError, match="the baseline's answers"):
        model_benchmark._require_one_metric("t", outcomes("f1"), outcomes("acc"))
    model_benchmark._require_one_metric("t", outcomes("acc"), outcomes("acc"))


def test_a_metric_without_a_value_on_one_side_is_seen():
    """What lm-eval hands over: the candidate's first metric is NaN for one document, and the next one is perfect."""
    sound = [{"doc_id": n, "doc_hash": "d" * 12, "prompt_hash": f"{n:012}", "acc": 1.0, "f1": 1.0} for n in range(3)]
    broken = [{**row, "acc": math.nan if row["doc_id"] == 1 else 0.0} for row in sound]
    ours, theirs = (benchmark_docs._outcomes("t", rows, "", {}) for rows in (sound, broken))
    with pytest.raises(CandidateError):
        model_benchmark._require_one_metric("t", ours, theirs)


def test_a_prompt_is_not_cut_to_nothing_for_a_long_answer(toy):
    from pytest_attnaccept.checks.benchmark_lm import CacheLM

    class Session:
        trained_length = 64

    model = object.__new__(CacheLM)
    model._side = type("Side", (), {"loaded": toy})()
    model._session, model._max_tokens, model._room, model.truncated, model.longest = Session(), 512, 64, 0, 0
    model.trace, model._decode = [], toy.tokenizer.decode
    asked = []

    def generated(key, compute):
        asked.append((len(key[1]), key[3]))
        return torch.zeros(2, dtype=torch.float64)

    model._remembered = generated
    for words in (10, 200):
        model.complete(" ".join(["one"] * words), {"until": []})
    (short, after_short), (long, after_long) = asked
    assert (short, after_short) == (10, 54)
    assert (long, after_long) == (32, 32)
    with pytest.raises(EngineError, match="no room for a prompt"):
        model._cut([1, 2, 3], 64)


# -- controls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "verdict"), [("candidate", Verdict.PASS), ("baseline", Verdict.INVALID)])
def test_a_control_that_gives_nan_is_rejected_and_not_the_candidate(toy, monkeypatch, side, verdict):
    """NaN of the baseline rejects no control: then nothing was compared."""
    real = model_controls._walk

    def walk(session, given, at, length, name):
        if name.startswith("window"):
            raise NonFiniteError(f"NaN logits of the {side} at position 9", side=side)
        return real(session, given, at, length, name)

    monkeypatch.setattr(model_controls, "_walk", walk)
    with open_session(baseline=toy, stack=KV8) as session:
        decision = decide(session.measure("controls", {"contexts": 24, "tier": 0.25, "margin": 0.1}), {})
    assert decision.verdict is verdict, decision.headline


def test_a_baseline_that_cannot_be_asked_is_no_missing_control(toy):
    """NOT_APPLICABLE is neutral; a baseline that raises is not."""

    def broken():
        raise OSError("out of memory")

    class Breaks:
        def __enter__(self):
            return None

        def __exit__(self, *args):
            return False

    around = Candidate(toy.model, context=lambda: Breaks(), cache=broken)
    with (
        open_session(baseline=replace(around, tokenizer=toy.tokenizer), candidate=toy, stack=KV8) as session,
        pytest.raises((CandidateError, EngineError)),
    ):
        session.measure("controls", {"contexts": 24, "tier": 0.25, "margin": 0.1})


def test_a_footprint_function_that_raises_anything_is_named(toy):
    def declared(cache):
        raise RuntimeError("no such handle")

    side = Candidate(toy.model, kv_footprint=declared)
    with (
        open_session(candidate=side, baseline=toy, stack=KV8) as session,
        pytest.raises(CandidateError, match="no such handle"),
    ):
        session.measure("footprint", {"tier": 0.25, "patterns": ("one-shot",)})


def test_an_exact_change_says_how_far_it_is_certified(toy):
    entry = REGISTRY.get("chunked_prefill"), {}
    with open_session(candidate=lambda: Candidate(toy.model, context=None), baseline=toy, stack=[entry]) as session:
        measured = session.measure("equality", {"documents": 1, "tier": 0.25, "patterns": ("one-shot",)})
    assert {fact.name: fact.value for fact in measured.facts}["certified_to"] == 64
