"""Method x budget x task on SmolLM2-135M at 128 tokens: verdicts and intervals, and whether their direction is the literature's.

    python tests/bench/approximate_smollm2.py [--seed 7403] [--rows 0 14] [--threads 1]

Short contexts, so that sixty of them fit into minutes of a CPU; `smollm2_table` has a few of 1k and 2k tokens. Rows that are already
stored for the same seed and profile are kept (a run can be stopped and gone on with); each says at which commit it was measured.

Directions, fixed before the run: KV8 passes everywhere; two bits per token fail; StreamingLLM at half fails the needle and
loses less than a third of perplexity; random eviction fails the needle; no eviction loses more than random beyond the interval, and
the best one loses less; eight-bit weights lose less than four-bit ones; a planted no-op is INVALID; SnapKV, pooled over an answer
(``pool=13``), answers more with the question inside the compressed text than after it, which is a label and never gated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from approximate_common import NO_OP, RESULTS, checks, commit, gate, prepare, publish
from approximate_table import cell, effect

PROFILE = """
schema: 1
name: table-smollm2
claim: no collapse beyond fifteen points of retrieval or a tenth of perplexity at 128 tokens
max_tokens: 128
checks:
  divergence: {documents: 100, tier: 0.015625, continuation: 32}
  perplexity: {documents: 100, tier: 0.015625, continuation: 32}
  needle: {tiers: [0.015625], contexts: 60, questions_per_context: 1, depths: 5}
  long-range: {families: [passkey], tiers: [0.015625], contexts: 60}
limits:
  perplexity: {max: 0.10, origin: "policy: as in the profile smoke"}
  kl: {max: 0.20, origin: "policy: as in the profile smoke"}
  top1: {max: 0.20, origin: "policy: as in the profile smoke"}
  needle: {max: 0.15, origin: "derived: what 60 contexts can exclude with a few discordant answers"}
  long-range: {max: 0.15, origin: "policy: as for the needle"}
"""
LABELS = """
schema: 1
name: table-smollm2-question
claim: question after compression beside question inside it
max_tokens: 128
checks:
  needle: {tiers: [0.015625], contexts: 60, questions_per_context: 1, depths: 5, question_first: 40}
limits:
  needle: {max: 0.15, origin: "policy: as in the table"}
