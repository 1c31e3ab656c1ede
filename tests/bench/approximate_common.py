"""What the approximate benches share: one gate per cell through pytest, its records, and a table with its origin in its head.

Every number comes from the public interface: a marked test, a profile file, ``--accept-model`` and ``--accept-seed``. The
records of the run are read back from its output folder.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Imported before pytest runs inside this process: the extension modules of torch cannot be imported twice.
import pytest
import torch
import transformers

RESULTS = Path(__file__).parent / "results"
TEST = """
import pytest
from pytest_attnaccept import Candidate
from transformers import DynamicCache

{mark}
def test_it(accept, accept_model):
    accept.model({call})
"""
NO_OP = "candidate=lambda: Candidate(accept_model.model, cache=lambda: DynamicCache(config=accept_model.model.config))"


def mark(method: str, knobs: Mapping[str, object]) -> str:
    """Write the mark of a method."""
    arguments = ", ".join([f"method={method!r}", *(f"{k}={v!r}" for k, v in knobs.items())])
    return f"@pytest.mark.approximate({arguments})"


def gate(
    method: str, knobs: Mapping[str, object], profile: str, *, model: str, seed: int, call: str = ""
) -> dict[str, dict[str, Any]]:
    """Gate one cell in this process; returns check -> record."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "test_cell.py").write_text(TEST.format(mark=mark(method, knobs), call=call), encoding="utf-8")
        (place / "bench.yaml").write_text(profile, encoding="utf-8")
        (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        options = [
            f"--accept-profile={place / 'bench.yaml'}", f"--accept-model={model}", f"--accept-seed={seed}",
            f"--accept-out={place / 'out'}", "--accept-device=cpu",
        ]  # fmt: skip
        said = io.StringIO()
        for name in ("test_cell",):
            sys.modules.pop(name, None)
        with contextlib.redirect_stdout(said), contextlib.chdir(place):
            pytest.main([str(place), "-q", "-p", "no:cacheprovider", f"--rootdir={place}", *options])
        lines = [
            line for file in (place / "out").glob("records.*.jsonl") for line in file.read_text("utf-8").splitlines()
        ]
        records = {record["check"]: record for record in map(json.loads, lines)}
        if not records:
            raise SystemExit(f"{method} {dict(knobs)}: nothing was recorded\n{said.getvalue()}")
        return records


def prepare() -> None:
    """Use one thread and no network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


def commit() -> str:
    """Return the commit that is measured, marked when the package or this folder is changed on top of it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    paths = ["pytest_attnaccept", "tests/bench/approximate_*.py", "suites"]
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "--", *paths], capture_output=True, text=True, check=True
    )
    return head + (" with uncommitted changes" if changed.stdout.strip() else "")


def markdown(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Render rows of equal keys."""
    if not rows:
        return ["(no rows)"]
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]


def checks(found: Sequence[tuple[str, bool, str]]) -> list[dict[str, object]]:
    """Return thresholds that were fixed before the run, with what was found."""
    return [{"fixed before the run": name, "found": text, "holds": holds} for name, holds, text in found]


def publish(
    name: str,
    title: str,
    head: Mapping[str, object],
    tables: Mapping[str, Sequence[Mapping[str, object]]],
    further: Any,
    *,
    store: bool,
) -> None:
    """Print the tables and store them."""
    text = [f"# {title}", "", *(f"- {key}: {value}" for key, value in head.items()), ""]
    for heading, rows in tables.items():
        text += [f"## {heading}", "", *markdown(rows), ""]
    print("\n".join(text))
    if store:
        RESULTS.mkdir(exist_ok=True)
        body = {"head": dict(head), "tables": {k: [dict(r) for r in v] for k, v in tables.items()}, "data": further}
        (RESULTS / f"{name}.json").write_text(json.dumps(body, indent=1, default=str) + "\n", encoding="utf-8")
        (RESULTS / f"{name}.md").write_text("\n".join(text), encoding="utf-8")
