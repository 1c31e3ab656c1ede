"""Sizes at which a kernel must be called at least once; a fault that needs them passes otherwise."""

import pytest

from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.shapes import boundary_shapes

WANTED = {
    "more than 257 queries": lambda case: case.q_len > 257 and case.kv_len > 257,
    "several query tiles over several key tiles": lambda case: case.q_len > 129 and case.kv_len > 513,
    "several rows of the batch over split keys": lambda case: case.batch > 1 and case.q_len == 1 and case.kv_len > 4096,
    "padded strides over many tiles": lambda case: case.layout == "padded" and case.kv_len > 1025,
    "one buffer for k and v over many tiles": lambda case: case.layout == "fused" and case.kv_len > 1025,
}


@pytest.mark.parametrize("wanted", WANTED)
def test_some_case_has(wanted):
    plan = Planner(make_contract(returns_lse=True), 8192, 0, cpu=True)
    cases = plan.value() + plan.inputs() + plan.mass() + plan.long() + boundary_shapes(plan)
    assert any(WANTED[wanted](case) for case in cases)


def test_every_variant_is_certified_to_the_length_that_the_verdict_names():
    contract = make_contract(q_heads=[4, 8], head_dim=[16, 32])
    plan = Planner(contract, 8192, 0, cpu=True)
    cases = plan.value() + plan.inputs() + plan.mass() + plan.long() + boundary_shapes(plan)
    longest = [max(case.kv_len for case in cases if case.variant == at) for at in range(len(contract.variants()))]
    assert min(longest) == max(longest)
