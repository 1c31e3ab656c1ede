"""The command line without pytest and without torch: methods, plan, merge, verdict, report, compare, budget."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_attnaccept.errors import AttnAcceptError, RecordError, UnknownNameError

if TYPE_CHECKING:
    from pytest_attnaccept.completeness import GateResult

__all__ = ["entry", "main"]


def methods(argv: Sequence[str]) -> int:
    """Print the registry; with --profile, the checks that each method requires and why."""
    from pytest_attnaccept.reports.methods import depth_lines, method_lines

    parser = argparse.ArgumentParser(prog="python -m pytest_attnaccept methods", description=methods.__doc__)
    parser.add_argument("--profile", help="also print the required checks under this profile")
    parser.add_argument("--method", help="only this method")
    args = parser.parse_args(argv)
    lines = method_lines(args.method) if args.profile is None else depth_lines(args.profile, args.method)
    print("\n".join(lines))
    return 0


def plan(argv: Sequence[str]) -> int:
    """Print the plan of a suite file: items, reasons, sample sizes, power, cost."""
    from pytest_attnaccept.reports.plan import plan_lines
    from pytest_attnaccept.suite_plan import plan_of_suite

    parser = argparse.ArgumentParser(prog="python -m pytest_attnaccept plan", description=plan.__doc__)
    parser.add_argument("suite", type=Path, help="a *.accept.yaml file")
    parser.add_argument("--profile", help="profile name or file (default: the suite's own, else smoke)")
    args = parser.parse_args(argv)
    found, profile = plan_of_suite(args.suite, args.profile)
    print("\n".join(plan_lines(found, profile)))
    return 0


def merge(argv: Sequence[str]) -> int:
    """Copy the plans and records of many shards into one folder."""
    parser = argparse.ArgumentParser(prog="python -m pytest_attnaccept merge", description=merge.__doc__)
    parser.add_argument("shards", type=Path, nargs="+", help="folders that hold records of one release")
    parser.add_argument("--out", type=Path, required=True, help="folder to copy them to")
    args = parser.parse_args(argv)
    count = 0
    for number, shard in enumerate(args.shards):
        if not shard.is_dir():
            raise RecordError(f"{shard}: is not a folder")
        files = [p for pattern in ("plan.*.json", "records.*.jsonl") for p in sorted(shard.rglob(pattern))]
        if not files:
            raise RecordError(
                f"{shard}: holds no plan and no record; a shard that measured nothing cannot be merged away"
            )
        for path in files:
            target = args.out / f"shard-{number}" / path.parent.relative_to(shard)
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.name)
            count += 1
    print(f"merged {count} files of {len(args.shards)} shards into {args.out}")
    return verdict([str(args.out)])


def verdict(argv: Sequence[str]) -> int:
    """Judge the records under a folder; exit 0 only when every planned item passes."""
    from pytest_attnaccept.completeness import judge
    from pytest_attnaccept.reports.terminal import summary_lines
    from pytest_attnaccept.shards import collect_tree

    parser = argparse.ArgumentParser(prog="python -m pytest_attnaccept verdict", description=verdict.__doc__)
    parser.add_argument("folder", type=Path, help="output folder of a run (.attnaccept), or one that holds several")
    parser.add_argument(
        "--shards", type=int, help="how many shards the release has; another number found is INCOMPLETE"
    )
    parser.add_argument("--html", type=Path, help="also write the HTML report")
    parser.add_argument("--junit", type=Path, help="also write JUnit XML, one testcase per item")
    parser.add_argument("--markdown", type=Path, help="also write the matrix as Markdown")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        raise RecordError(f"{args.folder}: is not a folder")
    found, records, problems = collect_tree(args.folder)
    if found is None:
        raise RecordError(f"{args.folder}: holds no plan; what was required is unknown")
    places = len({path.parent for path in args.folder.rglob("plan.*.json")})
    if args.shards is not None and places != args.shards:  # a shard that left nothing behind is in nobody's plan
        problems.append(f"{places} shards of {args.shards} are there; what the others require is unknown")
    result = judge(found, records, problems)
    for line, _ in summary_lines(result, explicit=True, out=args.folder, quality_only=_quality_only(found.profile)):
        print(line)
    _write_reports(args, result)
    return 0 if result.verdict.value == "PASS" else 1


def _write_reports(args: argparse.Namespace, result: GateResult) -> None:
    """Write what was asked for, and say where it is."""
    if args.html is not None:
        from pytest_attnaccept.reports.page import write_page

        write_page(args.html, result)
    if args.markdown is not None:
        from pytest_attnaccept.reports.matrix import write_markdown

        write_markdown(args.markdown, result)
    if args.junit is not None:
        from pytest_attnaccept.reports.xml import write_junit

        write_junit(args.junit, result)
    for path in (args.html, args.markdown, args.junit):
        if path is not None:
            print(f"written: {path}")


def report(argv: Sequence[str]) -> int:
    """Write the HTML report of the records under a folder, and the matrix as Markdown; the exit status is the verdict's."""
    parser = argparse.ArgumentParser(prog="python -m pytest_attnaccept report", description=report.__doc__)
    parser.add_argument("folder", type=Path, help="output folder of a run (.attnaccept), or one that holds several")
    parser.add_argument(
        "--html", type=Path, default=Path("attnaccept.html"), help="where the report goes (default: attnaccept.html)"
    )
    parser.add_argument("--markdown", type=Path, help="also write the matrix as Markdown")
    args = parser.parse_args(argv)
    more = [] if args.markdown is None else ["--markdown", str(args.markdown)]
    return verdict([str(args.folder), "--html", str(args.html), *more])


def compare(argv: Sequence[str]) -> int:
    """Compare two recorded lm-eval sample logs."""
    from pytest_attnaccept.compare import compare_main

    return compare_main(argv)


def budget(argv: Sequence[str]) -> int:
    """Print step time, KV ledger and what a claim may be."""
    from pytest_attnaccept.budget import budget_main

    return budget_main(argv)


def _quality_only(profile: str) -> bool:
    from pytest_attnaccept.profiles import BUILTIN_PROFILES, load_profile

    return profile not in BUILTIN_PROFILES or not load_profile(profile).performance


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "methods": methods,
    "plan": plan,
    "merge": merge,
    "verdict": verdict,
    "report": report,
    "compare": compare,
    "budget": budget,
}


def main(argv: Sequence[str]) -> int:
    """Run one command; 2 is bad input, whatever the command."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m pytest_attnaccept COMMAND ...\n")
        for name, command in COMMANDS.items():
            print(f"  {name:<8} {(command.__doc__ or '').splitlines()[0]}")
        return 0 if argv else 2
    try:
        if argv[0] not in COMMANDS:
            raise UnknownNameError("command", argv[0], COMMANDS)
        return COMMANDS[argv[0]](argv[1:])
    except AttnAcceptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def entry() -> None:
    """Console script: a reader who leaves early (``| head``) changes neither the exit status nor the files that are written."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            status = main(sys.argv[1:])
    finally:
        _write(said.getvalue())
    sys.exit(status)


def _write(text: str) -> None:
    if sys.stdout is None:  # closed before the start
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes there


if __name__ == "__main__":
    entry()
