"""FP8 attention of a user, registered by name: the method in every layer passes, in some of them it is not the method."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
SMALL = {"tier": 0.25, "continuation": 8, "patterns": ("one-shot",)}
STACK = [(REGISTRY.get("fp8_attention"), check_knobs(REGISTRY.get("fp8_attention"), {}, "test"))]


@pytest.fixture(scope="module", params=["toy-gqa", "toy-mla"])
def toy(request):
    return load(parse_spec(request.param))


def registered(name, layers):
    """A user's own attention: K and V cast to E4M3 with a fixed scale in the chosen layers, then sdpa."""

    def attend(module, query, key, value, attention_mask, **kwargs):
        if module.layer_idx in layers:
            key, value = ((x * 8).to(torch.float8_e4m3fn).to(x.dtype) / 8 for x in (key, value))
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    return Candidate(attn_implementation=name)


def measure(toy, candidate):
    with open_session(candidate=candidate, baseline=toy, stack=STACK) as session:
        return session.measure("footprint", SMALL)


def test_a_function_that_acts_in_every_layer_passes(toy):
    measured = measure(toy, registered("own_fp8", range(99)))
    assert decide(measured, load_profile("smoke").limits).verdict is Verdict.PASS
    assert [gate.value for gate in measured.gates if gate.name == "attention_layers"] == [0.0]


@pytest.mark.parametrize("layers", [(0,), (1, 2)])
def test_a_part_of_the_layers_is_not_the_method(toy, layers):
    decision = decide(measure(toy, registered(f"fp8_{len(layers)}", layers)), load_profile("smoke").limits)
    assert decision.verdict is Verdict.FAIL
    assert "attention_layers" in decision.headline


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_own_method_acts_in_every_layer(toy, dtype):
    import copy

    model = copy.deepcopy(toy.model).to(dtype)
    with open_session(baseline=Candidate(model, tokenizer=toy.tokenizer), stack=STACK) as session:
        gates = session.measure("footprint", SMALL).gates
    assert [g.value for g in gates if g.name == "attention_layers"] == [0.0]


def test_no_hook_stays(toy):
    measure(toy, registered("own_fp8", range(99)))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in toy.model.modules())
