"""How often a harmless change passes every statistical gate of each shipped profile, simulated gate by gate.

Harmless: no true loss, the profile's share of answers differing (4 %), answers of one context correlated with .3. Token
gates: the paired spread that 5-bit weights show in published llama.cpp tables (token sd .105, mean KL .011, a documents'
intraclass correlation of .01) and 4 % of the top-1 tokens changed. The needle runs in the planned looks, the
task families of `long-range` on all contexts at once.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
from stats_common import Check, options, publish

from pytest_attnaccept.profiles import BUILTIN_PROFILES, Profile, load_profile
from pytest_attnaccept.stats import DEFAULT_ALPHA, clustered_mean, p_pass_scores, plan_looks
from pytest_attnaccept.stats.sequential import SequentialPlan
from pytest_attnaccept.tasks.families import task_families
from pytest_attnaccept.taxonomy import Verdict

CORRELATION, TOKEN_SD, ICC, MEAN_KL, FLIPS = 0.3, 0.105, 0.01, 0.011, 0.04


def answers(rng: np.random.Generator, contexts: int, questions: int, discordance: float) -> np.ndarray:
    """Draw the mean loss of each context."""
    strength = (1 - CORRELATION) / CORRELATION
    rate = rng.beta(discordance * strength, (1 - discordance) * strength, size=contexts)
    differing = rng.binomial(questions, rate)
    return (2 * rng.binomial(differing, 0.5) - differing) / questions


def needle(rng: np.random.Generator, plan: SequentialPlan, questions: int, discordance: float) -> tuple[bool, int]:
    """Walk the planned looks on one harmless candidate: passed, contexts used."""
    losses = answers(rng, plan.n_max, questions, discordance)
    for n, level in zip(plan.looks, plan.pass_levels, strict=True):
        if level > 0 and p_pass_scores(losses[:n], plan.margin) < level:
            return True, n
    return False, plan.n_max


def family(rng: np.random.Generator, contexts: int, questions: int, discordance: float, margin: float) -> bool:
    """Judge one harmless candidate on a task family."""
    return p_pass_scores(answers(rng, contexts, questions, discordance), margin) < DEFAULT_ALPHA


def tokens(rng: np.random.Generator, kind: str, documents: int, length: int, margin: float) -> bool:
    """Judge one harmless candidate on a token mean."""
    count = np.full(documents, length)
    if kind == "perplexity":
        means = rng.normal(0, TOKEN_SD * math.sqrt(ICC + (1 - ICC) / length), documents)
    elif kind == "kl":
        means = MEAN_KL * rng.lognormal(-0.125, 0.5, documents)
    else:
        rate = rng.beta(FLIPS * 50, (1 - FLIPS) * 50, size=documents)  # intraclass correlation .02
        means = rng.binomial(length, rate) / length
    return clustered_mean(means * length, count, margin).verdict is Verdict.PASS


def gates(profile: Profile) -> list[tuple[str, dict[str, float]]]:
    """List the statistical gates of a profile with their sizes."""
    found: list[tuple[str, dict[str, float]]] = []
    plan = profile.checks.get("needle")
    if plan:
        for tier in plan["tiers"]:  # type: ignore[attr-defined]
            size = {
                "contexts": plan["contexts"],
                "questions": plan["questions_per_context"],
                "margin": profile.limits["needle"].max,
            }
            found.append((f"needle-{tier}x", size))  # type: ignore[arg-type]
    far = profile.checks.get("long-range")
    if far:
        for name, tier in itertools.product(far["families"], far["tiers"]):  # type: ignore[call-overload]
            size = {
                "contexts": far["contexts"],
                "questions": task_families()[name].defaults.get("questions", 1),
                "margin": profile.limits["long-range"].max,
            }
            found.append((f"long-range-{name}-{tier}x", size))  # type: ignore[arg-type]
    for check, limit in (("perplexity", "perplexity"), ("divergence", "kl"), ("divergence", "top1")):
        if check in profile.checks and limit in profile.limits:
            margin = profile.limits[limit].max
            size = {k: profile.checks[check][k] for k in ("documents", "continuation")}
            found.append((limit, {**size, "margin": math.log1p(margin) if limit == "perplexity" else margin}))  # type: ignore[arg-type]
    return found


def simulate(profile: Profile, reps: int, seed: int) -> tuple[list[dict[str, object]], float, float]:
    """Simulate whole profiles: rows per gate, share of profiles that pass, mean share of the planned contexts."""
    rng = np.random.default_rng(seed)
    every = gates(profile)
    plans = {name: plan_looks(int(g["contexts"]), g["margin"]) for name, g in every if name.startswith("needle")}
    passed = {name: 0 for name, _ in every}
    whole, used, planned = 0, 0, 0
    for _ in range(reps):
        good = True
        for name, g in every:
            if name in plans:
                ok, n = needle(rng, plans[name], int(g["questions"]), profile.discordance)
                used, planned = used + n, planned + plans[name].n_max
            elif name.startswith("long-range"):
                ok = family(rng, int(g["contexts"]), int(g["questions"]), profile.discordance, g["margin"])
            else:
                ok = tokens(rng, name, int(g["documents"]), int(g["continuation"]), g["margin"])
            passed[name] += ok
            good = good and ok
        whole += good
    rows: list[dict[str, object]] = [
        {
            "profile": profile.name,
            "gate": name,
            "size": int(g.get("contexts", g.get("documents", 0))),
            "margin": round(g["margin"], 4),
            "passes": passed[name] / reps,
        }
        for name, g in every
    ]
    return rows, whole / reps, used / max(planned, 1)


def main() -> int:
    args = options(__doc__ or "")
    reps = 25 if args.quick else 600
    rows, summary, checks = [], [], []
    for index, name in enumerate(BUILTIN_PROFILES):
        profile = load_profile(name)
        each, whole, share = simulate(profile, reps, args.seed + index)
        rows += each
        summary.append(
            {
                "profile": name,
                "harmless passes": whole,
                "contexts used": share,
                "claim": " ".join(profile.claim.split()),
            }
        )
        checks.append(
            Check(
                name=f"{name}: harmless passes (less Monte Carlo error)",
                value=whole,
                limit=0.98 - 2 * math.sqrt(0.98 * 0.02 / reps),
                at_least=True,
            )
        )
    tables = {"Profiles": summary, "Gates": rows}
    counts = {"simulated changes per profile": reps}
    return publish(
        "stats_profiles", "Shipped profiles and a harmless change", args.seed, counts, tables, checks, quick=args.quick
    )


if __name__ == "__main__":
    sys.exit(main())
