"""Which faults of caches, prefix caches, decoders and models are caught, by which check, in how many steps and seconds.

Run from the repository: ``PYTHONPATH=. python tests/bench/state_faults.py``. Writes results/state_faults.md.
With names of surfaces (cache, prefix_cache, decoder, model) only these are measured; the others keep their rows in
results/state_faults.json.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from state_common import RESULTS, SHAPE, head, table

from fixtures.broken.caches import BROKEN_CACHES
from fixtures.broken.decoders import BELOW_RESOLUTION, BROKEN_DECODERS, TARGET
from fixtures.broken.model_states import BROKEN_MODELS
from fixtures.broken.prefix_caches import BROKEN_PREFIX_CACHES
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.state.cache import make_cache_contract, measure_cache
from pytest_attnaccept.state.decoder import make_decoder_contract, measure_decoder
from pytest_attnaccept.state.decoder_contract import DecoderPlan
from pytest_attnaccept.state.model_level import measure_model_state
from pytest_attnaccept.state.prefix import make_prefix_contract, measure_prefix_cache
from pytest_attnaccept.verdict import decide

SEED, PROGRAMS = 0, 60
FEW = DecoderPlan(greedy_prompts=12, greedy_tokens=24, prompts=1, draws=600, paths=600)

# Rows of the corpus (kind ii and iii) that are not executable here, and why.
NOT_HERE = (
    (
        "Q07, Q08, Q10, Q11",
        "quantized caches: approximate, measured through the cache by `accept.model`, not by the exact gate",
    ),
    (
        "D14",
        "a mask of one ring-attention implementation over jointly appended text; its function is a kernel (M-rows)",
    ),
    ("P13", "races in registers are modelled by stale rows with probability 0.02 (RacingRows)"),
    (
        "D12",
        "the real grid has 2^-24 and moves the distribution by less than 0.01; a grid of 2^-6 is caught (GumbelOnGrid)",
    ),
    ("X17", "the 2^32 boundary is scaled down to 16 pages; a real overflow needs a pool of that size"),
)


def _timed(surface: str, row: Any, measure: Any) -> list[object]:
    begin = time.process_time()
    measured: Measured = measure()
    seconds = time.process_time() - begin
    verdict = decide(measured, {}).verdict.value
    steps = sum(line.startswith("run.") for line in measured.reproduce.splitlines()) or ""
    words = measured.seems or next((gate.where for gate in measured.gates if not gate.value <= gate.limit), "")
    words = words or (measured.refusals[0].reason if measured.refusals else "")
    caught = "caught" if verdict in ("FAIL", "INVALID") else "MISSED"
    return [surface, row.name, row.source, row.check, f"{caught} ({verdict})", steps, f"{seconds:.1f}", words[:120]]


def _caches() -> Iterator[list[object]]:
    for row in BROKEN_CACHES:
        contract = make_cache_contract(**{**SHAPE, **row.keywords})
        yield _timed(
            "cache",
            row,
            lambda row=row, contract=contract: measure_cache(
                row.check, row.factory, contract, seed=SEED, device="cpu", programs=PROGRAMS
            ),
        )


def _prefix_caches() -> Iterator[list[object]]:
    for row in BROKEN_PREFIX_CACHES:
        contract = make_prefix_contract(block_size=row.block_size)
        yield _timed(
            "prefix_cache",
            row,
            lambda row=row, contract=contract: measure_prefix_cache(
                row.check, row.factory, contract, seed=SEED, device="cpu", programs=PROGRAMS
            ),
        )


def _decoders() -> Iterator[list[object]]:
    for row in (*BROKEN_DECODERS, *(row for row, _ in BELOW_RESOLUTION.values())):
        contract = make_decoder_contract(vocab_size=8, **row.keywords)
        yield _timed("decoder", row, lambda row=row, contract=contract: _decoder(row, contract))


def _models() -> Iterator[list[object]]:
    for row in BROKEN_MODELS:
        yield _timed("model", row, lambda row=row: _model(row))


SURFACES: dict[str, Callable[[], Iterator[list[object]]]] = {
    "cache": _caches,
    "prefix_cache": _prefix_caches,
    "decoder": _decoders,
    "model": _models,
}
STORE = RESULTS / "state_faults.json"


def _decoder(row: Any, contract: Any) -> Measured:
    """Measure with a fifth of the draws of the profile smoke, and with all of them when that is not enough."""
    for plan in (FEW, None):
        measured = measure_decoder(
            row.check, row.candidate, TARGET, contract, seed=SEED, device="cpu", profile="smoke", plan=plan
        )
        if decide(measured, {}).verdict.value == "FAIL":
            break
    return measured


def _model(row: Any) -> Measured:
    model = row.model()
    cache = None if row.cache is None else (lambda: row.cache(model))
    baseline = row.baseline() if row.baseline else None
    return measure_model_state(row.check, model, seed=SEED, cache=cache, baseline=baseline)


def _measure(name: str) -> dict[str, list[list[object]]]:
    """Measure one surface; return the rows of all surfaces measured so far."""
    found = []
    for row in SURFACES[name]():
        print(*row, sep=" | ", flush=True)
        found.append(row)
    kept: dict[str, list[list[object]]] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    kept[name] = found
    STORE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return kept


def _write(kept: dict[str, list[list[object]]]) -> None:
    found = [row for name in SURFACES for row in kept.get(name, [])]
    caught = sum("caught" in str(row[4]) for row in found)
    lines = head(
        "Faults of state: caught or missed",
        f"{SEED}; {PROGRAMS} programs per check; decoders 600 draws, then 3000 (smoke)",
    )
    lines += [
        f"{caught} of {len(found)} faults are caught by the check that their row names. CPU seconds on one core.",
        "",
    ]
    wanted = {
        "cache": BROKEN_CACHES,
        "prefix_cache": BROKEN_PREFIX_CACHES,
        "decoder": (*BROKEN_DECODERS, *(row for row, _ in BELOW_RESOLUTION.values())),
        "model": BROKEN_MODELS,
    }
    for surface, rows in wanted.items():
        if missing := [row.name for row in rows[len(kept.get(surface, [])) :]]:
            lines += [f"Not measured ({surface}): {', '.join(missing)}.", ""]
    lines += table(
        ("surface", "fault", "source", "check", "result", "steps of the minimal program", "s", "the failure says"),
        found,
    )
    lines += ["", "Missed, and why:", ""]
    lines += [f"- {name}: {why}." for name, (_, why) in BELOW_RESOLUTION.items()]
    lines += ["", "Rows of the corpus that are not executable here, or only scaled down:", ""]
    lines += [f"- {ids}: {why}." for ids, why in NOT_HERE]
    (RESULTS / "state_faults.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Measure the named surfaces, or all, and write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in names or SURFACES:
        _write(_measure(name))


if __name__ == "__main__":
    main(sys.argv[1:])
