"""A suite as it is run by a user -> its matrix as a stored table, with command, commit, seed and CPU time.

``python tests/bench/matrix_tables.py suites/matrix.accept.yaml smoke --seed 0``
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from stats_common import COMMIT, RESULTS

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("profile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--expect", default="PASS", help="verdict of the run, fixed before it")
    parser.add_argument("--out", help="keep the records there, and go on with what is there (--accept-resume)")
    parser.add_argument("--only", help="pytest -k expression for a trial; nothing is stored")
    args = parser.parse_args()
    given = [args.suite, f"--accept-profile={args.profile}", f"--accept-seed={args.seed}"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or temporary
        more = [*(["-k", args.only] if args.only else []), *(["--accept-resume"] if args.out else [])]
        command = [
            sys.executable,
            "-m",
            "pytest",
            *given,
            f"--accept-out={folder}",
            "-q",
            "-p",
            "no:cacheprovider",
            *more,
        ]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = [sys.executable, "-m", "pytest_attnaccept.reports.matrix", folder]
        table = subprocess.run(report, cwd=ROOT, capture_output=True, text=True, check=False)
    text = (
        f"`pytest {' '.join(given)}` at commit {COMMIT}, exit status {run.returncode},"
        f" {spent.ru_utime + spent.ru_stime:.0f} CPU seconds{' in the last run that went on with stored records' if args.out else ''} (costs in the table are seconds of a shared machine)\n\n"
        + table.stdout.replace(folder, "DIR")
    )
    print(text, table.stderr, run.stdout[-2000:] if not table.stdout else "")
    if not args.only and table.stdout:
        RESULTS.mkdir(exist_ok=True)
        name = Path(args.suite).name.removesuffix(".accept.yaml").replace("-", "_")
        (RESULTS / f"{name}_table.md").write_text(text, encoding="utf-8")
    return 0 if f"# Gate {args.expect} " in table.stdout else 1


if __name__ == "__main__":
    sys.exit(main())
