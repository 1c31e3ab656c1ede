"""Which faults the kernel gate catches: every broken kernel of `fixtures/broken` under its named check.

python tests/bench/kernel_faults.py [--seed 90000] [--only NAME]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

import torch
from kernel_common import header, provenance, store

from fixtures.broken.kernels import ALL, OUT_OF_REACH
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.run import measure_kernel
from pytest_attnaccept.taxonomy import Verdict


def main() -> None:
    """Run the corpus and store the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=90000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    origin = provenance(str(options.seed))
    rows, missed, unnamed = [], [], []
    for fault in ALL:
        if options.only not in fault.name:
            continue
        started = time.process_time()
        try:
            measured = measure_kernel(
                fault.check,
                fault.make(),
                make_contract(**fault.contract),
                max_length=fault.max_length,
                seed=options.seed,
                device="cpu",
            )
            over = [g for g in measured.gates if not g.value <= g.limit]
            over.sort(key=lambda g: -(g.value / g.limit) if g.value == g.value else float("-inf"))
            why = ", ".join(f"{g.name} {g.value / g.limit:.3g}x" for g in over[:3])
            failed = bool(over) or any(r.verdict is Verdict.FAIL for r in measured.refusals)
            why = why or "; ".join(r.reason for r in measured.refusals)[:90]
            seems = measured.seems
        except CandidateError as error:
            failed, why, seems = True, f"raised: {error}"[:90], ""
        seconds = time.process_time() - started
        if not failed:
            missed.append(fault.name)
        if fault.looks and fault.looks not in seems + why:
            unnamed.append(f"{fault.name}: expected {fault.looks!r}, got {seems!r}")
        rows.append(
            {
                "name": fault.name,
                "source": fault.source,
                "strength": fault.strength,
                "check": fault.check,
                "caught": failed,
                "by": why,
                "seems": seems,
                "cpu_seconds": round(seconds, 2),
                "max_length": fault.max_length,
            }
        )
        print(
            "caught" if failed else "MISSED",
            fault.source,
            fault.name,
            "|",
            fault.check,
            "|",
            why[:80],
            "|",
            seems[:110],
            f"| {seconds:.1f} s",
            flush=True,
        )
    print("MISSED:", missed)
    print("DIAGNOSIS DIFFERS:", *unnamed, sep="\n  ")
    if options.only:
        return
    table = header("Faults that the kernel gate catches", origin)
    table += f"{len(rows) - len(missed)} of {len(rows)} broken kernels caught by the check they name; missed: {missed or 'none'}.\n\n"
    table += "| source | fault | strength | check | caught | by (times limit) | looks like | CPU s |\n|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        by, seems = (str(row[key]).replace("|", "/") for key in ("by", "seems"))
        table += f"| {row['source']} | {row['name']} | {row['strength']} | {row['check']} | {'yes' if row['caught'] else '**no**'} | {by} | {seems} | {row['cpu_seconds']} |\n"
    table += "\nRows of the corpus that no attention call can show:\n\n"
    table += "".join(f"- {name}: {reason}\n" for name, reason in OUT_OF_REACH.items())
    store("kernel_faults", {"origin": origin, "rows": rows, "out_of_reach": OUT_OF_REACH}, table)


if __name__ == "__main__":
    main()
