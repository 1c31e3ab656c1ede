"""What the `long` check costs at 131072 keys: time beside the candidate's own calls, and peak memory above the inputs.

python tests/bench/kernel_cost.py [--length 131072] [--threads 2] [--device cpu]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.nn.functional as F
from kernel_common import header, provenance, store

from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.run import measure_kernel
from pytest_attnaccept.kernel.sdpa import adapt


def main() -> None:
    """Measure one `long` check of SDPA and store the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=95000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    contract = make_contract(dtype="bfloat16", q_heads=8, kv_heads=2, head_dim=128)
    inner, contract = adapt(F.scaled_dot_product_attention, contract)
    spent = {"wall": 0.0, "cpu": 0.0, "inputs": 0}

    def timed(call: object) -> object:
        wall, cpu = time.perf_counter(), time.process_time()
        out = inner(call)  # type: ignore[arg-type]
        if options.device != "cpu":
            torch.cuda.synchronize()
        spent["wall"] += time.perf_counter() - wall
        spent["cpu"] += time.process_time() - cpu
        size = sum(getattr(call, name).numel() * 2 for name in ("q", "k", "v"))
        spent["inputs"] = max(spent["inputs"], size)
        return out

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wall, cpu = time.perf_counter(), time.process_time()
    measured = measure_kernel(
        "long", timed, contract, max_length=options.length, seed=options.seed, device=options.device
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before - spent["inputs"] / 2**20
    facts = {fact.name: fact.value for fact in measured.facts}
    data = {
        "wall_seconds": round(wall - spent["wall"], 1),
        "cpu_seconds": round(cpu - spent["cpu"], 1),
        "candidate_wall_seconds": round(spent["wall"], 1),
        "candidate_cpu_seconds": round(spent["cpu"], 1),
        "peak_mib_above_inputs": round(peak),
        "inputs_mib": round(spent["inputs"] / 2**20),
        "calls": facts["candidate_calls"],
        "certified_to": facts["certified_to"],
        "refusals": [r.reason for r in measured.refusals],
        "failed": [g.name for g in measured.gates if not g.value <= g.limit],
    }
    origin = provenance(str(options.seed))
    table = header("Cost of the check `long`", origin)
    table += (
        "8 query heads over 2 KV heads, head_dim 128, bfloat16, SDPA as the candidate.\n\n| what | value |\n|---|---|\n"
    )
    table += "".join(f"| {key} | {value} |\n" for key, value in data.items())
    store("kernel_cost", {"origin": origin, **data}, table)
    print(table)


if __name__ == "__main__":
    main()
