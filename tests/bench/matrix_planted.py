"""Planted interactions through the real verdict: two harmless halves that hurt together, additive pairs, one culprit of three.

The losses by document are real: `w4a16` and `kv4` on toy-gqa, alone and together, measured once. Every seed resamples
documents, so singles, their correlation and the spread of the stack's own contrast are those of a model; the interaction is
planted on top, unevenly over documents. Retrieval is drawn with the answers of all cells on the same questions, additive in
log-odds, in planned looks that stop early. Records are judged by `completeness.judge`, as at the end of a session.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from stats_common import Check, options, publish

from pytest_attnaccept.checks.looks import measure_in_looks
from pytest_attnaccept.completeness import GateResult, judge
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.measurement import ClusteredSums, Measured, PairedScores
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.records import Record
from pytest_attnaccept.stats import plan_looks
from pytest_attnaccept.stats.sequential import SequentialPlan
from pytest_attnaccept.verdict import decide

SMOKE = load_profile("smoke")
MARGIN = math.log1p(SMOKE.limits["perplexity"].max)
CONTEXTS, QUESTIONS = 90, 4
FAMILY = 14
STRENGTH = 1.6  # planted interaction in margins: the stack fails, its halves do not
_ANY = "both"  # a seed is flagged when one quantity compounds, and blamed rightly when no quantity blames wrongly
SHIFT, HURT = 0.2, 4.0  # log-odds that a half costs, and that the halves cost together
INNOCENT = 0.05  # log-odds that the third member costs


def real_losses() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return loss sums and tokens by document of A, B and A + B on the embedded model."""
    import torch

    from pytest_attnaccept.checks.model_session import open_session
    from pytest_attnaccept.registry import Registry, check_knobs

    torch.set_num_threads(1)
    registry = Registry.builtin()
    found = {}
    for name, members in (("A", ["w4a16"]), ("B", ["kv4"]), ("AB", ["w4a16", "kv4"])):
        stack = [(registry.get(m), check_knobs(registry.get(m), {}, "here")) for m in members]
        measured = open_session(baseline="toy-gqa", stack=stack).measure("perplexity", SMOKE.check_params("perplexity"))
        gate = measured.gates[0]
        found[name] = (np.array(gate.sums), np.array(gate.tokens))  # type: ignore[union-attr]
    return found


def item(members: str, check: str) -> PlannedItem:
    return PlannedItem(
        cell=f"matrix::gqa.{members}", check=check, kind="approximate", surface="model", methods=tuple(members),
        stack=" + ".join(members), reason="", profile="smoke", static="s",
        context={"members": [[m, "approximate"] for m in members], "suite_model": "toy-gqa"},
    )  # fmt: skip


def record(of: PlannedItem, measured: Measured, details: Mapping[str, Any]) -> Record:
    decision = decide(measured, SMOKE.limits, alpha=SMOKE.alpha, family=FAMILY)
    return Record(
        item=of.id, cell=of.cell, check=of.check, kind=of.kind, surface=of.surface, stack=of.stack, methods=of.methods,
        profile=of.profile, verdict=decision.verdict, headline=f"{decision.verdict.value} {of.id}: {decision.headline}",
        run_id="r", static="s", metrics=decision.metrics, details=details, time="1",
    )  # fmt: skip


def text_record(members: str, sums: np.ndarray, tokens: np.ndarray) -> Record:
    of = item(members, "perplexity")
    gate = ClusteredSums(name="perplexity", sums=tuple(sums), tokens=tuple(int(t) for t in tokens), base_level=5.0)
    kept = {"units": [str(i) for i in range(len(sums))], "sums": list(sums), "tokens": list(gate.tokens)}
    return record(of, Measured(gates=(gate,)), {"losses": {"perplexity": kept}})


