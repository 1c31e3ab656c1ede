"""The MHA twin of a GQA model: the same function, gated as an exact change; a wrong order of heads is not."""

import pytest
import torch

from pytest_attnaccept.checks.model_session import open_session
from pytest_attnaccept.engines import twins
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.engines.twins import mha_twin
from pytest_attnaccept.errors import ContractError, EngineError, UnknownNameError
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

GQA = [(Registry.builtin().get("gqa"), {})]
SMALL = {"documents": 2, "tokens": 96}


def loaded():
    return load(parse_spec("toy-gqa"))


def equality(make) -> Verdict:
    base = loaded()
    session = open_session(baseline=base, candidate=lambda: make(base.model), stack=GQA)
    return decide(session.measure("equality", SMALL), {}).verdict


def test_the_twin_is_the_same_function() -> None:
    base = loaded().model
    twin = mha_twin(base)
    ids = torch.arange(40)[None] % 370
    with torch.no_grad():
        assert torch.equal(base(ids).logits, twin(ids).logits) or torch.allclose(
            base(ids).logits, twin(ids).logits, atol=1e-4
        )
    assert twin.config.num_key_value_heads == twin.config.num_attention_heads
    assert base.config.num_key_value_heads == 2
    assert equality(mha_twin) is Verdict.PASS


def test_its_cache_has_every_head() -> None:
    out = mha_twin(loaded().model)(torch.arange(12)[None], use_cache=True)
    layer = (out.get("cache") or out.past_key_values).layers[0]
    assert layer.keys.shape[1] == 4
    assert torch.equal(layer.keys[:, 0], layer.keys[:, 1])


def test_heads_in_the_wrong_order_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiling (0 1 0 1) instead of repeating (0 0 1 1) hands half of the query heads another head's keys."""

    def tiled(tensor: torch.Tensor, kv_heads: int, times: int) -> torch.Tensor:
        return torch.cat([tensor] * times, dim=0)

    monkeypatch.setattr(twins, "_rows", tiled)
    assert equality(mha_twin) is Verdict.FAIL


@pytest.mark.parametrize("name", ["toy-mha", "toy-mla", "toy-mamba"])
def test_models_without_a_twin(name: str) -> None:
    with pytest.raises(EngineError, match=r"no MHA twin|cannot be repeated"):
        mha_twin(load(parse_spec(name)).model)


def test_a_spec_names_the_twin() -> None:
    twin = load(parse_spec("mha-twin:toy-gqa"))
    assert twin.model.config.num_key_value_heads == 4
    assert (twin.spec, twin.trained_length, twin.prefix_ids) == ("mha-twin:toy-gqa", loaded().trained_length, ())
    session = open_session(baseline="toy-gqa", candidate="mha-twin:toy-gqa", stack=GQA)
    assert decide(session.measure("equality", SMALL), {}).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("mha-twin:toy-mha", EngineError, "no MHA twin"),
        ("mha-twin:toy-gpa", UnknownNameError, "toy-gqa"),
        ("mha-twin:", ContractError, "must name a model"),
        ("mha-twin:mha-twin:toy-gqa", UnknownNameError, "model"),
    ],
)
def test_a_spec_of_a_twin_that_there_is_not(spec: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load(parse_spec(spec))


def test_a_saved_twin_is_a_model_column(tmp_path) -> None:
    base = loaded()
    mha_twin(base.model).save_pretrained(tmp_path)
    base.tokenizer.save_pretrained(tmp_path)
    session = open_session(baseline="toy-gqa", candidate=str(tmp_path), stack=GQA)
    assert decide(session.measure("equality", SMALL), {}).verdict is Verdict.PASS
