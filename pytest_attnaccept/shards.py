"""Plans and records of one or many runs on disk: who belongs to the current run, and what may be counted.

Files of an output folder: ``plan.<run>.<worker>.json`` and ``records.<run>.<worker>.jsonl``. A folder normally holds one
run; a resumed run keeps the files of the runs it builds on. ``collect_tree`` reads many folders, the shards of one release.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.matrix import Plan
from pytest_attnaccept.records import Record, read_records, write_atomically

__all__ = ["Shards", "collect_tree"]


class Shards:
    """The files of one output folder, seen from one run."""

    def __init__(self, folder: Path, *, run_id: str, resume: bool) -> None:
        self.folder = folder
        self.run_id = run_id
        self.resume = resume
        self._earlier: list[Record] | None = None

    def write_plan(self, plan: Plan, worker: str) -> None:
        """Write this process's plan."""
        body = json.loads(plan.to_json())
        body.update(run_id=self.run_id, resumed=self.resume)
        write_atomically(
            self.folder / f"plan.{self.run_id}.{worker}.json", json.dumps(body, ensure_ascii=False, indent=1)
        )

    def earlier_records(self) -> list[Record]:
        """Return the records of earlier runs in this folder."""
        if self._earlier is None:
            self._earlier = [r for r in self._records([]) if r.run_id != self.run_id]
        return self._earlier

    def collect(self, *, fallback: Plan) -> tuple[Plan, list[Record], list[str]]:
        """Return plan, records and problems that count for this run.

        A resumed run is measured against the union of its own plan and the plans it builds on: selecting a part
        (``--lf``) never shrinks what is required. Its own plan wins where both know an item.
        """
        problems: list[str] = []
        plan = _merge(_plans(self.folder, self.run_id, problems), problems) or fallback
        records = self._records(problems)
        if self.resume:
            for older in _older_plans(self.folder, self.run_id, problems):
                plan = plan.merged(older)
        else:
            records = [r for r in records if r.run_id == self.run_id]
        return plan, records, problems

    def drop_older_runs(self) -> None:
        """Remove the files of earlier runs, unless this run builds on them."""
        if self.resume:
            return
        for pattern in ("plan.*.json", "records.*.jsonl"):
            for path in self.folder.glob(pattern):
                if path.name.split(".")[1] != self.run_id:
                    with suppress(FileNotFoundError):
                        path.unlink()

    def _records(self, problems: list[str]) -> list[Record]:
        return read_records(self.folder, problems) if self.folder.is_dir() else []


def collect_tree(folder: Path) -> tuple[Plan | None, list[Record], list[str]]:
    """Return the merged plan, records and problems of every output folder under `folder`.

    In each folder the newest run counts, and the older ones only when it resumed them. Shards of one release may plan
    different items; an item that two shards plan must be planned alike.
    """
    problems: list[str] = []
    plan: Plan | None = None
    records: list[Record] = []
    folders = sorted({p.parent for p in folder.rglob("plan.*.json")})
    stray = {p.parent for p in folder.rglob("records.*.jsonl")} - set(folders)
    problems += [f"{p}: records without a plan; what was required there is unknown" for p in sorted(stray)]
    for place in folders:
        runs = _runs_that_count(place, problems)
        for run in runs:
            merged = _merge(_plans(place, run, problems), problems)
            if merged is not None:
                plan = merged if plan is None else _union(plan, merged, problems)
        records += [r for r in read_records(place, problems) if r.run_id in runs]
    return plan, sorted(records, key=lambda r: r.time), problems


def _runs_that_count(place: Path, problems: list[str]) -> list[str]:
    flags: dict[str, bool] = {}
    for path in place.glob("plan.*.json"):
        run = path.name.split(".")[1]
        try:
            flags[run] = bool(json.loads(path.read_text(encoding="utf-8")).get("resumed")) or flags.get(run, False)
        except ValueError as error:
            problems.append(f"{path}: is not JSON ({error})")
            flags.setdefault(run, False)
    runs: list[str] = []
    for run in sorted(flags, reverse=True):
        runs.append(run)
        if not flags[run]:
            break
    return runs


def _plans(folder: Path, run_id: str, problems: list[str]) -> list[Plan]:
    plans = []
    for path in sorted(folder.glob(f"plan.{run_id}.*.json")):
        try:
            plans.append(Plan.from_json(path.read_text(encoding="utf-8"), str(path)))
        except (RecordError, OSError) as error:
            problems.append(str(error))
    return plans


def _older_plans(folder: Path, run_id: str, problems: list[str]) -> list[Plan]:
    runs = sorted({p.name.split(".")[1] for p in folder.glob("plan.*.json")} - {run_id}, reverse=True)
    merged = (_merge(_plans(folder, run, problems), problems) for run in runs)
    return [plan for plan in merged if plan is not None]


def _merge(plans: Sequence[Plan], problems: list[str]) -> Plan | None:
    """Return the one plan that all workers of a run must share."""
    if not plans:
        return None
    if len({p.digest() for p in plans}) > 1:
        problems.append("workers collected different plans: the tests are not collected in a stable way")
        merged = plans[0]
        for plan in plans[1:]:
            merged = merged.merged(plan)
        return merged
    return plans[0]


def _union(plan: Plan, other: Plan, problems: list[str]) -> Plan:
    known = {i.id: i.static for i in plan.items}
    clash = [i.id for i in other.items if i.id in known and known[i.id] != i.static]
    if clash:
        problems.append(
            f"shards plan {len(clash)} items differently, first {clash[0]}: they are not shards of one release"
        )
    if other.profile != plan.profile:
        problems.append(f"shards ran different profiles: {plan.profile} and {other.profile}")
    return plan.merged(other)
