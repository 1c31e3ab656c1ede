"""The command ``budget``: what it prints, what it refuses, and what it answers to a claim."""

import pytest

from pytest_attnaccept.budget import budget_main
from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.kv_ledger import ledger_of

STEP = ["--weights-gb", "13", "--bandwidth-gbs", "2000"]
BOTH = [*STEP, "--kv-gb", "2", "--weight-ratio", "2", "--kv-ratio", "4"]


def test_the_ledger_of_a_model_needs_nothing_else(capsys):
    assert budget_main(["--model", "llama-3-8b", "--context", "131072"]) == 0
    assert "128 KiB per token, 16 GiB at 131072 tokens" in capsys.readouterr().out


def test_a_growing_ledger_shows_each_saving_once(capsys):
    assert budget_main([*BOTH, "--spec", "3"]) == 0
    out = capsys.readouterr().out
    for number in ("7.500", "6.750", "3.500", "1.167", "1.11x", "2.14x", "6.43x", "13.3%"):
        assert number in out
    assert "24.00x, counts the same bytes more than once" in out


def test_sweeps(capsys):
    arguments = [*STEP, "--model", "llama-2-7b", "--sweep-context", "4096,24795,131072", "--sweep-kv-ratio", "1,4"]
    assert budget_main(arguments) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["4096", "24795", "131072"]
    assert rows[1][1] == "50.0%"
    assert ["*" in "".join(row) for row in rows] == [False, False, True]


@pytest.mark.parametrize(
    ("claim", "status"),
    [
        (["--claim", "2.14"], 0),
        (["--claim", "2.3"], 1),
        (["--claim", "nan"], 1),
        (["--claim-saved-gb", "8"], 0),
        (["--claim-saved-gb", "8.5"], 1),
        (["--claim-saved-gb", "5"], 1),
        (["--claim-saved-gb", "nan"], 1),
    ],
    ids=str,
)
def test_claims(claim, status):
    assert budget_main([*BOTH, *claim]) == status


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --weights-gb"),
        (["--kv-gb", "2"], "--weights-gb and --bandwidth-gbs"),
        ([*STEP, "--model", "llama-3-8b"], "--context"),
        (["--model", "llama-3-8b", "--layers", "3"], "say the same thing"),
        ([*STEP, "--kv-gb", "2", "--sweep-context", "1,2"], "needs a layout"),
        ([*STEP, "--model", "llama-3-8b", "--sweep-context", "1,x"], "numbers with commas"),
        ([*STEP, "--model", "llama-3-8b", "--sweep-context", "0"], "positive"),
        (["--model", "llama-3-8b", "--claim", "2"], "--weights-gb and --bandwidth-gbs"),
        ([*STEP, "--model", "llama-3-8b", "--sweep-context", "9", "--claim", "2"], "a claim holds at one context"),
        (["--model", "llama-3-8b", "--context", "0"], "must be positive"),
        (["--layers", "4"], "belong together"),
        (["--weights-gb", "13"], "missing: --bandwidth-gbs"),
        ([*STEP, "--kv-gb", "2", "--spec", "0"], "--spec "),
        ([*BOTH, "--claim", "-1"], "--claim -1 must be a positive number"),
        (
            [*STEP, "--model", "llama-3-8b", "--claim-saved-gb", "2", "--sweep-context", "9"],
            "a claim holds at one context",
        ),
        (
            [*BOTH, "--model", "llama-3-8b", "--context", "1000"],
            r"not what the layout holds at 1000 tokens x batch 1 \(0.131 GB\)",
        ),
        (["--model", "llama-3-8b", "--expanded"], "latent cache"),
        ([*BOTH, "--expanded"], "latent cache"),
        (["--model", "./nowhere/config.json"], "no such file or folder"),
        (["--model", "Qwen/Qwen3-8B"], "the Hub is not asked"),
    ],
    ids=str,
)
def test_questions_that_cannot_be_answered(arguments, says):
    with pytest.raises(UsageError, match=says):
        budget_main(arguments)


def test_a_kv_size_that_agrees_with_the_layout_is_no_second_one():
    arguments = [*STEP, "--model", "llama-3-8b", "--context", "16384", "--kv-gb", "2.147"]
    assert budget_main(arguments) == 0


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (["--claim", "2.14"], "claim 2.14x is within what the ledger allows (2.14x)"),
        (["--claim", "8"], "it counts bytes twice"),
        (["--claim", "30"], "not even the product of the ratios (8.00x) reaches it"),
        (["--claim", "nan"], "it is not a number"),
        (["--claim-saved-gb", "8"], "claim of 8 GB saved per step is what the ledger says (8.000 GB"),
        (["--claim-saved-gb", "9"], "is not what the ledger says (8.000 GB = 6.500 of weights + 1.500 of KV)"),
    ],
    ids=str,
)
def test_every_claim_gets_an_answer(claim, says, capsys):
    budget_main([*BOTH, *claim])
    assert says in capsys.readouterr().out


def test_one_ratio_alone_counts_nothing_twice(capsys):
    assert budget_main([*STEP, "--kv-gb", "2", "--kv-ratio", "4", "--claim", "4"]) == 1
    out = capsys.readouterr().out
    assert "twice" not in out
    assert "more than once" not in out
    assert "the ratio of 4.00x holds for a part of the bytes only" in out
    assert "(1.11x): the ratio that was given holds for a part of the bytes only" in out


def test_one_claim_that_holds_does_not_hide_one_that_does_not():
    assert budget_main([*BOTH, "--claim", "2.14", "--claim-saved-gb", "8"]) == 0
    assert budget_main([*BOTH, "--claim", "8", "--claim-saved-gb", "8"]) == 1
    assert budget_main([*BOTH, "--claim", "2.14", "--claim-saved-gb", "9"]) == 1


def test_a_folder_without_a_configuration_and_a_small_ledger(tmp_path, capsys):
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        ledger_of(str(tmp_path))
    assert budget_main(["--model", "toy-gqa", "--context", "256"]) == 0
    assert "1 KiB per token, 256 KiB at 256 tokens" in capsys.readouterr().out


def test_the_command_imports_no_torch():
    import subprocess
    import sys

    code = "import sys; from pytest_attnaccept.__main__ import main; main(['budget', '--model', 'toy-mla', '--context', '9']);"
    code += " sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
