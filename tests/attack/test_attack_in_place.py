"""Candidates that change the baseline too: while they are built, or by what stays behind when they have run."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
KV8 = [(REGISTRY.get("kv8"), check_knobs(REGISTRY.get("kv8"), {}, "test"))]
QUICK = {"tier": 0.5, "contexts": 1, "questions_per_context": 1}


@pytest.fixture
def toy():
    loaded = load(parse_spec("toy-gqa"))
    return replace(loaded, model=copy.deepcopy(loaded.model))


def rotate_otherwise(model):
    model.model.rotary_emb.inv_freq.mul_(1.5)


def add_a_hook(model):
    model.model.layers[1].register_forward_hook(lambda module, given, output: output)


def forget_a_layer(model):
    layer = model.model.layers[1]
    layer.forward = lambda hidden_states, *args, **kwargs: hidden_states


def look_through_a_window(model):
    model.config.sliding_window = 16


def drop_out(model):
    model.train()


@pytest.mark.parametrize("edit", [rotate_otherwise, add_a_hook, forget_a_layer])
def test_what_building_a_candidate_does_to_the_baseline(toy, edit):
    """The cache is honest, and what else was changed is in both sides: the comparison shows the cache alone."""

    def candidate():
        edit(toy.model)
        return apply_stack(toy.model, KV8).candidate

    with open_session(candidate=candidate, baseline=toy, stack=KV8) as session:
        decision = decide(session.measure("needle", QUICK), {})
    assert decision.verdict is Verdict.INVALID
    assert "changed the baseline's" in decision.headline


def test_a_library_function_that_is_replaced_for_everybody(toy, monkeypatch):
    original = torch.nn.functional.scaled_dot_product_attention

    def halved(q, k, v, *args, **kwargs):
        return original(q, k, v, *args, **kwargs) * 0.5

    def candidate():
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", halved)
        return apply_stack(toy.model, KV8).candidate

    with open_session(candidate=candidate, baseline=toy, stack=KV8) as session:
        decision = decide(session.measure("needle", QUICK), {})
    assert decision.verdict is Verdict.INVALID
    assert "logits on a probe" in decision.headline


def leaking(edit):
    @contextmanager
    def context(model):
        yield
        edit(model)

    return context


def take_the_activation_of_another_layer(model):
    model.model.layers[1].mlp.act_fn = model.model.layers[0].mlp.act_fn


def add_a_module_of_its_own(model):
    model.model.layers[0].self_attn.extra = torch.nn.Identity()


@pytest.mark.parametrize(
    "edit",
    [
        *(rotate_otherwise, add_a_hook, forget_a_layer, look_through_a_window, drop_out),
        *(take_the_activation_of_another_layer, add_a_module_of_its_own),
    ],
)
def test_what_a_context_leaves_behind(toy, edit):
    around = replace(apply_stack(toy.model, KV8).candidate, context=leaking(edit))
    with open_session(candidate=around, baseline=toy, stack=KV8) as session:
        decision = decide(session.measure("needle", QUICK), {})
    assert decision.verdict is Verdict.FAIL
    assert "stays in the baseline's model" in decision.headline


def test_honest_users_are_not_accused(toy):
    """Settings of generation, methods that are put back by assignment, and a library function that answers the same."""

    @contextmanager
    def context(model):
        attention = model.model.layers[0].self_attn
        own = attention.forward
        attention.forward = lambda *args, **kwargs: own(*args, **kwargs)
        try:
            yield
        finally:
            attention.forward = own

    def candidate():
        toy.model.config.pad_token_id = 0
        toy.model.config.use_cache = True
        return Candidate(toy.model, cache=apply_stack(toy.model, KV8).candidate.cache, context=context)

    with open_session(candidate=candidate, baseline=toy, stack=KV8) as session:
        measured = session.measure("needle", QUICK)
    assert measured.refusals == ()


def test_a_second_name_for_a_module_of_the_model_is_no_edit(toy):
    """What presses of kvpress do: every attention layer gets a reference to the model's rotary embedding."""

    def name_it(model):
        for layer in model.model.layers:
            layer.self_attn.rotary_emb = model.model.rotary_emb

    around = replace(apply_stack(toy.model, KV8).candidate, context=leaking(name_it))
    with open_session(candidate=around, baseline=toy, stack=KV8) as session:
        assert session.measure("needle", QUICK).refusals == ()


