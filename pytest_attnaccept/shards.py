"""Plans and records of one or many runs on disk: who belongs to the current run, and what may be counted.

Files of an output folder: ``plan.<run>.<worker>.json`` and ``records.<run>.<worker>.jsonl``. A folder normally holds one
run; a resumed run keeps the files of the runs it builds on. ``collect_tree`` reads many folders, the shards of one release.

Positions
---------
1. A plan file also carries what went wrong while it was made (mark mistakes, files that could not be collected): a
   process that cannot stop the run (an xdist worker) still keeps it from passing.
2. A gate announces its run before anything is collected. A run that is killed, or stops at a usage error, therefore
   outdates the verdict of the run before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Record, read_records, write_atomically

__all__ = ["Shards", "collect_tree"]

_ANNOUNCED = "announced"
_FINAL = "final"


_UNFINISHED = "the run {run} did not finish: it was stopped, killed, or ended by a usage error"


class Shards:
    """The files of one output folder, seen from one run."""

    def __init__(self, folder: Path, *, run_id: str, resume: bool) -> None:
        self.folder = folder
        self.run_id = run_id
        self.resume = resume

    def announce(self, plan: Plan) -> None:
        """Say that a run has begun; `settle` takes it back."""
        self.write_plan(plan, _ANNOUNCED, problems=[_UNFINISHED.format(run=self.run_id)])

    def settle(self, plan: Plan, problems: Sequence[str]) -> None:
        """Write the plan as it was judged, which takes the place of the announcement and of the workers' plans."""
        self.write_plan(plan, _FINAL, problems=problems)
        with suppress(FileNotFoundError):
            self._plan_path(_ANNOUNCED).unlink()

    def write_plan(
        self, plan: Plan, worker: str, *, problems: Sequence[str] = (), usage_errors: Sequence[str] = ()
    ) -> None:
        """Write this process's plan."""
        body = json.loads(plan.to_json())
        body.update(run_id=self.run_id, resumed=self.resume, problems=list(problems), usage_errors=list(usage_errors))
        write_atomically(self._plan_path(worker), json.dumps(body, ensure_ascii=False, indent=1))

    def usage_errors(self) -> list[str]:
        """Return the mark mistakes that any process of this run found."""
        found: dict[str, None] = {}
        for path in sorted(self.folder.glob(f"plan.{self.run_id}.*.json")):
            found.update(dict.fromkeys(_texts(path, "usage_errors")))
        return list(found)

    def collect(
        self, *, fallback: Plan, restate: Callable[[PlannedItem], PlannedItem]
    ) -> tuple[Plan, list[Record], list[str]]:
        """Return plan, records and problems that count for this run; `fallback` is what this process planned itself.

        A resumed run is measured against the union of its own plan and the plans it builds on: selecting a part
        (``--lf``) never shrinks what is required. Its own plan wins where both know an item; items that only the older
        plans know are restated, so that records of files that have changed since are stale.
        """
        problems: list[str] = []
        plan = _plan_of_run(self.folder, self.run_id, problems, finished=True) or fallback
        if fallback.items and plan.digest() != fallback.digest():
            problems.append("the plan on disk was changed while the tests ran")
            plan = fallback.merged(plan)
        records = read_records(self.folder, problems) if self.folder.is_dir() else []
        runs = _runs_that_count(self.folder, problems, newest=self.run_id) if self.resume else [self.run_id]
        own = {i.id for i in plan.items}
        for run in runs[1:]:
            older = _plan_of_run(self.folder, run, problems, finished=True)
            plan = plan.merged(older) if older is not None else plan
        plan = replace(plan, items=tuple(i if i.id in own else restate(i) for i in plan.items))
        records = [r for r in records if r.run_id in runs]
        return plan, records, problems

    def standing(self) -> list[Record]:
        """Return the records of the runs that this run builds on, oldest first; none unless it was resumed."""
        if not self.resume or not self.folder.is_dir():
            return []
        runs = _runs_that_count(self.folder, [], newest=self.run_id)[1:]
        return [r for r in read_records(self.folder) if r.run_id in runs]

    def drop_older_runs(self) -> None:
        """Remove the files of earlier runs, unless this run builds on them."""
        if self.resume:
            return
        for pattern in ("plan.*.json", "records.*.jsonl"):
            for path in self.folder.glob(pattern):
                if path.name.split(".")[1] < self.run_id:  # a newer run may be under way in another process
                    with suppress(FileNotFoundError):
                        path.unlink()

    def _plan_path(self, worker: str) -> Path:
        return self.folder / f"plan.{self.run_id}.{worker}.json"


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
        here: Plan | None = None
        runs = _runs_that_count(place, problems)
        for run in runs:
            older = _plan_of_run(place, run, problems, finished=run != runs[0])
            if older is not None:
                here = older if here is None else here.merged(older)
        if here is not None:
            plan = here if plan is None else _union(plan, here, problems)
        records += [r for r in read_records(place, problems) if r.run_id in runs]
    return plan, sorted(records, key=lambda r: r.time), problems


