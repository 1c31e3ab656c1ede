"""W4A16 and W8A8: the grid is the one that is claimed, the baseline is untouched, and identity settings are exact."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.methods.rounding import int8_rows, rounded_groups, row_group
from pytest_attnaccept.methods.stack import apply_stack, identity_stack
from pytest_attnaccept.methods.w8a8 import Int8Linear
from pytest_attnaccept.methods.weights import linear_layers, requantized
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, attention_bias=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def logits(model, ids=((1, 2, 3, 4, 5),)):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits


def weights(seed=0, shape=(8, 64)):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_group_has_sixteen_levels_and_no_more(symmetric):
    groups = rounded_groups(weights(shape=(8, 256)), 4, 128, symmetric=symmetric).reshape(-1, 128)
    counts = [len(group.unique()) for group in groups]
    assert max(counts) <= 16
    assert min(counts) > 8  # three bits would do otherwise


@pytest.mark.parametrize("symmetric", [False, True])
def test_errors_are_at_most_half_a_step(symmetric):
    original = weights()
    rounded = rounded_groups(original, 4, 32, symmetric=symmetric)
    groups, back = original.reshape(-1, 32), rounded.reshape(-1, 32)
    span = groups.amax(1).clamp(min=0) - groups.amin(1).clamp(max=0)
    step = groups.abs().amax(1) / 7 if symmetric else span / 15
    # 2e-3: the scale is rounded to float16, and the zero point moves the grid by up to half a step
    assert ((back - groups).abs() <= (1.0 if not symmetric else 0.5) * step[:, None] + 2e-3 * span[:, None]).all()


def test_zero_is_a_level():
    """A pruned weight stays exactly zero in both schemes."""
    original = weights() + 3.0
    original[:, ::5] = 0.0
    for symmetric in (False, True):
        assert (rounded_groups(original, 4, 32, symmetric=symmetric)[:, ::5] == 0).all()


def test_groups_of_zeros_and_bad_values():
    zeros = torch.zeros(2, 32)
    assert torch.equal(rounded_groups(zeros, 4, 32, symmetric=True), zeros)
    assert torch.equal(rounded_groups(zeros, 4, 32, symmetric=False), zeros)
    bad = weights(shape=(2, 32))
    bad[0, 3] = torch.nan
    assert torch.isnan(rounded_groups(bad, 4, 32, symmetric=False)[0]).any()
    codes, scale = int8_rows(torch.tensor([[0.0, 0.0], [1.0, torch.inf]]))
    assert codes[0].tolist() == [0, 0]
    assert not torch.isfinite(scale[1]).all()


@pytest.mark.parametrize(
    ("width", "wanted", "group"), [(576, None, 64), (128, None, 128), (7, None, 7), (64, 128, 64), (96, 32, 32)]
)
def test_group_sizes(width, wanted, group):
    assert row_group(width, wanted, "w4a16") == group


def test_a_group_that_divides_no_row_is_refused(model):
    with pytest.raises(ContractError, match=r"q_proj: group_size=12 does not divide a weight row of 64"):
        apply_stack(model, stack(("w4a16", {"group_size": 12})))


def test_int8_linear_is_the_integer_product():
    """Against codes and scales written out by hand in float64."""
    torch.manual_seed(1)
    layer = nn.Linear(48, 20)
    x = torch.randn(2, 5, 48)
    step = x.double().abs().amax(-1, keepdim=True) / 127
    scale = layer.weight.double().abs().amax(-1, keepdim=True) / 127
    expected = ((x / step).round() @ (layer.weight / scale).round().T) * step * scale.T + layer.bias.double()
    with torch.no_grad():
        found = Int8Linear(layer)(x)
        assert torch.allclose(found.double(), expected, atol=1e-5)
        assert 1e-4 < (found - layer(x)).abs().max() < 0.1


def test_int8_weights_take_one_byte(model):
    twin = apply_stack(model, stack(("w8a8", {}))).candidate.model
    layer = twin.model.layers[0].mlp.up_proj
    assert layer.codes.element_size() * layer.codes.numel() == 64 * 96
    original = model.model.layers[0].mlp.up_proj.weight
    assert ((layer.weight - original).abs() <= original.abs().amax(1, keepdim=True) / 127 * 0.5001).all()


@pytest.mark.parametrize("name", ["w4a16", "w8a8"])
def test_the_baseline_is_untouched_and_every_linear_layer_is_changed(model, name):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    reference = logits(model)
    twin = apply_stack(model, stack((name, {}))).candidate.model
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(logits(model), reference)
    assert (logits(twin) - reference).abs().max() > 1e-3
    for key, layer in linear_layers(model):
        assert not torch.equal(twin.get_submodule(key).weight.detach(), layer.weight)
    assert twin.lm_head.weight is model.lm_head.weight
    assert twin.get_input_embeddings().weight is model.get_input_embeddings().weight
    assert twin.config is not model.config


@pytest.mark.parametrize("name", ["w4a16", "w8a8"])
def test_identity_setting_is_bitwise_the_baseline(model, name):
    twin = identity_stack(model, stack((name, {}))).candidate.model
    assert twin is not model
    assert torch.equal(logits(twin), logits(model))


def test_a_stack_of_weights_and_kv_runs_on_the_copy(model):
    applied = apply_stack(model, stack(("w4a16", {"group_size": 32}), ("kv4", {})))
    assert applied.candidate.model is not model
    assert type(applied.candidate.cache().layers[0]).__name__ == "PolicyLayer"
    assert (applied.claim.weight_bits, applied.claim.weight_group, applied.claim.bits) == (4, 32, 4.0)
    with pytest.raises(ContractError, match="two weight quantizations"):
        apply_stack(model, stack(("w4a16", {}), ("w8a8", {})))


def test_a_model_whose_matrices_are_elsewhere_is_refused(model):
    """Fused experts are parameters of their own: quantizing the rest only would not be W4A16."""
    odd = copy.deepcopy(model)
    odd.experts = nn.Parameter(torch.zeros(4, 64, 64))
    with pytest.raises(EngineError, match="largest: experts"):
        apply_stack(odd, stack(("w4a16", {})))


def test_a_hook_of_the_baseline_is_kept(model):
    """The copy is a copy: what a user attached to a layer acts there too."""
    seen = []
    twin = copy.deepcopy(model)
    twin.model.layers[0].mlp.register_forward_hook(lambda module, args, output: seen.append(1))
    logits(requantized(twin, lambda name, layer: layer, "test"))
    assert seen == [1]
