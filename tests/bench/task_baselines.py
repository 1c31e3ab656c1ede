"""Which task families can gate which model: the plain baseline's score, the chance level, and whether they are far enough apart.

    python tests/bench/task_baselines.py [MODEL] [--contexts 8] [--lengths 128 256 512] [--only FAMILY ...] [--seed 0] [--out DIR]

A family discriminates where its baseline beats a blind guess by three margins of ten points (what `decide` asks for under a
limit of 0.10). ``generated`` is the score of free answers, ``choice`` of picking the answer among its foils (its chance is one
over their number); the better one is what a profile for this model should use. Few contexts: the table says what is worth
trying, not what a model is worth. Writes ``task_baselines_MODEL.json`` and ``.md`` with commit, seed and command, after every row; rows of the same commit,
seed and number of contexts are not measured again.
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
from pytest_attnaccept.checks.model_asking import ask
from pytest_attnaccept.checks.model_data import encode
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.stats.floors import baseline_floor
from pytest_attnaccept.tasks import generate
from pytest_attnaccept.tasks.blind import constant_score

MARGIN = 0.10
# Family and parameters: sizes that fit into a few hundred tokens. Long outputs are kept short for the time that they take.
ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("needle", {"needles": 1}),
    ("needle", {"needles": 4}),
    ("kv_recall", {"pairs": 8, "questions": 2}),
    ("variable_tracking", {"chains": 4, "hops": 2, "questions": 2}),
    ("passkey", {"value": "word"}),
    ("passkey", {"value": "digits4"}),
    ("passkey", {"value": "digits7"}),
    ("passkey", {"value": "uuid"}),
    ("lookalikes", {"keys": "names", "value": "digits4", "keys_total": 6, "questions": 2}),
    ("lookalikes", {"questions": 2}),
    ("multi_value", {"keys": 2, "values": 2, "questions": 1}),
    ("many_questions", {"pairs": 8, "questions": 3}),
    ("variable_chains", {"chains": 2, "hops": 2}),
    ("word_counting", {"k": 3, "words": "word"}),
    ("word_counting", {"kind": "zeta"}),
    ("listops", {"values": 4, "depth": 2}),
    ("multi_hop", {"questions": 1}),
    ("multi_hop", {"kind": "comparison", "questions": 1}),
    ("json_dump", {"keys": "names", "value": "digits4", "pairs": 8, "questions": 2}),
    ("json_dump", {"questions": 1}),
    ("mqar", {"pairs": 8, "questions": 2}),
    ("mqar", {"pairs": 32, "questions": 2}),
    ("copy_span", {"span": 12}),
    ("phone_book", {"questions": 2}),
    ("instructions", {"rules": 2}),
    ("ledger", {"kind": "transform", "outputs": 8}),
    ("stories", {"ask": "where", "questions": 2}),
    ("stories", {"ask": "yesno", "questions": 2}),
    ("graph_walk", {"ask": "parents"}),
    ("many_shot", {"classes": 4, "labels": "names", "questions": 2}),
    ("aliases", {"pairs": 3, "questions": 2, "alias": "names"}),
)


def score(session: Any, task: str, parameters: dict[str, Any], length: int, count: int) -> dict[str, Any]:
    """Ask the plain model `count` contexts."""
    loaded = session.baseline.loaded
    items = [
        generate(
            task, fit=lambda t: len(encode(loaded.tokenizer, t)), target_tokens=length - len(loaded.prefix_ids),
            seed=session.seed, index=index, **parameters,
        )
        for index in range(count)
    ]  # fmt: skip
    flat = [answer for row in ask(session, session.baseline, items, "one-shot") for answer in row]
    chosen = [answer.margin > 0 for answer in flat if not math.isnan(answer.margin)]
    chance = max(constant_score(items), *(item.chance for item in items))
    guess = max((q.choice_chance for item in items for q in item.questions if q.foils), default=1.0)
    generated = sum(a.value for a in flat) / len(flat)
    choice = sum(chosen) / len(chosen) if len(chosen) == len(flat) else None
    return {
        "n": len(flat),
        "chance": chance,
        "generated": generated,
        "choice": choice,
        "choice_chance": guess if choice is not None else None,
        "nll": sum(a.nll for a in flat) / len(flat),
        "rank": sum(a.rank for a in flat) / len(flat),
        "unread": sum(not a.parsed for a in flat) / len(flat),
        "by_generated": baseline_floor(generated, count, MARGIN, chance) == "",
        "by_choice": choice is not None and guess < 1 and baseline_floor(choice, count, MARGIN, guess) == "",
    }


def table(rows: list[dict[str, Any]], header: dict[str, Any]) -> str:
    """Render the rows as Markdown."""
    lines = [
        "# Which task families discriminate on which model",
        "",
        *(f"- {key}: {value}" for key, value in header.items()),
        "",
        f"gates by: the score under which the plain model beats a blind guess by three margins of {MARGIN:.0%}; `no` means that the",
        "item would end INVALID. unread: generated texts that were no answer at all. nll: mean over answer tokens, nats.",
        "",
        "| model | tokens | family | parameters | n | generated (chance) | choice (chance) | unread | nll | gates by |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        words = ", ".join(f"{k}={v}" for k, v in row["parameters"].items() if k != "questions")
        start = f"| {row['model']} | {row['length']} | {row['task']} | {words} |"
        if "error" in row:
            lines.append(f"{start} 0 | {row['error']} | | | | no |")
            continue
        choice = "" if row["choice"] is None else f"{row['choice']:.2f} ({row['choice_chance']:.2f})"
        gates = [name for name in ("generated", "choice") if row[f"by_{name}"]]
        lines.append(
            f"{start} {row['n']} | {row['generated']:.2f} ({row['chance']:.2g}) | {choice} | {row['unread']:.2f} |"
            f" {row['nll']:.2f} | {', '.join(gates) or 'no'} |"
        )
    return "\n".join([*lines, ""])


def _measured(session: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Fill one row, or say why there is none."""
    started = time.process_time()
    try:
        row = row | score(session, row["task"], row["parameters"], row["length"], row["contexts"])
    except ContractError as error:
        row = row | {"error": "too short" if "too short" in str(error) else str(error)}
    print(
        row["model"], row["length"], row["task"], row["parameters"], row.get("generated"), row.get("choice"), flush=True
    )
    return row | {"cpu_seconds": round(time.process_time() - started, 1)}


