"""The planning model: the worked example, the ledger, and what a claim may be."""

import json
from pathlib import Path

import pytest

from pytest_attnaccept.budget import Budget, KvLedger, budget_main, crossover_tokens, equal_reads_tokens
from pytest_attnaccept.errors import UnknownNameError, UsageError
from pytest_attnaccept.kv_ledger import KNOWN, ledger_of

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


# -- every number of sections 8 and 11 of the source text -----------------------------------------------------------------

SEVEN_B = KvLedger(layers=32, kv_heads=32, head_dim=128)
GQA_8 = KvLedger(layers=32, kv_heads=8, head_dim=128)


@pytest.mark.parametrize(
    ("changes", "moved", "milliseconds", "speedup"),
    [
        ({}, 15.0, 7.5, 1.0),
        ({"kv_ratio": 4}, 13.5, 6.75, 1.11),
        ({"kv_ratio": 4, "weight_ratio": 2}, 7.0, 3.5, 2.14),
        ({"kv_ratio": 4, "weight_ratio": 2, "speculation": 3}, 7.0, 1.17, 6.4),
    ],
)
def test_section_8_row_by_row(changes, moved, milliseconds, speedup):
    budget = Budget(**BASE, **changes)
    assert budget.moved_gb == pytest.approx(moved)
    assert budget.step_ms == pytest.approx(milliseconds, abs=0.005)
    assert budget.speedup == pytest.approx(speedup, abs=0.05)


def test_section_8_shares_and_what_each_saving_is_worth_alone():
    assert Budget(**BASE).kv_share == pytest.approx(0.13, abs=0.005)
    assert 1 - Budget(**BASE).kv_share == pytest.approx(0.87, abs=0.005)
    saved = Budget(**BASE, kv_ratio=4).saved_gb, Budget(**BASE, weight_ratio=2).saved_gb
    assert saved == (1.5, 6.5)
    assert Budget(**BASE, kv_ratio=4, weight_ratio=2).saved_gb == sum(saved)  # savings add in bytes, never in ratios


def test_section_8_gqa_is_worth_more_at_long_contexts():
    gains = [
        Budget(weights_gb=13, kv_gb=SEVEN_B.gb(n), bandwidth_gbs=2000, kv_ratio=4).speedup
        for n in (4096, 32768, 131072)
    ]
    assert gains == sorted(gains)
    assert gains[0] < 1.15
    assert gains[-1] > 2.5


def test_section_11_exercise_1_savings_of_different_terms_do_not_multiply():
    both = Budget(**BASE, kv_ratio=4, weight_ratio=2)
    assert both.naive == 8
    assert both.moved_gb == 13 / 2 + 2 / 4
    assert both.speedup < both.naive / 3
    assert both.claim_exceeds(8)


def test_section_11_exercise_2_ledger_at_128k():
    assert (SEVEN_B.kib_per_token, SEVEN_B.gib(131072)) == (2 * 32 * 4096 * 2 / 1024, 64) == (512, 64)
    assert (GQA_8.kib_per_token, GQA_8.gib(131072)) == (2 * 32 * 8 * 128 * 2 / 1024, 16) == (128, 16)
    # the text divides GiB by GB; in one unit the caches are 5.3 and 1.3 times the weights
    assert (pytest.approx(4.9, abs=0.05), pytest.approx(1.2, abs=0.05)) == (64 / 13, 16 / 13)
    assert (SEVEN_B.gb(131072) / 13, GQA_8.gb(131072) / 13) == (
        pytest.approx(5.3, abs=0.05),
        pytest.approx(1.3, abs=0.05),
    )


def test_section_11_exercise_6_step_time_and_the_point_where_kv_overtakes_weights():
    tokens = equal_reads_tokens(13, 512)
    at = Budget(weights_gb=13, kv_gb=SEVEN_B.gb(round(tokens)), bandwidth_gbs=2000)
    assert at.kv_share == pytest.approx(0.5, abs=1e-4)
    for weight_ratio, kv_ratio, spec in ((2, 4, 3), (1, 8, 1), (4, 1, 2)):
        kv = SEVEN_B.gb(32768)
        step = Budget(
            weights_gb=13, kv_gb=kv, bandwidth_gbs=2000, weight_ratio=weight_ratio, kv_ratio=kv_ratio, speculation=spec
        ).step_ms
        assert step == pytest.approx((13 / weight_ratio + kv / kv_ratio) / 2000 * 1e3 / spec)
    # beyond the crossover one more halving of KV saves more than one of weights, before it less
    for context, kv_wins in ((tokens * 0.9, False), (tokens * 1.1, True)):
        kv = SEVEN_B.gb(round(context))
        halved = [
            Budget(weights_gb=13, kv_gb=kv, bandwidth_gbs=2000, **{r: 2}).step_ms for r in ("kv_ratio", "weight_ratio")
        ]
        assert (halved[0] < halved[1]) is kv_wins


