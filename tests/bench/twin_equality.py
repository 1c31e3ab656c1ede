"""Whether the MHA twin of a GQA model is the same function: the exact-class check `equality` between both, per model.

    python tests/bench/twin_equality.py [--models toy-gqa smollm2-135m] [--documents 4] [--tokens 256] [--seed 0]

Expected before the run: PASS for every model. The twin is a column of ``suites/matrix-smollm2.accept.yaml``.
"""

from __future__ import annotations

import argparse
import sys

from stats_common import COMMIT, RESULTS

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.measurement import Threshold
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.verdict import decide


def main() -> int:
    """Compare every model with its twin and store the table; 1 when one is not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["toy-gqa", "smollm2-135m"])
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = [
        "# MHA twins of GQA models", "",
        f"`python {' '.join(sys.argv)}` at commit {COMMIT}: check `equality`, {options.documents} documents of {options.tokens} tokens,"
        " one-shot, chunks of 64 and token by token", "",
        "| model | KV heads | of the twin | verdict | largest difference of a logit, in units of its bound |", "|---|---|---|---|---|",
    ]  # fmt: skip
    equal = True
    for name in options.models:
        stack = [(Registry.builtin().get("gqa"), {})]
        with open_session(baseline=name, candidate=f"mha-twin:{name}", stack=stack, seed=options.seed) as session:
            sizes = {"documents": options.documents, "tokens": options.tokens}
            measured = session.measure("equality", sizes)
            heads = [
                side.model.config.get_text_config(decoder=True).num_key_value_heads
                for side in (session.baseline, session.candidate)
            ]
        decision = decide(measured, {})
        worst = max(g.value / g.limit for g in measured.gates if isinstance(g, Threshold) and g.limit)
        equal &= decision.verdict.value == "PASS"
        lines.append(f"| {name} | {heads[0]} | {heads[1]} | {decision.verdict.value} | {worst:.3g} |")
        print(lines[-1], flush=True)
    (RESULTS / "twin_equality.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
