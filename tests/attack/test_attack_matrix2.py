"""Stacks whose members are not all applied, and cells that are compared although they do not belong together."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.marks import declared
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.model_item import _changed_checkpoint
from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Kind, Layer, Method, Surface

REGISTRY = Registry.builtin()


def entry(name, checkpoint=None, **knobs):
    method = REGISTRY.get(name)
    return StackEntry(method=method, knobs=check_knobs(method, knobs, "test"), checkpoint=checkpoint)


def changed(*stack):
    """Return the candidate that a cell with a checkpoint measures."""
    spec = SimpleNamespace(stack=stack, checkpoint=next(e.checkpoint for e in stack if e.checkpoint))
    gate = SimpleNamespace(options=SimpleNamespace(dtype=None, seed=0))
    return _changed_checkpoint(gate, spec, "cpu")


def weights(side):
    side = side.model if hasattr(side.model, "tokenizer") else side
    return torch.cat([p.detach().flatten() for p in side.model.parameters()])


@pytest.mark.parametrize("weights_method", ["w4a16", "w8a8"])
@pytest.mark.parametrize("more", [(), ("kv8",)], ids=str)
def test_weights_beside_a_checkpoint_are_quantized(weights_method, more):
    plain = load(parse_spec("toy-mha", "test"))
    side = changed(entry("checkpoint_conversion", "toy-mha"), entry(weights_method), *(entry(m) for m in more))
    assert not torch.equal(weights(side), weights(plain))
    assert (side.cache is not None) is bool(more)
    assert side.model.tokenizer is not None


def test_a_checkpoint_beside_a_cache_method_keeps_its_weights():
    side = changed(entry("checkpoint_conversion", "toy-mha"), entry("kv8"))
    assert torch.equal(weights(side), weights(load(parse_spec("toy-mha", "test"))))
    assert side.cache is not None


def marked(*marks):
    ours = [SimpleNamespace(name="optimization", args=(), kwargs=kwargs) for kwargs in marks]
    return declared(ours, REGISTRY, wants_accept=True, where="t.py::test_x").stack


@pytest.mark.parametrize("lost", ["flash_attention", "mamba"])
def test_a_member_that_is_neither_applied_nor_in_the_checkpoint_is_not_passed_over(lost):
    stack = marked({"method": lost}, {"method": "checkpoint_conversion", "checkpoint": "toy-mha"})
    with pytest.raises(ContractError, match=f"{lost} cannot be applied"):
        changed(*stack)


@pytest.mark.parametrize("method", ["mamba", "gqa", "w4a16"])
def test_what_the_checkpoint_carries_is_measured_as_it_is(method):
    side = changed(*marked({"method": method, "checkpoint": "toy-mha"}))
    assert torch.equal(weights(side), weights(load(parse_spec("toy-mha", "test"))))


def brings_weights(model, knobs):
    return Candidate(model=torch.nn.Identity())


def brings_a_cache(model, knobs):
    return Candidate(cache=dict)


def brings_eager(model, knobs):
    return Candidate(attn_implementation="eager")


def brings_sdpa(model, knobs):
    return Candidate(attn_implementation="sdpa")


def brings_a_footprint(model, knobs):
    return Candidate(kv_footprint=lambda cache: [])


def brings_a_context(model, knobs):
    return Candidate(context=nullcontext)


@pytest.mark.parametrize(
    "parts",
    [
        ("brings_weights", "brings_a_context"),
        ("brings_a_context", "brings_a_cache"),
        ("brings_weights", "brings_a_cache"),
        ("brings_a_cache", "brings_a_cache"),
        ("brings_eager", "brings_sdpa"),
        ("brings_a_footprint", "brings_a_context"),
    ],
    ids="+".join,
)
def test_a_stack_of_own_methods_never_loses_a_member(parts, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_methods", SimpleNamespace(**{p: globals()[p] for p in parts}))
    methods = [
        Method(
            name=f"own{i}", kind=Kind.APPROXIMATE, layer=Layer.NUMERICS, surface=Surface.MODEL, note="",
            applies=f"own_methods:{part}",
        )
        for i, part in enumerate(parts)
    ]  # fmt: skip
    plain = load(parse_spec("toy-mha", "test"))
    with pytest.raises(ContractError, match="cannot be stacked"):
        apply_stack(plain.model, [(method, {}) for method in methods])
