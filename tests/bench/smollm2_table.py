"""What the gate measures on a real model: SmolLM2-135M, WikiText-2 through the cache and needles at 1k and 2k tokens.

    python tests/bench/smollm2_table.py WIKI_TEST_RAW [--documents 5] [--contexts 4 3] [--out tests/bench/results]

Writes ``smollm2_table.json`` (all measurements) and ``smollm2_table.md`` (the table), each with commit, seed and command.
The needle asks one question per context: with several needles in one context this model confuses the names, and a
baseline that does not find them cannot gate anything.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.verdict import decide

ROWS: tuple[tuple[str, dict[str, object]], ...] = (
    ("kv8", {}),
    ("kv4", {}),
    ("kv2", {}),
    ("h2o", {"kv_budget": 0.5}),
    ("h2o", {"kv_budget": 0.25}),
    ("streaming_llm", {"kv_budget": 0.5}),
    ("streaming_llm", {"kv_budget": 0.25}),
    ("random_eviction", {"kv_budget": 0.25}),
)
LENGTHS = (1024, 2048)
CONTEXT, CONTINUATION = 1024, 64


def mean_loss(gate: Any) -> float:
    """Mean loss of a gate over its clusters or tokens."""
    if hasattr(gate, "losses"):
        return sum(gate.losses) / len(gate.losses)
    return sum(gate.sums) / sum(gate.tokens)


def measure_row(loaded: Any, name: str, knobs: dict[str, object], options: argparse.Namespace) -> dict[str, Any]:
    """Measure one method and let the gate judge it with the limits of `longctx`."""
    registry, profile = Registry.builtin(), load_profile("longctx")
    method = registry.get(name)
    checks: dict[str, dict[str, object]] = {
        "footprint": {"tokens": 160, "continuation": 16, "patterns": ["one-shot", "chunk-64"]},
        "perplexity": {
            "tokens": CONTEXT + CONTINUATION, "continuation": CONTINUATION, "documents": options.documents,
            "text": str(options.wikitext), "step": 32,
        },
    }  # fmt: skip
    checks["divergence"] = checks["perplexity"]
    for length, contexts in zip(LENGTHS, options.contexts, strict=True):
        checks[f"needle-{length}"] = {"tokens": length, "contexts": contexts, "questions_per_context": 1}
    row: dict[str, Any] = {"method": name, "knobs": knobs}
    with open_session(
        baseline=loaded, stack=[(method, check_knobs(method, knobs, "bench"))], seed=options.seed
    ) as session:
        for label, params in checks.items():
            started = time.perf_counter()
            measured = session.measure("needle-1x" if label.startswith("needle") else label, params)
            decision = decide(measured, profile.limits, alpha=profile.alpha)
            row[label] = {
                "verdict": decision.verdict.value,
                "headline": decision.headline,
                "losses": {g.name: mean_loss(g) for g in measured.gates if not hasattr(g, "limit")},
                "facts": {f.name: f.value for f in measured.facts},
                "details": dict(measured.details),
                "seconds": round(time.perf_counter() - started, 1),
            }
            print(name, knobs, label, row[label]["verdict"], row[label]["seconds"], "s", flush=True)
        row["fingerprint"] = session.fingerprint()
    return row


def table(rows: list[dict[str, Any]], header: dict[str, Any]) -> str:
    """Render the rows as Markdown."""
    lines = [
        "# SmolLM2-135M through its cache",
        "",
        *(f"- {key}: {'; '.join(value) if isinstance(value, list) else value}" for key, value in header.items()),
        "",
        "PPL: WikiText-2, one window per article. Needle: answered by the candidate / by the baseline, one question per",
        "context. NLL: mean over answer tokens at 1024 tokens. The verdict in brackets is the gate's, under `longctx` limits",
        "and the small n of this table.",
        "",
        "| method | KV bytes | PPL (baseline) | KL | top-1 changed | needle 1k | needle 2k | answer NLL (baseline) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ppl, kl = row["perplexity"], row["divergence"]["losses"]
        cells = [
            f"{row['method']} {' '.join(f'{k}={v}' for k, v in row['knobs'].items())}".strip(),
            f"{row['footprint']['facts']['share_of_baseline[one-shot]']:.3f} ({row['footprint']['verdict']})",
            f"{ppl['facts']['ppl_candidate']:.2f} ({ppl['facts']['ppl_baseline']:.2f}, {ppl['verdict']})",
            f"{kl['kl']:.4f}",
            f"{kl['top1']:.3f}",
        ]
        for length in LENGTHS:
            needle = row[f"needle-{length}"]
            found, base = needle["facts"]["candidate_generated"], needle["facts"]["baseline_generated"]
            cells.append(f"{found:.2f} / {base:.2f} ({needle['verdict']})")
        nll = row[f"needle-{LENGTHS[0]}"]["facts"]
        cells.append(f"{nll['candidate_answer_nll']:.2f} ({nll['baseline_answer_nll']:.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *blind(rows), ""])


def blind(rows: list[dict[str, Any]]) -> list[str]:
    """Say where perplexity is blind and the needle is not, from the numbers."""
    found = []
    for row in rows:
        rise = math.expm1(row["perplexity"]["losses"]["perplexity"])
        lost = max(row[f"needle-{length}"]["losses"]["needle"] for length in LENGTHS)
        name = f"{row['method']} {row['knobs'] or ''}".strip()
        found.append(f"- {name}: perplexity {rise:+.1%}, needle {lost:+.0%} answers lost in the worse length")
    return ["Perplexity against the needle (loss is positive):", "", *found]


def earlier(path: Path, header: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of another run of the same sizes and seed (a loaded machine runs the table in parts)."""
    other = json.loads(path.read_text(encoding="utf-8"))
    for key in ("seed", "documents", "contexts"):
        if other["header"][key] != header[key]:
            raise SystemExit(f"{path}: {key} is {other['header'][key]!r}, not {header[key]!r}")
    header.setdefault("parts", []).append(f"{other['header']['command']} ({other['header']['commit'][:10]})")
    return list(other["rows"])


