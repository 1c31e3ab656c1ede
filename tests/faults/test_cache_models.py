"""Model-level state: broken models are caught where their row says, and transformers' own models and caches are left alone."""

import functools

import pytest
import torch

from fixtures.broken.model_states import BROKEN_MODELS
from fixtures.good.transformers_objects import TransformersCache, generate_decoder, tiny_llama, tiny_model
from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.state.cache import CACHE_CHECKS, make_cache_contract, measure_cache
from pytest_attnaccept.state.decoder import make_decoder_contract, measure_decoder
from pytest_attnaccept.state.decoder_contract import DecoderPlan
from pytest_attnaccept.state.model_level import MODEL_STATE_CHECKS, measure_model_state
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

transformers = pytest.importorskip("transformers")

SLIDING = {"head_dim": 16, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
MLA = {
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
}
MODELS = {
    "llama": tiny_llama,
    "llama-mha": lambda **change: tiny_llama(num_key_value_heads=4, **change),
    "llama-eager": lambda **change: tiny_llama(attn_implementation="eager", **change),
    "gemma3": lambda **change: tiny_model("Gemma3ForCausalLM", "Gemma3TextConfig", **SLIDING, **change),
    "mistral": lambda **change: tiny_model("MistralForCausalLM", "MistralConfig", sliding_window=12, **change),
    "deepseek": lambda **change: tiny_model("DeepseekV3ForCausalLM", "DeepseekV3Config", **MLA, **change),
}
STATIC = ("llama", "gemma3", "mistral")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


@functools.lru_cache(maxsize=8)
def model_of(name, seed=0):
    return MODELS[name](seed=seed)


@pytest.mark.parametrize("row", BROKEN_MODELS, ids=lambda row: f"{row.name}-{row.check}")
def test_broken_model_is_caught(row):
    model = row.model()
    cache = None if row.cache is None else (lambda: row.cache(model))
    baseline = row.baseline() if row.baseline else None
    measured = measure_model_state(row.check, model, seed=0, cache=cache, baseline=baseline)
    assert decide(measured, {}).verdict is Verdict.FAIL
    assert measured.seems


def verdict(check, model, seed, cache=None):
    return decide(measure_model_state(check, model, seed=seed, cache=cache, baseline=model), {}).verdict


@pytest.mark.parametrize("check", MODEL_STATE_CHECKS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_transformers_models_pass(name, check):
    sliding = name in ("gemma3", "mistral")
    wanted = Verdict.PASS
    if (check == "window" and not sliding) or (check == "right-padding" and sliding):
        wanted = Verdict.NOT_APPLICABLE
    assert verdict(check, model_of(name), seed=1) is wanted


@pytest.mark.parametrize("check", ["chunked", "prefix", "crop", "reuse", "window", "preempt"])
@pytest.mark.parametrize("name", STATIC)
def test_static_caches_pass(name, check):
    model = model_of(name)
    got = verdict(check, model, 2, lambda: transformers.StaticCache(config=model.config, max_cache_len=160))
    absent = (check == "window" and name == "llama") or (check == "crop" and name != "llama")
    assert got is (Verdict.NOT_APPLICABLE if absent else Verdict.PASS)


@pytest.mark.full
@pytest.mark.parametrize("check", MODEL_STATE_CHECKS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_transformers_models_pass_many_seeds(name, check):
    for seed in range(10, 22):
        assert verdict(check, MODELS[name](seed=seed), seed) in (Verdict.PASS, Verdict.NOT_APPLICABLE)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("check", ["chunked", "prefix", "batch", "crop", "positions"])
def test_sixteen_bit_models_pass(dtype, check):
    for seed in range(4):
        assert verdict(check, tiny_llama(seed=seed).to(dtype), seed) is Verdict.PASS


def test_a_fault_of_the_baseline_is_not_the_candidates():
    """Dynamic NTK is wrong behind the trained length in both: reported, and the two are compared with each other."""
    row = next(row for row in BROKEN_MODELS if row.name == "dynamic_ntk")
    measured = measure_model_state("chunked", row.model(), seed=0, baseline=row.model())
    assert decide(measured, {}).verdict is Verdict.PASS
    assert any(fact.name == "the baseline fails too" and "trained length" in fact.value for fact in measured.facts)
    healthy = measure_model_state("chunked", row.model(), seed=0, baseline=tiny_llama())
    assert decide(healthy, {}).verdict is Verdict.FAIL


def test_what_was_certified_is_said():
    measured = measure_model_state("chunked", tiny_llama(), seed=0, baseline=tiny_llama())
    assert "certified to 137 tokens" in decide(measured, {}).headline
    assert "against the baseline" in measured.resolution
    alone = measure_model_state("chunked", tiny_llama(), seed=0)
    assert "against the model itself only" in alone.resolution


def test_each_side_runs_inside_its_own_context():
    from contextlib import contextmanager

    model, inside = tiny_llama(), []

    @contextmanager
    def candidate():
        scale = [layer.self_attn.scaling for layer in model.model.layers]
        for layer in model.model.layers:
            layer.self_attn.scaling = 1.5 * scale[0]
        inside.append("candidate")
        try:
            yield
        finally:
            for layer, kept in zip(model.model.layers, scale, strict=True):
                layer.self_attn.scaling = kept

    measured = measure_model_state("chunked", model, seed=0, baseline=model, running=candidate)
    assert inside == ["candidate"]
    assert decide(measured, {}).verdict is Verdict.FAIL
    assert all("against the baseline" in gate.name for gate in measured.gates if gate.value > gate.limit)


def test_a_shared_pool_is_not_overwritten_with_the_swapped_request():
    """Caches whose tensors lie in one pool: swapping one of them out must not be tested by destroying the others."""
    model, pool = tiny_llama(), torch.zeros(64, 2, 256, 8)

    class Pooled(transformers.DynamicCache):
        taken = 0

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.place, Pooled.taken = Pooled.taken % 8 * 8, Pooled.taken + 1

        def update(self, keys, values, layer, *args, **kwargs):
            got = super().update(keys, values, layer, *args, **kwargs)
            views = []
            for number, states in enumerate(got):
                view = pool[self.place + 2 * layer + number][None, :, : states.shape[2]]
                view.copy_(states)
                views.append(view)
            self.layers[layer].keys, self.layers[layer].values = views
            return tuple(views)

        def __deepcopy__(self, memo):
            twin = Pooled(config=model.config)
            for number, layer in enumerate(self.layers):
                transformers.DynamicCache.update(twin, layer.keys.clone(), layer.values.clone(), number)
            return twin

    got = measure_model_state("preempt", model, seed=0, cache=lambda: Pooled(config=model.config))
    assert decide(got, {}).verdict is Verdict.PASS, got


def test_a_model_that_ignores_its_context_is_invalid():
    model = tiny_llama()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    assert verdict("chunked", model, 0) is Verdict.INVALID


def test_nan_fails():
    model = tiny_llama()
    original = model.forward

    def poisoned(ids, **keywords):
        out = original(ids, **keywords)
        if ids.shape[1] == 1:
            out.logits = out.logits * float("nan")
        return out

    model.forward = poisoned
    assert verdict("chunked", model, 0) is Verdict.FAIL


def test_exceptions_are_the_candidates():
    model = tiny_llama()

    def raises(ids, **keywords):
        raise RuntimeError("graph not captured")

    model.forward = raises
    with pytest.raises(CandidateError, match="graph not captured"):
        measure_model_state("chunked", model, seed=0)


def test_a_huge_window_is_inconclusive():
    model = tiny_model("MistralForCausalLM", "MistralConfig", sliding_window=4096)
    assert verdict("window", model, 0) is Verdict.INCONCLUSIVE


def test_unknown_check_and_missing_baseline():
    with pytest.raises(ContractError, match="unknown check"):
        measure_model_state("windows", tiny_llama(), seed=0)
    measured = measure_model_state("baseline", tiny_llama(), seed=0)
    assert decide(measured, {}).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("check", CACHE_CHECKS)
@pytest.mark.parametrize("kind", ["dynamic", "static", "sliding"])
def test_transformers_caches_equal_lists_of_tokens(kind, check):
    heads = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    full = transformers.LlamaConfig(**heads)
    sliding = transformers.MistralConfig(**heads, sliding_window=7)
    make, window = {
        "dynamic": (lambda: transformers.DynamicCache(config=full), None),
        "static": (lambda: transformers.StaticCache(config=full, max_cache_len=256), None),
        "sliding": (lambda: transformers.DynamicCache(config=sliding), 7),
    }[kind]
    contract = make_cache_contract(
        q_heads=4, kv_heads=2, head_dim=16, page_size=4, dtype="float32", capacity_tokens=96, window=window
    )
    measured = measure_cache(check, lambda: TransformersCache(make, window), contract, seed=0, device="cpu", programs=6)
    assert decide(measured, {}).verdict is Verdict.PASS, measured


@functools.lru_cache(maxsize=1)
def speaking_pair():
    models = [tiny_llama(vocab=12, gain=6.0), tiny_llama(vocab=12, gain=6.0, num_hidden_layers=1)]
    for model in models:
        model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return models


def decoder_measure(check, options, plan):
    model, draft = speaking_pair()
    options = {name: draft if value == "draft" else value for name, value in options.items()}

    def target(tokens):
        with torch.no_grad():
            return model(tokens[None]).logits[0, -1]

    contract = make_decoder_contract(vocab_size=12)
    return measure_decoder(
        check, generate_decoder(model, **options), target, contract, seed=0, device="cpu", profile="smoke", plan=plan
    )


OPTIONS = {"plain": {}, "assisted": {"assistant_model": "draft"}, "lookup": {"prompt_lookup_num_tokens": 3}}


@pytest.mark.parametrize("check", ["greedy", "seeds", "state"])
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_transformers_generation_passes(name, check):
    plan = DecoderPlan(greedy_prompts=3, greedy_tokens=12, prompts=1, draws=60, depth=3, paths=40)
    assert decide(decoder_measure(check, OPTIONS[name], plan), {}).verdict is Verdict.PASS


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_transformers_sampling_follows_the_model(name):
    plan = DecoderPlan(greedy_prompts=3, greedy_tokens=12, prompts=1, draws=1000, depth=5, paths=300)
    assert decide(decoder_measure("distribution", OPTIONS[name], plan), {}).verdict is Verdict.PASS


def quantized(model, residual):
    from pytest_attnaccept.methods.stack import apply_stack
    from pytest_attnaccept.registry import Registry, check_knobs

    method = Registry.builtin().get("kv8")
    knobs = check_knobs(method, {"residual": residual, "group_size": 8}, "test")
    return apply_stack(model, [(method, knobs)], seed=0).candidate


@pytest.mark.parametrize("check", ["chunked", "prefix", "batch", "reuse", "preempt"])
def test_quantized_caches_pass_at_identity_and_fail_behind_it(check):
    """With a residual longer than every request nothing is quantized; with none, everything is."""
    model = tiny_llama()
    for residual, wanted in ((1024, Verdict.PASS), (0, Verdict.FAIL)):
        candidate = quantized(model, residual)
        measured = measure_model_state(check, candidate.model, seed=0, cache=candidate.cache, baseline=model)
        assert decide(measured, {}).verdict is wanted, (residual, measured)
