"""The error model: correct kernels stay far below every limit, and each statistic sees what it is for."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_attnaccept.kernel.cases import CaseSpec, build_case
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.emulate import Habit, attend
from pytest_attnaccept.kernel.guard import Output
from pytest_attnaccept.kernel.judge import judge_output
from pytest_attnaccept.kernel.precision import effective_dtype, ulp
from pytest_attnaccept.kernel.run import measure_kernel
from pytest_attnaccept.kernel.statistics import bound

HEADS = {"q_heads": 4, "kv_heads": 2, "head_dim": 64}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def judge(habit=None, family="diffuse", q_len=16, kv_len=1024, seed=1, hook=None, change=None, **keywords):
    contract = make_contract(**HEADS | keywords)
    case = build_case(contract, CaseSpec(family=family, batch=1, q_len=q_len, kv_len=kv_len, seed=seed), "cpu")
    out, lse = attend(case.call, habit or Habit(), hook)
    out = out if change is None else change(out)
    return {
        stat.name: stat.ratio for stat in judge_output(case, Output(out, lse if contract.returns_lse else None)).stats
    }


def test_bound_of_the_largest_error():
    assert bound(1000) == pytest.approx(6.5, abs=0.1)
    assert bound(10**6) == pytest.approx(7.5, abs=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_ulp_is_the_spacing_of_the_dtype(dtype):
    x = torch.tensor([1.0, 1.5, 0.7, -3.1, 1e-3, 240.0]).to(dtype)
    bigger = x.double() + ulp(x, dtype) * x.sign()
    assert torch.equal(bigger.to(dtype).double(), bigger)
    assert not torch.equal((x.double() + 0.49 * ulp(x, dtype)).to(dtype), bigger.to(dtype))


def test_the_precision_in_which_an_output_was_written():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert effective_dtype(x, torch.bfloat16) is torch.float32
    assert effective_dtype(x.bfloat16().float(), torch.bfloat16) is torch.bfloat16
    assert effective_dtype(x.double(), torch.float32) is torch.float32


LEGAL = {
    "tile 32": Habit(tile=32),
    "tile 256": Habit(tile=256),
    "split": Habit(splits=8, tile=32),
    "reversed": Habit(reverse=True),
    "lazy": Habit(lazy=8.0),
    "exp2": Habit(exp2=True),
    "float32 P": Habit(round_p=False),
    "truncating": Habit(truncate=True, tile=16),
}


@pytest.mark.parametrize("habit", list(LEGAL.values()), ids=list(LEGAL))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["diffuse", "needle", "shift"])
def test_legal_orders_stay_below_the_limits(habit, dtype, family):
    ratios = judge(habit, family, dtype=dtype, returns_lse=True)
    assert max(ratios.values()) < 0.9, ratios


@pytest.mark.parametrize(
    "family", ["diffuse", "needle", "shift", "ones", "same_values", "same_keys", "large_v", "ties"]
)
def test_float32_sums_one_key_at_a_time_are_legal(family):
    assert max(judge(Habit(tile=1), family, dtype="float32", kv_len=1500, returns_lse=True).values()) < 0.9


@pytest.mark.parametrize(
    "family", ["zero_keys", "ties", "large_v", "fingerprint", "resonant", "tail", "deep", "ramp_up"]
)
def test_structured_inputs_do_not_alarm(family):
    for habit in (LEGAL["lazy"], LEGAL["split"]):
        assert max(judge(habit, family, sinks=True).values()) < 0.95


def test_declared_score_rounding_is_allowed_and_undeclared_is_not():
    habit = Habit(round_s=True)
    assert max(judge(habit, score_dtype="input").values()) < 0.9
    assert max(judge(habit).values()) > 1.5


def test_declared_float32_probabilities_forbid_rounded_ones():
    assert max(judge(Habit(round_p=False), probability_dtype="float32").values()) < 0.9
    assert max(judge(Habit(), probability_dtype="float32").values()) > 1.5


@pytest.mark.parametrize("seed", range(6))
def test_outputs_that_sinks_make_tiny_have_finite_statistics(seed):
    """Inverse variances of 1e27 leave the range of float32 when squared."""
    for family in ("ramp_down", "shift"):
        ratios = judge(
            Habit(),
            family,
            q_len=17,
            kv_len=257,
            seed=seed,
            dtype="float32",
            sinks=True,
            window=65,
            q_heads=10,
            head_dim=16,
        )
        assert max(ratios.values()) < 0.95 and not any(math.isnan(ratio) for ratio in ratios.values())


def hide(key):
    def hook(s, position, v, low):
        keys = torch.arange(low, low + s.shape[-1])
        return s.masked_fill(keys == key, -math.inf), v

    return hook


def test_the_scan_names_the_lost_key():
    contract = make_contract(**HEADS)
    case = build_case(contract, CaseSpec(family="diffuse", batch=1, q_len=16, kv_len=8192, seed=3), "cpu")
    out, _ = attend(case.call, Habit(tile=256), hide(4321))
    stats = {stat.name: stat for stat in judge_output(case, Output(out, None)).stats}
    assert stats["scan.heads"].ratio > 2
    assert stats["scan.heads"].key == 4321
    assert "missing" in stats["scan.heads"].where


def test_gain_and_scale_see_what_the_maximum_does_not():
    ratios = judge(change=lambda out: (out.float() * 1.003).to(out.dtype), kv_len=4096, q_len=64)
    assert ratios["gain"] > 1 > ratios["maxz"]


def test_mean_square_sees_noise_that_no_single_element_shows():
    noise = torch.Generator().manual_seed(2)
    ratios = judge(
        change=lambda out: (out.float() * (1 + 0.006 * torch.randn(out.shape, generator=noise))).to(out.dtype)
    )
    assert ratios["z2"] > 1


def test_nan_is_over_every_limit():
    ratios = judge(change=lambda out: out.masked_fill(torch.ones_like(out, dtype=torch.bool), math.nan))
    assert ratios["maxz"] == math.inf
    assert ratios["not finite"] > 1


@pytest.mark.parametrize("kind", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_sdpa_backends_pass(kind, dtype):
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        with sdpa_kernel([kind if key.shape[2] and query.shape[2] else SDPBackend.MATH]):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )

    for check in ("value", "poison"):
        measured = measure_kernel(
            check, attention, make_contract(dtype=dtype, **HEADS), max_length=300, seed=4, device="cpu"
        )
        assert not measured.refusals
        assert max(gate.value / gate.limit for gate in measured.gates) < 0.95


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inductor imports it itself
@pytest.mark.parametrize("check", ["value", "inputs", "poison"])
def test_compiled_flex_attention_passes(check):
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
    from kernel_good import flex

    compiled = []

    def attention(call):
        if call.k.shape[2] < 2:
            return attend(call)[0]
        compiled.append(call)
        return flex(call)

    # Each pattern of strides and each size of one is compiled anew: this contract needs few of them.
    contract = make_contract(dtype="float32", q_lens=(2, 300), strides="contiguous", **HEADS)
    measured = measure_kernel(check, attention, contract, max_length=300, seed=4, device="cpu")
    assert len(compiled) > 5
    assert not measured.refusals
    assert all(gate.value <= gate.limit for gate in measured.gates)


@pytest.mark.full
def test_long_check_keeps_its_promises():
    """131072 keys: at most a dozen calls at the longest length, and a fault beyond 65536 keys is seen."""
    from fixtures.broken.kernels_base import hide as lose
    from fixtures.broken.kernels_base import solve

    contract = make_contract(q_heads=2, kv_heads=1, head_dim=32)
    good = measure_kernel("long", solve, contract, max_length=131072, seed=8, device="cpu")
    assert not good.refusals
    assert all(gate.value <= gate.limit for gate in good.gates)
    facts = {fact.name: fact.value for fact in good.facts}
    assert facts["candidate_calls"] <= 12
    assert facts["certified_to"] == 131072
    bad = measure_kernel(
        "long", lambda c: solve(c, seen=lose(100000, 100001)), contract, max_length=131072, seed=8, device="cpu"
    )
    assert any(not gate.value <= gate.limit for gate in bad.gates)