def _runs_that_count(place: Path, problems: list[str], newest: str = "") -> list[str]:
    """Return the newest run, and the runs that it builds on when it was resumed; older ones without records built nothing."""
    resumed: dict[str, bool] = {}
    for path in place.glob("plan.*.json"):
        run = path.name.split(".")[1]
        try:
            resumed[run] = bool(json.loads(path.read_text(encoding="utf-8")).get("resumed")) or resumed.get(run, False)
        except (ValueError, OSError, AttributeError) as error:
            problems.append(f"{path}: is not a plan of this package ({error})")
            resumed.setdefault(run, False)
    runs = [newest] if newest else []
    for run in sorted(resumed, reverse=True):
        if run == newest or (runs and not any(place.glob(f"records.{run}.*.jsonl"))):
            continue
        runs.append(run)
        if not resumed[run]:
            break
    return runs


def _plan_of_run(folder: Path, run_id: str, problems: list[str], *, finished: bool = False) -> Plan | None:
    """Return what a run required; what its processes complained of is appended to `problems`."""
    final = folder / f"plan.{run_id}.{_FINAL}.json"
    paths = [final] if final.is_file() else sorted(folder.glob(f"plan.{run_id}.*.json"))
    plans = []
    for path in paths:
        announced = path.name.endswith(f".{_ANNOUNCED}.json")
        if announced and finished:
            continue
        problems += [c for key in ("usage_errors", "problems") for c in _texts(path, key) if c not in problems]
        if announced and len(paths) > 1:
            continue
        try:
            plans.append(Plan.from_json(path.read_text(encoding="utf-8"), str(path)))
        except (RecordError, OSError) as error:
            problems.append(str(error))
    if len({p.digest() for p in plans}) > 1:
        problems.append("workers collected different plans: the tests are not collected in a stable way")
    merged: Plan | None = None
    for plan in plans:
        merged = plan if merged is None else merged.merged(plan)
    return merged


def _texts(path: Path, key: str) -> list[str]:
    try:
        return [str(text) for text in json.loads(path.read_text(encoding="utf-8")).get(key, [])]
    except (ValueError, OSError, AttributeError, TypeError):
        return []  # an unreadable plan is reported by whoever parses it


def _union(plan: Plan, other: Plan, problems: list[str]) -> Plan:
    known = {i.id: i.static for i in plan.items}
    clash = [i.id for i in other.items if i.id in known and known[i.id] != i.static]
    if clash:
        problems.append(
            f"shards plan {len(clash)} items differently, first {clash[0]}: they are not shards of one release"
        )
    if other.profile != plan.profile:
        problems.append(f"shards ran different profiles: {plan.profile} and {other.profile}")
    elif other.alpha != plan.alpha:
        problems.append(
            f"shards ran different profiles of the name {plan.profile}: levels {plan.alpha:g} and {other.alpha:g}"
        )
    before, now = _sources(plan), _sources(other)
    changed = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
    if changed and not clash:
        problems.append(f"shards are from different sources: {', '.join(changed[:3])} differ; measure one commit")
    return plan.merged(other)


def _sources(plan: Plan) -> dict[str, str]:
    """Return the digests of the files that a plan depends on, and of this package."""
    found: dict[str, str] = {}
    for item in plan.items:
        files, versions = item.context.get("files"), item.context.get("versions")
        if isinstance(files, Mapping):
            found.update((str(k), str(v)) for k, v in files.items())
        if isinstance(versions, Mapping) and "code" in versions:
            found["pytest-attnaccept"] = str(versions["code"])
    return found
