"""Model checks on the embedded model: what they return, what they refuse, and that their numbers are the right ones."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from transformers import QuantizedCache

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_answers, model_needle, open_session
from pytest_attnaccept.checks.model_data import batches, documents, encode, split_documents
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.loading import LoadedModel, load
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.specs import EMBEDDED, embedded_path, parse_spec
from pytest_attnaccept.errors import CandidateError, ContractError, EngineError, UnknownNameError
from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Kind, Layer, Method, Surface, Verdict

REGISTRY = Registry.builtin()


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def session(toy, *members, **sides):
    return open_session(baseline=toy, stack=stack(*members), **sides)


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


# -- sides ---------------------------------------------------------------------------------------------------------------


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
    def mark(seed=0, **knobs):
        with open_session(baseline=toy, stack=stack(("h2o", {"kv_budget": 0.5, **knobs})), seed=seed) as opened:
            return opened.fingerprint()

    reference = mark()
    assert mark() == reference
    assert mark(seed=1)["seed"] != reference["seed"]
    assert mark(kv_budget=0.25)["stack"] != reference["stack"]
    assert all(isinstance(value, str) for value in reference.values())


# -- evidence ------------------------------------------------------------------------------------------------------------


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


# -- numbers -------------------------------------------------------------------------------------------------------------


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


# -- data ----------------------------------------------------------------------------------------------------------------


def test_wikitext_is_split_at_articles(tmp_path):
    path = tmp_path / "wiki.raw"
    path.write_text(" \n = One = \n text \n = = Part = = \n more \n = Two = \n end \n", encoding="utf-8")
    assert [part.split("\n")[0] for part in split_documents(path)] == [" = One = ", " = Two = "]
    (tmp_path / "plain.txt").write_text("one\n\ntwo\ftwo", encoding="utf-8")
    assert split_documents(tmp_path / "plain.txt") == ["one\n\ntwo", "two"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"text": "/no/such/file"}, "neither 'builtin' nor a file"),
        ({"documents": 0}, "documents=0 must be an int of at least 1"),
        ({"documents": True}, "documents=True must be an int"),
        ({"tier": -1.0}, "tier=-1.0 must be a number greater than 0"),
        ({"patterns": []}, "must be a list of texts"),
        ({"patterns": ["sideways"]}, "call pattern 'sideways' is unknown"),
        ({"tokens": 20, "continuation": 32}, "leave no context"),
    ],
)
def test_bad_parameters_name_check_and_parameter(toy, given, words):
    with session(toy, ("kv8", {})) as opened, pytest.raises(ContractError, match=words):
        opened.measure("perplexity", given)


def test_a_file_without_long_documents_is_refused_and_a_short_one_is_reported(toy, tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("The sun shines.\f" + "The sun shines. " * 80, encoding="utf-8")
    with session(toy, ("kv8", {})) as opened:
        measured = opened.measure("perplexity", {"text": str(path), "documents": 5, "continuation": 8})
        assert facts(measured)["documents_missing"] == 4
        with pytest.raises(ContractError, match="holds no document of 2000 tokens"):
            opened.measure("perplexity", {"text": str(path), "tokens": 2000})


def test_a_model_without_a_trained_length_needs_one(toy):
    nameless = LoadedModel(model=toy.model, tokenizer=toy.tokenizer, trained_length=None, spec="mine")
    with open_session(baseline=nameless, stack=stack(("kv8", {}))) as opened:
        with pytest.raises(ContractError, match="trained length of mine is not known"):
            opened.measure("needle-1x", {"contexts": 2})
        assert opened.measure("needle-1x", {"contexts": 2, "tokens": 128}).gates


def test_start_tokens_are_part_of_every_row(toy):
    prefixed = LoadedModel(model=toy.model, tokenizer=toy.tokenizer, trained_length=256, spec="mine", prefix_ids=(1,))
    with open_session(baseline=prefixed, stack=stack(("kv8", {}))) as opened:
        rows = documents(opened, Params(check="p", given={}), count=2, length=64, continuation=8).rows
    assert all(int(row[0, 0]) == 1 and row.shape[1] <= 64 for row in rows)


def test_groups_hold_equal_lengths_only():
    assert batches([3, 4, 3, 3, 4], 2) == [[0, 2], [3], [1, 4]]


def test_another_tokenizer_scores_the_same_text_and_shows_no_divergence(toy):
    """Another architecture may tokenize differently: sums per document stay comparable, distributions do not."""
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(tokenizer_file=str(embedded_path("toy-gqa") / "tokenizer.json"))
    other.add_tokens(["zebra-crossing"])
    assert other.backend_tokenizer.to_str() != toy.tokenizer.backend_tokenizer.to_str()
    candidate = Candidate(toy.model, tokenizer=other, attn_implementation="eager")
    with open_session(candidate=candidate, baseline=toy, stack=stack(("checkpoint_conversion", {}))) as opened:
        text = opened.measure("perplexity", {"documents": 3, "continuation": 16})
        assert max(abs(value) for value in text.gates[0].sums) < 1e-3
        verdicts = [refusal.verdict for refusal in opened.measure("divergence", {"documents": 3}).refusals]
    assert verdicts == [Verdict.NOT_APPLICABLE]
    with open_session(candidate=candidate, baseline=toy, stack=stack(("kv8", {}))) as opened:
        assert [r.verdict for r in opened.measure("divergence", {"documents": 3}).refusals] == [Verdict.INVALID]


def test_a_baseline_that_cannot_read_the_text_is_bounded(toy):
    """A misread tokenizer or lost weights show as a perplexity near the size of the vocabulary."""
    torch.manual_seed(0)
    lost = type(toy.model)(toy.model.config).eval()
    with open_session(baseline=Candidate(lost, tokenizer=toy.tokenizer), stack=stack(("kv2", {}))) as opened:
        gate = opened.measure("perplexity", {"documents": 3}).gates[0]
    assert gate.base_limit == toy.model.config.vocab_size / 10
    assert gate.base_level > gate.base_limit
    with session(toy, ("kv2", {})) as opened:
        gate = opened.measure("perplexity", {"documents": 3}).gates[0]
    assert gate.base_level < gate.base_limit


def test_a_padded_vocabulary_is_compared_where_both_have_it(toy):
    padded = copy.deepcopy(toy.model)
    padded.resize_token_embeddings(toy.model.config.vocab_size + 14)
    candidate = Candidate(padded, tokenizer=toy.tokenizer)
    with open_session(candidate=candidate, baseline=toy, stack=stack(("kv8", {}))) as opened:
        gates = {gate.name: gate for gate in opened.measure("divergence", {"documents": 2}).gates}
    assert sum(gates["kl"].sums) < 1e-3
    assert sum(gates["top1"].sums) == 0


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


def _shipped():
    # That all five are there is a test of the models themselves; here every one that is there must be measurable.
    found = []
    for name in EMBEDDED:
        try:
            embedded_path(name)
        except EngineError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("name", _shipped())
def test_every_embedded_model_is_measured_through_its_cache(name):
    loaded = load(parse_spec(name))
    recurrent = name in ("toy-linear", "toy-mamba")
    members = stack(("kv8", {}), ("streaming_llm", {"kv_budget": 0.5}))
    if name == "toy-mamba":
        with pytest.raises(EngineError, match="no full-attention K/V layer"):
            open_session(baseline=loaded, stack=members).measure("footprint", {"tokens": 96})
        return
    with open_session(baseline=loaded, stack=members) as opened:
        footprint = opened.measure("footprint", {"tokens": 96, "patterns": ["one-shot", "chunk-32"]})
        assert footprint.refusals == ()
        assert all(gate.value <= gate.limit for gate in footprint.gates)
        assert all(
            gate.value <= gate.limit for gate in opened.measure("identity", {"tokens": 96, "documents": 1}).gates
        )
        asked = opened.measure("needle-0.5x", {"contexts": 4, "questions_per_context": 2}).gates[0]
    assert asked.base_mean > 0.5 or recurrent


@pytest.mark.parametrize("name", [name for name in _shipped() if name != "toy-gqa"])
def test_an_embedded_model_can_replace_another_as_a_candidate(toy, name):
    with open_session(candidate=name, baseline=toy, stack=stack(("checkpoint_conversion", {}))) as opened:
        text = opened.measure("perplexity", {"documents": 4, "continuation": 32})
        asked = opened.measure("needle-0.5x", {"contexts": 4})
    assert text.refusals == asked.refusals == ()
    # All of them were trained on this text: none may be lost in it, which a wrong cache keyword or position would be.
    assert facts(text)["ppl_candidate"] < 3 * facts(text)["ppl_baseline"]
