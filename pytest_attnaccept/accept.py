"""The fixture object: what a test may hand to `accept.<surface>(...)`, and what each surface measures.

What becomes of a call (one per test; measured, judged, recorded, raised) is in `item_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.item_run import ItemRun
from pytest_attnaccept.items import ItemSpec
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.model_item import measure_sides, open_sides
from pytest_attnaccept.records import Record
from pytest_attnaccept.session import GateSession
from pytest_attnaccept.taxonomy import Surface
from pytest_attnaccept.verdict import Decision

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
        self.run = ItemRun(gate, spec)

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

    @property
    def record(self) -> Record | None:
        """What was recorded for this item, once it is."""
        return self.run.record

    # -- surfaces ---------------------------------------------------------------------------------------------------

    def kernel(self, fn: Callable[..., Any], **contract: Any) -> Decision:
        """Gate an attention function; keywords are the fields of `kernel.contract.KernelContract`."""
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.kernel.contract import make_contract
            from pytest_attnaccept.kernel.run import measure_kernel

            declared = make_contract(**contract)
            device = contract.get("device")
            longest = int(str(self._spec.requirement.params.get("max_length", 8192)))
            return measure_kernel(
                self.check,
                fn,
                declared,
                max_length=longest,
                seed=self._seed,
                device=self._device if device is None else str(device),
                profile=self._spec.profile.name,
            )

        return self.run.measure(Surface.KERNEL, fn, measure)

    def cache(self, factory: Callable[[], Any], **contract: Any) -> Decision:
        """Gate a stateful KV cache; keywords are the fields of `state.cache_contract.CacheContract`."""
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.state.cache import make_cache_contract, measure_cache

            declared = make_cache_contract(**contract)
            return measure_cache(
                self.check, factory, declared, seed=self._seed, device=self._device, programs=self._programs()
            )

        return self.run.measure(Surface.CACHE, factory, measure)

    def prefix_cache(self, factory: Callable[[], Any], **contract: Any) -> Decision:
        """Gate a prefix cache; keywords are the fields of `state.prefix_oracle.PrefixContract`."""
        __tracebackhide__ = True

        def measure() -> Measured:
            from pytest_attnaccept.state.prefix import make_prefix_contract, measure_prefix_cache

            declared = make_prefix_contract(**contract)
            return measure_prefix_cache(
                self.check, factory, declared, seed=self._seed, device=self._device, programs=self._programs()
            )

        return self.run.measure(Surface.PREFIX_CACHE, factory, measure)

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
                device=self._device,
                profile=self._spec.profile.name,
            )

        return self.run.measure(Surface.DECODER, candidate, measure)

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

        return self.run.measure(Surface.MODEL, candidate, measure, fingerprint)

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

        return self.run.measure(Surface.LOGS, None, measure, dict)

    # -- settings ---------------------------------------------------------------------------------------------------

    @property
    def _seed(self) -> int:
        return self._gate.options.seed

    @property
    def _device(self) -> str:
        return self._gate.options.resolve_device()

    def _programs(self) -> int:
        return int(str(self._spec.requirement.params.get("programs", 60)))

    def _model_session(self, candidate: Any, baseline: Any) -> Any:
        return open_sides(self._gate, self._spec, candidate, baseline, load_model=self._load_model, keep=self._keep)

    def _measured(self, session: Any, params: dict[str, object]) -> Measured:
        return measure_sides(self._gate, self._spec, session, params)
