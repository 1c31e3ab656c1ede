"""The embedded models are what the scores table says, and good enough for the gate to stand on."""

import inspect
import itertools
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
MODELS = FIXTURES / "models"
sys.path.insert(0, str(FIXTURES))

import evaluate  # noqa: E402
import scoring  # noqa: E402
import toy_tokenizer  # noqa: E402

ATTENTION = ("toy-gqa", "toy-mha", "toy-mla")
RECURRENT = ("toy-linear", "toy-mamba")
ALL = (*ATTENTION, *RECURRENT)
SCORES = json.loads((MODELS / "scores.json").read_text(encoding="utf-8"))
TRAINED = 256


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def loaded():
    models = {}

    def get(name):
        if name not in models:
            models[name] = evaluate.load(name)
        return models[name]

    return get


def cell(model, task, length=TRAINED, **parameters):
    found = [
        row
        for row in SCORES
        if (row["model"], row["task"], row["length"]) == (model, task, length)
        and parameters.items() <= row["parameters"].items()
    ]
    assert len(found) == 1, (model, task, length, parameters)
    return found[0]


def tokenizer_of(name):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(MODELS / name / "tokenizer.json"))


def cached(model, ids, cache=None, start=0):
    """Logits and cache of a continuation, with explicit positions where the model takes them."""
    known = inspect.signature(model.forward).parameters
    keyword = next(word for word in ("cache", "past_key_values", "cache_params") if word in known)
    extra = {"position_ids": torch.arange(start, start + ids.shape[1])[None]} if "position_ids" in known else {}
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=True, **{keyword: cache}, **extra)
    return out.logits, next(out[word] for word in ("cache", "past_key_values", "cache_params") if word in out)


# --- the table ---------------------------------------------------------------------------------------------------


def test_markdown_table_is_the_json_table():
    assert (MODELS / "SCORES.md").read_text(encoding="utf-8") == evaluate.table(SCORES)


@pytest.mark.parametrize("name", ALL)
def test_every_cell_of_the_plan_is_in_the_table_and_adds_up(name):
    rows = [row for row in SCORES if row["model"] == name]
    assert [(row["task"], row["parameters"], row["length"]) for row in rows] == evaluate.cells_of(name)
    for row in rows:
        assert row["n"] == len(row["outcomes"]) >= (50 if row["task"] != "text" else 10)
        assert row["score"] == pytest.approx(row["outcomes"].count("1") / row["n"], abs=1e-4)
        assert row["seed"] < 1_000_000  # held out: training starts there


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_models_reach_their_targets_at_the_trained_length(name):
    assert cell(name, "needle", needles=1)["score"] >= 0.9
    assert cell(name, "kv_recall", pairs=8)["score"] >= 0.8
    assert cell(name, "variable_tracking", hops=2)["score"] >= 0.5
    assert cell(name, "text")["score"] >= 0.75


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize(
    ("task", "parameters"),
    [
        ("needle", {"needles": 1}),
        ("needle", {"needles": 5}),
        ("kv_recall", {"pairs": 8}),
        ("kv_recall", {"pairs": 16}),
        ("variable_tracking", {"hops": 1}),
        ("text", {}),
    ],
)
def test_attention_models_lose_what_they_may_no_longer_see(name, task, parameters):
    row = cell(name, task, **parameters)
    assert row["score_keep_25"] <= row["score"] - 0.2
    assert row["nats_keep_25"] > row["nats"] + 0.2


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_recall_less_the_more_there_is_to_keep(name):
    rates = [cell(name, "kv_recall", pairs=pairs)["score"] for pairs in (4, 8, 16, 32)]
    # Two standard deviations of a difference of two shares of 200 questions are at most 0.1.
    assert rates[0] - rates[-1] > 0.1
    assert all(later < earlier + 0.1 for earlier, later in itertools.pairwise(rates))
    assert rates[0] > 2 * cell(name, "kv_recall", pairs=4)["chance"]


# --- the models are those of the table -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("task", "parameters"),
    [
        ("needle", {"needles": 1}),
        ("kv_recall", {"pairs": 8, "questions": 4}),
        ("variable_tracking", {"chains": 4, "hops": 2}),
        ("text", {"people": 4}),
    ],
)
def test_rerunning_a_sample_gives_the_recorded_outcomes(loaded, name, task, parameters):
    row = cell(name, task, **parameters)
    contexts = {"needle": 16, "text": 4}.get(task, 4)
    items = scoring.make_items(task, row["parameters"], TRAINED, contexts, row["seed"])
    right = scoring.score(loaded(name), items).right
    recorded = [value == "1" for value in row["outcomes"][: len(right)]]
    flips = sum(a != b for a, b in zip(right, recorded, strict=True))
    # The same items, weights and arithmetic: outcomes can differ only where two tokens tie within rounding (1e-4 nats
    # on other CPUs). Fewer than 1 % of outcomes are that close, so 3 of at most 60 have a probability below 0.003; a
    # model of other quality flips far more (next test).
    assert flips <= 2
    assert len(right) >= 16


