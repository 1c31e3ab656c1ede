"""Plan and records -> the verdict of a run: every planned item must be there, fresh, and green.

Positions
---------
1. The plan decides, not the records: what was planned and is not recorded is INCOMPLETE.
2. A record whose static digest or measured weights differ from the plan's or its cell's is stale: INCOMPLETE. The cells of
   a suite's column share one baseline; a record that was compared with an older one is stale too.
3. An item that was measured several times with equal fingerprints keeps its worst verdict, except that INCONCLUSIVE and
   INCOMPLETE may be followed by a decision: re-running a FAIL until it passes would raise the error rate.
4. A cell in which no item applies is INVALID: a test that can only be neutral gates nothing.
5. FAIL is decided over the family: Holm over all recorded p-values at the profile's level may turn INCONCLUSIVE into FAIL.
6. What a stack loses beyond its members, and who is to blame for a failure, is added to the headlines and changes no
   verdict. A release whose marks form a stack without measuring its members alone is INCOMPLETE; elsewhere it is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_attnaccept.compounding import Finding, column_of, findings, unmeasured_singles
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Record
from pytest_attnaccept.taxonomy import Verdict, worst_of

__all__ = ["GateResult", "ItemResult", "judge"]

_SHIPS = "release"  # the profile whose marks say what ships (rule 3.6); a suite's own rows are complete by construction
_BASELINE = ("baseline.weights", "baseline.tokenizer")
_LONGEST = 480  # as long as a headline may be anywhere else


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """The verdict of one planned item and the record it rests on."""

    item: PlannedItem
    verdict: Verdict
    headline: str
    record: Record | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict of a run.

    Attributes
    ----------
    verdict
        PASS only when every planned item is green or neutral and nothing is wrong with the run itself.
    problems
        What is wrong with the run as a whole (damaged records, no plan, partial selection).
    findings
        What is known about every stack of several lossy members: losses of its parts, interaction, blame.
    """

    verdict: Verdict
    results: tuple[ItemResult, ...]
    problems: tuple[str, ...]
    profile: str
    claim: str
    findings: tuple[Finding, ...] = ()

    @property
    def blocking(self) -> tuple[ItemResult, ...]:
        """Return the results that keep the run from passing, worst first."""
        order = (Verdict.FAIL, Verdict.INVALID, Verdict.INCOMPLETE, Verdict.INCONCLUSIVE)
        return tuple(sorted((r for r in self.results if r.verdict.blocks), key=lambda r: order.index(r.verdict)))

    def count(self, verdict: Verdict) -> int:
        """Return how many items ended with `verdict`."""
        return sum(r.verdict is verdict for r in self.results)


def judge(
    plan: Plan, records: Sequence[Record], problems: Iterable[str] = (), alpha: float | None = None
) -> GateResult:
    """Compare what was recorded with what was planned, at the level `alpha` (default: the plan's)."""
    issues = list(problems)
    by_item: dict[str, list[Record]] = {}
    for record in records:
        by_item.setdefault(record.item, []).append(record)
    newest = _newest(plan.items, records)
    results = [_item_result(item, by_item.get(item.id, []), newest) for item in plan.items]
    results = _all_neutral_is_invalid(_holm_failures(results, plan.alpha if alpha is None else alpha))
    found = findings((r.item, r.record, r.verdict) for r in results)
    missing = unmeasured_singles(plan.items, newest.cells)
    results = _explained(results, found, missing)
    if plan.profile.partition(" (")[0] == _SHIPS:  # also a project's own release.yaml
        issues += [f"{cell}: singles not measured: {', '.join(members)}" for cell, members in missing.items()]
    if not results:
        issues.append("nothing was planned: an empty gate proves nothing")
    verdict = worst_of([r.verdict for r in results])
    if issues and not verdict.blocks:
        verdict = Verdict.INCOMPLETE
    return GateResult(
        verdict=verdict,
        results=tuple(results),
        problems=tuple(issues),
        profile=plan.profile,
        claim=plan.claim,
        findings=found,
    )


