"""E4M3 attention against a dense float64 reference of the same rounding, and against faults that it must not have."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.engines.sides import side_of
from pytest_attnaccept.engines.through_cache import parse_pattern, teacher_forced
from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.methods.e4m3 import attention, rounded
from pytest_attnaccept.methods.stack import apply_stack, identity_stack, require_capability
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()
FP8 = torch.float8_e4m3fn


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reference(q, k, v, granularity, scaling):
    """Dense, float64, one query at a time, K and V repeated for every query head."""
    q, k, v = (rounded(x, granularity).double() for x in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    offset = k.shape[2] - q.shape[2]
    for row in range(q.shape[2]):
        seen = offset + row + 1
        scores = (k[:, :, :seen] @ q[:, :, row, :, None])[..., 0] * scaling
        p = (scores - scores.amax(-1, keepdim=True)).exp()
        coded = (p.float() * 256).to(FP8).double() / 256
        out[:, :, row] = (coded[..., None] * v[:, :, :seen]).sum(2) / p.sum(-1, keepdim=True)
    return out


@pytest.mark.parametrize("granularity", ["tensor", "head", "block"])
@pytest.mark.parametrize(("queries", "keys"), [(300, 300), (5, 130), (1, 7)])
def test_the_emulation_equals_the_formula(granularity, queries, keys):
    q, k, v = draw(2, 4, queries, 16), draw(2, 2, keys, 16, seed=1), draw(2, 2, keys, 24, seed=2)
    found = attention(q, k, v, None, 0.25, granularity)
    # A score near the middle between two codes of P may fall to either side in float32: one step of one P.
    assert (found.double() - reference(q, k, v, granularity, 0.25)).abs().max() < 0.02
    assert (found.double() - reference(q, k, v, granularity, 0.25)).abs().mean() < 2e-5


def test_nothing_rounded_is_softmax_attention():
    q, k, v = draw(2, 4, 40, 16), draw(2, 2, 50, 16, seed=1), draw(2, 2, 50, 16, seed=2)
    mask = torch.ones(40, 50, dtype=torch.bool).tril(10)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.25, enable_gqa=True)
    additive = torch.zeros(1, 1, 40, 50).masked_fill(~mask, torch.finfo(torch.float32).min)
    for given in (None, mask[None, None], additive):
        assert torch.allclose(attention(q, k, v, given, 0.25, "none"), expected, atol=1e-5)


def test_rows_that_see_nothing_are_zero():
    mask = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    mask[..., 2, :] = True
    out = attention(draw(1, 1, 3, 8), draw(1, 1, 3, 8), draw(1, 1, 3, 8), mask, 1.0, "tensor")
    assert (out[0, 0, :2] == 0).all()
    assert (out[0, 0, 2] != 0).any()


@pytest.mark.parametrize("granularity", ["tensor", "head", "block"])
def test_rounding_is_as_large_as_with_a_scale_of_any_value(granularity):
    """Powers of two cost nothing: the error equals that of amax / 448 within a few percent."""
    x = draw(1, 2, 512, 64)
    free = x.abs().amax() / 448
    other = (x / free).to(FP8).float() * free
    ours, theirs = (float((y - x).pow(2).mean().sqrt()) for y in (rounded(x, granularity), other))
    assert ours == pytest.approx(theirs, rel=0.05)
    assert ours / float(x.pow(2).mean().sqrt()) == pytest.approx(0.026, rel=0.1)  # three mantissa bits


def test_a_finer_scale_saves_what_an_outlier_would_drown():
    x = draw(1, 2, 128, 16)
    x[:, 0] *= 2.0**20
    x[:, 1, 64:] *= 2.0**-20
    lost = {g: float(((rounded(x, g) - x)[:, 1].abs() / x[:, 1].abs()).mean()) for g in ("tensor", "head", "block")}
    assert lost["tensor"] > 0.9 > lost["head"] > 0.4 > 0.05 > lost["block"]


def test_nothing_saturates_and_bad_values_stay_visible():
    x = draw(1, 1, 4, 16) * 1e5
    assert ((rounded(x, "tensor") - x).abs() <= x.abs() / 15).all()
    x[0, 0, 1, 2] = torch.nan
    assert torch.isnan(rounded(x, "head")).any()
    x[0, 0, 1, 2] = torch.inf
    assert not torch.isfinite(rounded(x, "head")).all()
    assert torch.equal(rounded(torch.zeros(1, 1, 2, 4), "tensor"), torch.zeros(1, 1, 2, 4))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def run(model, applied, pattern="one-shot", step=8):
    ids = torch.randint(0, 100, (2, 60), generator=torch.Generator().manual_seed(1))
    side = side_of(
        "candidate", LoadedModel(model=model, tokenizer=None, trained_length=64, spec="t"), applied.candidate
    )
    with side.running():
        return teacher_forced(side, ids, 40, parse_pattern(pattern, step))


@pytest.mark.parametrize("pattern", ["chunk-7", "token"])
def test_call_patterns_differ_by_rounding_codes_only(model, pattern):
    """Chunks need masks of their own; a wrong one would be far away."""
    applied = apply_stack(model, stack(("fp8_attention", {})))
    gap = (run(model, applied, pattern, 5) - run(model, applied)).abs()
    assert gap.mean() < 0.02
    plain = apply_stack(model, stack(("kv8", {"residual": 10_000})))
    assert (run(model, applied) - run(model, plain)).abs().mean() > 0.03


def test_identity_setting_is_the_baseline_within_rounding_and_nothing_stays(model):
    before = model.config._attn_implementation
    still = identity_stack(model, stack(("fp8_attention", {"granularity": "head"})))
    plain = apply_stack(model, stack(("kv8", {"residual": 10_000})))
    assert (run(model, still) - run(model, plain)).abs().max() < 1e-4
    assert model.config._attn_implementation == before


def test_terms_of_the_formula_are_not_dropped_silently(model):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = apply_stack(model, stack(("fp8_attention", {}))).candidate.attn_implementation
    x = draw(1, 1, 2, 8)
    with pytest.raises(EngineError, match="does not emulate softcap"):
        ALL_ATTENTION_FUNCTIONS[name](model.model.layers[0].self_attn, x, x, x, None, softcap=30.0)


@pytest.mark.parametrize(("found", "refused"), [((8, 0), True), ((8, 6), True), ((8, 9), False), ((9, 0), False)])
def test_a_device_that_could_not_run_it_is_refused(monkeypatch, found, refused):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found)
    method = REGISTRY.get("fp8_attention")
    require_capability(method, torch.device("cpu"))
    require_capability(REGISTRY.get("kv8"), torch.device("cuda:0"))
    if not refused:
        return require_capability(method, torch.device("cuda:0"))
    with pytest.raises(EngineError, match=rf"capability 8.9 or higher, cuda:0 has {found[0]}.{found[1]}; on CPU it is"):
        require_capability(method, torch.device("cuda:0"))


def test_another_granularity_is_refused(model):
    from pytest_attnaccept.methods import fp8_attention

    with pytest.raises(ContractError, match="must be 'tensor', 'head' or 'block'"):
        fp8_attention.apply(model, {"granularity": "row"})
