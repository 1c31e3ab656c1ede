"""Per-document likelihood tables: a margin on perplexity, documents as independent units."""

import math

import numpy as np
import pytest

from pytest_attnaccept.compare import compare_logs, compare_main
from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.taxonomy import Verdict


@pytest.fixture
def tables(tmp_path):
    def make(base, cand, header="document,tokens,nll", suffix=".csv"):
        paths = []
        for name, rows in (("base", base), ("cand", cand)):
            path = tmp_path / f"{name}{suffix}"
            comma = "\t" if suffix == ".tsv" else ","
            lines = [header.replace(",", comma), *(comma.join(map(str, row)) for row in rows)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            paths.append(path)
        return tuple(paths)

    return make


def rows(loss=0.0, spread=0.004, size=60, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(200, 400, size)
    base = tokens * rng.normal(2.2, 0.3, size)
    shift = tokens * rng.normal(loss, spread, size)
    return [(f"doc{i}", int(t), float(b)) for i, (t, b) in enumerate(zip(tokens, base, strict=True))], [
        (f"doc{i}", int(t), float(b + s)) for i, (t, b, s) in enumerate(zip(tokens, base, shift, strict=True))
    ]


def test_small_and_large_losses(tables):
    assert compare_logs(*tables(*rows(0.0)), 0.01).verdict is Verdict.PASS
    harmful = compare_logs(*tables(*rows(0.05)), 0.01)
    assert harmful.verdict is Verdict.FAIL
    metric = harmful.decision.metrics[0]
    assert metric.effect == pytest.approx(math.expm1(0.05), abs=0.003)
    undecided = compare_logs(*tables(*rows(0.0095)), 0.01)
    assert undecided.verdict is Verdict.INCONCLUSIVE
    assert any("needed: more documents" in line for line in undecided.lines)


def test_means_and_tabs_are_read_too(tables):
    base, cand = ([(d, t, n / t) for d, t, n in side] for side in rows(0.05))
    assert compare_logs(*tables(base, cand, header="document,tokens,nll_mean"), 0.01).verdict is Verdict.FAIL
    assert compare_logs(*tables(*rows(0.0), suffix=".tsv"), 0.01).verdict is Verdict.PASS


def test_means_under_the_name_of_sums_are_refused(tables):
    """Read as sums, a ruined candidate would pass: its losses shrink by the number of tokens."""
    base, cand = ([(d, t, n / t) for d, t, n in side] for side in rows(1.5))
    with pytest.raises(RecordError, match="rename the column nll_mean"):
        compare_logs(*tables(base, cand), 0.01)


def test_few_documents_never_pass(tables):
    assert compare_logs(*tables(*rows(0.0, size=12)), 0.01).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_likelihoods_that_are_not_finite_fail_or_are_void(tables, bad):
    base, cand = rows(0.0)
    cand[4] = (*cand[4][:2], bad)
    assert compare_logs(*tables(base, cand), 0.01).verdict is Verdict.FAIL
    base[4] = (*base[4][:2], bad)
    result = compare_logs(*tables(base, cand), 0.01)
    assert result.pairs[0].void == 1
    assert result.verdict is Verdict.PASS


def test_pairing_is_strict(tables):
    base, cand = rows(0.0)
    with pytest.raises(RecordError, match="lacks 1 documents"):
        compare_logs(*tables(base, cand[1:]), 0.01)
    other = [(d, t + 1, n) for d, t, n in cand]
    with pytest.raises(RecordError, match="different tokenizations"):
        compare_logs(*tables(base, other), 0.01)
    with pytest.raises(RecordError, match="appears twice"):
        compare_logs(*tables(base, [*cand, cand[0]]), 0.01)


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("doc,tokens,nll", ("a", 10, 20.0), "document, tokens, nll"),
        ("document,tokens,loss", ("a", 10, 20.0), "needs a column nll"),
        ("document,tokens,nll", ("a", "ten", 20.0), "whole number"),
        ("document,tokens,nll", ("a", 0, 20.0), "at least one token"),
        ("document,tokens,nll", ("", 5, 20.0), "document name"),
        ("document,tokens,nll", ("a", 10, "x"), "number of nats"),
        ("document,tokens,nll", ("a", 10, -25.0), "was the sign lost"),
        ("document,tokens,nll", ("a", 10), "number of nats"),
    ],
)
def test_unusable_tables_are_errors(tables, header, row, message):
    pair = tables([row], [row], header=header)
    with pytest.raises(RecordError, match=message):
        compare_logs(*pair, 0.01)
    assert compare_main([*map(str, pair), "--margin", "0.01"]) == 2


def test_empty_tables_are_errors(tables):
    with pytest.raises(RecordError, match="no documents"):
        compare_logs(*tables([], []), 0.01)


def test_kv_methods_need_a_table_measured_through_the_cache(tables):
    kv4 = Registry.builtin().get("kv4")
    pair = tables(*rows(0.0))
    refused = compare_logs(*pair, 0.01, method=kv4)
    assert refused.verdict is Verdict.INVALID
    assert "--through-cache" in refused.lines[0]
    assert compare_logs(*pair, 0.01, method=kv4, through_cache=True).verdict is Verdict.PASS
    assert compare_logs(*pair, 0.01, method=Registry.builtin().get("w4a16")).verdict is Verdict.PASS


def test_identical_tables_of_a_method_are_invalid(tables):
    base, _ = rows(0.0)
    pair = tables(base, base)
    assert compare_logs(*pair, 0.01, method=Registry.builtin().get("w4a16")).verdict is Verdict.INVALID
    assert compare_logs(*pair, 0.01).verdict is not Verdict.FAIL


def test_a_table_and_a_log_cannot_be_compared(tables, tmp_path):
    base, _ = tables(*rows(0.0))
    other = tmp_path / "x.jsonl"
    other.write_text("{}", encoding="utf-8")
    with pytest.raises(RecordError, match="different kinds"):
        compare_logs(base, other, 0.01)
