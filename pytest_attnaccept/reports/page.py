"""One run -> one HTML file without scripts, fonts or links to anywhere: verdict, what blocks it, every item with its numbers."""

from __future__ import annotations

from html import escape
from pathlib import Path

from pytest_attnaccept.completeness import GateResult, ItemResult
from pytest_attnaccept.records import Metric, write_atomically
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["page", "write_page"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1d2330; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .3rem .6rem; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid #dde1e8; } .n { text-align: right; font-variant-numeric: tabular-nums; }
.v { font-weight: 600; white-space: nowrap; } .PASS { color: #116b36; } .NOT_APPLICABLE { color: #667; }
.FAIL, .INVALID { color: #a11220; } .INCONCLUSIVE, .INCOMPLETE { color: #8a5a00; }
.bar { position: relative; background: #eef1f5; height: .8rem; width: 10rem; }
.bar i { position: absolute; background: #6b7fa8; height: 100%; }
.bar b { position: absolute; width: 2px; height: 100%; background: #a11220; }
small { color: #566; }
"""


def write_page(path: Path, result: GateResult) -> None:
    """Write the report of a run."""
    write_atomically(path, page(result))


def page(result: GateResult) -> str:
    """Return the report as HTML."""
    cells: dict[str, list[ItemResult]] = {}
    for item in result.results:
        cells.setdefault(item.item.cell, []).append(item)
    problems = "".join(f"<li class='FAIL'>{escape(p)}</li>" for p in result.problems)
    blocking = "".join(f"<li class='{r.verdict.value}'>{escape(r.headline)}</li>" for r in result.blocking)
    sections = "".join(_cell(name, items) for name, items in cells.items())
    verdict = result.verdict.value
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>attention acceptance: "
        f"{verdict}</title><style>{_STYLE}</style>"
        f"<h1>Gate <span class='v {verdict}'>{verdict}</span> under profile {escape(result.profile)}</h1>"
        f"<p>{result.count(Verdict.PASS)} of {len(result.results)} planned items pass."
        f"<br><small>A PASS claims: {escape(result.claim)}</small></p>"
        + (f"<h2>What blocks it</h2><ul>{problems}{blocking}</ul>" if problems or blocking else "")
        + sections
        + "</html>\n"
    )


def _cell(name: str, items: list[ItemResult]) -> str:
    rows = "".join(_rows(r) for r in items)
    stack = escape(items[0].item.stack)
    return (
        f"<h2>{escape(name)}</h2><p><small>{stack} ({escape(items[0].item.kind)})</small></p><table><tr><th>check</th>"
        "<th>verdict</th><th>metric</th><th class='n'>loss</th><th>interval and margin</th><th class='n'>n</th></tr>"
        f"{rows}</table>"
    )


def _rows(result: ItemResult) -> str:
    head = (
        f"<td title='{escape(result.item.reason, quote=True)}'>{escape(result.item.check)}</td>"
        f"<td class='v {result.verdict.value}'>{result.verdict.value}</td>"
    )
    metrics = result.record.metrics if result.record else ()
    if not metrics:
        return f"<tr>{head}<td colspan='4'>{escape(result.headline)}</td></tr>"
    first, *rest = metrics
    rows = [f"<tr>{head}{_metric(first)}</tr>"]
    rows += [f"<tr><td></td><td class='v {m.verdict}'>{m.verdict}</td>{_metric(m)}</tr>" for m in rest]
    return "".join(rows)


def _metric(metric: Metric) -> str:
    effect = "" if metric.effect is None else f"{metric.effect:.4g}"
    loosened = f" <b>(loosened from {metric.loosened_from:g})</b>" if metric.loosened_from is not None else ""
    return (
        f"<td>{escape(metric.name)} <small>{escape(metric.unit)}</small></td><td class='n'>{effect}</td>"
        f"<td>{_bar(metric)}<small>{escape(metric.text)}{loosened}</small></td><td class='n'>{metric.n or ''}</td>"
    )


def _bar(metric: Metric) -> str:
    """Draw the interval against the margin: the margin is the red line at three quarters of the width."""
    if metric.ci_low is None or metric.ci_high is None or not metric.limit:
        return ""
    span = metric.limit / 0.75
    low, high = (min(max(x / span, 0.0), 1.0) * 100 for x in (metric.ci_low, metric.ci_high))
    return f"<div class='bar'><i style='left:{low:.1f}%;width:{max(high - low, 0.5):.1f}%'></i><b style='left:75%'></b></div>"
