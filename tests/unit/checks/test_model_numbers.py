"""The numbers of the model checks on the embedded model are the right ones, batched or shared."""

from __future__ import annotations

import math

import pytest
import torch
from toy_sessions import facts, session, stack
from transformers import QuantizedCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_answers, model_needle, open_session
from pytest_attnaccept.checks.model_data import documents, encode
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.measurement import Threshold


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def test_perplexity_is_that_of_one_forward_pass_for_an_untouched_cache(toy):
    with session(toy, ("kv2", {})) as opened:
        params = Params(check="perplexity", given={"documents": 3})
        data = documents(opened, params, count=3, length=256, continuation=64)
        level = opened.measure("perplexity", {"documents": 3}).gates[0].base_level
    total = 0.0
    for row in data.rows:
        with torch.no_grad():
            logits = toy.model(row).logits[0, :-1].double()
        total += float(torch.nn.functional.cross_entropy(logits[-64:], row[0, -64:], reduction="sum"))
    assert level == pytest.approx(math.exp(total / (3 * 64)), rel=1e-4)


def test_batches_change_nothing_but_rounding(toy, monkeypatch):
    results = []
    for size in (16, 1):
        baseline_memo.clear()
        monkeypatch.setattr("pytest_attnaccept.checks.model_session._BATCH", size)
        with session(toy, ("h2o", {"kv_budget": 0.5}), ("kv8", {})) as opened:
            text = opened.measure("perplexity", {"documents": 6, "continuation": 16}).gates[0]
            asked = opened.measure("needle-1x", {"contexts": 6}).gates[0]
            results.append((text.sums, asked.losses, asked.base_mean))
    assert results[0][0] == pytest.approx(results[1][0], abs=0.02)
    assert results[0][1:] == results[1][1:]


def test_a_baseline_is_computed_once_for_many_cells(toy, monkeypatch):
    from pytest_attnaccept.checks import model_text

    calls = []
    original = model_text.continued_text
    monkeypatch.setattr(
        model_text, "continued_text", lambda session, side, *a: calls.append(side.name) or original(session, side, *a)
    )
    baseline_memo.clear()
    for name in ("kv8", "kv4"):
        with session(toy, (name, {})) as opened:
            opened.measure("perplexity", {"documents": 4, "continuation": 16})
            opened.measure("perplexity", {"documents": 4, "continuation": 16})
    assert calls == ["baseline", "candidate", "candidate"]


def test_the_needle_sees_what_perplexity_does_not(toy):
    """Three quarters of the entries: the text hardly changes, a third of the needles are gone."""
    with session(toy, ("h2o", {"kv_budget": 0.75})) as opened:
        text = opened.measure("perplexity", {"documents": 20, "continuation": 32}).gates[0]
        asked = opened.measure("needle-1x", {"contexts": 20}).gates[0]
    assert math.expm1(sum(text.sums) / sum(text.tokens)) < 0.02
    assert asked.base_mean > 0.8
    assert sum(asked.losses) / len(asked.losses) > 0.15


def test_generated_answers_are_right_where_teacher_forced_ones_are(toy):
    """The shortcut (no generation where every answer token is the argmax) against real greedy generation."""
    with session(toy, ("streaming_llm", {"kv_budget": 0.5})) as opened:
        given = Params(check="needle", given=model_needle.DEFAULTS)
        items = model_needle.needle_items(opened, Params(check="n", given={**given.given, "contexts": 6}), 256)
        for side in (opened.baseline, opened.candidate):
            answers = model_answers.answers(opened, side, items, "one-shot")
            for item, row in zip(items, answers, strict=True):
                for question, answer in zip(item.questions, row, strict=True):
                    assert answer.generated == _greedy_answer(side, toy, item, question)


def _greedy_answer(side, toy, item, question):
    from pytest_attnaccept.engines.through_cache import extend, greedy, parse_pattern, prefill

    context = torch.tensor([encode(toy.tokenizer, item.context)])
    prompt = torch.tensor([encode(toy.tokenizer, question.prompt)])
    with side.running():
        state = prefill(side, context, parse_pattern("one-shot", 1))
        extend(side, state, prompt, step=prompt.shape[1])
        made = greedy(side, state, question.max_new_tokens)
    return question.answer.strip() in toy.tokenizer.decode(made[0].tolist())


def test_the_depth_table_counts_every_question(toy):
    with session(toy, ("kv8", {})) as opened:
        measured = opened.measure("needle-0.5x", {"contexts": 10, "questions_per_context": 2, "depths": 4})
    table = measured.details["depths"]["one-shot"]
    assert (len(table), sum(row["n"] for row in table)) == (4, 20)
    assert (measured.gates[0].n_items, len(measured.gates[0].losses)) == (20, 10)
    assert facts(measured)["length"] == 128


def test_every_pattern_has_its_own_gate(toy):
    with session(toy, ("h2o", {"kv_budget": 0.5})) as opened:
        params = {"documents": 2, "contexts": 2, "continuation": 8, "patterns": ["one-shot", "chunk-64"]}
        names = [
            gate.name
            for check in ("divergence", "perplexity", "needle-1x")
            for gate in opened.measure(check, params).gates
        ]
    assert names == [
        "kl", "top1", "kl[chunk-64]", "top1[chunk-64]", "perplexity", "perplexity[chunk-64]", "needle", "needle[chunk-64]",
    ]  # fmt: skip


def test_equality_accepts_another_exact_attention_and_rejects_a_lossy_one(toy):
    exact = stack(("chunked_prefill", {}))
    for around, good in ((Candidate(attn_implementation="eager"), True), (Candidate(context=_noisy), False)):
        with open_session(candidate=around, baseline=toy, stack=exact) as opened:
            gates = opened.measure("equality", {"patterns": ["one-shot"]}).gates
        assert all(g.value <= g.limit for g in gates) is good


class _noisy:
    def __init__(self, model):
        self.handle = model.model.layers[1].self_attn.register_forward_hook(
            lambda module, args, output: (output[0] + 0.02 * output[0].abs().mean(), *output[1:])
        )

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.handle.remove()


def test_quantized_cache_of_transformers_is_a_good_candidate(toy):
    """FP8 storage without a residual: a quarter of the bytes, entries that cannot be read from shapes."""
    from transformers import cache_utils

    if not hasattr(cache_utils, "Fp8QuantizedLayer"):
        pytest.skip("this version of transformers has no fp8 backend")
    around = Candidate(cache=lambda: QuantizedCache(backend="fp8", config=toy.model.config))
    with session(toy, ("kv8", {}), candidate=around) as opened:
        measured = opened.measure("footprint")
        assert measured.refusals == ()
        assert [g.name for g in measured.gates if isinstance(g, Threshold) and not g.value <= g.limit] == []
        assert facts(measured)["share_of_baseline[token]"] == pytest.approx(0.25, abs=0.01)


def test_footprint_facts_are_bytes_of_storage(toy):
    with session(toy, ("kv4", {"group_size": 32})) as opened:
        measured = opened.measure("footprint", {"tokens": 128})
    # 4 bits and two float16 per 32 values, of float32
    assert facts(measured)["share_of_baseline[one-shot]"] == pytest.approx((4 + 1) / 32, abs=1e-4)
    config = toy.model.config
    width = 2 * config.num_key_value_heads * config.head_dim * 4
    assert facts(measured)["baseline_bytes"] == 128 * width * config.num_hidden_layers
