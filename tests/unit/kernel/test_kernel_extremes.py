"""Contracts at their smallest values: one visible key, one feature, one head; right functions pass, wrong ones fail."""

from dataclasses import replace

import pytest

from fixtures.broken.kernels_base import hide, solve
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.run import KERNEL_CHECKS, measure_kernel
from pytest_attnaccept.taxonomy import Verdict

FORWARD = [check for check in KERNEL_CHECKS if check != "backward"]
SMALLEST = [
    {"window": 1},
    {"head_dim": 1},
    {"head_dim": 1, "dtype": "float32", "returns_lse": True},
    {"head_dim": 2, "v_head_dim": 1},
    {"window": 1, "sinks": True},
    {"window": 1, "page_size": 16, "returns_lse": True},
    {"q_heads": 1, "kv_heads": 1, "head_dim": 8},
]


def failed(measured):
    refused = any(refusal.verdict is Verdict.FAIL for refusal in measured.refusals)
    return refused or any(not gate.value <= gate.limit for gate in measured.gates)


@pytest.mark.parametrize("keywords", SMALLEST, ids=str)
@pytest.mark.parametrize("check", FORWARD)
def test_the_smallest_contracts_are_measured_and_pass(check, keywords):
    length = 200 if check == "shapes" else 600
    measured = measure_kernel(check, solve, make_contract(**keywords), max_length=length, seed=31, device="cpu")
    assert not [gate for gate in measured.gates if not gate.value <= gate.limit]
    assert all(refusal.verdict is Verdict.NOT_APPLICABLE for refusal in measured.refusals)


WRONG = {
    "two keys in a window of one": (lambda call: solve(replace(call, window=2)), {"window": 1}, "value"),
    "two keys in a window of one, by bits": (lambda call: solve(replace(call, window=2)), {"window": 1}, "poison"),
    "the key before": (lambda call: solve(replace(call, window=1), lead=-1), {"window": 1}, "shapes"),
    "zeros in a window of one": (lambda call: solve(call, seen=hide(0, 10**9))[0], {"window": 1}, "long"),
    "sink dropped in a window of one": (
        lambda call: solve(call, sink=lambda _: None),
        {"window": 1, "sinks": True},
        "value",
    ),
    "scale of one feature": (lambda call: solve(call, scale=call.scale * 1.02), {"head_dim": 1}, "value"),
    "middle key lost with one feature": (lambda call: solve(call, seen=hide(100, 101)), {"head_dim": 1}, "value"),
    "one future key with one feature": (lambda call: solve(call, lead=1), {"head_dim": 1}, "poison"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_functions_fail_there(name):
    kernel, keywords, check = WRONG[name]
    assert failed(measure_kernel(check, kernel, make_contract(**keywords), max_length=600, seed=32, device="cpu"))
