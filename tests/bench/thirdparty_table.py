"""What the gate says about third-party implementations: presses, caches, quantized models, attention functions.

    python tests/bench/thirdparty_table.py [--only TEXT ...] [--again]

Every row is a marked test under the profile below, run by pytest in this process. kvpress and the quantizers want different
versions of transformers, so the script is run in each environment: rows whose library is missing here keep what is stored.
Rows that are stored are not run again without ``--again``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import logging
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from approximate_common import RESULTS, checks, commit, prepare, publish
from thirdparty_all import ROWS, left_out
from thirdparty_rows import HONEST, Row, missing
from thirdparty_weights import folder

from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec

NAME = "thirdparty_table"
SEED = 0
LIBRARIES = ("transformers", "kvpress", "torchao", "optimum-quanto", "hqq")
PROFILE = """
schema: 1
name: thirdparty
claim: no accusation of honest code, no pass of what is not the method; far too few contexts for a small loss
checks:
  identity: {tier: 1}
  equality: {documents: 4, tier: 1}
  footprint: {tier: 1, patterns: [PATTERNS]}
  divergence: {documents: 20, tier: 1, continuation: 32}
  needle: {tiers: [1], contexts: 12, questions_per_context: 3}
limits:
  kl: {max: 0.5, origin: "policy: coarse, twenty documents"}
  top1: {max: 0.4, origin: "policy: coarse, twenty documents"}
  needle: {max: 0.15, origin: "policy: coarse, twelve contexts"}
"""
# What a refused row has to fall over; a profile without any question about quality is refused.
SHORT = re.sub(r"  divergence: .*\n  needle: .*\n", "  needle: {tiers: [1], contexts: 2}\n", PROFILE, count=1)
TEST = """
import pytest
import thirdparty_all

{mark}
def test_row(accept, accept_model):
    accept.model({call})
