"""The end of a run in the terminal: verdict first, then what blocks it, worst first, then what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from pytest_attnaccept.completeness import GateResult, ItemResult
from pytest_attnaccept.protocol import LATER_APPROXIMATE
from pytest_attnaccept.reports.matrix import matrix_lines
from pytest_attnaccept.taxonomy import Kind, Surface, Verdict

__all__ = ["summary_lines"]

MOST_SHOWN = 20


def summary_lines(
    result: GateResult, *, explicit: bool, out: Path, quality_only: bool, again: str = ""
) -> list[tuple[str, bool | None]]:
    """Return ``(line, good)``; good is True for green, False for red, None for plain text.

    `again` is the command that measures what is not green.
    """
    lines: list[tuple[str, bool | None]] = []
    good = result.verdict is Verdict.PASS
    if explicit:
        lines.append((f"GATE {result.verdict.value} under profile {result.profile}: {_counts(result)}", good))
    else:
        missing = result.count(Verdict.INCOMPLETE)
        lines.append((f"no gate: {missing} of {len(result.results)} items not run ({_counts(result)})", None))
    lines += [(f"  problem: {text}", False) for text in result.problems]
    blocking = result.blocking
    told = _said_once(blocking)
    lines += [(f"  {text}", False) for text in told[:MOST_SHOWN]]
    if len(told) > MOST_SHOWN:
        lines.append((f"  ... and {len(told) - MOST_SHOWN} more in {_evidence(out, again)}", False))
    lines += [(f"  note: {text}", None) for text in _notes(result)]
    lines += [(text, None) for text in matrix_lines(result)] if explicit else []
    if explicit and good:
        lines.append((f"claim: {result.claim}", None))
    if explicit and not good and result.results:
        rerun = f"; run only what is not green: {_again(result, again)}" if again else ""
        lines.append((f"evidence: {_evidence(out, again)}{rerun}", None))
    if explicit and any(r.item.kind == Kind.APPROXIMATE.value for r in result.results):
        ran = {r.item.check for r in result.results}
        missing_checks = [
            c for c in LATER_APPROXIMATE if not any(check == c or check.startswith(f"{c}-") for check in ran)
        ]
        if missing_checks:
            lines.append((f"not gated yet: {', '.join(missing_checks)}", None))
    if explicit and quality_only:
        lines.append(("quality gate only: performance is not part of this profile's verdict", None))
    return lines


def _again(result: GateResult, again: str) -> str:
    """Return the command that measures what is not green; ``--lf`` would never start an item that was not run at all.

    Nor would ``-k`` or ``-m`` start one that they deselected.
    """
    unmeasured = [r for r in result.blocking if r.record is None]
    if not unmeasured:
        return again
    words = [word for word in shlex.split(again) if word != "--lf"]
    if any("deselected" in r.headline for r in unmeasured):
        selecting = [i for i, word in enumerate(words) if word in ("-k", "-m")]
        words = [word for i, word in enumerate(words) if i not in selecting and i - 1 not in selecting]
    return shlex.join(words)


def _evidence(out: Path, again: str) -> str:
    """Name the file that holds everything; a folder of several shards has none of its own."""
    run = bool(again) or (out / "verdict.json").is_file()
    return f"{_shown(out)}/verdict.json" if run else f"the records under {_shown(out)}"


def _shown(folder: Path) -> str:
    """Return a path as a person here would type it."""
    try:
        return str(folder.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)


def _counts(result: GateResult) -> str:
    total = len(result.results)
    parts = [f"{result.count(Verdict.PASS)} of {total} items PASS"]
    for verdict in Verdict:
        if verdict is not Verdict.PASS and result.count(verdict):
            parts.append(f"{result.count(verdict)} {verdict.value}")
    return ", ".join(parts)


def _short(result: ItemResult) -> str:
    text = result.headline
    return text if len(text) <= 480 else text[:477] + "..."


def _said_once(blocking: Sequence[ItemResult]) -> list[str]:
    """Return a line per blocking item; items that one mistake kept from being measured share a line."""
    groups: dict[object, list[ItemResult]] = {}
    for r in blocking:
        reason = r.headline.partition(f"{r.item.id}: ")[2]
        unmeasured = r.record is not None and not r.record.metrics and r.verdict is Verdict.INCOMPLETE
        groups.setdefault(reason if unmeasured and reason else r.item.id, []).append(r)
    return [
        _short(rs[0])
        if len(rs) == 1
        else _short(rs[0]).replace(rs[0].item.id, f"{rs[0].item.id} and {len(rs) - 1} more", 1)
        for rs in groups.values()
    ]


def _notes(result: GateResult) -> list[str]:
    caps = {r.item.params["max_tokens"] for r in result.results if r.item.params.get("max_tokens") is not None}
    notes = [f"contexts are capped at {cap} tokens, whatever the tier says" for cap in sorted(caps, key=str)]
    for r in result.results:
        for metric in r.record.metrics if r.record else ():
            if metric.loosened_from is not None:
                notes.append(
                    f"{r.item.id}: limit of {metric.name} loosened from {metric.loosened_from:g} to {metric.limit:g}"
                    f" ({metric.origin})"
                )
    return [*notes, *_unasked(result), *_unmeasured_members(result)]


def _unasked(result: GateResult) -> list[str]:
    """Name what a model was not asked, with the reason: neutral must not read as measured."""
    neutral = [
        r for r in result.results if r.verdict is Verdict.NOT_APPLICABLE and r.item.surface == Surface.MODEL.value
    ]
    return [r.headline for r in neutral[:MOST_SHOWN]]


def _unmeasured_members(result: GateResult) -> list[str]:
    """Name the members of a stack that no cell measures alone: a green stack would hide that nobody looked."""
    missing: dict[str, set[str]] = {}
    for finding in result.findings:
        absent = {name for name, value in finding.singles.items() if value is None}
        missing[finding.cell] = missing.get(finding.cell, absent) & absent
    return [f"{cell}: singles not measured: {', '.join(sorted(names))}" for cell, names in missing.items() if names]
