"""Fifty seeds: an identical candidate and a harmless one never FAIL, a clearly bad one never passes.

    python tests/bench/approximate_seeds.py [--seeds 50] [--first 1000]

Every seed makes other contexts and documents. Identical: H2O with the whole budget (it must be INVALID: it tests nothing).
Harmless: KV8. Bad: StreamingLLM at a quarter of the context, which keeps the text fluent and loses three needles in four.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from approximate_common import checks, commit, gate, prepare, publish

PROFILE = """
schema: 1
name: seeds
claim: no collapse beyond ten points of retrieval or a tenth of perplexity
checks:
  perplexity: {documents: 100, tier: 0.5, continuation: 16}
  needle: {tiers: [1], contexts: 60, questions_per_context: 4}
limits:
  perplexity: {max: 0.10, origin: "policy: as in the profile smoke"}
  needle: {max: 0.10, origin: "policy: as in the profile smoke"}
"""
CELLS: tuple[tuple[str, str, Mapping[str, object]], ...] = (
    ("identical", "h2o", {"kv_budget": 1.0}),
    ("harmless", "kv8", {}),
    ("bad", "streaming_llm", {"kv_budget": 0.25}),
)


def main() -> int:
    """Run all seeds and store the table; 1 when a threshold does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--model", default="toy-gqa")
    options = parser.parse_args()
    prepare()
    head: dict[str, object] = {
        "command": " ".join(["python", *sys.argv]), "commit": commit(), "model": options.model,
        "seeds": f"{options.first} to {options.first + options.seeds - 1}",
    }  # fmt: skip
    counted: dict[tuple[str, str], Counter[str]] = {}
    contexts: dict[str, list[int]] = {}
    started = time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        for cell, method, knobs in CELLS:
            records = gate(method, knobs, PROFILE, model=options.model, seed=seed)
            for check, record in records.items():
                counted.setdefault((cell, check), Counter())[record["verdict"]] += 1
                if check == "needle-1x":
                    contexts.setdefault(cell, []).append(record["metrics"][0]["n"] or 0)
        print(seed, {f"{c} {k}": dict(v) for (c, k), v in counted.items()}, flush=True)
    head["CPU seconds"] = round(time.process_time() - started)
    rows: list[dict[str, Any]] = [
        {"candidate": cell, "check": check, **{v: found.get(v, 0) for v in ("PASS", "FAIL", "INCONCLUSIVE", "INVALID")}}
        for (cell, check), found in counted.items()
    ]
    used = [
        {"candidate": c, "contexts used, mean": round(sum(n) / len(n), 1), "planned": 60} for c, n in contexts.items()
    ]
    n = options.seeds
    total = {cell: sum((f for (c, _), f in counted.items() if c == cell), Counter()) for cell, _, _ in CELLS}
    passed = counted[("harmless", "needle-1x")]["PASS"]
    found = checks([
        ("an identical candidate never FAILs and never passes", not total["identical"]["FAIL"] and not total["identical"]["PASS"],
         dict(total["identical"])),
        ("a harmless candidate never FAILs", not total["harmless"]["FAIL"], dict(total["harmless"])),
        ("a harmless candidate passes retrieval in at least 95 % of the seeds", passed >= 0.95 * n, f"{passed} of {n}"),
        ("a bad candidate never passes retrieval", not counted[("bad", "needle-1x")]["PASS"],
         dict(counted[("bad", "needle-1x")])),
        ("a bad candidate FAILs retrieval in at least 95 % of the seeds", counted[("bad", "needle-1x")]["FAIL"] >= 0.95 * n,
         f"{counted[('bad', 'needle-1x')]['FAIL']} of {n}"),
    ])  # fmt: skip
    publish(
        "approximate_seeds", "Repeated runs of candidates whose verdict is known", head,
        {"Verdicts": rows, "Early stopping": used, "Thresholds": found}, None, store=options.seeds >= 50,
    )  # fmt: skip
    return 0 if all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