def _explained(
    results: list[ItemResult], found: Sequence[Finding], missing: Mapping[str, Sequence[str]]
) -> list[ItemResult]:
    """Add to the headlines of a stack what its parts say about it; the sentence survives where headlines are cut."""
    texts: dict[str, list[str]] = {}
    for finding in found:
        texts.setdefault(f"{finding.cell}[{finding.check}]", []).append(finding.text)
    told = {finding.cell for finding in found}
    out = []
    for r in results:
        notes = [text for text in texts.get(r.item.id, []) if text]
        if not notes and r.record is not None and r.item.cell in missing and r.item.cell not in told:
            notes = [f"singles not measured: {', '.join(missing[r.item.cell])}"]
        note = "; ".join(dict.fromkeys(notes))
        room = max(_LONGEST - len(note) - 2, _LONGEST // 3)
        head = r.headline if len(r.headline) <= room or not note else r.headline[: room - 3] + "..."
        out.append(replace(r, headline=f"{head}; {note}") if note else r)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """The newest record of each cell and of each column of a suite: what they name is under test now."""

    cells: Mapping[str, Record]
    columns: Mapping[tuple[str, ...], Record]


def _newest(items: Iterable[PlannedItem], records: Sequence[Record]) -> _Newest:
    columns = {i.cell: column_of(i) for i in items if i.context.get("suite_model") is not None}
    of_cell: dict[str, Record] = {}
    of_column: dict[tuple[str, ...], Record] = {}
    for record in records:
        if any(_identifies(key) for key in record.fingerprint):
            of_cell[record.cell] = record
        if record.cell in columns and any(key in record.fingerprint for key in _BASELINE):
            of_column[columns[record.cell]] = record
    return _Newest(cells=of_cell, columns=of_column)


def _item_result(item: PlannedItem, records: list[Record], newest: _Newest) -> ItemResult:
    if not records:
        why = (
            "not measured"
            if item.exists
            else f"this version cannot measure {item.check}, and profile {item.profile} requires it"
        )
        return ItemResult(item=item, verdict=Verdict.INCOMPLETE, headline=f"INCOMPLETE {item.id}: {why}")
    fresh = [r for r in records if not _stale(r, item, newest)]
    if not fresh:
        why = _stale(records[-1], item, newest)
        return ItemResult(
            item=item,
            verdict=Verdict.INCOMPLETE,
            headline=f"INCOMPLETE {item.id}: stale record ({why}); measure again",
            attempts=len(records),
        )
    decided = [r for r in fresh if r.verdict not in (Verdict.INCONCLUSIVE, Verdict.INCOMPLETE)]
    pool = decided or fresh
    verdict = worst_of([r.verdict for r in pool])
    record = next(r for r in reversed(pool) if r.verdict is verdict)
    headline = record.headline if len(fresh) == 1 else f"{record.headline} ({len(fresh)} attempts, worst counts)"
    return ItemResult(item=item, verdict=verdict, headline=headline, record=record, attempts=len(fresh))


def _stale(record: Record, item: PlannedItem, newest: _Newest) -> str:
    if record.static != item.static:
        return "profile, parameters, code, device, dtype or seed changed"
    current = newest.cells.get(item.cell)
    if current is not None:
        for key, now in current.fingerprint.items():
            then = record.fingerprint.get(key)
            if _identifies(key) and then is not None and then != now:
                return f"{key} changed"
    if item.context.get("suite_model") is not None and (column := newest.columns.get(column_of(item))):
        for key in _BASELINE:
            if record.fingerprint.get(key) not in (None, column.fingerprint.get(key)):
                return f"the baseline of its column changed ({key})"
    return ""


def _identifies(key: str) -> bool:
    """Whether a fingerprint entry names what was under test: code, weights, tokenizer, configuration, where it ran."""
    return key.rpartition(".")[2] in ("candidate", "weights", "tokenizer", "config", "device", "dtype", "code")


def _holm_failures(results: list[ItemResult], alpha: float) -> list[ItemResult]:
    """Turn INCONCLUSIVE into FAIL where Holm over the whole family rejects "within the margin"."""
    tests = sorted(
        (m.p_fail, index)
        for index, r in enumerate(results)
        if r.record is not None
        for m in r.record.metrics
        if m.p_fail is not None
    )
    missing = sum(r.record is None for r in results)  # what was not measured counts as a test that would not reject
    failed: set[int] = set()
    for rank, (p_value, index) in enumerate(tests):
        if p_value > alpha / (len(tests) + missing - rank):
            break
        failed.add(index)
    out = []
    for index, r in enumerate(results):
        if index in failed and r.verdict is Verdict.INCONCLUSIVE:
            text = r.headline.replace("INCONCLUSIVE", "FAIL", 1) + " (FAIL by Holm over the family)"
            out.append(
                ItemResult(item=r.item, verdict=Verdict.FAIL, headline=text, record=r.record, attempts=r.attempts)
            )
        else:
            out.append(r)
    return out


def _all_neutral_is_invalid(results: list[ItemResult]) -> list[ItemResult]:
    cells: dict[str, list[ItemResult]] = {}
    for result in results:
        cells.setdefault(result.item.cell, []).append(result)
    vacuous = {c for c, rs in cells.items() if all(r.verdict is Verdict.NOT_APPLICABLE for r in rs)}
    return [
        r
        if r.item.cell not in vacuous
        else ItemResult(
            item=r.item,
            verdict=Verdict.INVALID,
            headline=f"INVALID {r.item.id}: no check of this test applies to its contract, so nothing was gated",
            record=r.record,
            attempts=r.attempts,
        )
        for r in results
    ]
