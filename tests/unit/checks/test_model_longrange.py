"""Task families through the cache: what passes, what fails, what is refused, and that the scores are the right ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_heard, model_longrange, open_session
from pytest_attnaccept.checks.model_asking import ask
from pytest_attnaccept.checks.model_data import encode
from pytest_attnaccept.checks.model_longrange import _chance, _source
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import ContractError, UnknownNameError
from pytest_attnaccept.measurement import PairedScores, Threshold
from pytest_attnaccept.profiles import Limit
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.tasks import Question, TaskItem, generate
from pytest_attnaccept.tasks.items import make_item
from pytest_attnaccept.tasks.scoring import score_answer
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
LIMITS = {"long-range": Limit(max=0.1, origin="policy: test")}
CHECK = "long-range-kv_recall"


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def session(toy, name, candidate=None, **knobs):
    method = REGISTRY.get(name)
    return open_session(baseline=toy, candidate=candidate, stack=[(method, check_knobs(method, knobs, "test"))])


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


def items_for(opened, family, count=4, length=256, **parameters):
    given = {**model_longrange.DEFAULTS, "family": family, "parameters": parameters, "contexts": count}
    return model_longrange.items_of(opened, Params(check="test", given=given), length)[0]


# -- verdicts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["kv_recall", "variable_tracking", "mqar", "many_questions"])
def test_eight_bits_pass_and_half_of_the_entries_fail(toy, family):
    verdicts = {}
    for name, knobs in (("kv8", {}), ("h2o", {"kv_budget": 0.25})):
        with session(toy, name, **knobs) as opened:
            measured = opened.measure(f"long-range-{family}", {"contexts": 40})
        verdicts[name] = decide(measured, LIMITS).verdict
        assert facts(measured)["baseline_generated[1x]"] > 0.9
        assert facts(measured)["length"] == 256
    assert verdicts == {"kv8": Verdict.PASS, "h2o": Verdict.FAIL}


def test_the_worst_tier_decides(toy):
    """A window that holds a short context whole loses what a long one had in front of it."""
    with session(toy, "sliding_window", window=140) as opened:
        measured = opened.measure(CHECK, {"contexts": 40, "tiers": [1, 0.5]})
    by_name = {metric.name: metric.verdict for metric in decide(measured, LIMITS).metrics}
    assert by_name == {"long-range[0.5x]": "PASS", "long-range[1x]": "FAIL"}
    assert decide(measured, LIMITS).verdict is Verdict.FAIL


def test_the_worst_pattern_decides(toy):
    with session(toy, "h2o", kv_budget=0.25) as opened:
        measured = opened.measure(CHECK, {"contexts": 20, "patterns": ["one-shot", "chunk-64"]})
    assert [gate.name for gate in measured.gates] == ["long-range[1x]", "long-range[1x,chunk-64]"]


@pytest.mark.parametrize("score", ["generated", "teacher_forced", "choice"])
def test_every_score_can_be_gated(toy, score):
    with session(toy, "h2o", kv_budget=0.25) as opened:
        measured = opened.measure(CHECK, {"contexts": 40, "score": score})
    (gate,) = measured.gates
    assert decide(measured, LIMITS).verdict is Verdict.FAIL
    assert gate.chance == pytest.approx(1 / 8)
    assert 1 - gate.base_mean < 0.05


def test_a_baseline_that_does_not_discriminate_is_invalid_with_the_reason(toy):
    """Words that the embedded model does not know: it scores nothing, and nothing can be lost."""
    with session(toy, "kv8") as opened:
        for family in ("phone_book", "graph_walk", "word_counting"):
            decision = decide(opened.measure(f"long-range-{family}", {"contexts": 30}), LIMITS)
            assert decision.verdict is Verdict.INVALID
            assert "baseline scores" in decision.headline


def test_answers_that_the_tokenizer_cannot_write_are_not_scored_token_by_token(toy):
    """Every coined word is the same unknown token: forced, it would be right whatever the cache has lost."""
    with session(toy, "kv8") as opened, pytest.raises(ContractError, match="has no tokens for the answer"):
        opened.measure("long-range-graph_walk", {"contexts": 3, "score": "teacher_forced"})


def test_answers_that_are_nearly_always_the_same_discriminate_nothing(toy):
    """A family of another package: a model that says the usual answer seems to know, and so does one that lost everything."""

    def same(number: int, answer: str) -> TaskItem:
        ask = Question(text=" Is it?", answer_prefix=" It is", answer=answer, foils=(), max_new_tokens=1, depth=0.0)
        return make_item(
            task="same", context=f"Context {number}.", questions=(ask,), key_spans=(), chance=0.01, parameters={}
        )

    items = [same(n, " red" if n % 10 else " blue") for n in range(50)]
    assert _chance(items, "generated") == pytest.approx(44 / 49)
    assert _chance(items, "teacher_forced") == pytest.approx(44 / 49)
    assert 0.99 < _chance([same(n, " red") for n in range(50)], "generated") < 1.0


def test_questions_about_one_context_are_one_unit_whatever_their_family_says():
    ask = Question(text=" q", answer_prefix="", answer=" a", foils=(), max_new_tokens=1, depth=0.0)
    first, second = (
        make_item(
            task="t", context=context, questions=(replace(ask, answer=answer),), key_spans=(), chance=0.0,
            parameters={"source": answer},
        )
        for context, answer in (("one", " a"), ("one", " b"))
    )  # fmt: skip
    assert first.digest != second.digest
    assert _source(first) == _source(second)


def test_a_candidate_that_never_ran_is_invalid(toy):
    with session(toy, "h2o", Candidate(cache=DynamicCache), kv_budget=0.5) as opened:
        measured = opened.measure(CHECK, {"contexts": 40})
    assert decide(measured, LIMITS).verdict is Verdict.INVALID
    assert "never ran" in measured.refusals[0].reason


def test_knobs_that_no_tier_reaches_are_inconclusive(toy):
    with session(toy, "sliding_window", window=4096) as opened:
        assert decide(opened.measure(CHECK, {"contexts": 30}), LIMITS).verdict is Verdict.INCONCLUSIVE


def test_an_identical_short_tier_is_no_reason_against_the_item(toy):
    with session(toy, "sliding_window", window=200) as opened:
        measured = opened.measure(CHECK, {"contexts": 30, "tiers": [0.5, 1]})
    assert measured.refusals == ()


def test_few_contexts_never_pass(toy):
    with session(toy, "kv8") as opened:
        assert decide(opened.measure(CHECK, {"contexts": 10}), LIMITS).verdict is Verdict.INCONCLUSIVE


# -- what is measured ----------------------------------------------------------------------------------------------------


def test_a_state_that_remembers_questions_is_found(toy):
    """A cache whose copies share a counter: the answer to the repeated question moves."""

    class Leaky(DynamicCache):
        asked = 0

        def update(self, keys, values, layer, *args, **kwargs):
            if layer == 0 and keys.shape[-2] > 1:
                Leaky.asked += 1
            return super().update(keys, values + 0.02 * Leaky.asked, layer, *args, **kwargs)

    for candidate, moved in ((Candidate(cache=Leaky), True), (None, False)):
        with session(toy, "kv8", candidate) as opened:
            measured = opened.measure("long-range-many_questions", {"contexts": 3})
        gate = next(g for g in measured.gates if isinstance(g, Threshold))
        assert gate.n == 6
        assert (gate.value > gate.limit) is moved


def test_scores_are_those_of_one_forward_pass_for_an_untouched_cache(toy):
    with session(toy, "kv8") as opened:
        items = items_for(opened, "variable_tracking")
        answers = ask(opened, opened.baseline, items, "one-shot")
    for item, row in zip(items, answers, strict=True):
        for question, answer in zip(item.questions, row, strict=True):
            ids = [encode(toy.tokenizer, part) for part in (item.context, question.prompt, question.answer)]
            start = len(ids[0]) + len(ids[1])
            with torch.no_grad():
                logits = toy.model(torch.tensor([[*ids[0], *ids[1], *ids[2]]])).logits[0, start - 1 : -1].double()
            target = torch.tensor(ids[2])
            assert answer.nll == pytest.approx(float(torch.nn.functional.cross_entropy(logits, target)), abs=1e-4)
            assert answer.forced == bool((logits.argmax(-1) == target).all())
            best = (logits > logits.gather(1, target[:, None])).sum(1)
            assert answer.rank == pytest.approx(float(best.double().mean()))
            margins = []
            for foil in question.foils:
                other = encode(toy.tokenizer, foil)
                place = next(i for i, (a, b) in enumerate(zip(ids[2], other, strict=False)) if a != b)
                margins.append(float(logits[place, ids[2][place]] - logits[place, other[place]]))
            assert answer.margin == pytest.approx(min(margins), abs=1e-3)


def test_the_shortcut_equals_generation(toy, monkeypatch):
    """Where every answer token is the first choice nothing is generated; it would have given the same score."""
    calls = []
    real = model_heard.generate_tokens
    monkeypatch.setattr(model_heard, "generate_tokens", lambda *a: calls.append(1) or real(*a))
    for name, knobs in (("kv8", {}), ("streaming_llm", {"kv_budget": 0.5})):
        with session(toy, name, **knobs) as opened:
            for family in ("kv_recall", "variable_tracking"):
                items = items_for(opened, family)
                longer = [
                    replace(
                        item,
                        questions=tuple(replace(q, max_new_tokens=q.max_new_tokens + 2) for q in item.questions),
                        digest=item.digest + "x",
                    )
                    for item in items
                ]
                calls.clear()
                short = ask(opened, opened.candidate, items, "one-shot")
                before = len(calls)
                full = ask(opened, opened.candidate, longer, "one-shot")
                assert len(calls) > before
                assert [[a.value for a in row] for row in short] == [[a.value for a in row] for row in full]


def test_parse_failures_are_counted_apart_from_wrong_answers(toy):
    with session(toy, "h2o", kv_budget=0.25) as opened:
        measured = opened.measure("long-range-needle", {"contexts": 20, "parameters": {"needles": 2}})
        found = facts(measured)
        assert found["candidate_wrong_answers[1x]"] > 0
        items = items_for(opened, "passkey", count=20, value="digits4")
        rows = ask(opened, opened.candidate, items, "one-shot")
        unread = sum(not a.parsed for row in rows for a in row)
        measured = opened.measure("long-range-passkey", {"contexts": 20, "parameters": {"value": "digits4"}})
    assert facts(measured)["candidate_parse_failures[1x]"] == unread > 0
    assert unread + facts(measured)["candidate_wrong_answers[1x]"] == sum(a.value < 1 for row in rows for a in row)


def test_every_instruction_is_a_cell_of_its_own(toy):
    with session(toy, "kv8") as opened:
        measured = opened.measure("long-range-instructions", {"contexts": 4, "parameters": {"rules": 3}})
    names = [gate.name for gate in measured.gates]
    assert names == [f"long-range[1x,{label}]" for label in ("reply1", "reply2", "reply3", "guard1")]
    assert all(isinstance(gate, PairedScores) and len(gate.losses) == 4 for gate in measured.gates)


def test_batches_change_nothing(toy, monkeypatch):
    results = []
    for size in (16, 1):
        baseline_memo.clear()
        monkeypatch.setattr("pytest_attnaccept.checks.model_session._BATCH", size)
        with session(toy, "h2o", kv_budget=0.5) as opened:
            measured = opened.measure("long-range-variable_tracking", {"contexts": 8})
        results.append((measured.gates[0].losses, measured.gates[0].base_mean))
    assert results[0] == results[1]


def test_a_baseline_answers_once_for_many_cells(toy, monkeypatch):
    calls = []
    real = model_heard.prefill
    monkeypatch.setattr(model_heard, "prefill", lambda side, *a: calls.append(side.name) or real(side, *a))
    baseline_memo.clear()
    for name in ("kv8", "kv4"):
        with session(toy, name) as opened:
            opened.measure(CHECK, {"contexts": 6})
    assert calls.count("baseline") * 2 == calls.count("candidate") > 0


def test_a_capped_tier_is_measured_once_and_the_details_say_what_was_kept(toy):
    with session(toy, "kv8") as opened:
        measured = opened.measure(CHECK, {"contexts": 4, "tiers": [1, 2], "max_tokens": 256})
    assert list(measured.details["cells"]) == ["1x"]
    kept = measured.details["losses"]["long-range[1x]"]
    assert len(kept["units"]) == len(kept["losses"]) == len(kept["baseline"]) == len(kept["baseline_nll"]) == 4
    table = measured.details["cells"]["1x"]["baseline"]
    assert len(table["by_question"]) == 4
    assert len(table["by_depth"]) == 5


def test_long_outputs_are_scored_by_tenths(toy):
    item = generate("ledger", fit=lambda t: len(encode(toy.tokenizer, t)), target_tokens=400, seed=0, index=0)
    question = item.questions[0]
    half = ", ".join(question.expected[:12])
    assert score_answer(question, half).parts == (1.0,) * 5 + (0.0,) * 5 + (0.5,)
    with session(toy, "kv8") as opened:
        measured = opened.measure("long-range-ledger", {"contexts": 2, "tokens": 400})
    assert len(measured.details["cells"]["1x"]["baseline"]["by_part"]) == 11


def test_real_data_is_asked_like_a_family(toy, tmp_path):
    """Rows of a file: one that is broken is named, and what they hold is scored."""
    rows = []
    for index in range(30):
        item = generate(
            "kv_recall", fit=lambda t: len(encode(toy.tokenizer, t)), target_tokens=180, seed=9, index=index
        )
        question = item.questions[0]
        words = f"{item.context}{question.prompt}{question.answer}".rsplit(" ", 1)
        rows.append({"context": words[0], "continuation": words[1]})
    file = tmp_path / "words.jsonl"
    file.write_text("\n".join([*map(json.dumps, rows), "{"]), encoding="utf-8")
    verdicts = []
    for name, knobs in (("kv8", {}), ("h2o", {"kv_budget": 0.25})):
        with session(toy, name, **knobs) as opened:
            measured = opened.measure("long-range-lambada", {"contexts": 40, "path": str(file)})
        verdicts.append(decide(measured, LIMITS).verdict)
        assert measured.gates[0].base_mean > 0.9
        assert facts(measured)["data[256]"].startswith("30 of 31 rows (complete: 5153), 1 rejected, 0 cut, sha256 ")
    assert verdicts[0] is not Verdict.FAIL
    assert verdicts[1] is Verdict.FAIL
    with session(toy, "kv8") as opened:
        with pytest.raises(ContractError, match="has no parameters"):
            opened.measure("long-range-lambada", {"path": str(file), "parameters": {"pairs": 3}})
        with pytest.raises(ContractError, match="needs path: FILE"):
            opened.measure("long-range-lambada", {})


@pytest.mark.parametrize(
    ("check", "params", "error", "message"),
    [
        ("long-range-kv_recal", {}, UnknownNameError, "Did you mean 'kv_recall'"),
        (CHECK, {"parameters": {"pair": 3}}, UnknownNameError, "Did you mean 'pairs'"),
        (CHECK, {"parameters": {"pairs": 1}}, ContractError, "pairs=1"),
        (CHECK, {"parameters": 3}, ContractError, "must be a mapping"),
        (CHECK, {"score": "exact"}, ContractError, "Allowed: generated"),
        (CHECK, {"tiers": []}, ContractError, "must be a list"),
        ("long-range-copy_span", {"score": "choice"}, ContractError, "needs foils"),
        ("long-range-multi_hop", {"tiers": [0.1]}, ContractError, "too short"),
        ("long-range-text", {"parameters": {"questions": 0}}, ContractError, "without a question"),
    ],
)
def test_what_cannot_be_measured_is_refused(toy, check, params, error, message):
    with session(toy, "kv8") as opened, pytest.raises(error, match=message):
        opened.measure(check, {"contexts": 2, **params})
