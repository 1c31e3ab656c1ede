"""What becomes of the one call of ``accept`` in a test: it is measured, judged and recorded, and a verdict is raised.

Positions
---------
1. One call per test. The verdict leaves as `AcceptanceFailure` in the call phase; a test that swallows it still fails.
2. Whatever the candidate raises is a FAIL with its traceback as the cause. A bad contract is the user's mistake and ends
   as an error; an engine that cannot show what a check needs is INCOMPLETE. All three are recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pytest_attnaccept.errors import (
    AcceptanceFailure,
    AttnAcceptError,
    ContractError,
    EngineError,
    RecordError,
    UsageError,
)
from pytest_attnaccept.fingerprint import candidate_digest, is_bound_to_source, package_versions
from pytest_attnaccept.items import ItemSpec
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.records import Record
from pytest_attnaccept.session import GateSession
from pytest_attnaccept.taxonomy import Surface, Verdict
from pytest_attnaccept.verdict import Decision, decide

__all__ = ["ItemRun"]

_MEASURED_WITH = ("torch", "transformers", "tokenizers", "safetensors")  # the extra hf; the core judges records only

Fingerprint = Callable[[], Mapping[str, str]]


class ItemRun:
    """One item between the call of the fixture and its record.

    Attributes
    ----------
    record
        What was written; None as long as nothing was.
    failure
        What the call raised; it is raised again when the test swallowed it.
    """

    def __init__(self, gate: GateSession, spec: ItemSpec) -> None:
        self._gate = gate
        self._spec = spec
        self.record: Record | None = None
        self.failure: BaseException | None = None

    def measure(
        self,
        surface: Surface,
        candidate: Any,
        measure: Callable[[], Measured],
        fingerprint: Fingerprint | None = None,
    ) -> Decision:
        """Measure, judge and record; raise `AcceptanceFailure` for a verdict that blocks."""
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
        except EngineError as error:  # its cause is pages of a library that looked for a file: not shown
            return self._end(_decision(Verdict.INCOMPLETE, str(error)), Measured(), {}, started)
        except (Exception, SystemExit) as error:  # a candidate must not end the process either
            if lacking := _not_installed(error):
                return self._end(_decision(Verdict.INCOMPLETE, lacking), Measured(), {}, started)
            cause = error.__cause__ or error
            text = str(error) if isinstance(error, AttnAcceptError) else f"{type(error).__name__}: {error}"
            said = text if "the candidate" in text.split(" raised")[0] else f"the candidate raised {text}"
            return self._end(_decision(Verdict.FAIL, said), Measured(), {}, started, cause)
        decision = decide(measured, self._spec.profile.limits, alpha=self._spec.profile.alpha, family=self._gate.family)
        bound = {**self._bound(candidate, fingerprint), "data": measured.data_digest}
        return self._end(decision, measured, bound, started)

    def overrule(self, error: BaseException, *, skipped: bool) -> None:
        """Record that the test did not stand by its green verdict: whatever it raised afterwards counts, also if xfailed."""
        if self.record is None or self.record.verdict.blocks or isinstance(error, AttnAcceptError):
            return
        text = f"{type(error).__name__}: {error}" if not isinstance(error, AcceptanceFailure) else str(error)
        verdict = Verdict.INVALID if skipped or isinstance(error, AcceptanceFailure) else Verdict.FAIL
        self._note(verdict, f"the test took back its {self.record.verdict.value}: {text}", time.perf_counter())

    # -- steps ------------------------------------------------------------------------------------------------------

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
                f"profile {self._spec.profile.name} requires {self._spec.planned.check}, which this version cannot measure",
            )
        if self._gate.out_of_time():
            size = {
                k: v for k, v in self._spec.requirement.params.items() if k in ("documents", "contexts", "programs")
            }
            needs = ", ".join(f"{k}={v}" for k, v in size.items()) or "one full measurement"
            return _decision(Verdict.INCONCLUSIVE, f"the time budget (--accept-time) is used up; still needs {needs}")
        return None

    def _bound(self, candidate: Any, fingerprint: Fingerprint | None) -> dict[str, str]:
        """Return what a record of this item is bound to, besides the data."""
        versions = package_versions()
        options = self._gate.options
        return {
            "candidate": candidate_digest(candidate),
            "seed": str(options.seed),
            "code": versions["code"],
            **{k: v for k, v in versions.items() if k in ("torch", "transformers")},
            **(fingerprint() if fingerprint is not None else {"device": options.resolve_device()}),
        }

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
            self._raise(self.record.headline, decision, cause)
        return decision

    def _raise(self, headline: str, decision: Decision, cause: BaseException | None) -> NoReturn:
        __tracebackhide__ = True
        self.failure = AcceptanceFailure("\n".join(filter(None, (headline, decision.body))))
        raise self.failure from cause

    def _note(self, verdict: Verdict, headline: str, started: float) -> None:
        """Record a verdict that raises nothing here: something else is on its way out of the test already."""
        self.record = self._gate.record(
            self._spec,
            _decision(verdict, headline),
            fingerprint={},
            facts={},
            details={},
            seconds=time.perf_counter() - started,
        )


def _not_installed(error: BaseException) -> str:
    """Say what the environment lacks, where that stopped the measurement: the candidate is not to blame for it."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return f"{name} is not installed: pip install 'pytest-attnaccept[hf]'" if name in _MEASURED_WITH else ""


def _decision(verdict: Verdict, headline: str) -> Decision:
    return Decision(verdict=verdict, headline=headline, metrics=())