def test_rotary_tables_that_follow_the_length_of_a_text_are_no_edit():
    from transformers import LlamaConfig, LlamaForCausalLM

    from pytest_attnaccept.checks.model_intact import changes, snapshot
    from pytest_attnaccept.engines.sides import side_of

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    )  # fmt: skip
    loaded = load(parse_spec("toy-gqa"))
    side = side_of("baseline", replace(loaded, model=LlamaForCausalLM(config).eval(), trained_length=32), Candidate())
    before = snapshot(side)
    table = side.model.model.rotary_emb.inv_freq.clone()
    side.model(torch.arange(64)[None])
    assert not torch.equal(table, side.model.model.rotary_emb.inv_freq)
    assert changes(before, snapshot(side, before)) == []


def test_answers_of_a_side_that_is_gone_are_not_given_to_another(toy):
    from pytest_attnaccept.checks.model_answers import answers
    from pytest_attnaccept.checks.model_needle import DEFAULTS, needle_items
    from pytest_attnaccept.checks.model_params import Params

    with open_session(candidate=Candidate(toy.model, cache=DynamicCache), baseline=toy, stack=KV8) as session:
        items = needle_items(session, Params(check="t", given={**DEFAULTS, **QUICK}), 64)
        gone = replace(session.candidate)
        answers(session, gone, items, "one-shot")
        place = id(gone)
        del gone
        later = [replace(session.candidate) for _ in range(64)]
        assert place not in map(id, later)


def test_what_a_changed_baseline_answered_serves_nobody(toy, tmp_path, monkeypatch):
    """A context that leaks spoils the baseline's answers; the next run, with a sound context, must not read them."""
    from pytest_attnaccept.engines.memo import FOLDER_VARIABLE, baseline_memo

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    baseline_memo.clear()

    @contextmanager
    def context(model):
        rotate_otherwise(model)  # when the candidate starts, and never undone
        yield

    spoiled = replace(toy, model=copy.deepcopy(toy.model))
    around = replace(apply_stack(spoiled.model, KV8).candidate, context=context)
    with open_session(candidate=around, baseline=spoiled, stack=KV8) as session:
        found = session.measure("needle", {**QUICK, "contexts": 2, "patterns": ("one-shot", "chunk-64")})
    assert [refusal.verdict for refusal in found.refusals] == [Verdict.FAIL]
    assert not list(tmp_path.glob("*.bin"))
    assert not baseline_memo._items


def test_baselines_that_answer_differently_share_no_results(toy):
    """Same weights, same configuration: a hook on the baseline, and a tokenizer that ends elsewhere."""
    keys = set()
    hooked = replace(toy, model=copy.deepcopy(toy.model))
    hooked.model.lm_head.register_forward_hook(lambda module, given, output: output * 0.5)
    ended = replace(toy, tokenizer=copy.deepcopy(toy.tokenizer))
    ended.tokenizer.eos_token = ended.tokenizer.convert_ids_to_tokens(7)
    for baseline in (toy, hooked, ended):
        with open_session(baseline=baseline, stack=KV8) as session:
            keys.add(session.baseline_key)
    assert len(keys) == 3


def test_nan_of_the_baseline_is_no_failure_of_the_candidate(toy):
    with open_session(baseline=toy, stack=KV8) as session:
        toy.model.lm_head.register_forward_hook(lambda module, given, output: output * float("nan"))
        object.__setattr__(session, "intact", None)
        decision = decide(session.measure("perplexity", {"documents": 1, "tier": 0.5}), {})
    assert decision.verdict is Verdict.INVALID
    assert "of the baseline" in decision.headline
