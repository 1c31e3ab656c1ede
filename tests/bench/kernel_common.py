"""What the kernel benchmarks share: where a table comes from, and how it is stored."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def provenance(seeds: str) -> dict[str, Any]:
    """Return command, commit, versions and seeds of this run."""
    root = Path(__file__).resolve().parents[2]
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()
    status = subprocess.run(
        ["git", "status", "--porcelain", "--", "pytest_attnaccept/kernel"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    command = " ".join(["python", str(Path(sys.argv[0]).resolve().relative_to(root)), *sys.argv[1:]])
    return {
        "command": command,
        "commit": commit,
        "kernel_package_clean": not status,
        "seeds": seeds,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
    }


def store(name: str, data: dict[str, Any], table: str) -> None:
    """Write ``results/NAME.json`` and ``results/NAME.md``."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(table, encoding="utf-8")


def header(title: str, origin: dict[str, Any]) -> str:
    """Return the heading of a stored table."""
    lines = [f"# {title}", ""]
    lines += [f"- {key}: `{value}`" for key, value in origin.items()]
    return "\n".join([*lines, "", ""])
