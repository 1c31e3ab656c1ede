"""A candidate that differs from the baseline by rounding only did not quantize anything."""

from __future__ import annotations

import copy

import pytest
import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

SMALL = {"documents": 3, "tier": 0.25, "continuation": 8}


@pytest.fixture(scope="module")
def loaded():
    return load(parse_spec("toy-gqa"))


def nudged(loaded, factor):
    model = copy.deepcopy(loaded.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return Candidate(model=model)


def judge(loaded, name, candidate, check):
    method = Registry.builtin().get(name)
    with open_session(candidate=candidate, baseline=loaded, stack=[(method, check_knobs(method, {}, "t"))]) as session:
        return decide(session.measure(check, SMALL), load_profile("smoke").limits)


@pytest.mark.parametrize("check", ["perplexity", "divergence", "footprint"])
def test_another_attention_kernel_is_not_fp8(loaded, check):
    decision = judge(loaded, "fp8_attention", Candidate(model=loaded.model, attn_implementation="eager"), check)
    assert decision.verdict is Verdict.INVALID
    assert "never ran" in decision.headline


@pytest.mark.parametrize("check", ["perplexity", "divergence"])
def test_weights_that_moved_by_rounding_are_not_four_bits(loaded, check):
    assert judge(loaded, "w4a16", nudged(loaded, 1 + 1e-6), check).verdict is Verdict.INVALID


def test_weights_that_really_moved_are_measured(loaded):
    assert "never ran" not in judge(loaded, "w4a16", nudged(loaded, 1.05), "perplexity").headline
