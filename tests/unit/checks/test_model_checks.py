"""Two sides of a model comparison: in which forms they come, what is refused, what counts as evidence."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from toy_sessions import facts, session, stack

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import CandidateError, ContractError, EngineError, UnknownNameError
from pytest_attnaccept.taxonomy import Kind, Layer, Method, Surface, Verdict


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def test_a_side_may_be_given_in_every_form(toy):
    class Holder:
        model, tokenizer = toy.model, toy.tokenizer

    member = stack(("kv8", {}))
    forms = ["toy-gqa", {"spec": "toy-gqa"}, toy, Holder(), Candidate(toy.model, tokenizer=toy.tokenizer), lambda: toy]
    for baseline in forms:
        with open_session(baseline=baseline, stack=member) as opened:
            assert opened.fingerprint()["baseline.weights"] == opened.fingerprint()["candidate.weights"]


def test_a_candidate_without_a_model_takes_the_baselines(toy):
    around = Candidate(attn_implementation="eager")
    with session(toy, ("h2o", {"kv_budget": 0.5}), candidate=around) as opened:
        assert opened.candidate.model is toy.model


def test_a_checkpoint_is_a_candidate(toy):
    with open_session(candidate="toy-gqa", baseline=toy, stack=stack(("w8a8", {}))) as opened:
        assert [refusal.verdict for refusal in opened.findings] == [Verdict.INVALID]


@pytest.mark.parametrize("side", [3, object()])
def test_what_is_no_model_is_refused(toy, side):
    with pytest.raises(ContractError, match="must be a transformers model"):
        open_session(candidate=side, baseline=toy, stack=stack(("kv8", {})))


def test_nothing_to_compare_is_refused(toy):
    with pytest.raises(ContractError, match="nothing to compare"):
        open_session(baseline=toy)
    with pytest.raises(ContractError, match="needs a baseline"):
        open_session(baseline=None, stack=stack(("kv8", {})))


def test_a_model_without_a_tokenizer_is_refused(toy):
    bare = type(toy.model)(copy.deepcopy(toy.model.config))
    bare.name_or_path = bare.config._name_or_path = ""
    with pytest.raises(ContractError, match="has no tokenizer"):
        open_session(baseline=bare, stack=stack(("kv8", {})))


def test_a_factory_that_raises_is_the_candidates_failure(toy):
    def factory():
        raise OSError("disk full")

    with pytest.raises(CandidateError, match="OSError: disk full"):
        session(toy, ("kv8", {}), candidate=factory)


def test_an_unknown_check_gets_a_suggestion(toy):
    with session(toy, ("kv8", {})) as opened, pytest.raises(UnknownNameError, match="Did you mean 'footprint'"):
        opened.measure("foot-print")


def test_the_fingerprint_changes_with_every_field(toy):
    def mark(seed=0, base=toy, **knobs):
        with open_session(baseline=base, stack=stack(("h2o", {"kv_budget": 0.5, **knobs})), seed=seed) as opened:
            return opened.fingerprint()

    reference = mark()
    assert mark() == reference
    assert mark(seed=1)["seed"] != reference["seed"]
    assert mark(kv_budget=0.25)["stack"] != reference["stack"]
    shorter = mark(base=dataclasses.replace(toy, trained_length=128))
    assert shorter["baseline.trained_length"] == "128" != reference["baseline.trained_length"]
    assert all(isinstance(value, str) for value in reference.values())


def test_equal_weights_in_other_modules_are_no_copy(toy):
    """A model whose modules were replaced around the same weights is a candidate, not a copy."""
    changed = copy.deepcopy(toy.model)
    changed.model.layers[0].mlp.act_fn = torch.nn.GELU()
    with open_session(candidate=changed, baseline=toy, stack=stack(("kv8", {}))) as opened:
        assert opened.findings == ()
    with open_session(candidate=copy.deepcopy(toy.model), baseline=toy, stack=stack(("kv8", {}))) as opened:
        assert ["copy of the baseline" in refusal.reason for refusal in opened.findings] == [True]


def test_shared_results_do_not_cross_models_with_equal_weights(toy):
    """Weights alone do not decide: the same ones under another rotary base are another baseline."""
    other = copy.deepcopy(toy.model)
    other.config.rope_parameters = {**other.config.rope_parameters, "rope_theta": 100.0}
    other = type(other)(other.config).eval()
    other.load_state_dict(toy.model.state_dict())
    levels = []
    for model in (toy.model, other):
        with open_session(baseline=Candidate(model, tokenizer=toy.tokenizer), stack=stack(("kv8", {}))) as opened:
            levels.append(opened.measure("perplexity", {"documents": 3}).gates[0].base_level)
    assert levels[1] > 1.05 * levels[0]


@pytest.mark.parametrize("check", ["footprint", "divergence", "perplexity", "needle-1x"])
def test_knobs_that_no_tier_reaches_are_inconclusive(toy, check):
    with session(toy, ("sliding_window", {"window": 4096})) as opened:
        refusals = opened.measure(check, {"documents": 2, "contexts": 2}).refusals
        assert [(r.verdict, "needs context > 4096" in r.reason) for r in refusals] == [(Verdict.INCONCLUSIVE, True)]
    # Where a longer tier of the same plan reaches them, this item is judged by its numbers (footprint goes there itself).
    with session(toy, ("sliding_window", {"window": 300})) as opened:
        measured = opened.measure(check, {"documents": 2, "contexts": 2, "longest_tier": 2.0, "patterns": ["one-shot"]})
    assert measured.refusals == ()
    if check == "footprint":
        assert facts(measured)["context"] == 375


def test_an_identity_setting_tests_nothing(toy):
    with session(toy, ("h2o", {"kv_budget": 1.0})) as opened:
        refusals = opened.measure("perplexity", {"documents": 2}).refusals
    assert [(r.verdict, "tests nothing" in r.reason) for r in refusals] == [(Verdict.INVALID, True)]


def test_an_identity_setting_that_changes_something_fails(toy):
    """A method whose identity knobs still drop an entry: what is measured would not be the method alone."""
    broken = Method(
        name="streaming_llm", kind=Kind.APPROXIMATE, layer=Layer.CONTENT, surface=Surface.MODEL, note="",
        applies="tests.unit.checks.leaky_method:apply",
    )  # fmt: skip
    with open_session(baseline=toy, stack=[(broken, {"kv_budget": 0.5})]) as opened:
        gates = {gate.name: gate for gate in opened.measure("identity").gates}
    assert gates["identity_setting[one-shot]"].value > gates["identity_setting[one-shot]"].limit


def test_a_model_that_cannot_be_continued_is_refused(toy, monkeypatch):
    from pytest_attnaccept.checks import model_evidence

    monkeypatch.setattr(
        model_evidence, "teacher_forced", lambda *args: torch.full((1, 15, toy.model.config.vocab_size), 99.0)
    )
    with session(toy, ("kv8", {})) as opened, pytest.raises(EngineError, match="cannot be measured through its cache"):
        opened.measure("perplexity", {"documents": 2})


def test_a_model_that_continues_only_token_by_token_is_measured_so(toy, monkeypatch):
    from pytest_attnaccept.checks import model_evidence

    right = model_evidence.teacher_forced

    def wrong_for_many(side, ids, context, pattern):
        logits = right(side, ids, context, pattern)
        return logits if pattern.step == 1 else logits + 1.0

    monkeypatch.setattr(model_evidence, "teacher_forced", wrong_for_many)
    with session(toy, ("kv8", {})) as opened:
        measured = opened.measure("perplexity", {"documents": 2, "continuation": 8})
        pattern = model_evidence.pattern_of(opened, opened.candidate, "chunk-16", 8)
    assert "token by token only" in facts(measured)["baseline_cached_equals_uncached"]
    assert (pattern.prefill, pattern.step, pattern.multi) == (1, 1, False)
