"""Formats as well-kept libraries make them are not accused: calibrated activations, shrunken groups, windows that are views."""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import sdpa_mask

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import CandidateError, ContractError
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


def e4m3(x):
    """One scale per tensor and call, as FP8 kernels have it."""
    scale = x.abs().amax().clamp(min=1e-12) / 448
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * scale


def attention_in_fp8(sees_the_last):
    def forward(module, query, key, value, attention_mask, scaling=None, **kwargs):
        query, key, value = (e4m3(x) for x in (query, key, value))
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        rows, columns = query.shape[2], key.shape[2]
        seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        if sees_the_last:
            seen[:, -1] = True
        logits = (query @ key.transpose(-1, -2) * scaling).masked_fill(~seen, float("-inf"))
        return (logits.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    return forward


@pytest.mark.parametrize(("sees_the_last", "good"), [(False, True), (True, False)])
def test_a_scale_that_a_later_token_sets_is_no_view_of_the_future(toy, sees_the_last, good):
    name = f"formats_fp8_{sees_the_last}".lower()
    AttentionInterface.register(name, attention_in_fp8(sees_the_last))
    AttentionMaskInterface.register(name, sdpa_mask)
    candidate = Candidate(toy.model, attn_implementation=name)
    decision = judge(toy, stack("fp8_attention"), candidate, "identity", {"tier": 1})
    assert (decision.verdict is Verdict.PASS) is good, decision.headline
    assert good or "see the future" in decision.headline


class Random:
    """Keeps random entries of a prompt in one call, from the same seed in every call: a control of somebody else."""

    def __init__(self, share):
        self.share = share

    def __call__(self, model):
        return self._hooks(model)

    @contextmanager
    def _hooks(self, model):
        hooks = [layer.self_attn.register_forward_hook(self._keep, with_kwargs=True) for layer in model.model.layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, module, args, kwargs, output):
        layer = (kwargs.get("past_key_values") or kwargs.get("cache")).layers[module.layer_idx]
        if kwargs["hidden_states"].shape[1] == layer.keys.shape[2] and layer.keys.shape[2] > 1:
            draw = torch.rand(layer.keys.shape[:3], generator=torch.Generator().manual_seed(0))
            index = draw.topk(int(self.share * layer.keys.shape[2]), dim=-1).indices.sort().values[..., None]
            index = index.expand(-1, -1, -1, layer.keys.shape[-1])
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        return output


def test_rows_of_a_batch_draw_other_numbers_than_a_row_alone(toy):
    one_shot = {**SMALL, "patterns": ("one-shot",)}
    candidate = Candidate(toy.model, context=Random(0.5))
    decision = judge(toy, stack("random_eviction", kv_budget=0.5), candidate, params=one_shot)
    assert decision.verdict is Verdict.PASS, decision.headline


def test_a_press_that_acts_on_one_call_is_said_to(toy):
    decision = judge(toy, stack("random_eviction", kv_budget=0.5), Candidate(toy.model, context=Random(0.5)))
    assert decision.verdict is Verdict.FAIL
    assert "acts on one-shot prompts and not in chunk-64" in decision.headline


def test_a_press_that_is_handed_over_uncalled_is_named(toy):
    with pytest.raises(ContractError, match=r"gave a Random, which is no context manager; call it with the model"):
        judge(toy, stack("h2o", kv_budget=0.5), Candidate(toy.model, context=lambda: Random(0.5)))


KEPT: dict[int, list[torch.Tensor]] = {}


class Hoards(DynamicSlidingWindowLayer):
    """A sliding layer that answers from everything, which a list elsewhere keeps; the cache shows a slice of it."""

    def update(self, keys, values, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
            KEPT[id(self)] = [keys[:, :, :0], values[:, :, :0]]
        self.cumulative_length += keys.shape[-2]
        whole = [torch.cat(pair, dim=-2) for pair in zip(KEPT[id(self)], (keys, values), strict=True)]
        KEPT[id(self)] = whole
        self.keys, self.values = (x[:, :, -63:] for x in whole)
        return tuple(whole)


def test_what_another_list_keeps_behind_a_view_is_outside_of_the_cache(toy):
    decision = judge(toy, stack("sliding_window", window=64), Candidate(toy.model, cache=windowed(Hoards, 64)))
    KEPT.clear()
    assert decision.verdict is Verdict.INVALID, decision.headline


class OnTheWayOut(Random):
    """Compresses the cache when it is left, as KVzip does after a second pass over the text."""

    @contextmanager
    def _hooks(self, model):
        held = {}

        def watch(module, args, kwargs, output):
            held["cache"] = output.past_key_values

        hook = model.register_forward_hook(watch, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
        for layer in held["cache"].layers if held else ():
            keep = int(self.share * layer.keys.shape[2])
            layer.keys, layer.values = layer.keys[:, :, -keep:].clone(), layer.values[:, :, -keep:].clone()


def test_what_compresses_when_it_is_left_is_left_before_the_questions(toy):
    one_shot = {**SMALL, "patterns": ("one-shot",)}
    members = stack("streaming_llm", kv_budget=0.5)
    around = {where: judge(toy, members, Candidate(toy.model, **{where: OnTheWayOut(0.5)}), params=one_shot)
              for where in ("context", "prefill_context")}  # fmt: skip
    assert around["context"].verdict is Verdict.INVALID
    assert "prefill_context= is left before them" in around["context"].headline
    assert around["prefill_context"].verdict is Verdict.PASS, around["prefill_context"].headline


def test_a_prefill_context_is_made_by_a_callable(toy):
    with pytest.raises(ContractError, match="prefill_context=lambda model"):
        Candidate(toy.model, prefill_context=nullcontext())


class NeedsMany(Random):
    """Raises where a prompt begins with a single token, as presses with an observation window do."""

    def _keep(self, module, args, kwargs, output):
        if (kwargs.get("past_key_values") or kwargs.get("cache")).layers[module.layer_idx].keys.shape[2] == 1:
            raise AssertionError("query length 1")
        return super()._keep(module, args, kwargs, output)


def test_what_raises_in_one_call_pattern_is_told_in_which(toy):
    members = stack("random_eviction", kv_budget=0.5)
    with (
        open_session(candidate=Candidate(toy.model, context=NeedsMany(0.5)), baseline=toy, stack=members) as session,
        pytest.raises(CandidateError, match=r"query length 1 \(call pattern token\)"),
    ):
        session.measure("footprint", {**SMALL, "patterns": ("one-shot", "token")})
