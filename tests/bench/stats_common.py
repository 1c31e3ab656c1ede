"""Every statistics table is stored with the command, the commit and the seeds that made it, and its thresholds.

A script calls `publish` with rows and checks; the checks are fixed in the script and committed before the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def _commit() -> str:
    """Give the commit that makes the numbers; a change of the statistics on top of it is marked."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    paths = ["pytest_attnaccept/stats", "tests/bench"]
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "--", *paths], capture_output=True, text=True, check=True
    )
    touched = [line for line in changed.stdout.splitlines() if "stats" in line and "/results/" not in line]
    return head + (" with uncommitted changes" if touched else "")


COMMIT = _commit()  # at the start of the run: the code that is imported, not what was written meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One threshold, fixed before the run: the value must not exceed the limit (or must reach it)."""

    name: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the threshold is met (NaN: no)."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def options(description: str) -> argparse.Namespace:
    """Read the options that every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a few percent of the work, nothing stored")
    parser.add_argument("--seed", type=int, required=True, help="seed that no earlier run of this script used")
    return parser.parse_args()


def publish(
    name: str,
    title: str,
    seed: int,
    counts: Mapping[str, object],
    tables: Mapping[str, Sequence[Mapping[str, object]]],
    checks: Sequence[Check],
    *,
    quick: bool,
) -> int:
    """Print the tables, store them unless quick, and return 1 when a threshold does not hold."""
    text = [f"# {title}", ""]
    command = f"python tests/bench/{Path(sys.argv[0]).name} --seed {seed}"
    text += [f"`{command}` at commit {COMMIT}, seed {seed}; {', '.join(f'{k}: {v}' for k, v in counts.items())}", ""]
    for heading, rows in tables.items():
        text += [f"## {heading}", "", *_markdown(rows), ""]
    text += ["## Thresholds (fixed before the run)", "", *_markdown([_row(check) for check in checks]), ""]
    print("\n".join(text))
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        stored = {
            "command": command,
            "commit": COMMIT,
            "seed": seed,
            "counts": dict(counts),
            "tables": {k: list(v) for k, v in tables.items()},
            "checks": [_row(check) for check in checks],
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        (RESULTS / f"{name}.md").write_text("\n".join(text), encoding="utf-8")
    return 0 if all(check.holds for check in checks) else 1


def _row(check: Check) -> dict[str, object]:
    relation = ">=" if check.at_least else "<="
    return {
        "check": check.name,
        "value": round(check.value, 5),
        "limit": f"{relation} {check.limit:g}",
        "holds": check.holds,
    }


def _markdown(rows: Sequence[Mapping[str, object]]) -> list[str]:
    if not rows:
        return ["(no rows)"]
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(_text(row[name]) for name in names) + " |" for row in rows]


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
