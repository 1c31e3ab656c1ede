"""Planted compounding in whole pytest runs on toy-gqa: a stack whose cache is worse than either half says, and an honest one.

Three marked tests form the matrix: `kv8` alone, `w4a16` alone, and both. The planted stack stores two bits under the name of
eight, so its halves are harmless and it is not; the honest stack is what its marks say.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from stats_common import Check, options, publish

TESTS = """
import pytest
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs


def stored(loaded, *names):
    methods = [Registry.builtin().get(name) for name in names]
    return apply_stack(loaded.model, [(m, check_knobs(m, {{}}, "bench")) for m in methods]).candidate


@pytest.mark.approximate(method="kv8")
def test_kv8(accept):
    accept.model()


@pytest.mark.approximate(method="w4a16")
def test_w4a16(accept):
    accept.model()


@pytest.mark.approximate(method="w4a16")
@pytest.mark.approximate(method="kv8")
def test_both(accept, accept_model):
    accept.model(candidate=lambda: stored(accept_model, "w4a16", "{cache}"))
"""
HALVES = "hurt only together"


def run(cache: str, seed: int) -> dict[str, object]:
    """Run the three tests once; return what the end of the session says about the stack."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_release.py").write_text(TESTS.format(cache=cache), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", folder),
            *(
                "--accept-profile=smoke",
                "--accept-model=toy-gqa",
                f"--accept-seed={seed}",
                f"--accept-out={folder}/out",
            ),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        verdict = json.loads(Path(folder, "out", "verdict.json").read_text(encoding="utf-8"))
    said = {i["item"].rpartition("[")[2][:-1]: i for i in verdict["items"] if "test_both" in i["item"]}
    singles = {i["verdict"] for i in verdict["items"] if "test_both" not in i["item"]}
    texts = {check: said[check]["headline"] for check in ("perplexity", "needle-1x")}
    return {
        "stack": "planted (2 bits)" if cache == "kv2" else "honest",
        "seed": seed,
        "exit": done.returncode,
        "singles": ", ".join(sorted(singles)),
        "stack verdicts": ", ".join(f"{c} {i['verdict']}" for c, i in said.items() if c in texts),
        "compounds": any("errors compound" in t for t in texts.values()),
        "blame": any(HALVES in t for t in texts.values()),
    }


def main() -> int:
    args = options(__doc__ or "")
    seeds = [args.seed] if args.quick else [args.seed, args.seed + 1]
    rows = [run(cache, seed) for cache in ("kv2", "kv8") for seed in seeds]
    planted, honest = rows[: len(seeds)], rows[len(seeds) :]
    checks = [
        Check(name="planted: exit 1, compounds, both blamed", value=_share(planted, 1, True), limit=1.0, at_least=True),
        Check(
            name="honest: exit 0, nothing compounds, nobody blamed",
            value=_share(honest, 0, False),
            limit=1.0,
            at_least=True,
        ),
    ]
    counts = {"runs": len(rows)}
    tables = {"Whole runs under profile smoke": rows}
    return publish(
        "matrix_end_to_end", "Planted compounding, end to end", args.seed, counts, tables, checks, quick=args.quick
    )


def _share(rows: list[dict[str, object]], status: int, flagged: bool) -> float:
    return sum(r["exit"] == status and r["compounds"] is flagged and r["blame"] is flagged for r in rows) / len(rows)


if __name__ == "__main__":
    sys.exit(main())
