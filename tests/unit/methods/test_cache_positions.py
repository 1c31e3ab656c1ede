"""StreamingLLM counts positions inside the cache: against the kept tokens run as a text of their own.

In a model of one layer keys and values depend on token and position alone, so the logits after an eviction must be those of
the text that consists of the kept tokens only. With positions of the text they are not.
"""

from __future__ import annotations

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.engines.sides import side_of
from pytest_attnaccept.engines.through_cache import extend, parse_pattern, prefill
from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.methods.rotation import mover
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()
COMMON = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
# Cached against uncached float32 logits of these models differ by less than 2e-5.
CLOSE = 1e-4


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


def llama(**more):
    return LlamaForCausalLM(LlamaConfig(**COMMON, num_key_value_heads=2, initializer_range=0.3, **more))


def yarn():
    return llama(rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, max_position_embeddings=256)


def cohere():
    return CohereForCausalLM(CohereConfig(**COMMON, num_key_value_heads=2, initializer_range=0.3, logit_scale=1.0))


def mla(**more):
    return DeepseekV3ForCausalLM(DeepseekV3Config(
        **COMMON, num_key_value_heads=4, initializer_range=0.3, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=32,
        qk_rope_head_dim=16, qk_nope_head_dim=24, v_head_dim=24, **more,
    ))  # fmt: skip


def neox():
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**COMMON, initializer_range=0.3, rope_parameters=rope))


MODELS = {
    "llama": llama, "yarn": yarn, "cohere-interleaved": cohere, "mla": mla,
    "mla-not-interleaved": lambda: mla(rope_interleave=False), "neox-partial": neox,
}  # fmt: skip


@pytest.fixture(scope="module", params=list(MODELS))
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def continued(model, members, ids, context, pattern="one-shot", step=12):
    applied = side_of(
        "candidate",
        LoadedModel(model=model, tokenizer=None, trained_length=64, spec="tiny"),
        apply_stack(model, stack(*members)).candidate,
    )
    with applied.running():
        state = prefill(applied, ids[:, :context], parse_pattern(pattern, step))
        return extend(applied, state, ids[:, context:])


def words(seed=1, length=60):
    return torch.randint(0, 100, (2, length), generator=torch.Generator().manual_seed(seed))


def test_what_is_kept_is_a_text_of_its_own(model):
    ids, context = words(), 48
    kept = torch.cat([ids[:, :4], ids[:, context - 20 :]], dim=1)
    with torch.no_grad():
        expected = model(kept).logits[:, 24:]
    knobs = {"kv_budget": 24, "sinks": 4}
    assert (continued(model, [("streaming_llm", knobs)], ids, context) - expected).abs().max() < CLOSE
    text = continued(model, [("streaming_llm", {**knobs, "positions": "text"})], ids, context)
    assert (text - expected).abs().max() > 20 * CLOSE


def test_token_by_token_the_distance_of_the_sinks_stays(model):
    """The last query of 12 single ones sees sinks, the 19 entries before it and itself, whatever was evicted when."""
    ids = words()
    found = continued(model, [("streaming_llm", {"kv_budget": 24, "sinks": 4})], ids, 48, "token")[:, -1]
    with torch.no_grad():
        expected = model(torch.cat([ids[:, :4], ids[:, -21:]], dim=1)).logits[:, -1]
    assert (found - expected).abs().max() < CLOSE


def test_in_bf16_no_error_is_piled_up():
    """Sinks are turned from what was stored each time, not from what was turned before."""
    torch.manual_seed(0)
    model = llama().eval()
    ids = words(length=500)
    exact = continued(model, [("streaming_llm", {"kv_budget": 24})], ids, 30, "token")[:, -1]
    model.to(torch.bfloat16)
    rough = continued(model, [("streaming_llm", {"kv_budget": 24})], ids, 30, "token")[:, -1]
    kept = torch.cat([ids[:, :4], ids[:, -21:]], dim=1)
    with torch.no_grad():
        once = model(kept).logits[:, -1]
    assert (rough.float() - exact).abs().max() < 3 * (once.float() - exact).abs().max() + 1e-3


def test_a_quantized_stack_turns_what_it_reads(model):
    ids, context = words(), 48
    kept = torch.cat([ids[:, :4], ids[:, context - 20 :]], dim=1)
    with torch.no_grad():
        expected = model(kept).logits[:, 24:]
    found = continued(model, [("streaming_llm", {"kv_budget": 24, "sinks": 4}), ("kv8", {})], ids, context)
    assert 0 < (found - expected).abs().max() < 0.2


def test_a_growing_share_needs_no_fixed_number_of_sinks():
    """A share of a short text keeps fewer entries than there are sinks at first; how far one moves belongs to the entry."""
    torch.manual_seed(0)
    model = llama().eval()
    ids = words(length=60)
    found = continued(model, [("streaming_llm", {"kv_budget": 0.1, "sinks": 4})], ids, 20, "token")[:, -1]
    held: list[int] = []
    for at in range(59):
        held.append(at)
        count = max(1, -(-(at + 1) // 10))
        sinks = min(4, count - 1)
        held = held if count >= len(held) else held[:sinks] + held[len(held) - (count - sinks) :]
    assert held[0] > 0  # the first token was dropped while the budget was one entry
    with torch.no_grad():
        expected = model(ids[:, [*held, 59]]).logits[:, -1]
    assert (found - expected).abs().max() < CLOSE


def test_models_whose_keys_cannot_be_moved_are_refused():
    torch.manual_seed(0)
    dynamic = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}).eval()
    with pytest.raises(EngineError, match=r"depend on the length \(dynamic\); use positions='text'"):
        continued(dynamic, [("streaming_llm", {"kv_budget": 24})], words(), 48)
    assert continued(dynamic, [("streaming_llm", {"kv_budget": 24, "positions": "text"})], words(), 48).shape[1] == 12
    plain = llama().eval()
    plain.model.rotary_emb = None
    keys = torch.zeros(1, 2, 4, 16)
    with pytest.raises(EngineError, match="no rotary embedding"):
        mover(plain, "streaming_llm")(keys, keys, torch.tensor([3], dtype=torch.int32))
    with pytest.raises(ContractError, match="must be 'cache' or 'text'"):
        from pytest_attnaccept.methods import streaming_llm

        streaming_llm.apply(plain, {"kv_budget": 0.5, "positions": "here"})