def test_section_3_kv_of_gqa_and_mla_beside_mha():
    assert (
        KvLedger(layers=1, kv_heads=64, head_dim=128).kib_per_token
        / KvLedger(layers=1, kv_heads=8, head_dim=128).kib_per_token
        == 8
    )
    latent, heads = KNOWN["deepseek-v3"], KvLedger(layers=61, kv_heads=128, head_dim=128)
    assert heads.kib_per_token / latent.kib_per_token == pytest.approx(57, abs=0.2)


# -- layouts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kib", "gib"),
    [
        ("llama-2-7b", 512, 64),
        ("llama-3-8b", 128, 16),
        ("llama-3-70b", 320, 40),
        ("deepseek-v3", 68.6, 8.6),
        ("smollm2-135m", 22.5, 2.8),
    ],
)
def test_published_layouts(name, kib, gib):
    ledger = ledger_of(name)
    assert (ledger.kib_per_token, ledger.gib(131072)) == (pytest.approx(kib, abs=0.05), pytest.approx(gib, abs=0.05))


def config(tmp_path: Path, **changes: object) -> str:
    body = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512, **changes}
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in body.items() if v is not None}))
    return str(tmp_path)


def test_layouts_from_a_configuration(tmp_path):
    assert ledger_of(config(tmp_path)) == KvLedger(layers=4, kv_heads=2, head_dim=64)
    assert ledger_of(config(tmp_path, head_dim=128)).head_dim == 128
    assert ledger_of(config(tmp_path, num_key_value_heads=None)).kv_heads == 8
    assert ledger_of(config(tmp_path), value_bytes=0.5).kib_per_token == 4 * 2 * 2 * 64 * 0.5 / 1024
    inner = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
    assert ledger_of(config(tmp_path, text_config=inner, num_hidden_layers=99)).layers == 4


def test_layers_without_kv_and_windows(tmp_path):
    mixed = ledger_of(config(tmp_path, layer_types=["linear_attention", "full_attention"] * 2))
    assert (mixed.layers, mixed.windows) == (2, ())
    windowed = ledger_of(config(tmp_path, layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=100))
    assert windowed.windows == (100, 100)
    assert windowed.gib(1000) == pytest.approx(ledger_of(config(tmp_path)).gib(1000) * (2 * 1000 + 2 * 100) / 4000)
    with pytest.raises(UsageError, match="no layer of this model keeps keys"):
        ledger_of(config(tmp_path, layer_types=["linear_attention"] * 4))


def test_embedded_models_have_a_ledger():
    assert ledger_of("toy-mha").kib_per_token == 2 * ledger_of("toy-gqa").kib_per_token
    assert ledger_of("toy-mla").latent == 64 + 16
    assert ledger_of("toy-mla", expanded=True).kib_per_token == 4 * 4 * (48 + 32) * 2 / 1024


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": None},
        {"num_attention_heads": "8"},
        {"hidden_size": 510},
        {"num_hidden_layers": True},
        {"layer_types": ["sliding_attention"]},
        {"kv_lora_rank": 64},
    ],
    ids=str,
)
def test_a_configuration_that_does_not_say_it_is_refused(tmp_path, changes):
    with pytest.raises(UsageError, match=r"config\.json"):
        ledger_of(config(tmp_path, **changes))


def test_files_and_names_that_are_not_there(tmp_path):
    with pytest.raises(UnknownNameError, match="llama-3-8b"):
        ledger_of("llama-3-9b")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UsageError, match="holds no mapping"):
        ledger_of(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        ledger_of(str(tmp_path / "config.json"))


def test_expanded_heads_of_a_known_name_are_those_of_its_configuration(tmp_path):
    published = {
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    }  # fmt: skip
    folder = config(tmp_path, **published)
    for expanded in (False, True):
        assert ledger_of("deepseek-v3", expanded=expanded) == ledger_of(folder, expanded=expanded)
    assert ledger_of("deepseek-v3", expanded=True).kib_per_token == 61 * 128 * (192 + 128) * 2 / 1024


def test_a_model_without_attention_has_no_ledger():
    with pytest.raises(UsageError, match="'mamba2'.* has no KV cache"):
        ledger_of("toy-mamba")
