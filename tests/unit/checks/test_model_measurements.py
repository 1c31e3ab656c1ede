"""What is reported besides the gates: noise floors, tokens that need the context, ranks, parse failures, curves."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_attnaccept.checks import model_answers, open_session
from pytest_attnaccept.checks.looks import measure_in_looks
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.stats.sequential import plan_looks
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def opened(toy, name, **knobs):
    method = REGISTRY.get(name)
    return open_session(baseline=toy, stack=[(method, check_knobs(method, knobs, "test"))])


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


def test_tokens_that_need_the_context_show_what_the_whole_text_hides(toy):
    with opened(toy, "streaming_llm", kv_budget=0.5) as session:
        found = session.measure("perplexity", {"documents": 20, "continuation": 64})
    whole = math.log(facts(found)["ppl_candidate"] / facts(found)["ppl_baseline"])
    assert 0 < facts(found)["key_tokens"] < 0.3 * 20 * 64
    assert facts(found)["key_token_loss"] > 5 * whole > 0
    curve = found.details["nll_by_position"]["one-shot"]
    assert [len(side) for side in curve.values()] == [8, 8]
    losses = [c - b for b, c in zip(curve["baseline"], curve["candidate"], strict=True)]
    assert losses == pytest.approx(found.details["by_position"]["one-shot"], abs=2e-6)


def test_a_quantization_to_eight_bits_loses_nothing_on_them(toy):
    with opened(toy, "kv8") as session:
        found = facts(session.measure("perplexity", {"documents": 20, "continuation": 64}))
    assert abs(found["key_token_loss"]) < 0.02


def test_noise_floors_are_below_every_limit_and_half_precision_is_the_largest(toy):
    with opened(toy, "kv2") as session:
        found = facts(session.measure("divergence", {"documents": 4, "continuation": 32}))
    limit = load_profile("release").limits["kl"].max
    floors = [found[name] for name in ("kl_noise_floor", "kl_noise_floor[other attention]", "kl_noise_floor[bfloat16]")]
    assert max(floors[:2]) < floors[2] < limit / 10
    assert found["kl_p99"] > 100 * floors[2]


def test_a_divergence_from_a_baseline_that_has_not_read_the_text_is_invalid(toy):
    blind = type(toy.model)(toy.model.config).eval()
    torch.nn.init.normal_(blind.get_input_embeddings().weight)
    with open_session(
        baseline=type("Held", (), {"model": blind, "tokenizer": toy.tokenizer})(),
        stack=[(REGISTRY.get("kv2"), check_knobs(REGISTRY.get("kv2"), {}, "test"))],
    ) as session:
        decision = decide(session.measure("divergence", {"documents": 4, "tokens": 64, "continuation": 16}), {})
    assert decision.verdict is Verdict.INVALID
    assert "cannot predict this text" in decision.headline


def test_wrong_answers_and_parse_failures_are_told_apart(toy):
    with opened(toy, "streaming_llm", kv_budget=0.25) as session:
        found = facts(session.measure("needle-1x", {"contexts": 12}))
    assert found["candidate_answer_rank"] > found["baseline_answer_rank"] >= 1
    assert found["candidate_exact"] <= found["candidate_generated"] < found["baseline_generated"]
    assert found["candidate_not_parsed"] <= 1 - found["candidate_generated"]
    assert model_answers.has_form(" about 1234.", " 5678")
    assert not model_answers.has_form(" about 12.", " 5678")
    assert model_answers.has_form(" Oslo", " Rome")
    assert not model_answers.has_form(" .", " Rome")


def test_facts_of_a_sample_measured_in_looks_are_means_over_all_of_it(toy):
    with opened(toy, "h2o", kv_budget=0.75) as session:
        looked = measure_in_looks(
            lambda given: session.measure("needle-0.5x", given), {"contexts": 24}, plan_looks(24, 0.5)
        )
        n = len(looked.gates[0].losses)
        whole = session.measure("needle-0.5x", {"contexts": n})
    assert n > 2
    for name in ("baseline_generated", "candidate_generated", "candidate_teacher_forced"):
        assert facts(looked)[name] == pytest.approx(facts(whole)[name], abs=1e-3)


def test_a_question_inside_the_compressed_text_is_reported_and_lifts_no_verdict(toy):
    with opened(toy, "snapkv", kv_budget=0.5) as session:
        plain = session.measure("needle-1x", {"contexts": 8})
        labelled = session.measure("needle-1x", {"contexts": 8, "question_first": 8})
    label = {f.name: f.unit for f in labelled.facts}["question_first_candidate"]
    assert facts(labelled)["question_first_candidate"] > facts(labelled)["candidate_generated"]
    assert "not gated" in label
    assert labelled.gates == plain.gates
    assert labelled.refusals == plain.refusals
