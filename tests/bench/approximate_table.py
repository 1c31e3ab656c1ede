"""Method x budget x task on the embedded models: verdicts and intervals, and whether they agree in direction with the literature.

    python tests/bench/approximate_table.py [--models toy-mha toy-gqa toy-mla] [--seed 7304]

Directions, fixed before the run: StreamingLLM keeps the text fluent (at three quarters it passes perplexity) and fails recall outside its window; KV8 passes everywhere;
two bits per token fail; random eviction fails; evictions that ask several queries, and StreamingLLM, lose less than it; TOVA, which
cuts a one-shot prompt by its last query alone, loses no more than it beyond the interval; a planted no-op is INVALID; with the question
inside the compressed text SnapKV answers more when its votes are pooled over as many tokens as an answer has (``pool=13``; at 5, half
of a four-token answer beside the key is lost), and the cell is a label only; 8-bit weights and FP8 attention pass perplexity, and 8-bit
weights lose no more of it than 4-bit ones. Seed 7301 showed the two restrictions. SmolLM2: approximate_smollm2.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from approximate_common import NO_OP, checks, commit, gate, prepare, publish

PROFILE = """
schema: 1
name: table
claim: no collapse beyond ten points of retrieval or a tenth of perplexity
checks:
  divergence: {documents: 200, tier: 1, continuation: 32}
  perplexity: {documents: 200, tier: 1, continuation: 32}
  needle: {tiers: [1], contexts: 60, questions_per_context: 4, question_first: 6}
  long-range: {families: [kv_recall, variable_tracking], tiers: [1], contexts: 60}
limits:
  perplexity: {max: 0.10, origin: "policy: as in the profile smoke"}
  kl: {max: 0.20, origin: "policy: as in the profile smoke"}
  top1: {max: 0.20, origin: "policy: as in the profile smoke"}
  needle: {max: 0.10, origin: "policy: as in the profile smoke"}
  long-range: {max: 0.10, origin: "policy: as for the needle"}
"""
ROWS: tuple[tuple[str, Mapping[str, object], str], ...] = (
    ("kv8", {}, ""),
    ("kv4", {}, ""),
    ("kv2", {}, ""),
    ("streaming_llm", {"kv_budget": 0.75}, ""),
    ("streaming_llm", {"kv_budget": 0.5}, ""),
    ("streaming_llm", {"kv_budget": 0.25}, ""),
    ("h2o", {"kv_budget": 0.5}, ""),
    ("h2o", {"kv_budget": 0.25}, ""),
    ("snapkv", {"kv_budget": 0.5}, ""),
    ("snapkv", {"kv_budget": 0.5, "pool": 13}, ""),
    ("tova", {"kv_budget": 0.5}, ""),
    ("pyramidkv", {"kv_budget": 0.5}, ""),
    ("random_eviction", {"kv_budget": 0.5}, ""),
    ("random_eviction", {"kv_budget": 0.25}, ""),
    ("sliding_window", {"window": 128}, ""),
    ("w8a8", {}, ""),
    ("w4a16", {"group_size": 32}, ""),
    ("fp8_attention", {}, ""),
    ("h2o", {"kv_budget": 0.5}, "no-op"),
)
WEIGHTS = ("w8a8", "w4a16 group_size=32")
TASKS = ("perplexity", "divergence", "needle-1x", "long-range-kv_recall", "long-range-variable_tracking")


def cell(record: Mapping[str, Any]) -> str:
    """Render verdict and interval of a check's worst gate."""
    metrics = [m for m in record["metrics"] if m["ci_low"] is not None]
    if record["verdict"] == "INVALID" or not metrics:
        return str(record["verdict"])
    worst = max(metrics, key=lambda m: m["effect"] / m["limit"])
    low, high = (f"{x:+.3f}" if isinstance(x, float) else str(x) for x in (worst["ci_low"], worst["ci_high"]))
    return f"{record['verdict']} {worst['effect']:+.3f} [{low}, {high}]"


def effect(record: Mapping[str, Any], name: str) -> float:
    """Return the effect of one metric."""
    return next(float(m["effect"]) for m in record["metrics"] if m["name"].split("[")[0] == name)