def write(rows: list[dict[str, Any]], header: dict[str, Any], folder: Path) -> None:
    """Write both files, rows in the order of the table."""
    rows.sort(key=lambda row: ROWS.index((row["method"], row["knobs"])))
    text = json.dumps({"header": header, "rows": rows}, indent=1, default=str)
    (folder / "smollm2_table.json").write_text(text + "\n", encoding="utf-8")
    (folder / "smollm2_table.md").write_text(table(rows, header), encoding="utf-8")


def main() -> int:
    """Run all rows and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wikitext", type=Path)
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--contexts", type=int, nargs=2, default=[4, 3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs=2, default=[0, len(ROWS)], help="first and last + 1 of ROWS")
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="JSON of other runs whose rows are added")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    given = sys.argv[2:]
    if "--out" in given:  # a folder of this machine says nothing about the numbers
        del given[given.index("--out") : given.index("--out") + 2]
    shown = [Path(sys.argv[0]).name, options.wikitext.name, *(Path(word).name for word in given)]
    header = {
        "commit": commit, "seed": options.seed, "command": f"python tests/bench/{' '.join(shown)}",
        "documents": options.documents, "contexts": f"{options.contexts[0]} at 1024, {options.contexts[1]} at 2048 tokens",
    }  # fmt: skip
    started = time.perf_counter()
    rows = [row for path in options.add for row in earlier(path, header)]
    loaded = load(parse_spec("smollm2-135m")) if options.rows[0] < options.rows[1] else None
    options.out.mkdir(parents=True, exist_ok=True)
    for name, knobs in ROWS[slice(*options.rows)]:
        rows.append(measure_row(loaded, name, knobs, options))
        header["seconds"] = round(time.perf_counter() - started)
        write(rows, header, options.out)
    write(rows, header, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
