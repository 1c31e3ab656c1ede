"""The planning model: the worked example, the ledger, and what a claim may be."""

import pytest

from pytest_attnaccept.budget import Budget, KvLedger, budget_main, crossover_tokens
from pytest_attnaccept.errors import UsageError

BASE = {"weights_gb": 13.0, "kv_gb": 2.0, "bandwidth_gbs": 2000.0}


@pytest.mark.parametrize(
    ("changes", "milliseconds", "speedup"),
    [
        ({}, 7.5, 1.0),
        ({"kv_ratio": 4}, 6.75, 1.11),
        ({"kv_ratio": 4, "weight_ratio": 2}, 3.5, 2.14),
        ({"kv_ratio": 4, "weight_ratio": 2, "speculation": 3}, 1.17, 6.43),
    ],
)
def test_the_worked_example(changes, milliseconds, speedup):
    budget = Budget(**BASE, **changes)
    assert budget.step_ms == pytest.approx(milliseconds, abs=0.005)
    assert budget.speedup == pytest.approx(speedup, abs=0.005)


def test_single_gains_are_never_multiplied():
    both = Budget(**BASE, weight_ratio=2, kv_ratio=4)
    assert both.speedup < 2 * 4
    assert both.claim_exceeds(8.0)
    assert not both.claim_exceeds(2.14)


def test_no_split_of_bytes_exceeds_the_better_ratio():
    for kv in (0.0, 0.1, 2.0, 50.0, 5000.0):
        budget = Budget(weights_gb=13, kv_gb=kv, bandwidth_gbs=2000, weight_ratio=2, kv_ratio=4, speculation=1.5)
        assert 2 * 1.5 - 1e-9 <= budget.speedup <= budget.ceiling + 1e-9


@pytest.mark.parametrize(
    ("ledger", "kib", "gib"),
    [
        (KvLedger(layers=32, kv_heads=32, head_dim=128), 512, 64),
        (KvLedger(layers=32, kv_heads=8, head_dim=128), 128, 16),
    ],
)
def test_the_ledger_at_128k(ledger, kib, gib):
    assert ledger.kib_per_token == kib
    assert ledger.gib(131072) == gib


def test_crossover_matches_the_published_table():
    assert crossover_tokens(13.5, 512, 2, 2) / 1024 == pytest.approx(25, abs=0.5)
    assert crossover_tokens(15.0, 128, 4, 8) / 1024 == pytest.approx(96, abs=2)


@pytest.mark.parametrize(
    "bad", [{"weights_gb": 0}, {"weights_gb": float("nan")}, {"kv_gb": -1}, {"kv_ratio": 0}, {"bandwidth_gbs": -1}]
)
def test_numbers_that_cannot_be_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        Budget(**{**BASE, **bad})


def test_command_line(capsys):
    arguments = [
        "--weights-gb",
        "13",
        "--kv-gb",
        "2",
        "--bandwidth-gbs",
        "2000",
        "--kv-ratio",
        "4",
        "--weight-ratio",
        "2",
        "--spec",
        "3",
    ]
    assert budget_main(arguments) == 0
    assert "1.167" in capsys.readouterr().out
    assert budget_main([*arguments, "--claim", "8"]) == 1
    assert "counts bytes twice" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--kv-gb"):
        budget_main(["--weights-gb", "13", "--bandwidth-gbs", "2000"])


def test_command_line_ledger(capsys):
    arguments = [
        "--weights-gb",
        "13",
        "--bandwidth-gbs",
        "2000",
        "--layers",
        "32",
        "--kv-heads",
        "32",
        "--head-dim",
        "128",
    ]
    assert budget_main([*arguments, "--context", "131072"]) == 0
    out = capsys.readouterr().out
    assert "512 KiB per token" in out
    assert "64 GiB at 131072 tokens" in out
