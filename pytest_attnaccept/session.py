"""The state of one gated pytest session: profile, plan, records, and the verdict at the end.

One object per `pytest.Config`, kept in its stash (nested sessions never share it) and created only when the first mark,
suite or profile is seen. Pytest itself is not imported here: hooks hand over plain values.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_attnaccept.completeness import GateResult, judge
from pytest_attnaccept.items import ItemSpec, restated
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.options import Options
from pytest_attnaccept.profiles import Profile, load_profile
from pytest_attnaccept.records import Record, RecordWriter, write_atomically
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.shards import Shards
from pytest_attnaccept.verdict import Decision

__all__ = ["GateSession"]

_UNDECIDED = ("INCONCLUSIVE", "INCOMPLETE")
MOST_HEADLINE = 480  # JUnit readers cut a message at 500 characters; the sentence must survive that


class GateSession:
    """Profile, plan and records of one pytest session.

    Parameters
    ----------
    options
        What the command line and ini say.
    registry
        Methods known to this run.
    run_id, worker
        Name of the run (given by the controller under xdist) and of this process.
    partial
        Why this run can only see a part of the plan ("" when it sees all of it).
    """

    def __init__(
        self, options: Options, registry: Registry, *, run_id: str, worker: str = "main", partial: str = ""
    ) -> None:
        self.options = options
        self.registry = registry
        self.run_id = run_id
        self.worker = worker
        self.partial = partial
        self.sees_all = False
        self.stopped = ""  # what ended the run before its last item
        self.profile: Profile = load_profile(options.profile)
        self._planned: dict[str, PlannedItem] = {}
        self.usage_errors: list[str] = []
        self.problems: list[str] = []
        self.shards = Shards(options.out, run_id=run_id, resume=options.resume)
        self._writer = RecordWriter(options.out, f"{run_id}.{worker}")
        self._started = time.monotonic()
        self._open: tuple[object, Any] | None = None
        self.result: GateResult | None = None
        self.recorded: list[Record] = []
        self.unmeasured: dict[str, str] = {}  # why an item was not measured, as far as this process saw it
        self.said: list[tuple[BaseException, str]] = []  # mistakes that were shown, and where
        self._standing: dict[str, list[Record]] | None = None

    # -- plan -------------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return everything that this process knows to be required."""
        return replace(self._empty(), items=tuple(self._planned.values()))

    def _empty(self) -> Plan:
        return Plan(items=(), profile=self.profile.name, claim=self.profile.claim, alpha=self.profile.alpha)

    def require(self, items: Iterable[PlannedItem]) -> None:
        """Add planned items; one that is known already is not added again."""
        for item in items:
            if self._planned.setdefault(item.id, item).static != item.static:
                text = f"two tests have the id {item.id}: one could stand in for the other; give their files different paths"
                self.problems += [] if text in self.problems else [text]

    @property
    def family(self) -> int:
        """How many planned items rest on a statistical test."""
        return self.plan().family

    def announce(self) -> None:
        """Put on disk that a gate has begun, so that the verdict of the run before it is outdated from now on."""
        self.shards.announce(self._empty())

    def write_plan(self) -> None:
        """Put the plan on disk before anything is measured."""
        if self._planned or self.usage_errors or self.problems:
            self.shards.write_plan(
                self.plan(), self.worker, problems=self.problems, usage_errors=list(dict.fromkeys(self.usage_errors))
            )

    # -- one item ---------------------------------------------------------------------------------------------------

    def out_of_time(self) -> bool:
        """Whether the time budget is used up."""
        return self.options.time_s is not None and time.monotonic() - self._started > self.options.time_s

    def record(
        self,
        spec: ItemSpec,
        decision: Decision,
        *,
        fingerprint: Mapping[str, str],
        facts: Mapping[str, object],
        details: Mapping[str, object],
        seconds: float,
    ) -> Record:
        """Write one item's evidence and return it."""
        planned = spec.planned
        record = Record(
            item=planned.id,
            cell=planned.cell,
            check=planned.check,
            kind=planned.kind,
            surface=planned.surface,
            stack=planned.stack,
            methods=planned.methods,
            profile=planned.profile,
            verdict=decision.verdict,
            headline=_one_line(f"{decision.verdict.value} {planned.id}: {decision.headline}"),
            run_id=self.run_id,
            static=planned.static,
            reason=planned.reason,
            metrics=decision.metrics,
            facts=facts,
            details=details,
            fingerprint=fingerprint,
            seconds=round(seconds, 3),
            attempt=1 + sum(r.item == planned.id for r in self.recorded),
            worker=self.worker,
            time=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds"),
        )
        self._writer.append(record)
        self.recorded.append(record)
        return record

    def standing(self, item: PlannedItem, bound: Callable[[], Mapping[str, str]]) -> Record | None:
        """Return the earlier record that makes measuring `item` again needless, or None.

        Under ``--accept-resume``: every earlier measurement under the same plan was green, and what the record is bound to
        (weights, candidate, code, device) is what is here now. `bound` is called only when there is such a record; the
        data of the measurement are not known before it, and follow from what is compared.
        """
        if self._standing is None:
            self._standing = {}
            for record in self.shards.standing():
                self._standing.setdefault(record.item, []).append(record)
        earlier = [r for r in self._standing.get(item.id, []) if r.static == item.static]
        if not earlier or any(r.verdict.blocks and r.verdict.value not in _UNDECIDED for r in earlier):
            return None
        last = earlier[-1]
        if last.verdict.blocks or not last.fingerprint:
            return None
        now = {k: v for k, v in bound().items() if k != "data"}
        return last if {k: v for k, v in last.fingerprint.items() if k != "data"} == now else None

    def shared(self, key: object, build: Callable[[], Any]) -> Any:
        """Return what `build` makes, kept for as long as the key stays the same (models are large: one at a time)."""
        if self._open is not None and self._open[0] == key:
            return self._open[1]
        self.close()
        self._open = (key, build())
        return self._open[1]

    def close(self) -> None:
        """Free the models of the last test."""
        if self._open is not None:
            held, self._open = self._open[1], None
            held.close()

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> GateResult:
        """Judge the run from what is on disk, and remember the result."""
        counts = self.options.resume and self.sees_all
        problems = [self.partial] if self.partial and not counts else []
        plan, records, more = self.shards.collect(fallback=self.plan(), restate=self._restate)
        problems = list(dict.fromkeys([*problems, *more, *self.problems, *self.usage_errors]))
        problems += self._lost_records(records)
        self.result = self._explained(judge(plan, records, problems))
        if plan.items or self.options.explicit:
            self.shards.settle(plan, self.result.problems)
            self.shards.drop_older_runs()
            self._write_summary()
        return self.result

    def _explained(self, result: GateResult) -> GateResult:
        """Add to "not measured" why, where this process saw it (deselected, skipped, never reached)."""
        results = tuple(
            replace(r, headline=f"{r.headline}: {self.unmeasured[r.item.id]}")
            if r.record is None and r.item.exists and r.item.id in self.unmeasured
            else r
            for r in result.results
        )
        return replace(result, results=results)

    def _restate(self, item: PlannedItem) -> PlannedItem:
        return restated(item, self.options, self.profile, self.options.root)

    def _lost_records(self, records: Sequence[Record]) -> list[str]:
        """Say when a record that this process wrote is not on disk any more: evidence that is gone is no evidence."""
        there = {r.to_line() for r in records}
        lost = [r.item for r in self.recorded if r.to_line() not in there]
        if not lost:
            return []
        return [f"{len(lost)} records written by this run were changed or removed, first {lost[0]}"]

    def _write_summary(self) -> None:
        if self.result is None:
            return
        body = {
            "schema": 1,
            "run_id": self.run_id,
            "profile": self.result.profile,
            "claim": self.result.claim,
            "verdict": self.result.verdict.value,
            "explicit": self.options.explicit,
            "problems": list(self.result.problems),
            "items": [
                {"item": r.item.id, "verdict": r.verdict.value, "headline": r.headline, "attempts": r.attempts}
                for r in self.result.results
            ],
        }
        write_atomically(self.options.out / "verdict.json", json.dumps(body, ensure_ascii=False, indent=1))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_HEADLINE else line[: MOST_HEADLINE - 3] + "..."
