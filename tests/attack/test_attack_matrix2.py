"""Stacks whose members are not all applied, and cells that are compared although they do not belong together."""

from types import SimpleNamespace

import pytest
import torch

from pytest_attnaccept.accept import Accept
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.protocol import StackEntry
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()


def entry(name, checkpoint=None, **knobs):
    method = REGISTRY.get(name)
    return StackEntry(method=method, knobs=check_knobs(method, knobs, "test"), checkpoint=checkpoint)


def changed(*stack):
    """Return the candidate that a cell with a checkpoint measures."""
    spec = SimpleNamespace(stack=stack, checkpoint=next(e.checkpoint for e in stack if e.checkpoint))
    gate = SimpleNamespace(options=SimpleNamespace(dtype=None))
    return Accept._changed_checkpoint(SimpleNamespace(_spec=spec, _gate=gate, _device=lambda _: "cpu", _seed=0))


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