"""
LABELLED: tuple[tuple[str, Mapping[str, object]], ...] = (("snapkv", {"kv_budget": 0.5, "pool": 13}),)
ROWS: tuple[tuple[str, Mapping[str, object], str], ...] = (
    ("kv8", {}, ""),
    ("kv2", {}, ""),
    ("streaming_llm", {"kv_budget": 0.5}, ""),
    ("random_eviction", {"kv_budget": 0.5}, ""),
    ("snapkv", {"kv_budget": 0.5}, ""),
    ("h2o", {"kv_budget": 0.5}, ""),
    ("w4a16", {}, ""),
    ("w8a8", {}, ""),
    ("kv4", {}, ""),
    ("tova", {"kv_budget": 0.5}, ""),
    ("pyramidkv", {"kv_budget": 0.5}, ""),
    ("fp8_attention", {}, ""),
    ("sliding_window", {"window": 128}, ""),
    ("h2o", {"kv_budget": 0.5}, "no-op"),
)
EVICTIONS = ("streaming_llm", "snapkv", "h2o", "tova", "pyramidkv")
NAME = "approximate_smollm2"


def label(method: str, knobs: Mapping[str, object], planted: str) -> str:
    """Return the name of a row."""
    return planted or " ".join([method, *(f"{k}={v}" for k, v in knobs.items())])


def directions(
    rows: Mapping[str, Mapping[str, Any]], labels: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, object]]:
    """Compare what was measured with what the literature says; a row that is missing decides nothing."""
    needle, retrieval = "needle-0.015625x", ("needle-0.015625x", "long-range-passkey")
    found: list[tuple[str, bool, str]] = []

    def verdicts(row: str) -> dict[str, str]:
        return {check: str(record["verdict"]) for check, record in rows[row]["records"].items()}

    def lost(row: str) -> tuple[float, float, float]:
        m = next(m for m in rows[row]["records"][needle]["metrics"] if m["name"].split("[")[0] == "needle")
        return float(m["effect"]), float(m["ci_low"]), float(m["ci_high"])

    if "kv8" in rows:
        found.append(("KV8 passes everywhere", set(verdicts("kv8").values()) == {"PASS"}, str(verdicts("kv8"))))
    if "kv2" in rows:
        found.append(("two bits per token fail the needle", verdicts("kv2")[needle] == "FAIL", str(verdicts("kv2"))))
    streaming, chance = "streaming_llm kv_budget=0.5", "random_eviction kv_budget=0.5"
    if streaming in rows:
        rise = effect(rows[streaming]["records"]["perplexity"], "perplexity")
        failed = [verdicts(streaming)[check] for check in retrieval]
        found.append(("StreamingLLM at half fails retrieval", set(failed) == {"FAIL"}, ", ".join(failed)))
        found.append(("and loses less than a third of perplexity", rise < 1 / 3, f"{rise:+.1%}"))
    if chance in rows:
        found.append(("random eviction fails the needle", verdicts(chance)[needle] == "FAIL", str(lost(chance))))
        losses = {m: lost(f"{m} kv_budget=0.5") for m in EVICTIONS if f"{m} kv_budget=0.5" in rows}
        if losses:
            worse = [m for m, (_, low, _) in losses.items() if low > lost(chance)[2]]
            best = min(losses, key=lambda m: losses[m][0])
            found.append(
                ("no eviction loses more than random beyond the intervals", not worse, ", ".join(worse) or "none")
            )
            held = losses[best][0] < lost(chance)[0]
            found.append(("the best eviction loses less than random", held, f"{best} {losses[best][0]:+.3f}"))
    if {"w4a16", "w8a8"} <= set(rows):
        four, eight = (effect(rows[m]["records"]["perplexity"], "perplexity") for m in ("w4a16", "w8a8"))
        found.append(("8-bit weights lose less than 4-bit ones", eight < four, f"{eight:+.2%} and {four:+.2%}"))
    if "no-op" in rows:
        noop = {v for check, v in verdicts("no-op").items() if check != "identity"}
        found.append(("the planted no-op is INVALID", noop == {"INVALID"}, ", ".join(sorted(noop))))
    for row, facts in labels.items():
        after, inside = (float(facts[k]) for k in ("candidate_generated", "question_first_candidate"))
        found.append(
            (f"{row} answers more with the question inside", inside > after, f"{after:.3f} after, {inside:.3f} inside")
        )
    return checks(found)


def main() -> int:
    """Run the rows that are missing and store the table after each; 1 when a direction does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7403)
    parser.add_argument("--rows", type=int, nargs=2, default=(0, len(ROWS)))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    prepare()
    torch.set_num_threads(options.threads)
    head: dict[str, object] = {
        "command": " ".join(["python", *sys.argv]), "seed": options.seed,
        "profile": "100 documents, 60 contexts of one question at 128 tokens; margins: 15 points of retrieval, 10 % perplexity",
        "cell": "verdict, loss [95 % interval]; perplexity: relative increase; FAIL is corrected over the items of a cell",
    }  # fmt: skip
    rows, labels = stored(options.seed)
    for method, knobs, planted in ROWS[slice(*options.rows)]:
        name = label(method, knobs, planted)
        if name in rows:
            continue
        started = time.perf_counter()
        records = gate(method, knobs, PROFILE, model="smollm2-135m", seed=options.seed, call=NO_OP if planted else "")
        kept = {c: {k: r[k] for k in ("verdict", "headline", "metrics", "facts")} for c, r in records.items()}
        rows[name] = {"commit": commit()[:10], "seconds": round(time.perf_counter() - started), "records": kept}
        store(head, rows, labels)
    for method, knobs in LABELLED:
        name = label(method, knobs, "")
        if name not in labels:
            records = gate(method, knobs, LABELS, model="smollm2-135m", seed=options.seed)
            labels[name] = {**records["needle-0.015625x"]["facts"], "commit": commit()[:10]}
    store(head, rows, labels)
    return 0 if all(line["holds"] for line in directions(rows, labels)) else 1


def store(
    head: Mapping[str, object], rows: Mapping[str, Mapping[str, Any]], labels: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write what is measured so far."""
    inside = (
        "baseline_generated",
        "question_first_baseline",
        "candidate_generated",
        "question_first_candidate",
        "commit",
    )
    tables = {
        "SmolLM2-135M": [shown(name, rows[name]) for name in (label(*row) for row in ROWS) if name in rows],
        "Question after compression, and inside (a label)": [
            {"method": name, **{k: facts.get(k, "") for k in inside}} for name, facts in labels.items()
        ],
        "Directions": directions(rows, labels),
    }
    further = {"profile": PROFILE, "rows": rows, "labels": labels}
    publish(NAME, "Lossy methods on SmolLM2-135M", head, tables, further, store=True)


def stored(seed: int) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the rows and labels of an earlier run of the same seed and profile."""
    file = RESULTS / f"{NAME}.json"
    if not file.is_file():
        return {}, {}
    body = json.loads(file.read_text(encoding="utf-8"))
    same = body["head"]["seed"] == seed and body["data"]["profile"] == PROFILE
    return (dict(body["data"]["rows"]), dict(body["data"].get("labels", {}))) if same else ({}, {})


def shown(name: str, row: Mapping[str, Any]) -> dict[str, object]:
    """Return a line of the table."""
    tasks = ("perplexity", "divergence", "needle-0.015625x", "long-range-passkey")
    cells = {task: cell(row["records"][task]) if task in row["records"] else "-" for task in tasks}
    return {"method": name, **cells, "seconds": row["seconds"], "commit": row["commit"]}


if __name__ == "__main__":
    sys.exit(main())
