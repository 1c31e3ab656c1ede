"""How many faults usual acceptance criteria miss beside the kernel gate's statistics, by length and input, in one run.

    python tests/bench/kernel_rivals.py [--seed 80000] [--longest 131072]

16 faults (`pytest_attnaccept.kernel.mutants`) on 4 query rows, 4 heads over 2 KV heads, head_dim 64, bfloat16 decode-like calls.
Every criterion sees the same outputs. The gate's row is what `judge_output` says, which `accept.kernel` uses for every case; the
last row adds the shift inputs, which every check of the gate uses together with the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from kernel_common import header, provenance, store
from torch import Tensor

from pytest_attnaccept.kernel.cases import CaseSpec, build_case
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.emulate import Habit, attend
from pytest_attnaccept.kernel.guard import Output
from pytest_attnaccept.kernel.judge import exact_rows, judge_output
from pytest_attnaccept.kernel.mutants import mutants_for

Criterion = Callable[[Tensor, Tensor, Tensor], bool]


def close(rtol: float, atol: float) -> Criterion:
    return lambda out, exact, naive: bool(((out - exact).abs() <= atol + rtol * exact.abs()).all())


def flash(out: Tensor, exact: Tensor, naive: Tensor) -> bool:
    return float((out - exact).abs().max()) <= 2 * float((naive - exact).abs().max()) + 1e-5


def flash3(out: Tensor, exact: Tensor, naive: Tensor) -> bool:
    wide = exact.bfloat16()
    atol = 2 * float(((wide + 0.3 - 0.3) - wide).abs().max())
    return float((out - exact).abs().max()) <= 2 * float((naive - exact).abs().max()) + atol


def sdpa(out: Tensor, exact: Tensor, naive: Tensor) -> bool:
    return float((out - exact).abs().max()) <= max(1e-5, 4 * float((naive - exact).abs().max()))


def flex(out: Tensor, exact: Tensor, naive: Tensor) -> bool:
    return float((out - exact).abs().mean()) <= 1.1 * float((naive - exact).abs().mean())


def flashmla(out: Tensor, exact: Tensor, naive: Tensor) -> bool:
    error = (out - exact).abs()
    elements = bool(((error <= 8e-4) | (error <= 2.01 / 128 * exact.abs())).all())
    cosine = 1 - 2 * float((out * exact).sum()) / max(float((out.square() + exact.square()).sum()), 1e-30)
    return elements and cosine < 5e-6


RIVALS: dict[str, Criterion] = {
    "FlashAttention-2 (2x)": flash,
    "FA3 / FA4 (2x + atol)": flash3,
    "PyTorch SDPA (4x)": sdpa,
    "FlexAttention (mean 1.1x)": flex,
    "vLLM flash (1.5e-2 / 1e-2)": close(1e-2, 1.5e-2),
    "FlashInfer (1e-2 / 1e-2)": close(1e-2, 1e-2),
    "xFormers (5e-3 / 2e-2)": close(5e-3, 2e-2),
    "FlashMLA": flashmla,
    "assert_close defaults": close(1.6e-2, 1e-5),
}
GOOD = {"tile 128": Habit(tile=128), "split 3": Habit(tile=128, splits=3), "reversed": Habit(tile=64, reverse=True)}
OURS = "this gate, these inputs alone"
FULL = "this gate, with the shift inputs"


def naive_eager(call: object, exact: object) -> Tensor:
    """Same-dtype attention: scores and normalised probabilities rounded to bfloat16, as in the suites' eager baselines."""
    return attend(call, Habit(tile=2**30, round_s=True))[0].double()  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=80000)
    parser.add_argument("--longest", type=int, default=131072)
    options = parser.parse_args()
    torch.set_num_threads(1)
    origin = provenance(f"{options.seed}, {options.seed + 1}")
    contract = make_contract(q_heads=4, kv_heads=2, head_dim=64)
    lengths = [n for n in (500, 4090, 32763, 131072) if n <= options.longest]
    missed: dict[str, dict[str, list[str]]] = {}
    alarms: dict[str, int] = dict.fromkeys([*RIVALS, OURS], 0)
    good_runs, seconds = 0, 0.0
    for length in lengths:
        for family in ("diffuse", "needle", "shift"):
            passed: dict[str, dict[str, int]] = {}
            for seed in (options.seed, options.seed + 1):
                case = build_case(contract, CaseSpec(family=family, batch=1, q_len=4, kv_len=length, seed=seed), "cpu")
                started = time.process_time()
                rows = exact_rows(case)
                seconds += time.process_time() - started
                naive = naive_eager(case.call, rows.out)
                outs = {("good", name): attend(case.call, habit)[0] for name, habit in GOOD.items()}
                outs |= {
                    ("bad", name): mutant(case.call, Habit(tile=128), rows.index)[0]
                    for name, mutant in mutants_for(case).items()
                }
                for (kind, name), out in outs.items():
                    accepted = {text: rule(out.double(), rows.out, naive) for text, rule in RIVALS.items()}
                    started = time.process_time()
                    accepted[OURS] = not judge_output(case, Output(out, None), rows=rows).failed
                    seconds += time.process_time() - started
                    if kind == "good":
                        good_runs += 1
                        for text, yes in accepted.items():
                            alarms[text] += not yes
                    else:
                        for text, yes in accepted.items():
                            passed.setdefault(text, {}).setdefault(name, 0)
                            passed[text][name] += yes
            for text, names in passed.items():
                missed.setdefault(text, {})[f"{length} {family}"] = sorted(
                    name for name, count in names.items() if count == 2
                )
            print(
                length, family, {text: len(cells[f"{length} {family}"]) for text, cells in missed.items()}, flush=True
            )
    for length in lengths:
        for family in ("diffuse", "needle", "shift"):
            both = set(missed[OURS][f"{length} {family}"]) & set(missed[OURS][f"{length} shift"])
            missed.setdefault(FULL, {})[f"{length} {family}"] = sorted(both)
    total = len(mutants_for(case))
    table = header("Faults missed by acceptance criteria", origin)
    table += f"Of {total} faults, missed on both seeds; {good_runs} correct outputs. Gate: {seconds:.0f} CPU s for all judgements.\n\n"
    columns = [f"{length} {family}" for family in ("diffuse", "needle", "shift") for length in lengths]
    table += (
        "| criterion | " + " | ".join(columns) + " | correct outputs rejected |\n|" + "---|" * (len(columns) + 2) + "\n"
    )
    for text, cells in missed.items():
        table += (
            f"| {text} | "
            + " | ".join(str(len(cells[c])) for c in columns)
            + f" | {alarms.get(text, alarms[OURS])} |\n"
        )
    table += (
        "\nWhat the gate misses: "
        + ("; ".join(f"{c}: {', '.join(missed[OURS][c])}" for c in columns if missed[OURS][c]) or "nothing")
        + "\n"
    )
    store(
        "kernel_rivals",
        {
            "origin": origin,
            "faults": total,
            "missed": missed,
            "alarms": alarms,
            "good_runs": good_runs,
            "gate_cpu_seconds": round(seconds, 1),
        },
        table,
    )
    print(table)


if __name__ == "__main__":
    main()
