"""What the model checks read: documents, parameters, lengths, tokenizers and vocabularies."""

from __future__ import annotations

import copy

import pytest
import torch
from toy_sessions import facts, session, stack

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.checks.model_data import batches, documents, split_documents
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.loading import LoadedModel, load
from pytest_attnaccept.engines.specs import embedded_path, parse_spec
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.taxonomy import Verdict


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


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
