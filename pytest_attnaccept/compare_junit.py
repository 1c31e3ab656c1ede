"""One comparison of recorded runs becomes a JUnit file with one testcase, which is green only for PASS."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.records import write_atomically
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import Decision

__all__ = ["write_comparison"]

_HEADER = '<?xml version="1.0" encoding="utf-8"?>\n'


def write_comparison(path: Path, name: str, decision: Decision | None, text: str) -> None:
    """Write one testcase: a failure for every verdict but PASS, an error when there is no decision (bad input)."""
    failed = decision is not None and decision.verdict is not Verdict.PASS
    suite = ET.Element(
        "testsuite",
        name="attnaccept",
        tests="1",
        failures=str(int(failed)),
        errors=str(int(decision is None)),
        skipped="0",
    )
    case = ET.SubElement(suite, "testcase", classname="attnaccept.compare", name=name, time="0.000")
    if decision is None:
        ET.SubElement(case, "error", message=_clean(text)).text = _clean(text)
    else:
        holder = ET.SubElement(case, "properties")
        for key, value in _properties(decision):
            ET.SubElement(holder, "property", name=key, value=_clean(value))
        if failed:
            message = _clean(f"{decision.verdict.value}: {decision.headline}")
            ET.SubElement(case, "failure", message=message).text = _clean(text)
    root = ET.Element("testsuites")
    root.append(suite)
    try:
        write_atomically(path, _HEADER + ET.tostring(root, encoding="unicode") + "\n")
    except OSError as problem:
        raise RecordError(f"{path}: cannot be written: {problem}") from problem


def _properties(decision: Decision) -> list[tuple[str, str]]:
    rows = [("attnaccept.verdict", decision.verdict.value)]
    for metric in decision.metrics:
        prefix = f"attnaccept.metric.{metric.name}"
        numbers = (("", metric.effect), (".ci_low", metric.ci_low), (".ci_high", metric.ci_high), (".n", metric.n))
        rows += [(prefix + suffix, f"{value:.6g}") for suffix, value in numbers if value is not None]
        rows += [(prefix + ".limit", f"{metric.limit:g}")] if metric.limit is not None else []
    return rows[:25]


def _clean(text: str) -> str:
    """Replace control characters, for which XML has no place."""
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)
