"""What a column of the matrix costs beside running each of its cells with lm-eval on as many documents and questions.

Both sides run in this process, on the same texts, in turn; times are CPU seconds, because the machine is shared. lm-eval gets
the plain model in every cell (it reads a prompt in one pass, so it could not measure a cache anyway): its cost is a lower
bound of what a wrapped cache would take. Here: documents and questions through the changed cache, one baseline for all
cells, one prefill per context for all its questions, and samples that stop when decided.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from stats_common import Check, options, publish

from pytest_attnaccept.checks.looks import measure_in_looks
from pytest_attnaccept.checks.model_session import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.protocol import required_depth
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.stats import plan_looks
from pytest_attnaccept.suites import SuiteCell, load_suite
from pytest_attnaccept.tasks import generate
from pytest_attnaccept.taxonomy import Surface

SMOKE = load_profile("smoke")
QUALITY = ("perplexity", "needle-1x")


def ours(cell: SuiteCell, seed: int) -> float:
    """Return the CPU seconds of one cell's quality checks, as a gated run measures them."""
    started = time.process_time()
    session = open_session(baseline=cell.model, stack=[(e.method, e.knobs) for e in cell.stack], seed=seed)
    for needed in required_depth(cell.stack, Surface.MODEL, SMOKE, cell.name):
        if needed.check == "perplexity":
            session.measure(needed.check, needed.params)
        elif needed.check == "needle-1x":
            given = dict(needed.params)
            plan = plan_looks(int(str(given["contexts"])), SMOKE.limits["needle"].max, alpha_fail=SMOKE.alpha / 50)
            measure_in_looks(lambda part: session.measure("needle-1x", part), given, plan)
    return time.process_time() - started


def texts(loaded: Any, seed: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the documents, and (prompt, answer) of every question, of one cell under profile smoke."""

    def fit(text: str) -> int:
        return len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

    length = loaded.trained_length
    given = SMOKE.check_params("perplexity")
    documents = [
        generate("text", fit=fit, target_tokens=length, seed=seed, index=i).context
        for i in range(int(str(given["documents"])))
    ]
    given = SMOKE.check_params("needle")
    questions = []
    for index in range(int(str(given["contexts"]))):
        item = generate(
            "needle", fit=fit, target_tokens=length, seed=seed, index=index, needles=int(str(given["questions_per_context"])),
            digits=4, filler="varied",
        )  # fmt: skip
        questions += [(item.context + q.prompt, q.answer) for q in item.questions]
    return documents, questions


def with_lm_eval(model: Any, documents: list[str], questions: list[tuple[str, str]]) -> float:
    """Return the CPU seconds that lm-eval's own model class takes for one cell."""
    from lm_eval.api.instance import Instance

    started = time.process_time()
    model.loglikelihood_rolling(
        [
            Instance(request_type="loglikelihood_rolling", doc={}, arguments=(t,), idx=i)
            for i, t in enumerate(documents)
        ],
        disable_tqdm=True,
    )
    how = {"until": ["."], "max_gen_toks": 8, "do_sample": False}
    model.generate_until(
        [
            Instance(request_type="generate_until", doc={}, arguments=(q, how), idx=i)
            for i, (q, _) in enumerate(questions)
        ],
        disable_tqdm=True,
    )
    return time.process_time() - started


def main() -> int:
    args = options(__doc__ or "")
    torch.set_num_threads(1)
    from lm_eval.models.huggingface import HFLM

    path = Path(__file__).parents[2] / "suites" / "matrix.accept.yaml"
    cells = [c for c in load_suite(path, Registry.builtin()).cells if c.name.startswith("gqa.")]
    cells = cells[:2] if args.quick else cells
    loaded = load(parse_spec("toy-gqa"))
    lm = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=16, device="cpu", max_length=512)
    documents, questions = texts(loaded, args.seed)
    baseline_memo.clear()
    spent = [ours(cell, args.seed) for cell in cells]
    theirs = with_lm_eval(lm, documents, questions)
    rows: list[dict[str, object]] = [
        {"cell": cell.name, "this package, CPU s": round(seconds, 1), "share of lm-eval": round(seconds / theirs, 2)}
        for cell, seconds in zip(cells, spent, strict=True)
    ]
    runs = len(cells) + 1  # lm-eval runs the baseline once, too
    total = sum(spent) / (theirs * runs)
    rows.append({"cell": "all", "this package, CPU s": round(sum(spent), 1), "share of lm-eval": round(total, 2)})
    checks = [Check(name="column, CPU seconds of this package / of lm-eval", value=total, limit=2.0)]
    counts = {
        "cells": len(cells),
        "documents": len(documents),
        "questions": len(questions),
        "lm-eval CPU s per cell": round(theirs, 1),
    }
    return publish(
        "matrix_cost",
        "Cost of a matrix column",
        args.seed,
        counts,
        {"toy-gqa, profile smoke": rows},
        checks,
        quick=args.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
