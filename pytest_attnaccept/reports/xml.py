"""One run -> JUnit XML without pytest: one testcase per planned item, for the job that merges shards."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from pytest_attnaccept.completeness import GateResult
from pytest_attnaccept.records import write_atomically
from pytest_attnaccept.reports.junit import properties

__all__ = ["junit", "write_junit"]

# XML 1.0 has no place for most control characters, whatever the escaping.
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def write_junit(path: Path, result: GateResult) -> None:
    """Write the JUnit file of a run."""
    write_atomically(path, junit(result))


def junit(result: GateResult) -> str:
    """Return JUnit XML; problems of the run itself are a failing testcase of their own."""
    blocking = len(result.blocking) + bool(result.problems)
    total = len(result.results) + bool(result.problems)
    suite = ET.Element(
        "testsuite", name="attnaccept", tests=str(total), failures=str(blocking), errors="0", skipped="0"
    )
    for item in result.results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=item.item.cell,
            name=item.item.check,
            time=f"{item.record.seconds if item.record else 0:.3f}",
        )
        if item.record is not None:
            holder = ET.SubElement(case, "properties")
            for name, value in properties(item.record):
                ET.SubElement(holder, "property", name=name, value=_clean(str(value)))
        if item.verdict.blocks:
            ET.SubElement(case, "failure", message=_clean(item.headline)).text = _clean(item.headline)
    if result.problems:
        case = ET.SubElement(suite, "testcase", classname="attnaccept", name="run")
        text = _clean("\n".join(result.problems))
        ET.SubElement(case, "failure", message=text.splitlines()[0]).text = text
    root = ET.Element("testsuites")
    root.append(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _ILLEGAL.sub("?", text)
