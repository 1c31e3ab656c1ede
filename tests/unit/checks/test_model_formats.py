"""Formats as well-kept libraries make them are not accused: calibrated activations, shrunken groups, windows that are views."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.methods.rounding import int8_rows, rounded_groups
from pytest_attnaccept.methods.weights import requantized
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
SMALL = {"tier": 0.5, "continuation": 8, "patterns": ("one-shot", "chunk-64")}


def stack(name, **knobs):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test"))]


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def judge(toy, members, candidate, check="footprint", params=SMALL):
    with open_session(candidate=candidate, baseline=toy, stack=members) as session:
        return decide(session.measure(check, params), load_profile("smoke").limits)


class Static(nn.Module):
    """Int8 weights, and inputs in int8 with one scale that was found on a text: what is larger is cut off."""

    def __init__(self, layer, largest, weights=None):
        super().__init__()
        codes, scale = int8_rows(layer.weight.data if weights is None else weights)
        self.register_buffer("w", codes.float() * scale)
        self.step = largest / 127

    def forward(self, x):
        rounded = (x / self.step).round().clamp(-127, 127) * self.step
        return rounded.to(x.dtype) @ self.w.to(x.dtype).T


class OneVector(Static):
    """Int8 for a single input, other weights for everything that a text makes."""

    def __init__(self, layer, largest):
        super().__init__(layer, largest)
        self.other = Static(layer, largest, weights=layer.weight.data.roll(1, 0))

    def forward(self, x):
        alone = (x != 0).sum(-1, keepdim=True) <= 1
        return torch.where(alone, super().forward(x), self.other(x))


def calibrated(toy, kind):
    """Every linear layer but the head with a scale from the layer's own inputs."""
    largest: dict[str, float] = {}
    model = copy.deepcopy(toy.model)
    hooks = [
        module.register_forward_pre_hook(lambda m, given, n=name: largest.__setitem__(n, float(given[0].abs().max())))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.no_grad():
        model(torch.arange(1, 200)[None])
    for hook in hooks:
        hook.remove()
    return requantized(toy.model, lambda name, layer: kind(layer, largest[name]), "test")


@pytest.mark.parametrize(("kind", "good"), [(Static, True), (OneVector, False)])
def test_calibrated_int8_is_w8a8(toy, kind, good):
    decision = judge(toy, stack("w8a8"), Candidate(calibrated(toy, kind)))
    assert (decision.verdict is Verdict.PASS) is good, decision.headline
    assert good or "other weights" in decision.headline


@pytest.mark.parametrize(("bits", "good"), [(4, True), (5, False)])
def test_groups_that_shrink_where_they_do_not_divide_a_row(toy, bits, good):
    """Quanto makes groups of 96 of 128 in rows of 192."""

    def change(layer):
        group = 96 if layer.in_features % 128 else 128
        layer.weight = nn.Parameter(
            rounded_groups(layer.weight.data, bits, group, symmetric=False), requires_grad=False
        )
        return layer

    candidate = Candidate(requantized(toy.model, lambda name, layer: change(layer), "test"))
    decision = judge(toy, stack("w4a16", group_size=128), candidate)
    assert (decision.verdict is Verdict.PASS) is good, decision.headline


def windowed(layer_class, *arguments):
    def make():
        cache = DynamicCache()
        cache.layers = [layer_class(*arguments) for _ in range(4)]
        return cache

    return make


class Peeks(DynamicLayer):
    """Shows the last 63 entries and answers from the storage behind them."""

    def update(self, keys, values, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        whole = [torch.cat([self.behind(old), new], dim=-2) for old, new in ((self.keys, keys), (self.values, values))]
        self.keys, self.values = (x[:, :, -63:] for x in whole)
        return tuple(whole)

    @staticmethod
    def behind(shown):
        if not shown.numel():
            return shown
        heads, width = shown.shape[1], shown.shape[-1]
        count = shown.untyped_storage().nbytes() // shown.element_size() // (heads * width)
        return shown.as_strided((1, heads, count, width), (heads * count * width, count * width, width, 1), 0)

    def get_seq_length(self):
        return 0 if not self.is_initialized or not self.keys.numel() else self.behind(self.keys).shape[-2]


def test_a_window_that_is_a_view_of_the_prompt_stores_a_window(toy):
    """The sliding layers of transformers keep a slice, and with it everything behind it until the next call."""
    candidate = Candidate(toy.model, cache=windowed(DynamicSlidingWindowLayer, 64))
    decision = judge(toy, stack("sliding_window", window=64), candidate)
    assert decision.verdict is Verdict.PASS, decision.headline
    needle = {"tier": 1, "contexts": 4}
    assert "stores more" not in judge(toy, stack("sliding_window", window=64), candidate, "needle-1x", needle).headline


def test_what_is_behind_a_view_cannot_be_answered_from(toy):
    """Who reads the storage behind the slice finds the slice only: what it keeps is what it answers from."""
    decision = judge(toy, stack("sliding_window", window=64), Candidate(toy.model, cache=windowed(Peeks)))
    assert decision.verdict is not Verdict.PASS
    needle = {"tier": 1, "contexts": 12}
    decision = judge(
        toy, stack("sliding_window", window=64), Candidate(toy.model, cache=windowed(Peeks)), "needle-1x", needle
    )
    assert decision.verdict is not Verdict.PASS
