"""Curves and controls over seeds: a harmless candidate is never turned red by them, a bad one is never certified.

    python tests/bench/approximate_curves.py [--seeds 16] [--first 3000]

Harmless: KV8 under length curve and controls. Bad: H2O at a quarter of the context under the budget curve. The needle items run
beside them: what a curve adds to their verdict is the question.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping

from approximate_common import checks, commit, gate, prepare, publish

PROFILE = """
schema: 1
name: curves
claim: no collapse beyond ten points of retrieval
checks:
  needle: {tiers: [0.5], contexts: 60, questions_per_context: 4}
  budget-curve: {budgets: [1, 0.5, 0.25, 0.125], tier: 0.5}
  length-curve: {lengths: [0.25, 0.5, 1, 4], operating: 0.5, beyond: 60, documents: 14}
  controls: {tier: 0.5}
limits:
  needle: {max: 0.10, origin: "policy: as in the profile smoke"}
"""
CELLS: tuple[tuple[str, str, Mapping[str, object]], ...] = (
    ("harmless", "kv8", {}),
    ("bad", "h2o", {"kv_budget": 0.25}),
)


def main() -> int:
    """Run all seeds and store the table; 1 when a threshold does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first", type=int, default=3000)
    parser.add_argument("--model", default="toy-gqa")
    options = parser.parse_args()
    prepare()
    head: dict[str, object] = {
        "command": " ".join(["python", *sys.argv]), "commit": commit(), "model": options.model,
        "seeds": f"{options.first} to {options.first + options.seeds - 1}",
    }  # fmt: skip
    counted: dict[tuple[str, str], Counter[str]] = {}
    added = 0
    claims: list[str] = []
    started = time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        for cell, method, knobs in CELLS:
            records = gate(method, knobs, PROFILE, model=options.model, seed=seed)
            for check, record in records.items():
                counted.setdefault((cell, check), Counter())[record["verdict"]] += 1
            if cell == "harmless":
                added += records["needle-0.5x"]["verdict"] == "PASS" and records["length-curve"]["verdict"] != "PASS"
                claims.append(str(records["length-curve"]["details"]["certified"]))
        print(seed, {f"{c} {k}": dict(v) for (c, k), v in counted.items()}, flush=True)
    head["CPU seconds"] = round(time.process_time() - started)
    rows = [
        {"candidate": cell, "check": check, **{v: found.get(v, 0) for v in ("PASS", "FAIL", "INCONCLUSIVE", "INVALID")}}
        for (cell, check), found in counted.items()
    ]
    harmless = {check: found for (cell, check), found in counted.items() if cell == "harmless"}
    bad = counted[("bad", "budget-curve")]
    found = checks([
        ("a harmless candidate never FAILs and is never INVALID", not any(f["FAIL"] + f["INVALID"] for f in harmless.values()),
         str({check: dict(f) for check, f in harmless.items()})),
        ("the length curve never blocks what the needle at its operating length passes", added == 0, f"{added} times"),
        ("a bad candidate is never certified at its budget", not bad["PASS"], str(dict(bad))),
    ])  # fmt: skip
    ranges = [{"certified range of the harmless candidate": text, "seeds": n} for text, n in Counter(claims).items()]
    publish(
        "approximate_curves", "Curves and controls over seeds", head,
        {"Verdicts": rows, "Certified ranges": ranges, "Thresholds": found}, None, store=options.seeds >= 10,
    )  # fmt: skip
    return 0 if all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
