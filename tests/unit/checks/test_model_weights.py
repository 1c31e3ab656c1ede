"""A claim of few bits is asked of every linear layer: honest formats pass, one layer or one matrix is not the method."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.grids import on_few_levels
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import EngineError
from pytest_attnaccept.methods.rounding import int8_rows, rounded_groups
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.methods.w8a8 import Int8Linear
from pytest_attnaccept.methods.weights import linear_layers, requantized
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
SMALL = {"tier": 0.25, "continuation": 8, "patterns": ("one-shot",)}


def stack(name, **knobs):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test"))]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def judge(toy, members, candidate=None):
    with open_session(candidate=candidate, baseline=toy, stack=members) as session:
        return decide(session.measure("footprint", SMALL), load_profile("smoke").limits)


def only(toy, chosen, change):
    """A copy in which only the layers that `chosen` accepts are changed."""
    return requantized(toy.model, lambda name, layer: change(layer) if chosen(name) else layer, "test")


def four_bits(layer, group=64):
    layer.weight = nn.Parameter(rounded_groups(layer.weight.data, 4, group, symmetric=False), requires_grad=False)
    return layer


class WeightOnly(nn.Module):
    """Int8 weights and activations as they are: W8A16."""

    def __init__(self, layer):
        super().__init__()
        codes, scale = int8_rows(layer.weight.data)
        self.register_buffer("w", codes.float() * scale)

    def forward(self, x):
        return x @ self.w.to(x.dtype).T


class Packed(nn.Module):
    """Two codes per byte, decoded when called; no attribute is called weight."""

    def __init__(self, layer):
        super().__init__()
        groups = layer.weight.data.reshape(layer.out_features, -1, 32)
        self.scale = groups.abs().amax(-1, keepdim=True) / 7
        codes = (groups / self.scale).round().clamp(-8, 7).reshape(layer.out_features, -1).to(torch.int8) + 8
        self.packed = codes[:, ::2] | (codes[:, 1::2] << 4)

    def forward(self, x):
        low, high = (self.packed.view(torch.uint8) & 15).int() - 8, (self.packed.view(torch.uint8) >> 4).int() - 8
        codes = torch.stack([low, high], -1).flatten(1).float()
        weight = codes.reshape(self.scale.shape[0], -1, 32) * self.scale
        return x @ weight.reshape(codes.shape).T.to(x.dtype)


@pytest.mark.parametrize(
    "members",
    [stack("w4a16"), stack("w4a16", group_size=16), stack("w4a16", group_size=32, scheme="symmetric"), stack("w8a8")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_own_methods_hold_their_claim(toy, members, dtype):
    model = copy.deepcopy(toy.model).to(dtype)
    decision = judge(Candidate(model, tokenizer=toy.tokenizer), members)
    assert decision.verdict is Verdict.PASS, decision.headline


@pytest.mark.parametrize(
    ("name", "change", "good"),
    [
        ("w4a16", Packed, True),
        ("w4a16", four_bits, True),
        ("w8a8", Int8Linear, True),
        ("w8a8", WeightOnly, False),
        ("w4a16", WeightOnly, False),
        ("w8a8", four_bits, False),
    ],
)
def test_formats_of_a_user(toy, name, change, good):
    decision = judge(toy, stack(name), Candidate(only(toy, lambda name: True, change)))
    assert (decision.verdict is Verdict.PASS) is good, decision.headline


@pytest.mark.parametrize(("name", "change"), [("w4a16", four_bits), ("w8a8", Int8Linear)])
@pytest.mark.parametrize(
    "chosen",
    [
        lambda name: ".0." in name,
        lambda name: name.endswith("layers.1.mlp.up_proj"),
        lambda name: "mlp" in name,
        lambda name: "layers.0.mlp.down_proj" not in name,
    ],
)
def test_a_part_of_the_model_is_not_the_method(toy, name, change, chosen):
    decision = judge(toy, stack(name), Candidate(only(toy, chosen, change)))
    assert decision.verdict is Verdict.FAIL
    assert "weights" in decision.headline


def test_eight_bits_are_not_four(toy):
    def eight(layer):
        layer.weight = nn.Parameter(rounded_groups(layer.weight.data, 8, 64, symmetric=True), requires_grad=False)
        return layer

    for group in (None, 64, 16):
        assert judge(toy, stack("w4a16", group_size=group), only(toy, lambda name: True, eight)).verdict is Verdict.FAIL
    five = requantized(toy.model, lambda name, x: _rounded(x, 5), "test")
    assert judge(toy, stack("w4a16"), five).verdict is Verdict.FAIL
    assert (
        judge(toy, stack("w4a16"), requantized(toy.model, lambda name, x: _rounded(x, 3), "test")).verdict
        is Verdict.PASS
    )


def _rounded(layer, bits):
    layer.weight = nn.Parameter(rounded_groups(layer.weight.data, bits, 64, symmetric=False), requires_grad=False)
    return layer


def test_a_context_that_quantizes_on_the_fly_is_asked_while_it_runs(toy):
    @contextmanager
    def quantized(model):
        before = {name: layer.weight for name, layer in linear_layers(model)}
        for _, layer in linear_layers(model):
            four_bits(layer)
        yield
        for name, layer in linear_layers(model):
            layer.weight = before[name]

    assert judge(toy, stack("w4a16"), Candidate(context=quantized)).verdict is Verdict.PASS


def test_weights_that_only_unit_vectors_see_are_not_used(toy):
    class TwoFaced(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.real = nn.Parameter(layer.weight.data.clone(), requires_grad=False)
            self.shown = four_bits(layer).weight

        def forward(self, x):
            unit = (x != 0).sum(-1, keepdim=True) <= 1
            return torch.where(unit, x @ self.shown.T, x @ self.real.T)

    one = requantized(toy.model, lambda n, layer: four_bits(layer) if "layers.0" in n else TwoFaced(layer), "test")
    decision = judge(toy, stack("w4a16"), Candidate(one))
    assert decision.verdict is Verdict.FAIL
    assert "weights_used" in decision.headline
    decision = judge(toy, stack("w4a16"), Candidate(only(toy, lambda name: True, TwoFaced)))
    assert decision.verdict in (Verdict.FAIL, Verdict.INVALID)


@pytest.mark.parametrize(("noise", "good"), [(1e-8, True), (0.1, False)])
def test_codes_that_flip_with_the_order_of_sums_are_not_a_broken_cache(toy, noise, good):
    """Activations that fall to the next code in another call shape differ by more than float rounding, and by no more than
    the method itself; a model whose cached path is wrong differs by more."""

    class Flips(Int8Linear):
        def forward(self, x):
            return super().forward(x) * (1 + noise * x.shape[1])

    candidate = Candidate(only(toy, lambda name: True, Flips))
    if good:
        assert judge(toy, stack("w8a8"), candidate).verdict is Verdict.PASS
    else:
        with pytest.raises(EngineError, match="cannot be measured through its cache"):
            judge(toy, stack("w8a8"), candidate)


def test_layers_that_cannot_be_asked_prove_nothing(toy):
    class Fused(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.w = four_bits(layer).weight

        def forward(self, x):
            if x.shape[-1] == 128 and not bool(x.any(dim=-1).all()):
                raise RuntimeError("only real activations")
            return x @ self.w.T

    decision = judge(toy, stack("w4a16"), Candidate(only(toy, lambda name: True, Fused)))
    assert decision.verdict is Verdict.INVALID
    assert "cannot be read" in decision.headline


def test_weights_and_kv_are_both_held(toy):
    members = stack("w4a16") + stack("kv4")
    assert judge(toy, members).verdict is Verdict.PASS
    kv_only = apply_stack(toy.model, stack("kv4")).candidate
    around = Candidate(copy.deepcopy(toy.model), cache=kv_only.cache)
    with torch.no_grad():
        around.model.lm_head.weight.mul_(1.01)
    assert judge(toy, members, around).verdict is not Verdict.PASS
    weights_only = apply_stack(toy.model, stack("w4a16")).candidate
    assert judge(toy, members, weights_only).verdict is not Verdict.PASS


def test_grids():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 128, generator=generator)
    codes, scale = int8_rows(x)
    assert on_few_levels(codes.float() * scale, 8, 1e-7).all()
    assert on_few_levels((codes.float() * scale).bfloat16(), 8, 2**-7).all()
    assert on_few_levels(x.to(torch.float8_e4m3fn).float() * 0.3, 8, 1e-7).float().mean() > 0.0
    assert not on_few_levels(x, 8, 1e-7).any()
    assert not on_few_levels(x.bfloat16(), 8, 2**-7).any()
    assert not on_few_levels(rounded_groups(x, 9, 128, symmetric=True), 8, 1e-7).all()
    assert on_few_levels(torch.zeros(3, 8), 4, 1e-7).all()
    fp4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[torch.randint(0, 8, (20, 16), generator=generator)]
    assert on_few_levels(fp4 * 0.7, 4, 1e-7).all()
    assert not on_few_levels(x[:, :16], 4, 1e-7).any()
    assert not on_few_levels(x[:, :2], 4, 1e-7).any()
