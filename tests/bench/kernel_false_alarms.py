"""How often the kernel gate alarms on correct implementations: at least 1000 runs of `measure_kernel`.

    python tests/bench/kernel_false_alarms.py [--runs 1000] [--first-seed 70000] [--minutes 12] [--small]

With `--small` all contracts have few heads, few features and at most 200 keys: half a run's cost, stored as a table of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from kernel_common import header, provenance, store
from kernel_good import HABITS, backend, emulation, naive, transformers_eager
from torch.nn.attention import SDPBackend

from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.run import measure_kernel
from pytest_attnaccept.taxonomy import Verdict

CHECKS = ("value", "inputs", "lse", "poison", "relations", "repeat", "long", "shapes")
WEIGHTS = (6, 4, 4, 4, 3, 1, 2, 1)
# Kernels that torch can differentiate as they would be trained; an emulated tile loop would not be.
TRAINABLE = ("sdpa default", "sdpa math", "sdpa flash", "naive")


def draw(chooser: random.Random) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """Draw an implementation and a contract that it keeps."""
    dtype = chooser.choice(["bfloat16", "bfloat16", "float16", "float32"])
    heads = chooser.choice([(8, 2), (8, 8), (8, 1), (10, 2), (6, 3), (14, 2), (5, 1)])
    base: dict[str, Any] = {
        "dtype": dtype,
        "q_heads": heads[0],
        "kv_heads": heads[1],
        "head_dim": chooser.choice([16, 32, 64, 80, 128]),
    }
    kind = chooser.choice(
        [
            "sdpa default",
            "sdpa math",
            "sdpa flash",
            "transformers eager",
            "naive",
            "emulation",
            "emulation",
            "emulation",
        ]
    )
    if kind.startswith("sdpa"):
        pick = {"default": None, "math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}[kind.split()[1]]
        base |= chooser.choice([{}, {"causal": False}, {"window": 60}, {"ragged": True}, {"alignment": "top_left"}])
        return kind, backend(pick), base
    if kind == "transformers eager":
        return kind, transformers_eager, base | {"q_lens": "square", "score_dtype": "input"}
    if kind == "naive":
        return kind, naive, base
    name = chooser.choice(sorted(HABITS))
    habit = HABITS[name]
    if dtype == "float32":
        # Truncation belongs to half-precision tensor cores.
        habit = replace(habit, truncate=False)
    options: list[dict[str, Any]] = [
        {},
        {"window": 100},
        {"softcap": 30.0},
        {"sinks": True},
        {"alibi": True},
        {"ragged": True},
        {"page_size": 16},
        {"causal": False},
        {"alignment": "top_left"},
        {"sinks": True, "window": 65},
        {"v_head_dim": 48},
        {"page_size": 64, "alibi": True},
        {"q_lens": "decode"},
    ]
    if dtype != "float32":
        options += [
            {"kv_dtype": "float8_e4m3fn", "page_size": 16},
            {"kv_dtype": "float8_e4m3fn"},
            {"score_dtype": "input"},
            {"score_dtype": "input", "softcap": 30.0, "alibi": True},
        ]
    base |= {"returns_lse": True, "lse_base": chooser.choice("e2")} | chooser.choice(options)
    if not habit.round_p and dtype != "float32":
        base["probability_dtype"] = "float32"
    habit = replace(
        habit,
        lse_base=base["lse_base"],
        alignment=base.get("alignment", "bottom_right"),
        round_s=base.get("score_dtype") == "input",
    )
    return f"emulation: {name}", emulation(habit), base


def main() -> None:
    """Run until the count is reached (or the minutes are over) and store the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=70000)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    origin = provenance(f"{options.first_seed}..{options.first_seed + options.runs - 1}")
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"runs": 0, "gates": 0, "alarms": 0})
    highest: dict[str, float] = defaultdict(float)
    alarms: list[str] = []
    started, done, neutral = time.process_time(), 0, 0
    for seed in range(options.first_seed, options.first_seed + 4 * options.runs):
        if done >= options.runs or time.process_time() - started > 60 * options.minutes:
            break
        chooser = random.Random(seed)
        name, fn, keywords = draw(chooser)
        check = chooser.choices(CHECKS, WEIGHTS)[0]
        if name in TRAINABLE and chooser.random() < 0.15:
            check, keywords = "backward", keywords | {"backward": True}
        length = chooser.choice([65, 130, 200, 257, 300, 513]) if seed % 12 else chooser.choice([700, 1100, 2050])
        length = length if seed % 200 else 8192
        if options.small:
            q_heads, kv_heads = chooser.choice([(2, 1), (4, 2), (5, 1), (7, 1), (3, 3)])
            keywords |= {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": chooser.choice([16, 32])}
            length = chooser.choice([65, 100, 130, 200])
        measured = measure_kernel(check, fn, make_contract(**keywords), max_length=length, seed=seed, device="cpu")
        if any(refusal.verdict is Verdict.NOT_APPLICABLE for refusal in measured.refusals):
            neutral += 1
            continue
        done += 1
        row = counts[f"{name} | {keywords['dtype']}"]
        row["runs"] += 1
        row["gates"] += len(measured.gates)
        for gate in measured.gates:
            highest[gate.name] = max(highest[gate.name], gate.value / gate.limit)
        bad = [
            f"{gate.name}={gate.value:.3g} (limit {gate.limit:.3g}) {gate.where}"
            for gate in measured.gates
            if not gate.value <= gate.limit
        ]
        bad += [f"{refusal.verdict.value}: {refusal.reason}" for refusal in measured.refusals]
        if bad:
            row["alarms"] += 1
            alarms.append(f"seed {seed}, {name}, {check} at {length}, {keywords}: {bad[:3]}")
            print(alarms[-1], flush=True)
        if done % 50 == 0:
            write(origin, done, neutral, started, counts, highest, alarms, options.small)
    write(origin, done, neutral, started, counts, highest, alarms, options.small)
    print(f"{done} runs, {len(alarms)} alarms")


def write(
    origin: dict[str, Any],
    done: int,
    neutral: int,
    started: float,
    counts: dict[str, dict[str, int]],
    highest: dict[str, float],
    alarms: list[str],
    small: bool,
) -> None:
    """Store what is known so far; an interrupted run keeps its table."""
    minutes = (time.process_time() - started) / 60
    data = {
        "origin": origin,
        "runs": done,
        "not_applicable": neutral,
        "cpu_minutes": round(minutes, 1),
        "alarms": alarms,
        "by_implementation": dict(counts),
        "highest_ratio_to_limit": {k: round(v, 3) for k, v in sorted(highest.items())},
    }
    table = header("False alarms of the kernel gate on correct implementations", origin)
    table += f"{done} runs of `measure_kernel` ({neutral} more were not applicable), {sum(r['gates'] for r in counts.values())} gates, "
    table += f"**{len(alarms)} alarms**, {minutes:.1f} CPU minutes.\n\n| implementation | dtype | runs | gates | alarms |\n|---|---|---|---|---|\n"
    table += "".join(f"| {k} | {v['runs']} | {v['gates']} | {v['alarms']} |\n" for k, v in sorted(counts.items()))
    table += "\n| statistic | highest value in units of its limit |\n|---|---|\n"
    table += "".join(f"| {k} | {v:.2f} |\n" for k, v in sorted(highest.items(), key=lambda item: -item[1]))
    store("kernel_false_alarms_small" if small else "kernel_false_alarms", data, table)


if __name__ == "__main__":
    main()
