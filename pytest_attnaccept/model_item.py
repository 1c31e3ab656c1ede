"""The model side of an item: which two sides a test means, built once per test, and how one check of them is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_attnaccept.errors import EngineError
from pytest_attnaccept.items import ItemSpec
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.protocol import MODEL_STATE
from pytest_attnaccept.session import GateSession

__all__ = ["measure_sides", "open_sides"]


def open_sides(
    gate: GateSession, spec: ItemSpec, candidate: Any, baseline: Any, *, load_model: Callable[[], Any], keep: str
) -> Any:
    """Return the session of both sides, shared by the items of one test.

    Parameters
    ----------
    load_model
        Gives the baseline where neither the test nor the suite names one.
    keep
        The test that shares the sides.
    """
    from pytest_attnaccept.checks.model_session import open_session

    device = gate.options.resolve_device()

    def carried() -> Any:
        return _changed_checkpoint(gate, spec, device)

    if candidate is None and spec.checkpoint is not None:
        candidate = carried
    if baseline is None:
        baseline = spec.model if spec.model is not None else load_model()

    def build() -> Any:
        return open_session(
            candidate=candidate,
            baseline=baseline,
            stack=[(e.method, e.knobs) for e in spec.stack],
            device=device,
            dtype=gate.options.dtype,
            seed=gate.options.seed,
        )

    return gate.shared((keep, _same(candidate), _same(baseline)), build)


def _same(side: Any) -> object:
    """Return what decides whether two calls of one test mean the same side: text, kind of callable, else identity."""
    if side is None or isinstance(side, str):
        return side
    if isinstance(side, Mapping):
        return str(sorted(side.items()))
    if callable(side) and hasattr(side, "__qualname__"):
        return side.__qualname__
    return id(side)


def _changed_checkpoint(gate: GateSession, spec: ItemSpec, device: str) -> Any:
    """Load the checkpoint and apply what of the stack is not in it: methods that this package applies."""
    from pytest_attnaccept.engines.loading import load
    from pytest_attnaccept.engines.specs import parse_spec
    from pytest_attnaccept.methods.stack import apply_stack

    named = "checkpoint of " + ", ".join(e.method.name for e in spec.stack)
    loaded = load(parse_spec(str(spec.checkpoint), named), device=device, dtype=gate.options.dtype)
    if not (rest := [(e.method, e.knobs) for e in spec.stack if e.checkpoint is None]):
        return loaded
    around = apply_stack(loaded.model, rest, seed=gate.options.seed).candidate  # its weights may be others
    return replace(around, model=loaded if around.model is None else replace(loaded, model=around.model))


def measure_sides(gate: GateSession, spec: ItemSpec, session: Any, params: dict[str, object]) -> Measured:
    """Run a check of a model: retrieval in planned looks, everything else at once."""
    check = spec.planned.check
    if check in MODEL_STATE:
        return _state_of_model(check, session, gate.options.seed)
    name = check.split("-")[0]
    limit = spec.profile.limits.get(name)
    contexts = params.get("contexts")
    if name != "needle" or limit is None or not isinstance(contexts, int):
        return session.measure(check, params)  # type: ignore[no-any-return]
    from pytest_attnaccept.checks.looks import measure_in_looks
    from pytest_attnaccept.stats.sequential import plan_looks

    alpha = spec.profile.alpha
    plan = plan_looks(
        contexts, limit.max, alpha_pass=alpha, alpha_fail=alpha / max(1, gate.family), seed=gate.options.seed
    )
    return measure_in_looks(lambda given: session.measure(check, given), params, plan)


def _state_of_model(check: str, session: Any, seed: int) -> Measured:
    """Run a check of how the candidate's state came about (chunks, prefixes, padding, crops, preemption)."""
    from pytest_attnaccept.state.model_level import measure_model_state

    side, base = session.candidate, session.baseline
    if side.around.prefill_context is not None:
        raise EngineError(
            f"{check} fills caches in calls of its own and would never enter the prefill_context: a candidate with one is"
            " compared in `equality` only; use context= for what holds in every call"
        )
    measured = measure_model_state(
        check,
        side.model,
        seed=seed,
        device=session.device,
        cache=side.around.cache,
        baseline=base.model,
        running=side.running,
        baseline_running=base.running,
    )
    return replace(measured, refusals=(*session.findings, *measured.refusals))
