"""Which layers keep keys and values: every way in which a configuration says it, and numbers that no cache has."""

import json
from pathlib import Path

import pytest

from pytest_attnaccept.__main__ import main
from pytest_attnaccept.budget import Budget
from pytest_attnaccept.errors import UsageError
from pytest_attnaccept.kv_ledger import KvLedger, ledger_of

BASE = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}


def ledger(tmp_path: Path, **changes: object) -> KvLedger:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**BASE, **changes}), encoding="utf-8")
    return ledger_of(str(path))


@pytest.mark.parametrize(
    ("changes", "layers", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, 8, (64,) * 8),
        ({"model_type": "mistral", "sliding_window": None}, 8, ()),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False, "max_window_layers": 8}, 8, ()),
        ({"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 8}, 8, ()),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 6},
            8,
            (64,) * 2,
        ),
        ({"model_type": "gemma2", "sliding_window": 64}, 8, (64,) * 4),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 6}, 8, (64,) * 7),
        ({"model_type": "cohere2", "sliding_window": 64}, 8, (64,) * 6),
        ({"layer_types": ["chunked_attention", "full_attention"] * 4, "attention_chunk_size": 32}, 8, (32,) * 4),
        ({"attention_chunk_size": 32, "no_rope_layers": []}, 8, (32,) * 6),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, 1, ()),
        ({"layers_block_type": ["mamba"] * 6 + ["attention"] * 2}, 2, ()),
        ({"layer_types": ["conv", "conv", "full_attention", "moe"] * 2}, 2, ()),
        ({"layer_types": ["hybrid"] * 8}, 8, ()),
        (
            {
                "layer_types": ["sliding_attention", "full_attention"] * 4,
                "sliding_window": 64,
                "num_kv_shared_layers": 6,
            },
            2,
            (64,),
        ),
    ],
    ids=str,
)
def test_layers(tmp_path: Path, changes: dict[str, object], layers: int, windows: tuple[int, ...]) -> None:
    found = ledger(tmp_path, **changes)
    assert (found.layers, found.windows) == (layers, windows)


@pytest.mark.parametrize(
    ("changes", "kv_heads", "head_dim"),
    [
        ({"num_key_value_heads": None}, 8, 64),
        ({"num_key_value_heads": 1}, 1, 64),
        ({"num_key_value_heads": None, "multi_query": True}, 1, 64),
        ({"num_key_value_heads": None, "model_type": "falcon"}, 1, 64),
        (
            {"num_key_value_heads": None, "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 4},
            4,
            64,
        ),
        ({"head_dim": 192, "v_head_dim": 128}, 2, 160),
    ],
    ids=str,
)
def test_heads(tmp_path: Path, changes: dict[str, object], kv_heads: int, head_dim: int) -> None:
    found = ledger(tmp_path, **changes)
    assert (found.kv_heads, found.head_dim) == (kv_heads, head_dim)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sliding_window": 64}, "which layers use it"),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, "which layers use it"),
        ({"layer_types": ["full_attention"] * 3}, "must name 8 layers"),
        ({"layer_types": "full_attention"}, "must name 8 layers"),
        ({"layer_types": ["compressed_sparse_attention"] * 8}, "is not known here"),
        ({"layer_types": ["chunked_attention"] * 8}, "attention_chunk_size"),
        ({"attention_chunk_size": 32, "no_rope_layers": [1]}, "is not said"),
        ({"num_kv_shared_layers": 8}, "must be less than 8"),
        ({"num_kv_shared_layers": -1}, "must be less than 8"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"layer_types": ["conv"] * 8}, "keeps keys and values"),
        ({"num_key_value_heads": 0}, "num_key_value_heads=0"),
        ({"num_key_value_heads": 2.5}, "num_key_value_heads=2.5"),
        ({"head_dim": -64}, "head_dim=-64"),
        ({"head_dim": "64"}, "head_dim='64'"),
        ({"head_dim": 65, "v_head_dim": 64}, "129 values"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_a_configuration_does_not_say_is_refused(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ledger(tmp_path, **changes)


def test_the_ledger_of_a_window_stops_growing(tmp_path: Path) -> None:
    found = ledger(tmp_path, model_type="mistral", sliding_window=4096)
    assert found.bytes_at(131072) == found.bytes_at(4096)


STEP = ["--weights-gb", "13", "--kv-gb", "2", "--bandwidth-gbs", "2000"]
LAYOUT = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--model", "llama-3-8b", f"--kv-bytes={x}"] for x in ("0", "-1", "nan", "inf", "1e308")),
        ["--model", "llama-3-8b", "--context", HUGE],
        ["--layers", HUGE, "--kv-heads", "1", "--head-dim", "1"],
        [*STEP[:2], *STEP[4:], *LAYOUT, "--context", "9", "--batch", HUGE],
        [*STEP[:2], *STEP[4:], *LAYOUT, "--sweep-context", HUGE],
        *([*STEP, option, "1e-320"] for option in ("--bandwidth-gbs", "--weight-ratio", "--kv-ratio", "--spec")),
        *([*STEP, f"--kv-bytes={x}"] for x in ("-1", "nan")),
        *([*STEP, option, "1e308"] for option in ("--weights-gb", "--kv-gb")),
        [*STEP, "--weight-ratio", "1e200", "--kv-ratio", "1e200"],
    ],
    ids=lambda arguments: " ".join(arguments)[:70],
)
def test_numbers_that_no_machine_has_are_refused_and_never_crash(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", *arguments]) == 2
    assert "error: budget:" in capsys.readouterr().err


def test_a_step_that_rounds_to_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="of a machine"):
        Budget(weights_gb=13, kv_gb=2, bandwidth_gbs=1e-320)


def test_quantized_caches_with_their_scales() -> None:
    """4 bits, one 16-bit scale per 32 values: 4.5 bits; with a zero point 5 bits; FP8 with a scale per head of 128."""
    heads = KvLedger(layers=32, kv_heads=8, head_dim=128)
    for value_bytes, ratio in ((0.5625, 2 / 0.5625), (0.625, 3.2), (1 + 4 / 128, 2 / (1 + 4 / 128))):
        coded = KvLedger(layers=32, kv_heads=8, head_dim=128, value_bytes=value_bytes)
        assert heads.gib(131072) / coded.gib(131072) == pytest.approx(ratio)


def test_section_8_the_two_gigabytes_of_the_worked_example_are_the_ledger_at_4k() -> None:
    mha, gqa = (KvLedger(layers=32, kv_heads=n, head_dim=128) for n in (32, 8))
    assert (mha.gib(4096), gqa.gib(4096)) == (2.0, 0.5)
    assert mha.kib_per_token / gqa.kib_per_token == 4
