"""The fixture object: what a test hands to `accept.<surface>(...)` is measured, judged and recorded here.

Positions
---------
1. One call per test. The verdict leaves as `AcceptanceFailure` in the call phase; a test that swallows it still fails.
2. Whatever the candidate raises is a FAIL with its traceback as the cause. A bad contract is the user's mistake and ends
   as an error; an engine that cannot show what a check needs is INCOMPLETE. All three are recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pytest_attnaccept.errors import (
    AcceptanceFailure,
    AttnAcceptError,
    ContractError,
    EngineError,
    RecordError,
    UnknownNameError,
    UsageError,
)
from pytest_attnaccept.fingerprint import candidate_digest, is_bound_to_source, package_versions
from pytest_attnaccept.items import ItemSpec
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.protocol import MODEL_STATE
from pytest_attnaccept.records import Record
from pytest_attnaccept.session import GateSession
from pytest_attnaccept.taxonomy import Surface, Verdict
from pytest_attnaccept.verdict import Decision, decide

__all__ = ["Accept"]


class Accept:
    """What the fixture ``accept`` gives to a test.

    Call exactly one of `kernel`, `cache`, `prefix_cache`, `decoder`, `model`. Each returns the `Decision` when the verdict
    is green and raises `AcceptanceFailure` otherwise.
    """

    def __init__(self, gate: GateSession, spec: ItemSpec, load_model: Callable[[], Any], keep: str) -> None:
        self._gate = gate
        self._spec = spec
        self._load_model = load_model
        self._keep = keep
        self.record: Record | None = None
        self.failure: BaseException | None = None

    def __getattr__(self, name: str) -> NoReturn:
        """Explain a call of a surface that does not exist (a typing mistake, or one of a later version)."""
        raise AttributeError(str(UnknownNameError("method of the fixture accept", name, [s.value for s in Surface])))

    @property
    def check(self) -> str:
        """Name of the check that this pytest item runs."""
        return self._spec.planned.check

    @property
    def knobs(self) -> Mapping[str, Mapping[str, object]]:
        """Knobs of every method of the stack, by method name."""
        return {e.method.name: e.knobs for e in self._spec.stack}

    # -- surfaces ---------------------------------------------------------------------------------------------------

    def kernel(self, fn: Callable[..., Any], **contract: Any) -> Decision:
        """Gate an attention function; keywords are the fields of `kernel.contract.KernelContract`."""
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.kernel.contract import make_contract
            from pytest_attnaccept.kernel.run import measure_kernel

            declared = make_contract(**contract)
            longest = int(str(self._spec.requirement.params.get("max_length", 8192)))
            return measure_kernel(
                self.check,
                fn,
                declared,
                max_length=longest,
                seed=self._seed,
                device=self._device(contract.get("device")),
                profile=self._spec.profile.name,
            )

        return self._run(Surface.KERNEL, fn, measure)

    def cache(self, factory: Callable[[], Any], **contract: Any) -> Decision:
        """Gate a stateful KV cache; keywords are the fields of `state.cache_contract.CacheContract`."""
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.state.cache import make_cache_contract, measure_cache

            declared = make_cache_contract(**contract)
            return measure_cache(
                self.check, factory, declared, seed=self._seed, device=self._device(None), programs=self._programs()
            )

        return self._run(Surface.CACHE, factory, measure)

    def prefix_cache(self, factory: Callable[[], Any], **contract: Any) -> Decision:
        """Gate a prefix cache; keywords are the fields of `state.prefix_oracle.PrefixContract`."""
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.state.prefix import make_prefix_contract, measure_prefix_cache

            declared = make_prefix_contract(**contract)
            return measure_prefix_cache(
                self.check, factory, declared, seed=self._seed, device=self._device(None), programs=self._programs()
            )

        return self._run(Surface.PREFIX_CACHE, factory, measure)

    def decoder(self, candidate: Callable[..., Any], *, target: Callable[..., Any], **contract: Any) -> Decision:
        """Gate a decoder against its target model; keywords are the fields of `state.decoder_contract.DecoderContract`."""
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.state.decoder import make_decoder_contract, measure_decoder

            declared = make_decoder_contract(**contract)
            return measure_decoder(
                self.check,
                candidate,
                target,
                declared,
                seed=self._seed,
                device=self._device(None),
                profile=self._spec.profile.name,
            )

        return self._run(Surface.DECODER, candidate, measure)

    def model(self, candidate: Any = None, baseline: Any = None) -> Decision:
        """Gate a model with something changed.

        Parameters
        ----------
        candidate, baseline
            A transformers model, a SPEC, a `Candidate`, or a zero-argument callable returning one. Without a candidate
            the marked methods are applied to the baseline; without a baseline ``--accept-model`` is loaded.
        """
        __tracebackhide__ = True
        held: dict[str, Any] = {}

        def opened() -> Any:
            if "session" not in held:
                held["session"] = self._model_session(candidate, baseline)
            return held["session"]

        def measure() -> Measured:
            return self._measured(opened(), dict(self._spec.requirement.params))

        def fingerprint() -> Mapping[str, str]:
            return opened().fingerprint()  # type: ignore[no-any-return]

        return self._run(Surface.MODEL, candidate, measure, fingerprint)

    def logs(self, baseline: str | Path, candidate: str | Path, *, metric: str | None = None) -> Decision:
        """Gate two recorded runs of the same items: lm-eval ``samples_*.jsonl`` logs or NLL tables.

        For teams whose engine is reached through lm-eval only. The margin is the limit ``samples``.
        """
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.compare import measure_logs

            method = next((e.method for e in self._spec.stack if e.method.acts_on_kv), self._spec.stack[0].method)
            measured, _ = measure_logs(Path(baseline), Path(candidate), metric=metric, method=method)
            gates = tuple(replace(g, name=f"samples[{g.name}]") for g in measured.gates)
            return replace(measured, gates=gates)

        return self._run(Surface.LOGS, None, measure, dict)

    def _measured(self, session: Any, params: dict[str, object]) -> Measured:
        """Run a check of a model: retrieval in planned looks, everything else at once."""
        if self.check in MODEL_STATE:
            return self._state_of_model(session)
        name = self.check.split("-")[0]
        limit = self._spec.profile.limits.get(name)
        contexts = params.get("contexts")
        if name != "needle" or limit is None or not isinstance(contexts, int):
            return session.measure(self.check, params)  # type: ignore[no-any-return]
        from pytest_attnaccept.checks.looks import measure_in_looks
        from pytest_attnaccept.stats.sequential import plan_looks

        alpha = self._spec.profile.alpha
        plan = plan_looks(
            contexts, limit.max, alpha_pass=alpha, alpha_fail=alpha / max(1, self._gate.family), seed=self._seed
        )
        return measure_in_looks(lambda given: session.measure(self.check, given), params, plan)

    def _state_of_model(self, session: Any) -> Measured:
        """Run a check of how the candidate's state came about (chunks, prefixes, padding, crops, preemption)."""
        from pytest_attnaccept.state.model_level import measure_model_state

        side, base = session.candidate, session.baseline
        measured = measure_model_state(
            self.check,
            side.model,
            seed=self._seed,
            device=session.device,
            cache=side.around.cache,
            baseline=base.model,
            running=side.running,
            baseline_running=base.running,
        )
        return replace(measured, refusals=(*session.findings, *measured.refusals))

    # -- one run ----------------------------------------------------------------------------------------------------

    def _run(
        self,
        surface: Surface,
        candidate: Any,
        measure: Callable[[], Measured],
        fingerprint: Callable[[], Mapping[str, str]] | None = None,
    ) -> Decision:
        __tracebackhide__ = True
        started = time.perf_counter()
        early = self._before(surface)
        if early is not None:
            return self._end(early, Measured(), {}, started)
        try:
            # A compiled function may have been built anew under the same name: it is always measured.
            standing = is_bound_to_source(candidate) and self._gate.standing(
                self._spec.planned, lambda: self._bound(candidate, fingerprint)
            )
            if standing:
                self.record = standing
                return Decision(verdict=standing.verdict, headline=standing.headline, metrics=standing.metrics)
            measured = measure()
        except (ContractError, RecordError, UsageError) as error:
            self._note(Verdict.INCOMPLETE, f"bad contract, knobs or data: {error}", started)
            self.failure = error
            raise
        except EngineError as error:
            missing = _decision(Verdict.INCOMPLETE, str(error))  # its cause is pages of a library that looked for a file
            return self._end(missing, Measured(), {}, started)
        except (Exception, SystemExit) as error:  # a candidate must not end the process either
            cause = error.__cause__ or error
            text = str(error) if isinstance(error, AttnAcceptError) else f"{type(error).__name__}: {error}"
            said = text if "the candidate" in text.split(" raised")[0] else f"the candidate raised {text}"
            return self._end(_decision(Verdict.FAIL, said), Measured(), {}, started, cause)
        decision = decide(measured, self._spec.profile.limits, alpha=self._spec.profile.alpha, family=self._gate.family)
        bound = {**self._bound(candidate, fingerprint), "data": measured.data_digest}
        return self._end(decision, measured, bound, started)

    def _bound(self, candidate: Any, fingerprint: Callable[[], Mapping[str, str]] | None) -> dict[str, str]:
        """Return what a record of this item is bound to, besides the data."""
        versions = package_versions()
        return {
            "candidate": candidate_digest(candidate),
            "seed": str(self._seed),
            "code": versions["code"],
            **{k: v for k, v in versions.items() if k in ("torch", "transformers")},
            **(fingerprint() if fingerprint is not None else {"device": self._device(None)}),
        }

    def _before(self, surface: Surface) -> Decision | None:
        """Return a decision when nothing is to be measured: a wrong call, a missing check, no time left."""
        if self.record is not None:
            self.failure = AcceptanceFailure(
                f"INVALID {self._spec.planned.id}: the test calls accept twice; one test gates one candidate"
            )
            raise self.failure
        if surface is not self._spec.surface:
            return _decision(
                Verdict.FAIL,
                f"the test calls accept.{surface.value}, but its checks were planned for accept.{self._spec.surface.value};"
                f" add surface={surface.value!r} to the mark",
            )
        if not self._spec.requirement.exists:
            return _decision(
                Verdict.INCOMPLETE,
                f"profile {self._spec.profile.name} requires {self.check}, which this version cannot measure",
            )
        if self._gate.out_of_time():
            size = {
                k: v for k, v in self._spec.requirement.params.items() if k in ("documents", "contexts", "programs")
            }
            needs = ", ".join(f"{k}={v}" for k, v in size.items()) or "one full measurement"
            return _decision(Verdict.INCONCLUSIVE, f"the time budget (--accept-time) is used up; still needs {needs}")
        return None

    def _end(
        self,
        decision: Decision,
        measured: Measured,
        fingerprint: Mapping[str, str],
        started: float,
        cause: BaseException | None = None,
    ) -> Decision:
        __tracebackhide__ = True
        self.record = self._gate.record(
            self._spec,
            decision,
            fingerprint=fingerprint,
            facts={f.name: f.value for f in measured.facts},
            details=measured.details,
            seconds=time.perf_counter() - started,
        )
        if decision.verdict.blocks:
            self._raise(decision, cause)
        return decision

    def _raise(self, decision: Decision, cause: BaseException | None) -> NoReturn:
        __tracebackhide__ = True
        headline = self.record.headline if self.record is not None else decision.headline
        self.failure = AcceptanceFailure("\n".join(filter(None, (headline, decision.body))))
        raise self.failure from cause

    def _note(self, verdict: Verdict, headline: str, started: float) -> None:
        self.record = self._gate.record(
            self._spec,
            _decision(verdict, headline),
            fingerprint={},
            facts={},
            details={},
            seconds=time.perf_counter() - started,
        )

    def overrule(self, error: BaseException, *, skipped: bool) -> None:
        """Record that the test did not stand by its green verdict: whatever it raised afterwards counts, also if xfailed."""
        if self.record is None or self.record.verdict.blocks or isinstance(error, AttnAcceptError):
            return
        text = f"{type(error).__name__}: {error}" if not isinstance(error, AcceptanceFailure) else str(error)
        verdict = Verdict.INVALID if skipped or isinstance(error, AcceptanceFailure) else Verdict.FAIL
        self._note(verdict, f"the test took back its {self.record.verdict.value}: {text}", time.perf_counter())

    # -- settings ---------------------------------------------------------------------------------------------------

    @property
    def _seed(self) -> int:
        return self._gate.options.seed

    def _programs(self) -> int:
        return int(str(self._spec.requirement.params.get("programs", 60)))

    def _device(self, contract: object) -> str:
        if contract is not None:
            return str(contract)
        return self._gate.options.resolve_device()

    def _changed_checkpoint(self) -> Any:
        """Load the checkpoint and apply what of the stack is not in it: methods that this package applies."""
        from pytest_attnaccept.engines.loading import load
        from pytest_attnaccept.engines.specs import parse_spec
        from pytest_attnaccept.methods.stack import apply_stack

        named = "checkpoint of " + ", ".join(e.method.name for e in self._spec.stack)
        spec = parse_spec(str(self._spec.checkpoint), named)
        loaded = load(spec, device=self._device(None), dtype=self._gate.options.dtype)
        if not (rest := [(e.method, e.knobs) for e in self._spec.stack if e.checkpoint is None]):
            return loaded
        around = apply_stack(loaded.model, rest, seed=self._seed).candidate  # its weights may be others
        return replace(around, model=loaded if around.model is None else replace(loaded, model=around.model))

    def _model_session(self, candidate: Any, baseline: Any) -> Any:
        from pytest_attnaccept.checks.model_session import open_session

        if candidate is None and self._spec.checkpoint is not None:
            candidate = self._changed_checkpoint
        if baseline is None:
            baseline = self._spec.model if self._spec.model is not None else self._load_model()
        key = (self._keep, _same(candidate), _same(baseline))

        def build() -> Any:
            return open_session(
                candidate=candidate,
                baseline=baseline,
                stack=[(e.method, e.knobs) for e in self._spec.stack],
                device=self._device(None),
                dtype=self._gate.options.dtype,
                seed=self._seed,
            )

        return self._gate.shared(key, build)


def _same(side: Any) -> object:
    """Return what decides whether two calls of one test mean the same side: text, kind of callable, else identity."""
    if side is None or isinstance(side, str):
        return side
    if isinstance(side, Mapping):
        return str(sorted(side.items()))
    if callable(side) and hasattr(side, "__qualname__"):
        return side.__qualname__
    return id(side)


def _decision(verdict: Verdict, headline: str) -> Decision:
    return Decision(verdict=verdict, headline=headline, metrics=())
