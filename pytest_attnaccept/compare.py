"""Two recorded runs of the same items give a verdict without running a model: PASS, FAIL, or why neither.

``python -m pytest_attnaccept compare BASE.jsonl CAND.jsonl --margin 0.02 [--metric acc] [--method kv4] [--junit FILE]``
exits with 0 for PASS, 1 for FAIL and 2 for everything else, bad input included.

Positions
---------
1. A log under several filters is compared under each of them, and the worst decides; ``--filter`` names one beforehand.
2. A KV method needs generated answers: log-likelihood requests are scored in one forward pass that never reads a
   compressed cache, so they cannot see what the method loses.
3. A run that was compared with itself, and an approximate method that changed no answer, prove nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.compare_junit import write_comparison
from pytest_attnaccept.errors import AttnAcceptError, RecordError, UsageError
from pytest_attnaccept.limits import Limit
from pytest_attnaccept.log_metrics import choose_metric
from pytest_attnaccept.log_pairs import PairedLog, pair_samples
from pytest_attnaccept.log_refusals import blind, mostly_void, not_exact, vacuous
from pytest_attnaccept.log_tables import is_table, pair_tables, read_table
from pytest_attnaccept.logs import SampleLog, read_samples
from pytest_attnaccept.measurement import Fact, Measured, PairedCounts, PairedScores, Refusal
from pytest_attnaccept.records import Metric
from pytest_attnaccept.taxonomy import Method, Verdict
from pytest_attnaccept.verdict import Decision, decide

__all__ = ["Comparison", "compare_logs", "compare_main", "measure_logs"]

_EXIT = {Verdict.PASS: 0, Verdict.FAIL: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The verdict on two recorded runs, and the lines that explain it."""

    verdict: Verdict
    decision: Decision
    measured: Measured
    pairs: tuple[PairedLog, ...]
    lines: tuple[str, ...]


def measure_logs(
    baseline: Path,
    candidate: Path,
    *,
    metric: str | None = None,
    filter_name: str | None = None,
    method: Method | None = None,
    cluster: str | None = None,
    chance: float = 0.0,
    through_cache: bool = False,
) -> tuple[Measured, tuple[PairedLog, ...]]:
    """Read and pair two logs (or two NLL tables) into gates and refusals, one gate per filter.

    ``metric`` may carry a filter as in lm-eval's results ("exact_match,strict-match"). ``through_cache`` states that an
    NLL table was measured through the compressed cache.
    """
    if is_table(baseline) != is_table(candidate):
        raise RecordError(f"{baseline} and {candidate} are of different kinds: two sample logs or two NLL tables")
    pairs: tuple[PairedLog, ...]
    if is_table(baseline):
        first, second = read_table(baseline), read_table(candidate)
        pairs = (pair_tables(first, second),)
        digests = first.digest + second.digest
    else:
        base, cand = read_samples(baseline), read_samples(candidate)
        if metric is not None and filter_name is None and metric.count(",") == 1 and metric not in base.metrics:
            metric, filter_name = metric.split(",")
        chosen = choose_metric(base, cand, metric)
        filters = _filters(base, cand) if filter_name is None else (filter_name,)
        pairs = tuple(pair_samples(base, cand, chosen, f, cluster=cluster, chance=chance) for f in filters)
        digests = base.digest + cand.digest
    unseen = blind(baseline, candidate, pairs, method, through_cache)
    measured = Measured(
        # Logs that cannot show the effect at all are not compared: neither a PASS nor a FAIL would be about the method.
        gates=() if unseen else tuple(pair.gate for pair in pairs),
        facts=tuple(fact for pair in pairs for fact in _facts(pair)),
        refusals=(
            *(Refusal(verdict=Verdict.INVALID, reason=reason) for reason in (*unseen, *vacuous(pairs, method))),
            *not_exact(pairs, method),
            *mostly_void(pairs),
        ),
        data_digest=hashlib.sha256(digests.encode()).hexdigest(),
    )
    return measured, pairs


def _filters(base: SampleLog, cand: SampleLog) -> tuple[str, ...]:
    """Return the filters to compare; one that only the candidate has would go unseen."""
    extra = [name for name in cand.filters if name not in base.filters]
    if extra:
        raise RecordError(
            f"{cand.path}: has rows of filter {', '.join(map(repr, extra))}, which {base.path} lacks (it has:"
            f" {', '.join(base.filters)}); name the filter to compare with --filter"
        )
    return base.filters


def _facts(pair: PairedLog) -> list[Fact]:
    return [
        Fact(name=f"{pair.name}.items", value=pair.items),
        Fact(name=f"{pair.name}.lost", value=pair.losses),
        Fact(name=f"{pair.name}.gained", value=pair.gains),
        Fact(name=f"{pair.name}.unanswered", value=pair.lost_answers),
        Fact(name=f"{pair.name}.void", value=pair.void),
        *(Fact(name=f"{pair.name}.note", value=note) for note in pair.notes),
    ]