"""
# What accuses: a FAIL of quality is the method's own loss, and says nothing about honesty.
ACCUSING = ("identity", "footprint", "equality")
QUALITY = ("decode_drift",)  # a loss, though `footprint` measures it


def gate(row: Row) -> dict[str, dict[str, Any]]:
    """Run the row's test; returns check -> record."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        mark, call = row.mark, f"candidate=lambda: thirdparty_all.build({row.name!r}, accept_model)"
        if row.bits:
            mark, call = row.with_checkpoint(folder(load(parse_spec(row.model)), row.bits, place)), ""
        (place / "test_row.py").write_text(TEST.format(mark=mark, call=call), encoding="utf-8")
        profile = PROFILE if row.expected == HONEST or row.whole else SHORT
        patterns = "one-shot" if row.one_shot else "one-shot, chunk-64, token"
        (place / "p.yaml").write_text(profile.replace("PATTERNS", patterns), encoding="utf-8")
        (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        options = [
            f"--accept-profile={place / 'p.yaml'}", f"--accept-model={row.model}", f"--accept-seed={SEED}",
            f"--accept-out={place / 'out'}", "--accept-device=cpu",
        ]  # fmt: skip
        said = io.StringIO()
        sys.modules.pop("test_row", None)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.chdir(place):
            pytest.main([str(place), "-q", "-p", "no:cacheprovider", f"--rootdir={place}", *options])
        found = [
            json.loads(line)
            for file in (place / "out").glob("records.*.jsonl")
            for line in file.read_text("utf-8").splitlines()
        ]
        if not found:
            raise SystemExit(f"{row.name}: nothing was recorded\n{said.getvalue()}")
        return {record["check"]: record for record in found}


def reason(record: dict[str, Any]) -> str:
    """Return what the verdict line says behind the item's name, without the numbers of further gates."""
    text = str(record["headline"]).partition("]: ")[2].split("; ")
    seems = [part for part in text if part.startswith("looks like")]
    return "; ".join([text[0], *seems[:1]])


def accusations(records: dict[str, dict[str, Any]]) -> list[str]:
    """Return checks that say the candidate is not what it claims, with the reason.

    Code that is made for a prompt in one call is asked about storage there; two rows show what it does in chunks.
    """
    found = []
    for check, record in records.items():
        if check == "footprint" and record["verdict"] == "FAIL" and record["metrics"]:
            failing = [m for m in record["metrics"] if m["verdict"] == "FAIL" and m["name"] not in QUALITY]
            found += [f"footprint FAIL: {failing[0]['text']}"] if failing else []
            continue
        words = str(record["headline"])
        accused = record["verdict"] == "INVALID" and "cannot lose" not in words
        accused |= record["verdict"] == "FAIL" and (
            check in ACCUSING or not any(word in words for word in ("margin", "lower bound"))
        )
        accused |= record["verdict"] == "FAIL" and record.get("kind") == "exact"
        if accused:
            found.append(f"{check} {record['verdict']}: {reason(record)}")
    return found


def measured(row: Row) -> dict[str, object]:
    """Run a row and keep what the gate said."""
    started = time.perf_counter()
    records = gate(row)
    accused = accusations(records)
    quality = {c: r["verdict"] for c, r in records.items() if c in ("divergence", "needle-1x")}
    return {
        "accused": accused,
        "verdicts": {c: r["verdict"] for c, r in records.items()},
        "headlines": {c: str(r["headline"]).partition("]: ")[2] for c, r in records.items()},
        "quality": quality,
        "effects": {
            m["name"]: m["effect"] for r in records.values() for m in r["metrics"] if m["name"] in ("kl", "needle")
        },
        "mark": row.mark,
        "seconds": round(time.perf_counter() - started, 1),
        "commit": commit(),
        "versions": versions(),
    }


def as_expected(row: Row, stored: dict[str, Any]) -> bool:
    """Return whether the gate said of the row what it has to say."""
    unmeasured = _unmeasured(stored)
    if row.expected == HONEST:
        return not stored["accused"] and not unmeasured
    passed = all(verdict in ("PASS", "NOT_APPLICABLE") for verdict in stored["verdicts"].values())
    return not passed and bool(re.search(row.words, "\n".join([*stored["accused"], *unmeasured])))


def _unmeasured(stored: dict[str, Any]) -> list[str]:
    """Return why items were not measured: a candidate that cannot be called is told so, not accused."""
    return [
        f"{check} INCOMPLETE: {stored['headlines'][check]}"
        for check, verdict in stored["verdicts"].items()
        if verdict == "INCOMPLETE"
    ]


def versions() -> dict[str, str]:
    """Return the versions of what is installed here."""
    found = {"torch": torch.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def said(stored: dict[str, Any]) -> str:
    """Return what the gate said, for the table."""
    return next(iter([*stored["accused"], *_unmeasured(stored)]), "no accusation")


def line(row: Row, stored: dict[str, Any] | None) -> dict[str, object]:
    """Return the row of the table."""
    if stored is None:
        return {
            "candidate": row.name,
            "mark": _mark(row),
            "it is": row.expected,
            "the gate": "not run here",
            "as expected": "",
        }
    loss = ", ".join(f"{name} {value:+.2f}" for name, value in stored["effects"].items() if value is not None)
    return {
        "candidate": row.name,
        "mark": _mark(row),
        "it is": row.expected,
        "the gate": said(stored).replace("|", "/"),
        "loss": loss,
        "as expected": "yes" if as_expected(row, stored) else "NO",
        "note": row.note,
    }  # fmt: skip


def _mark(row: Row) -> str:
    return f"`{row.method}` " + ", ".join(f"{k}={v}" for k, v in row.knobs.items() if k != "checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--no-store", action="store_true")
    options = parser.parse_args()
    prepare()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    os.environ.setdefault("TQDM_DISABLE", "1")
    file = RESULTS / f"{NAME}.json"
    for name, row in ROWS.items():
        stored = _stored(file)
        wanted = not options.only or any(text in name for text in options.only)
        if missing(row) or not wanted or (name in stored and not options.again):
            continue
        done = measured(row)
        print(f"{name}: {done['verdicts']} as expected: {as_expected(row, done)} ({done['seconds']} s)", flush=True)
        stored = _stored(file)  # the other environment may have written meanwhile
        stored[name] = done
        store(stored, write=not options.no_store)
    store(_stored(file), write=not options.no_store)


def _stored(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["data"]
    return {name: row for name, row in data.items() if name in ROWS}


def store(stored: dict[str, Any], *, write: bool) -> None:
    """Write the table of everything that is stored."""
    groups = list(dict.fromkeys(row.group for row in ROWS.values()))
    tables = {g: [line(row, stored.get(name)) for name, row in ROWS.items() if row.group == g] for g in groups}
    ran = [(ROWS[name], row) for name, row in stored.items()]
    honest = [(r, s) for r, s in ran if r.expected == HONEST]
    refused = [(r, s) for r, s in ran if r.expected != HONEST]
    wrong = [r.name for r, s in ran if not as_expected(r, s)]
    found = [
        ("no honest row is accused", all(as_expected(r, s) for r, s in honest), f"{sum(as_expected(r, s) for r, s in honest)} of {len(honest)}"),
        ("no refused row passes, and the reason is the expected one", all(as_expected(r, s) for r, s in refused), f"{sum(as_expected(r, s) for r, s in refused)} of {len(refused)}"),
    ]  # fmt: skip
    sets = sorted({", ".join(f"{k} {v}" for k, v in s["versions"].items()) for _, s in ran})
    head = {
        "command": "python tests/bench/thirdparty_table.py, once per environment",
        "commits of the rows": ", ".join(sorted({str(s["commit"])[:12] for _, s in ran})),
        "versions": " / ".join(sets),
        "model, device, seed": f"toy-gqa (trained length 256), CPU, float32, seed {SEED}",
        "rows": f"{len(ran)} of {len(ROWS)}; not as expected: {', '.join(wrong) or 'none'}",
        "it is": "honest: must not be accused, whatever its loss; refused: is not what the mark claims, must not pass (identity, footprint, equality)",
        "loss": "kl in nats per token over 20 documents, needle in share of answers over at most 12 contexts; coarse",
    }
    tables = {"What has to hold": checks(found), **tables, "Left out": left_out()}
    with contextlib.redirect_stdout(io.StringIO()):
        publish(NAME, "Third-party implementations under the gate", head, tables, stored, store=write)


if __name__ == "__main__":
    main()
