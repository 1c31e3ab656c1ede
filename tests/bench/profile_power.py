"""How often a change passes a whole profile: harmless ones must, harmful ones must not.

    python tests/bench/profile_power.py --seed 20261101

Simulates the answers and token losses of a model and sends them through the same measurement values, looks and verdict as a
real run (`measure_in_looks`, `decide`), item by item, for every model-level item that a profile plans.

The harmless change: no loss, 4 % of answers differ (DESIGN rule 3.4); token losses with zero mean, a spread between
documents of 0.02 nat and a KL divergence of 0.005 nat (an 8-bit cache or weight format in published tables), 2 % of next
tokens changed. The harmful changes sit exactly on one margin: retrieval at the longest tier, or perplexity.

Promises, fixed before the run: a harmless change passes with at least .98; one item on its margin passes with at most .055
plus Monte Carlo error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
from stats_common import Check, options, publish

from pytest_attnaccept.checks.looks import measure_in_looks
from pytest_attnaccept.measurement import ClusteredSums, Measured, PairedScores
from pytest_attnaccept.profiles import BUILTIN_PROFILES, Profile, load_profile
from pytest_attnaccept.protocol import Requirement, StackEntry, required_depth
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.stats.sequential import plan_looks
from pytest_attnaccept.taxonomy import Surface, Verdict
from pytest_attnaccept.verdict import decide

HARMLESS_AT_LEAST, HARMFUL_AT_MOST = 0.98, 0.055
DISCORDANCE, BASE = 0.04, 0.9
SPREAD, KL, FLIPS = 0.02, 0.005, 0.02
SCENARIOS = ("harmless", "needle on its margin", "perplexity on its margin")


def items_of(profile: Profile) -> list[Requirement]:
    """Return the model-level items that rest on a sample."""
    method = Registry.builtin().get("kv8")
    depth = required_depth([StackEntry(method=method, knobs={})], Surface.MODEL, profile, "bench")
    return [r for r in depth if r.exists and r.check.split("-")[0] in ("needle", "perplexity", "divergence")]


def answers(rng: np.random.Generator, contexts: int, questions: int, loss: float) -> Measured:
    """Simulate right/wrong answers of both sides; `loss` is the true loss of accuracy."""
    gain = (DISCORDANCE - loss) / 2 if loss < DISCORDANCE else 0.0
    lose = gain + loss
    kind = rng.random((contexts, questions))
    difference = np.where(kind < lose, 1, np.where(kind < lose + gain, -1, 0))
    return Measured(
        gates=(
            PairedScores(
                name="needle",
                losses=tuple(difference.mean(axis=1).tolist()),
                base_mean=BASE,
                n_items=contexts * questions,
                discordant=int((difference != 0).sum()),
            ),
        )
    )


def tokens(rng: np.random.Generator, check: str, documents: int, per_document: int, mean: float) -> Measured:
    """Simulate document sums of a token loss, or of KL and flips."""
    count = (per_document,) * documents
    if check == "perplexity":
        within = rng.normal(0.0, 0.1 / np.sqrt(per_document), documents)
        sums = (mean + rng.normal(0.0, SPREAD, documents) + within) * per_document
        return Measured(gates=(ClusteredSums(name="perplexity", sums=tuple(sums.tolist()), tokens=count),))
    kl = rng.gamma(4.0, KL / 4.0, documents) * per_document
    flips = rng.binomial(per_document, FLIPS, documents).astype(float)
    return Measured(
        gates=(
            ClusteredSums(name="kl", sums=tuple(kl.tolist()), tokens=count, scale="mean"),
            ClusteredSums(name="top1", sums=tuple(flips.tolist()), tokens=count, scale="mean", cap=1.0),
        )
    )


def one_run(rng: np.random.Generator, profile: Profile, items: list[Requirement], scenario: str) -> tuple[bool, int]:
    """Return whether every item passed, and how many contexts were answered."""
    used, passed = 0, True
    longest = max(float(str(i.params["tier"])) for i in items if i.check.startswith("needle"))
    for item in items:
        name, params = item.check.split("-")[0], item.params
        if name == "needle":
            margin = profile.limits["needle"].max
            on = scenario == "needle on its margin" and float(str(params["tier"])) == longest
            plan = plan_looks(int(str(params["contexts"])), margin, alpha_fail=profile.alpha / len(items))
            loss = margin if on else 0.0

            def measure(given: Mapping[str, object], loss: float = loss) -> Measured:
                return answers(rng, int(str(given["contexts"])), int(str(given["questions_per_context"])), loss)

            measured = measure_in_looks(measure, params, plan)
            used += sum(len(g.losses) for g in measured.gates if isinstance(g, PairedScores))
        else:
            on = scenario == "perplexity on its margin" and name == "perplexity"
            mean = float(np.log1p(profile.limits["perplexity"].max)) if on else 0.0
            measured = tokens(rng, name, int(str(params["documents"])), int(str(params["continuation"])), mean)
        decision = decide(measured, profile.limits, alpha=profile.alpha, family=len(items))
        passed = passed and decision.verdict is Verdict.PASS
    return passed, used


def main() -> int:
    """Run the simulation and store the table."""
    args = options(__doc__ or "")
    runs = 20 if args.quick else 300
    rows, checks = [], []
    for name in BUILTIN_PROFILES:
        profile = load_profile(name)
        items = items_of(profile)
        most = sum(int(str(i.params["contexts"])) for i in items if i.check.startswith("needle"))
        for scenario in SCENARIOS:
            rng = np.random.default_rng([args.seed, BUILTIN_PROFILES.index(name), SCENARIOS.index(scenario)])
            results = [one_run(rng, profile, items, scenario) for _ in range(runs)]
            rate = sum(p for p, _ in results) / runs
            cost = sum(u for _, u in results) / runs / most
            rows.append(
                {"profile": name, "change": scenario, "items": len(items), "passes": rate, "contexts used": cost}
            )
            checks.append(_check(name, scenario, rate, runs))
    counts = {"runs per row": runs, "discordance": DISCORDANCE}
    tables = {"Share of runs in which the whole profile passes": rows}
    return publish("profile_power", "Whole profiles", args.seed, counts, tables, checks, quick=args.quick)


def _check(profile: str, scenario: str, rate: float, runs: int) -> Check:
    """Three standard errors of the simulation at the promised rate are allowed on top."""
    if scenario == "harmless":
        slack = 3 * (HARMLESS_AT_LEAST * (1 - HARMLESS_AT_LEAST) / runs) ** 0.5
        return Check(name=f"{profile}: {scenario} passes", value=rate, limit=HARMLESS_AT_LEAST - slack, at_least=True)
    slack = 3 * (HARMFUL_AT_MOST * (1 - HARMFUL_AT_MOST) / runs) ** 0.5
    return Check(name=f"{profile}: {scenario} passes", value=rate, limit=HARMFUL_AT_MOST + slack)


if __name__ == "__main__":
    sys.exit(main())
