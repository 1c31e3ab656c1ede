"""What a verdict costs: this gate, lm-eval run twice on the same items, and kvpress' way of evaluating, in one run.

    python tests/bench/approximate_cost.py [--kvpress-python PYTHON] [--slice 8]

All three ask the needle items of the profile `longctx` at the trained length. The others have no stopping rule, so they ask a
fixed number of contexts: the one whose power equals that of the planned looks at the same error rates (220 / 1.14). Their calls and
tokens are counted on a slice of the items and scaled; every item has the same length within 2 %. Counted are forward passes
of the decoder: calls (a batch is one), sequences (rows of calls), prefills (rows of calls above 32 tokens) and tokens.
lm-eval cannot see a changed cache (its requests are whole texts), so its cost is that of asking the baseline twice.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from approximate_common import checks, commit, gate, prepare, publish
from transformers.models.llama.modeling_llama import LlamaModel

from pytest_attnaccept.checks.model_data import encode
from pytest_attnaccept.checks.stack_memo import stack_memo
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.specs import embedded_path, parse_spec
from pytest_attnaccept.stats.sequential import INFLATION
from pytest_attnaccept.tasks import TaskItem, generate

CONTEXTS, QUESTIONS = 220, 4
PROFILE = f"""
schema: 1
name: cost
claim: no loss beyond five points of retrieval
checks:
  needle: {{tiers: [1], contexts: {CONTEXTS}, questions_per_context: {QUESTIONS}}}
limits:
  needle: {{max: 0.05, origin: "policy: as in the profile longctx"}}
"""
CANDIDATES: tuple[tuple[str, Mapping[str, object]], ...] = (("kv8", {}), ("streaming_llm", {"kv_budget": 0.25}))
PREFILL = 32  # tokens of a call above which it is counted as a prefill
COUNTS = ("calls", "sequences", "prefills", "tokens")

Counts = dict[str, float]
# Runs inside the environment of kvpress: reads items, asks them, prints what was counted.
KVPRESS = """
import functools, json, sys, time
import torch
from kvpress import KnormPress, KVPressTextGenerationPipeline
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaModel

torch.set_num_threads(1)
place, items = sys.argv[1], json.load(open(sys.argv[2]))
found = dict.fromkeys(("calls", "sequences", "prefills", "tokens"), 0)
original = LlamaModel.forward

@functools.wraps(original)
def forward(self, *args, **kwargs):
    ids = kwargs.get("input_ids", args[0] if args else None)
    ids = kwargs.get("inputs_embeds") if ids is None else ids
    found["calls"] += 1
    found["sequences"] += ids.shape[0]
    found["prefills"] += ids.shape[0] * (ids.shape[1] > 32)
    found["tokens"] += ids.shape[0] * ids.shape[1]
    return original(self, *args, **kwargs)

LlamaModel.forward = forward
model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
named = json.loads(open(place + "/tokenizer_config.json").read())
end = named["eos_token"]
tokenizer = PreTrainedTokenizerFast(tokenizer_file=place + "/tokenizer.json", eos_token=end, bos_token=end, pad_token=end)
pipe = KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
started = time.process_time()
for press in (None, KnormPress(compression_ratio=0.75)):
    for item in items:
        pipe(item["context"], questions=item["questions"], press=press, max_new_tokens=item["new"])
found["seconds"] = time.process_time() - started
print("COUNTED" + json.dumps(found))
"""


@contextmanager
def counting() -> Iterator[Counts]:
    """Count forward passes of every Llama decoder in this process."""
    found: Counts = dict.fromkeys((*COUNTS, "seconds"), 0.0)
    original: Callable[..., Any] = LlamaModel.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids")
        ids = ids if ids is not None else kwargs.get("inputs_embeds", args[0] if args else None)
        rows, width = int(ids.shape[0]), int(ids.shape[1])
        found["calls"] += 1
        found["sequences"] += rows
        found["prefills"] += rows * (width > PREFILL)
        found["tokens"] += rows * width
        return original(self, *args, **kwargs)

    LlamaModel.forward = forward
    started = time.process_time()
    try:
        yield found
    finally:
        LlamaModel.forward = original
        found["seconds"] = time.process_time() - started


def items_of(tokenizer: Any, length: int, seed: int, count: int) -> list[TaskItem]:
    """Return the items that the gate asks."""
    return [
        generate(
            "needle", fit=lambda text: len(encode(tokenizer, text)), target_tokens=length, seed=seed, index=index,
            needles=QUESTIONS, digits=4, filler="varied",
        )
        for index in range(count)
    ]  # fmt: skip


def ours(method: str, knobs: Mapping[str, object], seed: int) -> tuple[Counts, dict[str, Any]]:
    """Gate one candidate."""
    with counting() as found:
        record = gate(method, knobs, PROFILE, model="toy-gqa", seed=seed)["needle-1x"]
    return found, record


def lm_eval_once(items: list[TaskItem], new: int) -> Counts:
    """Ask every question as a request of its own, as lm-eval does."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    loaded = load(parse_spec("toy-gqa"))
    loaded.tokenizer.pad_token = loaded.tokenizer.pad_token or loaded.tokenizer.eos_token
    model = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=16, max_length=512, device="cpu")
    requests = [
        Instance(
            request_type="generate_until", doc={}, idx=number, metadata=("needle", number, 1),
            arguments=(item.context + q.prompt, {"until": ["\n"], "max_gen_toks": new, "do_sample": False}),
        )
        for number, (item, q) in enumerate((item, q) for item in items for q in item.questions)
    ]  # fmt: skip
    with counting() as found:
        model.generate_until(requests, disable_tqdm=True)
    return found


