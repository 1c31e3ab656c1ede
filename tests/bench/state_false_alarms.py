"""How often correct caches, prefix caches, decoders and models are blamed, over many seeds.

Run from the repository: ``PYTHONPATH=. python tests/bench/state_false_alarms.py``. Writes results/state_false_alarms.md.
With names of parts (cache, prefix_cache, decoder, model, seconds) only these are measured; the others keep their rows in
results/state_false_alarms.json.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from state_common import RESULTS, SHAPE, good_caches, good_prefix_caches, head, table

from fixtures.broken.decoders import TARGET
from fixtures.good.decoders import SpeculativeDecoder, lookup_decoder, plain_decoder
from fixtures.good.transformers_objects import tiny_llama, tiny_model
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.state.cache import CACHE_CHECKS, make_cache_contract, measure_cache
from pytest_attnaccept.state.decoder import DECODER_CHECKS, make_decoder_contract, measure_decoder
from pytest_attnaccept.state.decoder_contract import DecoderPlan
from pytest_attnaccept.state.model_level import MODEL_STATE_CHECKS, measure_model_state
from pytest_attnaccept.state.prefix import PREFIX_CHECKS, make_prefix_contract, measure_prefix_cache
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

# Seeds that nothing was developed on; 300 for every object, ten checks of 30 seeds for a model.
FIRST, SEEDS, MODEL_SEEDS = 20_000, 300, 30
TIMED = ("paged", "paged, window", "transformers DynamicCache")
SMOKE_PROGRAMS = 60
PLAN = DecoderPlan(
    greedy_prompts=3,
    greedy_tokens=12,
    prompts=1,
    draws=150,
    depth=3,
    paths=60,
    middle_draws=14,
    late_draws=1,
    long_run=100,
)
DECODERS = ("plain sampling", "speculative, depth 3", "prompt lookup")
MODELS = ("Llama, DynamicCache", "Gemma3, sliding layers", "Mistral, sliding layers")
SLIDING = {"head_dim": 16, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}

Row = tuple[str, str, int, int, int, float, float]


def _count(surface: str, name: str, runs: Iterator[Measured]) -> Row:
    begin, failed, blocked, total, worst = time.process_time(), 0, 0, 0, 0.0
    for measured in runs:
        total += 1
        verdict = decide(measured, {}).verdict
        failed += verdict is Verdict.FAIL
        blocked += verdict.blocks and verdict is not Verdict.FAIL
        worst = max([worst, *(gate.value / gate.limit for gate in measured.gates if gate.limit)])
    row = (surface, name, total, failed, blocked, worst, time.process_time() - begin)
    print(*row, sep=" | ", flush=True)
    return row


def _caches() -> Iterator[Row]:
    for name, (factory, change) in good_caches().items():
        contract = make_cache_contract(**{**SHAPE, **change})
        yield _count("cache", name, _cache_runs(factory, contract))


def _cache_runs(factory: Callable[[], Any], contract: Any) -> Iterator[Measured]:
    yield measure_cache("edges", factory, contract, seed=0, device="cpu", programs=1)
    themes = CACHE_CHECKS[1:]
    for seed in range(FIRST, FIRST + SEEDS):
        yield measure_cache(themes[seed % len(themes)], factory, contract, seed=seed, device="cpu", programs=1)


def _prefix_caches() -> Iterator[Row]:
    for name, (factory, block) in good_prefix_caches().items():
        yield _count("prefix_cache", name, _prefix_runs(factory, make_prefix_contract(block_size=block)))


def _prefix_runs(factory: Callable[[], Any], contract: Any) -> Iterator[Measured]:
    for check in PREFIX_CHECKS:
        yield measure_prefix_cache(check, factory, contract, seed=FIRST, device="cpu", programs=2)
    for seed in range(FIRST, FIRST + SEEDS):
        check = ("programs", "eviction", "blocks")[seed % 3]
        yield measure_prefix_cache(check, factory, contract, seed=seed, device="cpu", programs=2)


def _decoders() -> Iterator[Row]:
    good = {
        "plain sampling": plain_decoder(TARGET),
        "speculative, depth 3": SpeculativeDecoder(TARGET, TARGET.noisy()),
        "prompt lookup": lookup_decoder(TARGET),
    }
    contract = make_decoder_contract(vocab_size=8)
    for name, candidate in good.items():
        yield _count("decoder", name, _decoder_runs(candidate, contract))


def _decoder_runs(candidate: Callable[..., Any], contract: Any) -> Iterator[Measured]:
    others = [check for check in DECODER_CHECKS if check != "distribution"]
    for seed in range(FIRST, FIRST + SEEDS):
        for check in ("distribution", others[seed % len(others)]):
            yield measure_decoder(
                check, candidate, TARGET, contract, seed=seed, device="cpu", profile="smoke", plan=PLAN
            )


def _models() -> Iterator[Row]:
    build: dict[str, Callable[..., Any]] = {
        "Llama, DynamicCache": tiny_llama,
        "Gemma3, sliding layers": lambda seed: tiny_model(
            "Gemma3ForCausalLM", "Gemma3TextConfig", seed=seed, **SLIDING
        ),
        "Mistral, sliding layers": lambda seed: tiny_model(
            "MistralForCausalLM", "MistralConfig", seed=seed, sliding_window=12
        ),
    }
    for name, make in build.items():
        yield _count("model", name, _model_runs(make))


def _model_runs(make: Callable[..., Any]) -> Iterator[Measured]:
    for seed in range(FIRST, FIRST + MODEL_SEEDS):
        model = make(seed=seed)
        for check in MODEL_STATE_CHECKS:
            yield measure_model_state(check, model, seed=seed, baseline=model)


def _contract_seconds() -> Iterator[tuple[str, float, float]]:
    """Yield CPU seconds of one whole cache contract under the profile smoke, and the slowest of its checks."""
    for name in TIMED:
        factory, change = good_caches()[name]
        contract, seconds = make_cache_contract(**{**SHAPE, **change}), []
        for check in CACHE_CHECKS:
            begin = time.process_time()
            measure_cache(check, factory, contract, seed=FIRST, device="cpu", programs=SMOKE_PROGRAMS)
            seconds.append(time.process_time() - begin)
        print(name, f"{sum(seconds):.1f}", flush=True)
        yield name, sum(seconds), max(seconds)


PARTS: dict[str, Callable[[], Iterator[Any]]] = {
    "cache": _caches,
    "prefix_cache": _prefix_caches,
    "decoder": _decoders,
    "model": _models,
    "seconds": _contract_seconds,
}
STORE = RESULTS / "state_false_alarms.json"


def _store(name: str, rows: list[Any]) -> dict[str, list[Any]]:
    """Keep one part's rows; return those of all parts measured so far."""
    kept: dict[str, list[Any]] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    kept[name] = rows
    STORE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return kept


