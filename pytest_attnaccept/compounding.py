"""Records of a stack and of its members -> whether errors compound, who is to blame, and which singles are missing.

Works on plan and records alone, so that the end of a session and ``python -m pytest_attnaccept verdict`` say the same.

Positions
---------
1. Cells belong together when they change the same model column on the same surface; members are compared by label (method
   and knobs). Exact members lose nothing and do not count. Marked tests may bring a baseline each: of several singles the
   one that was compared with the stack's own baseline counts.
2. A contrast is formed over the documents that every cell measured, named by content. Cells that share too few of them,
   or whose baselines differ, are "undecided: different data", never "does not compound".
3. The margin of an interaction is half of the cell's own margin. It is reported and gates nothing: the stack passes or
   fails on its own margin, which is never a sum of single margins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_attnaccept.blame import blame
from pytest_attnaccept.contrasts import Contrast, contrast_of, effects_on_shared_data, same_baseline
from pytest_attnaccept.matrix import PlannedItem
from pytest_attnaccept.records import Metric, Record
from pytest_attnaccept.taxonomy import Kind, Surface, Verdict

__all__ = ["Finding", "column_of", "findings", "lossy_members", "unmeasured_singles"]

Column = tuple[str, ...]
Judged = tuple[PlannedItem, Record | None, Verdict]
Cells = dict[tuple[Column, frozenset[str], str], list[Record]]  # by column, lossy members and check
_COMPARED = (Surface.MODEL.value, Surface.LOGS.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known about one gated quantity of one stack of several lossy members.

    Attributes
    ----------
    full
        Loss of the stack, in the unit of its limit.
    singles, without
        By member: its loss alone, and the loss of the stack without it; None: not measured.
    contrast
        The interaction; None for quantities on which losses do not add (KL, flips).
    blame
        Who is to blame, when the stack failed; else "".
    """

    cell: str
    check: str
    metric: str
    full: float
    singles: Mapping[str, float | None]
    without: Mapping[str, float | None]
    contrast: Contrast | None
    blame: str

    @property
    def text(self) -> str:
        """Return everything in one line; "" when there is nothing to say."""
        missing = [name for name, value in self.singles.items() if value is None]
        parts = [f"singles not measured: {', '.join(missing)}"] if missing else []
        if self.contrast is not None and not missing:
            parts.append(self.contrast.text)
        return "; ".join(filter(None, [self.blame, *parts]))


def lossy_members(item: PlannedItem) -> tuple[str, ...]:
    """Return the labels of the members that may cost quality."""
    members = item.context.get("members")
    if not isinstance(members, Sequence):
        return ()
    return tuple(str(label) for label, kind in members if kind != Kind.EXACT.value)


def column_of(item: PlannedItem) -> Column:
    """Return what cells must share to be compared: suite file (or none), model, surface, profile, device, dtype."""
    context = item.context
    suite = item.cell.rpartition("::")[0] if context.get("suite_model") is not None else ""
    names = ("suite_model", "model", "device", "dtype", "seed")
    return (suite, item.surface, item.profile, *(str(context.get(n)) for n in names))


def findings(judged: Iterable[Judged]) -> tuple[Finding, ...]:
    """Return what the records say about every stack of several lossy members, in plan order."""
    cells: Cells = {}
    stacks: list[Judged] = []
    for item, record, verdict in judged:
        lossy = lossy_members(item)
        if item.surface != Surface.MODEL.value or not lossy or record is None:
            continue
        cells.setdefault((column_of(item), frozenset(lossy), item.check), []).append(record)
        if len(lossy) > 1:
            stacks.append((item, record, verdict))
    return tuple(f for item, record, verdict in stacks for f in _of_stack(item, record, verdict, cells))