def test_the_sample_would_notice_a_damaged_model(loaded):
    import copy

    row = cell("toy-gqa", "kv_recall", pairs=8)
    damaged = copy.deepcopy(loaded("toy-gqa"))
    with torch.no_grad():
        damaged.model.layers[1].self_attn.o_proj.weight.zero_()  # the layer that looks facts up
    items = scoring.make_items("kv_recall", row["parameters"], TRAINED, 4, row["seed"])
    right = scoring.score(damaged, items).right
    assert sum(a != (b == "1") for a, b in zip(right, row["outcomes"], strict=False)) > 2


@pytest.mark.parametrize("name", ALL)
def test_continuing_from_the_cache_is_the_same_as_one_pass(loaded, name):
    model = loaded(name)
    ids = torch.tensor([scoring.rows_of(scoring.make_items("kv_recall", {}, 200, 1, 3)[0])[0].ids])
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
    first, cache = cached(model, ids[:, :150])
    rest, _ = cached(model, ids[:, 150:], cache, 150)
    # Logits reach about 20; rounding of float32 sums in another order stays below 1e-3.
    assert torch.equal(first.argmax(-1), whole[:, :150].argmax(-1))
    assert (rest - whole[:, 150:]).abs().max() < 1e-3


@pytest.mark.parametrize("name", ATTENTION)
def test_evicting_by_mask_is_evicting_from_the_cache(loaded, name):
    model = loaded(name)
    item = scoring.make_items("kv_recall", {"pairs": 8, "questions": 1}, TRAINED, 1, 11)[0]
    row = scoring.rows_of(item)[0]
    ids, context = torch.tensor([row.ids]), row.context
    kept = round(evaluate.KEEP * context)
    mask = scoring._mask([context], len(row.ids), evaluate.KEEP)
    with torch.no_grad():
        masked = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    _, cache = cached(model, ids[:, :context])
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, -kept:].contiguous(), layer.values[:, :, -kept:].contiguous()
    evicted, _ = cached(model, ids[:, context:], cache, context)
    assert (evicted - masked[:, context:]).abs().max() < 1e-3


@pytest.mark.parametrize("name", ALL)
def test_generation_gives_the_answers_that_teacher_forcing_scores(loaded, name):
    model, tokenizer = loaded(name), tokenizer_of(name)
    items = scoring.make_items("kv_recall", {"pairs": 4, "questions": 4}, 128, 3, evaluate.SEED)
    forced, generated = scoring.score(model, items).right, []
    for item in items:
        for question in item.questions:
            ids = tokenizer(item.context + question.prompt, return_tensors="pt", add_special_tokens=False).input_ids
            with torch.no_grad():
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=question.max_new_tokens, do_sample=False
                )
            generated.append(tokenizer.decode(out[0, ids.shape[1] :]).strip() == question.answer.strip())
    assert generated == forced


# --- files and tokenizer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_model_directory_says_what_it_is(name):
    folder = MODELS / name
    record = json.loads((folder / "attnaccept.json").read_text(encoding="utf-8"))
    assert record["name"] == name
    assert record["trained_length"] == TRAINED
    assert record["recipe"] == "fixtures/train.py"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if name != "toy-mamba":  # Mamba2's configuration knows no position limit
        assert config["max_position_embeddings"] == TRAINED
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["eos_token_id"] == config["eos_token_id"] == toy_tokenizer.vocabulary()["<eos>"]
    assert generation["pad_token_id"] == config["pad_token_id"] == toy_tokenizer.vocabulary()["<pad>"]
    assert config["vocab_size"] == len(toy_tokenizer.vocabulary()) <= 1024


def test_all_models_together_are_small():
    assert sum(path.stat().st_size for path in MODELS.rglob("*") if path.is_file()) <= 13_000_000


@pytest.mark.parametrize("name", ALL)
def test_both_ways_of_loading_the_tokenizer_agree(name):
    from transformers import AutoTokenizer

    text = "Alice has the lamp. The pass key of Bob is 7391. What does Alice have?"
    direct, automatic = tokenizer_of(name), AutoTokenizer.from_pretrained(MODELS / name)
    ids = direct(text, add_special_tokens=False).input_ids
    assert automatic(text).input_ids == ids == toy_tokenizer.encode(text)
    assert automatic.decode(ids) == direct.decode(ids) == text
    assert automatic.eos_token == "<eos>"
    assert automatic.pad_token == "<pad>"


def test_tokenizer_covers_the_families_and_gives_texts_back():
    tokenizer = tokenizer_of("toy-gqa")
    unknown = toy_tokenizer.vocabulary()["<unk>"]
    for task in ("needle", "kv_recall", "variable_tracking", "text"):
        for item in scoring.make_items(task, {}, 500, 20, 4242):
            full = item.context + "".join(question.prompt + question.answer + "." for question in item.questions)
            ids = tokenizer(full, add_special_tokens=False).input_ids
            assert unknown not in ids
            assert ids == toy_tokenizer.encode(full)
            assert tokenizer.decode(ids) == full
            pieces = [item.context]
            for question in item.questions:
                pieces += [question.text, question.answer_prefix, question.answer, "."]
            parts = [tokenizer(piece, add_special_tokens=False).input_ids for piece in pieces]
            assert [i for part in parts for i in part] == ids


def test_digits_are_single_tokens():
    tokens = tokenizer_of("toy-gqa").tokenize("The pass key of Bob is 7391.")
    assert tokens[-5:] == ["\u25817", "3", "9", "1", "."]
