"""``--accept-selftest``: the gate runs its own known-bad and known-good candidates, and exits 1 if one verdict is wrong.

A gate whose controls do not behave proves nothing, whatever it says about a release. What cannot be run here (torch is not
installed) is an error of the self-test, never a silent omission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from pytest_attnaccept.controls import Control
from pytest_attnaccept.controls import statistics as statistics_controls
from pytest_attnaccept.errors import AttnAcceptError
from pytest_attnaccept.limits import Limit
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.options import Options
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

__all__ = ["run_selftest"]

_LIMITED = ("needle", "perplexity", "kl", "top1", "long-range", "benchmark")
_LIMITS = {name: Limit(max=0.05, origin="policy: control") for name in _LIMITED}


def run_selftest(options: Options, say: Callable[[str], None] = print) -> int:
    """Run every control; return 0 when all verdicts are as expected, else 1."""
    wrong = total = 0
    started = time.perf_counter()
    for control in _all(options):
        total += 1
        verdict, text = _verdict(control)
        good = verdict in control.expected
        wrong += not good
        expected = " or ".join(sorted(v.value for v in control.expected))
        mark = "ok   " if good else "WRONG"
        say(
            f"{mark} {control.surface:<12} {control.check:<20} {control.name:<36} {verdict.value} (expected {expected})"
        )
        if not good:
            say(f"      {text}")
    seconds = time.perf_counter() - started
    say(f"self-test: {total - wrong} of {total} controls as expected in {seconds:.0f} s")
    return 1 if wrong or not total else 0


def _all(options: Options) -> Iterator[Control]:
    yield from statistics_controls.controls()
    try:
        from pytest_attnaccept.controls import kernels, models, states
    except ImportError as error:
        yield _broken(f"torch and transformers are needed for the other controls ({error})")
        return
    device = options.resolve_device()
    yield from kernels.controls(options.seed, device)
    yield from states.controls(options.seed, device)
    yield from models.controls(options.seed, device)


def _broken(reason: str) -> Control:
    def measure() -> Measured:
        raise AttnAcceptError(reason)

    return Control(
        surface="install", name="imports", check="import", expected=frozenset({Verdict.PASS}), measure=measure
    )


def _verdict(control: Control) -> tuple[Verdict, str]:
    try:
        decision = decide(control.measure(), _LIMITS)
    except AttnAcceptError as error:
        return Verdict.INCOMPLETE, str(error)
    except Exception as error:  # a control that crashes is a wrong control, and the others still run
        return Verdict.INCOMPLETE, f"{type(error).__name__}: {error}"
    return decision.verdict, decision.headline
