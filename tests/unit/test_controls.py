"""Every check has a known-bad control in the self-test, and every control behaves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the controls of kernels, caches and models need torch")

from pytest_attnaccept.controls import kernels, models, states, statistics
from pytest_attnaccept.protocol import CHECK_REASONS
from pytest_attnaccept.selftest import _LIMITS
from pytest_attnaccept.taxonomy import Surface, Verdict
from pytest_attnaccept.verdict import decide

# Known-bad candidates of these checks need a broken model, not a broken function; they are in tests/faults.
ELSEWHERE = {
    Surface.KERNEL: {"selftest"},  # its bad controls are the mutants that it must reject itself
    # speculation and benchmark: known-bad candidates are in tests/unit/checks/test_model_speculation.py and _benchmark.py
    Surface.MODEL: {"identity", "crop", "positions", "window", "speculation", "benchmark"},
    Surface.LOGS: {"samples"},
}
CONTROLS = [*statistics.controls(), *kernels.controls(0, "cpu"), *states.controls(0, "cpu"), *models.controls(0, "cpu")]


def checks(surface: Surface, *, bad: bool) -> set[str]:
    found = [c for c in CONTROLS if c.surface == surface.value and (Verdict.PASS not in c.expected) is bad]
    families = ("needle", "long-range")  # their ids go on with a length or a name
    return {next((f for f in families if c.check.startswith(f)), c.check) for c in found}


@pytest.mark.parametrize("surface", list(CHECK_REASONS), ids=lambda s: s.value)
def test_every_check_rejects_something_that_is_bad(surface):
    assert checks(surface, bad=True) >= set(CHECK_REASONS[surface]) - ELSEWHERE.get(surface, set())


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: f"{c.surface}-{c.check}-{c.name}".replace(" ", "_"))
def test_control(control):
    assert decide(control.measure(), _LIMITS).verdict in control.expected