def main(arguments: list[str] | None = None) -> int:
    """Measure, write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="toy-gqa")
    parser.add_argument("--contexts", type=int, default=8, help="contexts per row")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512], help="tokens")
    parser.add_argument("--only", nargs="+", default=[task for task, _ in ROWS], help="families (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    given = [f"--only {' '.join(options.only)}"] if len(options.only) < len(ROWS) else []
    header = {
        "command": " ".join(
            ["python tests/bench/task_baselines.py", options.model, "--contexts", str(options.contexts), "--lengths"]
            + [str(length) for length in options.lengths]
            + given
        ),
        "commit": commit,
        "seed": options.seed,
    }
    store = options.out / f"task_baselines_{options.model}.json"
    old = json.loads(store.read_text(encoding="utf-8")) if store.is_file() else {"header": {}, "rows": []}
    # A killed run loses the row in progress: rows of the same commit and seed are taken over.
    kept = old["rows"] if all(old["header"].get(k) == header[k] for k in ("commit", "seed")) else []
    rows: list[dict[str, Any]] = []
    options.out.mkdir(parents=True, exist_ok=True)
    method = Registry.builtin().get("kv8")  # a session needs a candidate; only its baseline is asked
    total = len(options.lengths) * sum(task in options.only for task, _ in ROWS)
    with open_session(baseline=load(parse_spec(options.model)), stack=[(method, {})], seed=options.seed) as session:
        for length in options.lengths:
            for task, parameters in (entry for entry in ROWS if entry[0] in options.only):
                row = {"model": options.model, "length": length, "contexts": options.contexts, "task": task}
                row |= {"parameters": parameters}
                known = [k for k in kept if all(k.get(name) == value for name, value in row.items())]
                rows.append(known[0] if known else _measured(session, row))
                header["rows"] = f"{len(rows)} of {total}"  # a run that was stopped says so
                text = json.dumps({"header": header, "rows": rows}, indent=1)
                store.write_text(text + "\n", encoding="utf-8")
                store.with_suffix(".md").write_text(table(rows, header), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
