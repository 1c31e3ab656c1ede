"""A judged run -> its matrix: one row per cell with verdict, losses, interaction, certified range and cost.

Written as aligned text for a terminal and as Markdown. ``python -m pytest_attnaccept.reports.matrix DIR`` prints the Markdown
of the records under a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.completeness import GateResult, ItemResult
from pytest_attnaccept.compounding import Finding
from pytest_attnaccept.errors import AttnAcceptError, RecordError
from pytest_attnaccept.records import Metric, write_atomically
from pytest_attnaccept.taxonomy import Surface, Verdict, worst_of

__all__ = ["MatrixRow", "markdown", "matrix_lines", "matrix_rows", "write_markdown"]

_HEAD = ("cell", "verdict", "perplexity", "retrieval (worst)", "interaction", "certified", "drafts", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One cell of the matrix, ready to be shown.

    Attributes
    ----------
    deciding
        Check whose verdict is the cell's.
    certified
        Longest tier up to which every retrieval check passes, with its length in tokens.
    drafts
        Acceptance length of speculation, baseline and candidate.
    """

    group: str
    cell: str
    verdict: Verdict
    deciding: str
    perplexity: str
    retrieval: str
    interaction: str
    certified: str
    drafts: str
    seconds: float
    baseline: str

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the columns as text."""
        verdict = self.verdict.value + (f" ({self.deciding})" if self.deciding else "")
        return (
            self.cell, verdict, self.perplexity, self.retrieval, self.interaction, self.certified, self.drafts,
            f"{self.seconds:.0f} s",
        )  # fmt: skip


def matrix_rows(result: GateResult) -> list[MatrixRow]:
    """Return one row per model-level cell, in plan order."""
    cells: dict[str, list[ItemResult]] = {}
    for r in result.results:
        if r.item.surface == Surface.MODEL.value:
            cells.setdefault(r.item.cell, []).append(r)
    return [_row(cell, items, [f for f in result.findings if f.cell == cell]) for cell, items in cells.items()]


def is_matrix(result: GateResult) -> bool:
    """Whether a run has more than one model-level cell, so that a table says more than its lines."""
    return len({r.item.cell for r in result.results if r.item.surface == Surface.MODEL.value}) > 1


def _row(cell: str, items: Sequence[ItemResult], found: Sequence[Finding]) -> MatrixRow:
    group, _, name = cell.rpartition("::")
    verdict = worst_of([r.verdict for r in items])
    deciding = next((r.item.check for r in items if r.verdict is verdict), "") if verdict.blocks else ""
    return MatrixRow(
        group=group,
        cell=name,
        verdict=verdict,
        deciding=deciding,
        perplexity=_loss(items, ("perplexity",)),
        retrieval=_loss(items, ("needle", "long-range")),
        interaction=_interaction(found),
        certified=_certified(items),
        drafts=_drafts(items),
        seconds=sum(r.record.seconds for r in items if r.record is not None),
        baseline=_baseline(items),
    )


def _metrics(items: Sequence[ItemResult], families: Sequence[str]) -> list[tuple[Metric, str]]:
    return [
        (metric, r.item.check)
        for r in items
        if r.record is not None
        for metric in r.record.metrics
        if metric.name.partition("[")[0] in families and metric.effect is not None
    ]


def _loss(items: Sequence[ItemResult], families: Sequence[str]) -> str:
    """Return the worst loss among some families of metrics: the largest upper end among its metrics, with its margin."""
    found = _metrics(items, families)
    if not found:
        return "-"
    metric, check = max(found, key=lambda pair: pair[0].ci_high if pair[0].ci_high is not None else float("inf"))
    low, high = (f"{x:+.1%}" if x is not None else "?" for x in (metric.ci_low, metric.ci_high))
    where = f" {check.removeprefix('needle-')}" if metric.name.partition("[")[0] != "perplexity" else ""
    return f"{metric.effect:+.1%} [{low}, {high}] of {metric.limit:.0%}{where}"


def _interaction(found: Sequence[Finding]) -> str:
    """Return the interaction that decides: one that compounds, else one that is undecided, else the largest."""
    contrasts = [(f.metric, f.contrast) for f in found if f.contrast is not None]
    if not contrasts:
        return "singles missing" if any(None in f.singles.values() for f in found) else "-"
    order = {True: 0, None: 1, False: 2}
    metric, contrast = min(contrasts, key=lambda pair: (order[pair[1].compounds], -(pair[1].upper or 0.0)))
    return f"{contrast.short} ({metric})"


def _certified(items: Sequence[ItemResult]) -> str:
    tiers = sorted(
        (float(r.item.check.removeprefix("needle-").removesuffix("x")), r)
        for r in items
        if r.item.check.startswith("needle-") and _is_number(r.item.check.removeprefix("needle-").removesuffix("x"))
    )
    best = ""
    for tier, r in tiers:
        if r.verdict is not Verdict.PASS or r.record is None:
            return best or "nothing"
        best = f"{tier:g}x ({r.record.facts.get('length', '?')})"
    return best or "-"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _drafts(items: Sequence[ItemResult]) -> str:
    for r in items:
        if r.item.check == "speculation":
            facts = r.record.facts if r.record is not None else {}
            before, after = (facts.get(f"{side}_acceptance_length") for side in ("baseline", "candidate"))
            return f"{before} -> {after}" if before is not None else r.verdict.value
    return "-"


def _baseline(items: Sequence[ItemResult]) -> str:
    """Return what the baseline of the column reaches, from the facts of any of its cells."""
    facts = {k: v for r in items if r.record is not None for k, v in r.record.facts.items()}
    parts = []
    if isinstance(facts.get("ppl_baseline"), (int, float)):
        parts.append(f"perplexity {facts['ppl_baseline']:.4g}")
    if isinstance(facts.get("baseline_generated"), (int, float)):
        parts.append(f"retrieval {facts['baseline_generated']:.1%}")
    return ", ".join(parts)


def matrix_lines(result: GateResult) -> list[str]:
    """Return the table as aligned text; nothing for a run without a matrix."""
    if not is_matrix(result):
        return []
    lines: list[str] = []
    for group, rows in _groups(result).items():
        texts = [_HEAD, *(row.texts for row in rows)]
        widths = [max(len(t[i]) for t in texts) for i in range(len(_HEAD))]
        kept = [i for i in range(len(_HEAD)) if i < 2 or any(t[i] != "-" for t in texts[1:])]
        lines.append(f"matrix {group}: {len(rows)} cells, {sum(row.seconds for row in rows):.0f} s measured")
        lines += ["  " + "  ".join(t[i].ljust(widths[i]) for i in kept).rstrip() for t in texts]
        lines += [f"  baseline of {name}: {text}" for name, text in _baselines(rows).items()]
    return lines


def markdown(result: GateResult) -> str:
    """Return the matrix as a Markdown document: a table per suite, and what is to say about each stack."""
    parts = [f"# Gate {result.verdict.value} under profile {result.profile}", f"A PASS claims: {result.claim}"]
    parts += [f"* problem: {_cell(problem)}" for problem in result.problems]
    for group, rows in _groups(result).items():
        table = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
        table += ["| " + " | ".join(_cell(text) for text in row.texts) + " |" for row in rows]
        parts += [f"## {group or 'tests'}", "\n".join(table)]
        parts += [f"* baseline of {name}: {text}" for name, text in _baselines(rows).items()]
    said = [f"* `{f.cell}[{f.check}]` {f.metric}: {_cell(f.text)}" for f in result.findings if f.text]
    parts += ["## Stacks", "\n".join(said)] if said else []
    blocking = [f"* {_cell(r.headline)}" for r in result.blocking]
    parts += ["## What blocks it", "\n".join(blocking)] if blocking else []
    return "\n\n".join(parts) + "\n"


def _groups(result: GateResult) -> dict[str, list[MatrixRow]]:
    groups: dict[str, list[MatrixRow]] = {}
    for row in matrix_rows(result):
        groups.setdefault(row.group, []).append(row)
    return groups


def _baselines(rows: Sequence[MatrixRow]) -> dict[str, str]:
    """Return one line per column (what stands before the first dot of a cell's name)."""
    found: dict[str, str] = {}
    for row in rows:
        column = row.cell.partition(".")[0]
        if row.baseline and len(row.baseline) > len(found.get(column, "")):
            found[column] = row.baseline
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write_markdown(path: Path, result: GateResult) -> None:
    """Write the matrix as a Markdown file."""
    write_atomically(path, markdown(result))


def _main(argv: Sequence[str]) -> int:
    from pytest_attnaccept.completeness import judge
    from pytest_attnaccept.shards import collect_tree

    if len(argv) != 1:
        raise RecordError("usage: python -m pytest_attnaccept.reports.matrix DIR")
    plan, records, problems = collect_tree(Path(argv[0]))
    if plan is None:
        raise RecordError(f"{argv[0]}: holds no plan; what was required is unknown")
    result = judge(plan, records, problems)
    print(markdown(result), end="")
    return 0 if result.verdict is Verdict.PASS else 1


if __name__ == "__main__":
    try:
        sys.exit(_main(sys.argv[1:]))
    except AttnAcceptError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