def kvpress_twice(python: str, items: list[TaskItem], new: int) -> Counts | None:
    """Run kvpress' pipeline without and with a press, one context at a time with its questions."""
    if not python:
        return None
    body = [{"context": i.context, "questions": [q.text for q in i.questions], "new": new} for i in items]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "items.json").write_text(json.dumps(body), encoding="utf-8")
        (Path(folder) / "run.py").write_text(KVPRESS, encoding="utf-8")
        command = [
            python,
            str(Path(folder) / "run.py"),
            str(embedded_path("toy-gqa")),
            str(Path(folder) / "items.json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("COUNTED")), None)
    if line is None:
        raise SystemExit(f"kvpress did not run:\n{done.stderr[-2000:]}")
    found: Counts = json.loads(line.removeprefix("COUNTED"))
    return found


def scaled(found: Counts, factor: float) -> Counts:
    """Return the counts of `factor` times as many items."""
    return {key: value * factor for key, value in found.items()}


def row(name: str, contexts: float, verdict: str, found: Counts, against: Counts) -> dict[str, object]:
    """Render one line with its ratio to running lm-eval twice."""
    shown = {key: round(found[key]) for key in COUNTS}
    ratios = {f"{key} / lm-eval": round(found[key] / against[key], 3) for key in COUNTS}
    return {
        "way": name,
        "contexts": round(contexts),
        "verdict": verdict,
        **shown,
        "CPU s": round(found["seconds"], 1),
        **ratios,
    }


def main() -> int:
    """Count all ways and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvpress-python", default="")
    parser.add_argument("--slice", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7302)
    options = parser.parse_args()
    prepare()
    fixed = round(CONTEXTS / INFLATION)
    loaded = load(parse_spec("toy-gqa"))
    items = items_of(loaded.tokenizer, loaded.trained_length or 256, options.seed, options.slice)
    new = max(q.max_new_tokens for item in items for q in item.questions)
    twice = scaled(lm_eval_once(items, new), 2 * fixed / options.slice)
    rows = [row("lm-eval twice, fixed n", fixed, "-", twice, twice)]
    press = kvpress_twice(options.kvpress_python, items, new)
    if press is not None:
        press = scaled(press, fixed / options.slice)
        rows.append(row("kvpress' pipeline, both sides, fixed n", fixed, "-", press, twice))
    found: dict[str, Counts] = {}
    for method, knobs in CANDIDATES:
        baseline_memo.clear()
        name = " ".join([method, *(f"{k}={v}" for k, v in knobs.items())])
        first, record = ours(method, knobs, options.seed)
        stack_memo.clear()  # known is the baseline; the candidate is measured again
        again, _ = ours(method, knobs, options.seed)
        n = record["metrics"][0]["n"]
        found[method] = first
        rows.append(row(f"this gate, {name}", n, record["verdict"], first, twice))
        rows.append(row(f"this gate, {name}, baseline known", n, record["verdict"], again, twice))
    thresholds = [
        (
            f"{method}: at most a fifth of lm-eval's {key}",
            counts[key] <= twice[key] / 5,
            f"{counts[key] / twice[key]:.3f}",
        )
        for method, counts in found.items()
        for key in ("tokens", "prefills", "sequences")
    ]
    if press is not None:
        thresholds += [
            (
                f"{method}: fewer tokens than kvpress' way",
                counts["tokens"] < press["tokens"],
                f"{counts['tokens'] / press['tokens']:.3f}",
            )
            for method, counts in found.items()
        ]
    words = ["python", "tests/bench/approximate_cost.py", "--slice", str(options.slice), "--seed", str(options.seed)]
    words += ["--kvpress-python", "PYTHON"] if options.kvpress_python else []
    head = {
        "command": " ".join(words), "commit": commit(), "seed": options.seed, "model": "toy-gqa, 256 tokens, CPU, one thread",
        "fixed n": f"{fixed} contexts x {QUESTIONS} questions: planned maximum {CONTEXTS} / {INFLATION} (equal power and error rates)",
        "counted on": f"{options.slice} contexts, scaled (not this gate: its runs are complete)",
        "CPU seconds of this gate": "include starting pytest and loading the model",
    }  # fmt: skip
    table = checks(thresholds)
    publish(
        "approximate_cost",
        "Cost per verdict",
        head,
        {"Cost": rows, "Thresholds": table},
        None,
        store=options.slice >= 8,
    )
    return 0 if all(line["holds"] for line in table) else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
