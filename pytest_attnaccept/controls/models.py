"""Changes of an embedded model that must be rejected (and one that must not be)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks.model_session import ModelSession, open_session
from pytest_attnaccept.controls import Control
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.methods.stack import apply_stack
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
    "budget-curve": {"contexts": 60, "tier": 0.5},
    "length-curve": {"contexts": 60, "lengths": [0.25, 0.5], "operating": 0.5},
    "controls": {"contexts": 60, "tier": 0.5},
    "long-range-kv_recall": {"contexts": 60, "tiers": [0.5]},
}


def _session(method: str, knobs: Mapping[str, object], seed: int, device: str, acts: str) -> ModelSession:
    """Open a session of `method`; ``acts`` is the method that really acts, "" for none."""
    found = Registry.builtin().get(method)
    stack = [(found, check_knobs(found, knobs, "control"))]
    candidate: object = None
    if not acts:
        candidate = Candidate(generate_kwargs={})
    elif acts != method:
        loaded, other = load(parse_spec(MODEL), device=device), Registry.builtin().get(acts)
        candidate = apply_stack(loaded.model, [(other, check_knobs(other, knobs, "control"))], seed=seed).candidate
    return open_session(candidate=candidate, baseline=MODEL, stack=stack, device=device, seed=seed)


def controls(seed: int, device: str) -> Iterator[Control]:
    """Yield the controls of the surface ``model``."""
    bad, good = frozenset({Verdict.FAIL, Verdict.INVALID}), frozenset({Verdict.PASS})
    small: dict[str, object] = {"window": 8}
    half: dict[str, object] = {"kv_budget": 0.5}
    cases: tuple[tuple[str, str, str, dict[str, object], str, frozenset[Verdict]], ...] = (
        ("kv8", "footprint", "kv8", {}, "kv8", good),
        ("kv8", "needle-1x", "kv8", {}, "kv8", good),
        ("kv8", "length-curve", "kv8", {}, "kv8", good),
        ("kv8", "controls", "kv8", {}, "kv8", good),
        ("h2o of nearly everything", "budget-curve", "h2o", {"kv_budget": 0.99}, "h2o", good),
        ("h2o of everything", "needle-1x", "h2o", {"kv_budget": 1.0}, "h2o", bad),
        ("random eviction of half the cache", "needle-1x", "random_eviction", half, "random_eviction", bad),
        ("a window without the needles", "needle-1x", "sliding_window", {"window": 64}, "sliding_window", bad),
        ("2-bit keys and values", "needle-1x", "kv2", {}, "kv2", bad),
        ("h2o that never ran", "footprint", "h2o", {"kv_budget": 0.25}, "", bad),
        ("h2o that is random eviction", "controls", "h2o", half, "random_eviction", bad),
        ("a window without the facts", "long-range-kv_recall", "sliding_window", {"window": 32}, "sliding_window", bad),
        ("half of the entries", "budget-curve", "streaming_llm", half, "streaming_llm", bad),
        ("a window of eight tokens", "length-curve", "sliding_window", small, "sliding_window", bad),
        *(("a window of eight tokens", check, "sliding_window", small, "sliding_window", bad) for check in _BY_WINDOW),
    )
    for name, check, method, knobs, acts, expected in cases:
        yield Control(
            surface="model",
            name=name,
            check=check,
            expected=expected,
            measure=partial(_measure, method, knobs, seed, device, acts, check),
        )


def _measure(method: str, knobs: Mapping[str, object], seed: int, device: str, acts: str, check: str) -> Measured:
    session = _session(method, knobs, seed, device, acts)
    try:
        if check in MODEL_STATE:
            with session.candidate.running():
                around = session.candidate.around
                return measure_model_state(check, session.candidate.model, seed=seed, device=device, cache=around.cache)
        return session.measure(check, dict(_PARAMS[check]))
    finally:
        session.close()