def compare_logs(
    baseline: Path,
    candidate: Path,
    margin: float,
    *,
    metric: str | None = None,
    filter_name: str | None = None,
    method: Method | None = None,
    cluster: str | None = None,
    chance: float = 0.0,
    through_cache: bool = False,
    origin: str = "policy: --margin of this comparison",
) -> Comparison:
    """Compare two recorded runs with a margin: an absolute fraction of the score, or of perplexity for NLL tables."""
    if not 0 < margin < 1:
        raise UsageError(f"margin {margin:g} must lie in (0, 1): it is an absolute fraction, 2 points are 0.02")
    if not 0 <= chance < 1:
        raise UsageError(f"chance {chance:g} must lie in [0, 1): the score of a blind guess, 0.25 for four choices")
    measured, pairs = measure_logs(
        baseline,
        candidate,
        metric=metric,
        filter_name=filter_name,
        method=method,
        cluster=cluster,
        chance=chance,
        through_cache=through_cache,
    )
    limit = Limit(max=margin, origin=origin)
    decision = decide(measured, {pair.name: limit for pair in pairs}, family=len(pairs))
    lines = [f"attnaccept compare: {decision.verdict.value}: {decision.headline}"]
    for pair, result in zip(pairs, decision.metrics, strict=False):  # no metrics when the logs were refused
        lines += _explain(pair, result, margin)
    lines += [f"  refused: {refusal.reason}" for refusal in measured.refusals]
    return Comparison(verdict=decision.verdict, decision=decision, measured=measured, pairs=pairs, lines=tuple(lines))


def _explain(pair: PairedLog, result: Metric, margin: float) -> list[str]:
    """Say for one gate what was found and what would decide it."""
    lines = [f"  {result.verdict:<13} {pair.name}: n={pair.items}, margin {margin:g}"]
    if result.effect is not None and result.ci_low is not None and result.ci_high is not None:
        lines.append(f"    loss {result.effect:+.4f}, one-sided bounds {result.ci_low:+.4f} and {result.ci_high:+.4f}")
    lines.append(f"    discordant: {pair.losses} lost, {pair.gains} gained")
    lines += [f"    note: {note}" for note in pair.notes]
    if result.verdict == Verdict.INCONCLUSIVE.value:
        lines.append(f"    {_advice(pair, result.ci_high, margin)}")
    return lines


def _advice(pair: PairedLog, upper: float | None, margin: float) -> str:
    """Say how many items would decide, and whether more are likely to help."""
    from pytest_attnaccept.stats import hopeless, items_to_decide, items_to_decide_scores

    gate = pair.gate
    if isinstance(gate, PairedCounts):
        needed = items_to_decide(gate.losses, gate.gains, gate.n, margin)
        if needed is None:
            return "no practical number of items decides this at the observed difference"
        text = f"needed: about {needed} items in total (80 % chance of PASS if the rest shows no loss)"
        if gate.losses > gate.gains and hopeless(gate.losses, gate.gains, gate.n, max(needed, gate.n), margin):
            text += "; at the observed loss more items are hopeless"
        return text
    if isinstance(gate, PairedScores):
        needed = items_to_decide_scores(gate.losses, margin, upper=upper)
        if needed is None:
            return "no practical number of items decides this at the observed difference"
        return f"needed: about {needed} items in total (80 % chance of PASS if the rest shows no loss)"
    return "needed: more documents (20 at least, 100 when their losses are skewed), or a larger margin"


def compare_main(argv: Sequence[str]) -> int:
    """Run the command; 0 PASS, 1 FAIL, 2 anything else."""
    parser = _parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    name = "compare" if args.method is None else f"compare-{args.method}"
    try:
        method = None if args.method is None else _method(args.method)
        result = compare_logs(
            args.baseline,
            args.candidate,
            args.margin,
            metric=args.metric,
            filter_name=args.filter,
            method=method,
            cluster=args.cluster,
            chance=args.chance,
            through_cache=args.through_cache,
        )
        print("\n".join(result.lines))
        if args.junit is not None:
            write_comparison(args.junit, name, result.decision, "\n".join(result.lines))
    except AttnAcceptError as error:
        return _report_error(args.junit, name, str(error))
    return _EXIT.get(result.verdict, 2)


def _report_error(junit: Path | None, name: str, text: str) -> int:
    """Say what is wrong with the input, also in the JUnit file where one is wanted and possible."""
    print(f"attnaccept compare: ERROR: {text}", file=sys.stderr)
    if junit is not None:
        with suppress(RecordError):  # the file itself may be what cannot be written
            write_comparison(junit, name, None, text)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_attnaccept compare",
        description="Compare two lm-eval sample logs (samples_*.jsonl) or two NLL tables (document,tokens,nll).",
        epilog="exit status: 0 PASS, 1 FAIL, 2 anything else",
    )
    parser.add_argument("baseline", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument(
        "--margin", type=float, required=True, help="largest tolerated loss as a fraction: 2 points are 0.02"
    )
    parser.add_argument("--metric", help='metric of the log, such as acc or "exact_match,strict-match"')
    parser.add_argument("--filter", help="answer filter (default: every filter, the worst decides)")
    parser.add_argument("--method", help="registered method of the candidate: its kind and layer decide what may count")
    parser.add_argument(
        "--cluster", help="field of the document that several items share (a passage): averaged per value"
    )
    parser.add_argument("--chance", type=float, default=0.0, help="score of a blind guess, 0.25 for four choices")
    parser.add_argument(
        "--through-cache", action="store_true", help="the NLL tables were measured through the KV cache"
    )
    parser.add_argument("--junit", type=Path, help="write a JUnit file with one testcase")
    return parser


def _method(name: str) -> Method:
    from pytest_attnaccept.registry import Registry

    return Registry.builtin().get(name, "--method")