def beside_random(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> tuple[dict[float, float], dict[str, float]]:
    """Return the needle loss of random eviction by budget, and how much more than it every eviction of that budget loses."""

    def lost(row: str) -> float:
        return effect(found[row, "needle-1x"], "needle")

    random = {b: lost(f"random_eviction kv_budget={b}") for b in (0.5, 0.25)}
    beaten = {
        row: lost(row) - random[b]
        for b in (0.5, 0.25)
        for row in (f"{m} kv_budget={b}" for m in ("streaming_llm", "h2o", "snapkv", "pyramidkv"))
        if (row, "needle-1x") in found
    }
    return random, beaten


def directions(found: Mapping[tuple[str, str], Mapping[str, Any]], model: str) -> list[dict[str, object]]:
    """Compare one model with what the literature says."""

    def verdict(row: str, task: str) -> str:
        return str(found[row, task]["verdict"])

    wide = "streaming_llm kv_budget=0.75"
    streaming, recall = "streaming_llm kv_budget=0.5", ("needle-1x", "long-range-kv_recall")
    random, beaten = beside_random(found)
    one, worst = (found[f"{m} kv_budget=0.5", "needle-1x"]["metrics"][0] for m in ("tova", "random_eviction"))
    snap = found["snapkv kv_budget=0.5 pool=13", "needle-1x"]["facts"]
    noop = [verdict("no-op", t) for t in TASKS]
    ratio = effect(found[streaming, "perplexity"], "perplexity")
    eight = [verdict("kv8", t) for t in TASKS if found["kv4", t]["verdict"] != "INVALID"]
    rounded = {row: verdict(row, "perplexity") for row in (WEIGHTS[0], "fp8_attention")}
    eight_bits, four_bits = (effect(found[row, "perplexity"], "perplexity") for row in WEIGHTS)
    key = found[streaming, "perplexity"]["facts"].get("key_token_loss", float("nan"))
    return checks([
        (f"{model}: KV8 passes wherever the baseline can be measured", set(eight) == {"PASS"}, ", ".join(eight)),
        (f"{model}: two bits per token fail the needle", verdict("kv2", "needle-1x") == "FAIL", cell(found["kv2", "needle-1x"])),
        (f"{model}: StreamingLLM at half loses recall", all(verdict(streaming, t) == "FAIL" for t in recall),
         "; ".join(cell(found[streaming, t]) for t in recall)),
        (f"{model}: StreamingLLM at three quarters passes perplexity and fails recall",
         verdict(wide, "perplexity") == "PASS" and "FAIL" in [verdict(wide, t) for t in recall],
         "; ".join(cell(found[wide, t]) for t in ("perplexity", *recall))),
        (f"{model}: at half, its perplexity rises by less than a third", ratio < 1 / 3, f"{ratio:+.1%}, on key tokens {key:+.2f} nats"),
        (f"{model}: random eviction fails the needle", all(verdict(f"random_eviction kv_budget={b}", "needle-1x") == "FAIL"
         for b in (0.5, 0.25)), str({b: round(x, 3) for b, x in random.items()})),
        (f"{model}: evictions by several queries and StreamingLLM lose less than random", max(beaten.values()) < 0,
         f"closest: {max(beaten, key=beaten.__getitem__)} {max(beaten.values()):+.3f}"),
        (f"{model}: TOVA loses no more than random beyond the interval", one["ci_low"] <= worst["ci_high"],
         f"{one['effect']:+.3f} and {worst['effect']:+.3f}"),
        (f"{model}: 8-bit weights and FP8 attention pass perplexity", {*rounded.values()} == {"PASS"}, str(rounded)),
        (f"{model}: 8-bit weights lose no more perplexity than 4-bit ones", eight_bits <= four_bits,
         f"{eight_bits:+.2%} and {four_bits:+.2%}"),
        (f"{model}: the planted no-op is INVALID", set(noop) == {"INVALID"}, ", ".join(noop)),
        (f"{model}: SnapKV (pool=13) answers more with the question inside, and that is a label",
         snap["question_first_candidate"] > snap["candidate_generated"],
         f"{snap['candidate_generated']:.3f} after, {snap['question_first_candidate']:.3f} before"),
    ])  # fmt: skip


def main() -> int:
    """Run all rows on all models and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["toy-mha", "toy-gqa", "toy-mla"])
    parser.add_argument("--seed", type=int, default=7304)
    options = parser.parse_args()
    prepare()
    head: dict[str, object] = {
        "command": " ".join(["python", *sys.argv]), "commit": commit(), "seed": options.seed,
        "profile": "60 contexts x 4 questions at the trained length, 200 documents; margins: 10 points, 10 % perplexity",
        "cell": "verdict, loss [95 % interval]; perplexity: relative increase; FAIL is corrected over the items of a cell",
    }  # fmt: skip
    tables: dict[str, list[dict[str, object]]] = {}
    data: dict[str, Any] = {}
    thresholds: list[dict[str, object]] = []
    started = time.process_time()
    for model in options.models:
        found: dict[tuple[str, str], Any] = {}
        for method, knobs, planted in ROWS:
            row = planted or " ".join([method, *(f"{k}={v}" for k, v in knobs.items())])
            records = gate(method, knobs, PROFILE, model=model, seed=options.seed, call=NO_OP if planted else "")
            found.update({(row, check): record for check, record in records.items()})
            print(model, row, {c: r["verdict"] for c, r in records.items()}, flush=True)
        rows = list(dict.fromkeys(row for row, _ in found))
        tables[model] = [
            {"method": row, **{t: cell(found[row, t]) for t in TASKS}, **labels(found[row, "needle-1x"])}
            for row in rows
        ]
        data[model] = {
            f"{row} {check}": {"headline": r["headline"], "facts": r["facts"]} for (row, check), r in found.items()
        }
        thresholds += directions(found, model)
    head["CPU seconds"] = round(time.process_time() - started)
    tables["Directions"] = thresholds
    publish(
        "approximate_table", "Lossy methods on the embedded models", head, tables, data, store=len(options.models) > 1
    )
    return 0 if all(row["holds"] for row in thresholds) else 1


def labels(record: Mapping[str, Any]) -> dict[str, object]:
    """Return the answers with the question after and inside the compressed text; the second is a label."""
    facts = record["facts"]
    return {
        "answers, question after": facts.get("candidate_generated", ""),
        "question inside (label)": facts.get("question_first_candidate", ""),
    }


if __name__ == "__main__":
    sys.exit(main())