def _write(kept: dict[str, list[Any]]) -> None:
    found = [row for name in PARTS if name != "seconds" for row in kept.get(name, [])]
    last, models = FIRST + SEEDS - 1, FIRST + MODEL_SEEDS - 1
    seeds = f"{FIRST} to {last} per object, checks in turn, {FIRST} to {models} with all checks for models"
    lines = head("False alarms of the state checks", seeds)
    total, failed, blocked = (sum(int(row[place]) for row in found) for place in (2, 3, 4))
    lines += [
        f"{failed} FAIL and {blocked} other blocking verdicts (INVALID, INCONCLUSIVE) in {total} measurements.",
        "Worst: largest gate value over its limit. CPU seconds on one core.",
        "",
    ]
    done, wanted = {row[1] for row in found}, [*good_caches(), *good_prefix_caches(), *DECODERS, *MODELS]
    if missing := [name for name in wanted if name not in done]:
        lines += [f"Not measured: {', '.join(missing)}.", ""]
    shown = ((*row[:5], f"{row[5]:.2f}", f"{row[6]:.0f}") for row in found)
    lines += table(("surface", "object", "measurements", "FAIL", "other blocking", "worst", "s"), shown)
    lines += ["", f"One whole cache contract, six checks under the profile smoke ({SMOKE_PROGRAMS} programs each):", ""]
    seconds = ((name, f"{whole:.1f}", f"{slowest:.1f}") for name, whole, slowest in kept.get("seconds", []))
    lines += table(("cache", "CPU seconds", "slowest check"), seconds)
    (RESULTS / "state_false_alarms.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Measure the named parts, or all, and write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in names or PARTS:
        _write(_store(name, list(PARTS[name]())))


if __name__ == "__main__":
    main(sys.argv[1:])