def answers(rng: np.random.Generator, shifts: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return right answers (contexts, questions) of the baseline ("") and of every stack, on the same questions."""
    logits = rng.normal(5.0, 2.0, (CONTEXTS, QUESTIONS))
    luck = rng.random((CONTEXTS, QUESTIONS))
    found = {"": luck < 1 / (1 + np.exp(-logits))}
    for name, shift in shifts.items():
        right = luck < 1 / (1 + np.exp(-(logits - shift)))
        flips = rng.random(right.shape) < 0.01  # rounding turns a few answers around, either way
        found[name] = np.where(flips, rng.random(right.shape) < 0.5, right)
    return found


@functools.lru_cache(maxsize=1)
def looks() -> SequentialPlan:
    """Plan the looks of profile smoke once."""
    return plan_looks(CONTEXTS, SMOKE.limits["needle"].max, alpha_fail=SMOKE.alpha / FAMILY)


def needle_record(members: str, base: np.ndarray, right: np.ndarray) -> Record:
    of = item(members, "needle-1x")

    def measure(params: Mapping[str, object]) -> Measured:
        first = int(str(params["first"]))
        rows = range(first, first + int(str(params["contexts"])))
        gone = [float(base[i].mean() - right[i].mean()) for i in rows]
        gate = PairedScores(
            name="needle", losses=tuple(gone), base_mean=float(base[list(rows)].mean()), n_items=len(gone) * QUESTIONS,
            discordant=int((base[list(rows)] != right[list(rows)]).sum()),
        )  # fmt: skip
        kept = {"units": [str(i) for i in rows], "losses": gone, "baseline": [float(base[i].mean()) for i in rows]}
        return Measured(gates=(gate,), details={"losses": {"needle": kept}}, data_digest="d")

    measured = measure_in_looks(measure, {"contexts": CONTEXTS}, looks())
    return record(of, measured, measured.details)


def run(rng: np.random.Generator, real: Mapping[str, Any], cells: Mapping[str, tuple[float, float]]) -> GateResult:
    """Judge one matrix; `cells` gives, by members, the planted text loss in margins and the shift in log-odds."""
    size = len(real["A"][0])
    pick = rng.integers(0, size, size)
    tokens = real["A"][1][pick]
    own = real["AB"][0] - real["A"][0] - real["B"][0]
    spread = own - own.sum() / real["A"][1].sum() * real["A"][1]  # the stack's own contrast, centred
    uneven = rng.gamma(2.0, 0.5, size)  # mean 1
    sums = {}
    for members, (planted, _) in cells.items():
        total = sum((real[m][0][pick] if m in "AB" else real["A"][0][rng.permutation(pick)]) for m in members)
        extra = spread[rng.permutation(pick)] if len(members) > 1 else 0.0
        sums[members] = total + extra + planted * MARGIN * tokens * uneven
    drawn = answers(rng, {members: shift for members, (_, shift) in cells.items()})
    records = [text_record(members, sums[members], tokens) for members in cells]
    records += [needle_record(members, drawn[""], drawn[members]) for members in cells]
    items = tuple(item(r.cell.rpartition(".")[2], r.check) for r in records)
    return judge(Plan(items=items, profile="smoke"), records, alpha=SMOKE.alpha)


PAIR_HURTS = {"A": (0.0, SHIFT), "B": (0.0, SHIFT), "AB": (STRENGTH, 2 * SHIFT + HURT)}
ADDITIVE = {"A": (0.0, SHIFT), "B": (0.0, SHIFT), "AB": (0.0, 2 * SHIFT)}
BAD_MEMBER = {"A": (STRENGTH, HURT), "B": (0.0, SHIFT), "AB": (STRENGTH, HURT + SHIFT)}
OF_THREE = {
    "A": (0.0, SHIFT), "B": (0.0, SHIFT), "C": (0.0, INNOCENT), "AC": (0.0, SHIFT + INNOCENT), "BC": (0.0, SHIFT + INNOCENT),
    "AB": (STRENGTH, 2 * SHIFT + HURT), "ABC": (STRENGTH, 2 * SHIFT + INNOCENT + HURT),
}  # fmt: skip
SCENARIOS: dict[str, tuple[dict[str, tuple[float, float]], str]] = {
    "two harmless halves that hurt together": (PAIR_HURTS, "A and B hurt only together"),
    "additive pair": (ADDITIVE, ""),
    "one bad member, additive": (BAD_MEMBER, "A is the culprit"),
    "a pair of three hurts, C is innocent": (OF_THREE, "A and B hurt only together"),
}


def tally(seed: int, index: int, reps: int, real: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return, per quantity, how often the stack failed, was flagged and was blamed on the right members."""
    name = list(SCENARIOS)[index]
    cells, wanted = SCENARIOS[name]
    whole = max(cells, key=len)
    counts: dict[str, np.ndarray] = {c: np.zeros(5) for c in ("perplexity", "needle", _ANY)}
    for rep in range(reps):
        found = run(np.random.default_rng([seed, index, rep]), real, cells)
        seen = []
        for f in found.findings:
            if f.cell.endswith(f".{whole}") and f.metric in counts:
                answer = f.contrast.compounds if f.contrast is not None else None
                failed = bool(f.blame)
                right = wanted in f.blame if failed else True  # an undecided stack blames nobody
                seen.append(np.array([failed, answer is True, answer is False, answer is None, right], dtype=float))
                counts[f.metric] += seen[-1]
        counts[_ANY] += [*np.max(seen, axis=0)[:2], *np.min(seen, axis=0)[2:]]
    return [
        {"scenario": name, "quantity": metric, "stack FAILS": c[0], "compounds": c[1], "does not": c[2], "undecided": c[3],
         "right blame": c[4]}
        for metric, c in ((m, (v / reps).tolist()) for m, v in counts.items())
    ]  # fmt: skip


def main() -> int:
    args = options(__doc__ or "")
    reps = 10 if args.quick else 60
    real = real_losses()
    rows = [row for index in range(len(SCENARIOS)) for row in tally(args.seed, index, reps, real)]

    def value(scenario: str, quantity: str, column: str) -> float:
        return next(float(str(r[column])) for r in rows if r["scenario"] == scenario and r["quantity"] == quantity)

    halves, additive, bad, three = SCENARIOS
    checks = [
        Check(name=f"{halves}: compounds", value=value(halves, _ANY, "compounds"), limit=0.95, at_least=True),
        Check(name=f"{halves}: blame", value=value(halves, _ANY, "right blame"), limit=0.95, at_least=True),
        Check(name=f"{additive}: compounds", value=value(additive, _ANY, "compounds"), limit=0.05),
        Check(name=f"{additive}: FAIL", value=value(additive, _ANY, "stack FAILS"), limit=0.02),
        Check(name=f"{bad}: compounds", value=value(bad, _ANY, "compounds"), limit=0.05),
        Check(name=f"{bad}: blame", value=value(bad, _ANY, "right blame"), limit=0.95, at_least=True),
        Check(name=f"{three}: compounds", value=value(three, _ANY, "compounds"), limit=0.95, at_least=True),
        Check(name=f"{three}: blame", value=value(three, _ANY, "right blame"), limit=0.95, at_least=True),
    ]
    counts = {"matrices per scenario": reps, "documents": len(real["A"][0]), "contexts at most": CONTEXTS}
    tables = {"Planted interactions under profile smoke": rows}
    return publish("matrix_planted", "Planted compounding", args.seed, counts, tables, checks, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
