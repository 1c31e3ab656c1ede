"""Changes of an embedded model that must be rejected (and one that must not be)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks.model_session import ModelSession, open_session
from pytest_attnaccept.controls import Control
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.protocol import MODEL_STATE
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.state.model_level import measure_model_state
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["MODEL", "controls"]

MODEL = "toy-gqa"
# What a window that the model was not trained with breaks, declared exact or not.
_BY_WINDOW = ("divergence", "perplexity", "equality", "chunked", "prefix", "batch", "right-padding", "reuse", "preempt")
_PARAMS: Mapping[str, Mapping[str, object]] = {
    "footprint": {"tier": 1},
    "needle-1x": {"contexts": 60, "questions_per_context": 4},
    "divergence": {"documents": 60, "tier": 0.5},
    "perplexity": {"documents": 60, "tier": 0.5},
    "equality": {"documents": 4, "tier": 0.5},
}


def _session(method: str, knobs: Mapping[str, object], seed: int, device: str, *, does_nothing: bool) -> ModelSession:
    found = Registry.builtin().get(method)
    stack = [(found, check_knobs(found, knobs, "control"))]
    candidate = Candidate(generate_kwargs={}) if does_nothing else None
    return open_session(candidate=candidate, baseline=MODEL, stack=stack, device=device, seed=seed)


def controls(seed: int, device: str) -> Iterator[Control]:
    """Yield the controls of the surface ``model``."""
    bad, good = frozenset({Verdict.FAIL, Verdict.INVALID}), frozenset({Verdict.PASS})
    small: dict[str, object] = {"window": 8}
    cases: tuple[tuple[str, str, str, dict[str, object], bool, frozenset[Verdict]], ...] = (
        ("kv8", "footprint", "kv8", {}, False, good),
        ("kv8", "needle-1x", "kv8", {}, False, good),
        ("random eviction of half the cache", "needle-1x", "random_eviction", {"kv_budget": 0.5}, False, bad),
        ("a window without the needles", "needle-1x", "sliding_window", {"window": 64}, False, bad),
        ("2-bit keys and values", "needle-1x", "kv2", {}, False, bad),
        ("h2o that never ran", "footprint", "h2o", {"kv_budget": 0.25}, True, bad),
        *(("a window of eight tokens", check, "sliding_window", small, False, bad) for check in _BY_WINDOW),
    )
    for name, check, method, knobs, does_nothing, expected in cases:
        yield Control(
            surface="model",
            name=name,
            check=check,
            expected=expected,
            measure=partial(_measure, method, knobs, seed, device, does_nothing, check),
        )


def _measure(
    method: str, knobs: Mapping[str, object], seed: int, device: str, does_nothing: bool, check: str
) -> Measured:
    session = _session(method, knobs, seed, device, does_nothing=does_nothing)
    try:
        if check in MODEL_STATE:
            with session.candidate.running():
                around = session.candidate.around
                return measure_model_state(check, session.candidate.model, seed=seed, device=device, cache=around.cache)
        return session.measure(check, dict(_PARAMS[check]))
    finally:
        session.close()
