"""Per method and profile: a setting that passes every check, and a candidate that fails a stated one.

The settings were found on the embedded model and are part of the promise: a gate that never passes is as useless as one
that never fails. `kv8` and `kv4` lose nothing on this model, so their failing candidate is a cache that stores two bits
under the declared name.
"""

from __future__ import annotations

from dataclasses import dataclass

PERFORMANCE = ("ttft", "tpot", "throughput", "p99", "peak-memory", "used-kv")
WITH_BUDGET = ("sliding_window", "streaming_llm", "h2o", "snapkv", "tova", "pyramidkv", "random_eviction")
PROFILES = ("smoke", "longctx", "edge", "research", "serving", "release")


@dataclass(frozen=True)
class Case:
    method: str
    good: str
    bad: str
    check: str = "needle"
    candidate: str = ""


CASES = (
    Case("sliding_window", "window=236", "window=48"),
    Case("streaming_llm", "kv_budget=0.98", "kv_budget=0.25"),
    Case("h2o", "kv_budget=0.99", "kv_budget=0.125"),
    Case("snapkv", "kv_budget=0.99", "kv_budget=0.125"),
    Case("tova", "kv_budget=0.99", "kv_budget=0.25"),
    Case("pyramidkv", "kv_budget=0.99", "kv_budget=0.125"),
    Case("random_eviction", "kv_budget=0.99", "kv_budget=0.5"),
    Case("kv8", "", "", candidate="two_bits"),
    Case("kv4", "", "", candidate="two_bits"),
    Case("kv2", "residual=224", ""),
)
# One query chooses what all later ones may read: at 0.99 of 256 tokens, in chunks of 64, a tenth of the answers is lost.
NEVER_GOOD = {(profile, "tova") for profile in PROFILES if profile != "smoke"}
LONG = {
    "sliding_window": "window=254",
    "random_eviction": "kv_budget=0.995",
    "kv2": "residual=240",
}
SHORT = {"edge": {"sliding_window": "window=124"}, "longctx": LONG}


def good_knobs(case: Case, profile: str) -> str:
    return SHORT.get(profile, {}).get(case.method, case.good)


def mark(case: Case, knobs: str) -> str:
    arguments = ", ".join(filter(None, (f"method={case.method!r}", knobs)))
    return f"@pytest.mark.approximate({arguments})"


def source_of(case: Case, knobs: str, candidate: str = "") -> str:
    call = f"accept.model(candidate=lambda: {candidate}(accept_model))" if candidate else "accept.model()"
    return f"""
import pytest
from pytest_attnaccept import Candidate
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs


def two_bits(loaded):
    method = Registry.builtin().get("kv2")
    return apply_stack(loaded.model, [(method, check_knobs(method, {{}}, "test"))], seed=0).candidate


{mark(case, knobs)}
def test_it(accept, accept_model):
    {call}
"""