def _of_stack(
    item: PlannedItem,
    record: Record | None,
    verdict: Verdict,
    cells: Cells,
) -> Iterable[Finding]:
    column, lossy = column_of(item), lossy_members(item)
    if record is None:
        return

    def find(members: Iterable[str]) -> Record | None:
        found = cells.get((column, frozenset(members), item.check), [])
        return next((r for r in found if same_baseline(record, [r])), found[0] if found else None)

    alone = {name: find([name]) for name in lossy}
    rest = {name: find(m for m in lossy if m != name) for name in lossy}
    for metric in record.metrics:
        if metric.effect is None or not metric.limit or metric.name in ("entries", "bytes"):
            continue
        if metric.p_pass is None:  # a deterministic check: nothing adds up there
            continue
        singles = {name: _effect(r, metric.name) for name, r in alone.items()}
        without = {name: _effect(r, metric.name) for name, r in rest.items()}
        failed = verdict is Verdict.FAIL and metric.verdict != Verdict.PASS.value
        yield Finding(
            cell=item.cell,
            check=item.check,
            metric=metric.name,
            full=metric.effect,
            singles=singles,
            without=without,
            contrast=contrast_of(metric, record, alone),
            blame=_blame(metric, record, singles, without, (alone, rest)) if failed else "",
        )


def _blame(
    metric: Metric,
    full: Record,
    singles: Mapping[str, float | None],
    without: Mapping[str, float | None],
    cells: tuple[Mapping[str, Record | None], Mapping[str, Record | None]],
) -> str:
    """Return who is to blame, judged on the data that all cells share where they kept it."""
    members = list(singles)
    records = [full, *(r for part in cells for r in part.values() if r is not None)]
    if not same_baseline(full, records[1:]):
        return "who is to blame is not known: the cells have different baselines"
    complete = len(records) == 1 + 2 * len(members)
    shared = effects_on_shared_data(metric, records) if complete else None
    judged = None
    if shared is not None:
        alone, rest = shared[1 : 1 + len(members)], shared[1 + len(members) :]
        judged = (shared[0], dict(zip(members, alone, strict=True)), dict(zip(members, rest, strict=True)))
    return blame(metric.effect or 0.0, singles, without, metric.limit or 0.0, shared=judged, unit=metric.unit)


def _effect(record: Record | None, name: str) -> float | None:
    """Return the loss of a cell in one quantity; where patterns were screened, in the pattern that is worst for that cell."""
    metrics: Sequence[Metric] = record.metrics if record is not None else ()
    exact = next((m.effect for m in metrics if m.name == name), None)
    if exact is not None:
        return exact
    like = [m.effect for m in metrics if _pattern_free(m.name) == _pattern_free(name) and m.p_pass is not None]
    return like[0] if len(like) == 1 else None


def _pattern_free(name: str) -> str:
    """Return a quantity without its call pattern: screening gates each cell in its own worst one."""
    return re.sub(r"\[(?:one-shot|token|warm-prefix|batch(?:-left|-right)?|chunk-\d+)\]$", "", name)


def unmeasured_singles(
    items: Iterable[PlannedItem], records: Mapping[str, Record] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return, by cell, the lossy members that no planned cell of the same column measures alone.

    `records` holds one record per cell, as far as there are some: a single on another baseline is no single of the stack.
    """
    known = records or {}
    singles: dict[tuple[Column, str], list[str]] = {}
    stacks: dict[str, tuple[Column, tuple[str, ...]]] = {}
    for item in items:
        lossy = lossy_members(item)
        if item.surface not in _COMPARED:
            continue
        if len(lossy) == 1:
            singles.setdefault((column_of(item), lossy[0]), []).append(item.cell)
        elif lossy:
            stacks[item.cell] = (column_of(item), lossy)

    def measured(cell: str, column: Column, member: str) -> bool:
        found = singles.get((column, member), [])
        return any(cell not in known or c not in known or same_baseline(known[cell], [known[c]]) for c in found)

    found = {cell: tuple(m for m in lossy if not measured(cell, column, m)) for cell, (column, lossy) in stacks.items()}
    return {cell: missing for cell, missing in found.items() if missing}
