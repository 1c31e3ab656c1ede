"""Prefill, continuation, copies and storage: the harness itself, on a model whose one-shot logits are the oracle."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.engines.calls import NonFiniteError, call, call_form
from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.engines.memo import TensorMemo
from pytest_attnaccept.engines.sides import side_of
from pytest_attnaccept.engines.storage import layer_storage, tensors_of
from pytest_attnaccept.engines.through_cache import extend, fork, greedy, parse_pattern, prefill, teacher_forced
from pytest_attnaccept.errors import CandidateError, ContractError, EngineError


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


IDS = torch.randint(0, 60, (2, 40), generator=torch.Generator().manual_seed(3))


def side(model, around=None, name="baseline"):
    around = around or Candidate(model)
    return side_of(name, LoadedModel(model=model, tokenizer=None, trained_length=64, spec="tiny"), around)


@pytest.mark.parametrize(("name", "step"), [("one-shot", 8), ("one-shot", 1), ("chunk-7", 3), ("token", 1)])
def test_every_pattern_equals_one_forward_pass(model, name, step):
    with torch.no_grad():
        whole = model(IDS).logits[:, 24:-1]
    plain = side(model)
    with plain.running():
        logits = teacher_forced(plain, IDS, 25, parse_pattern(name, step))
    assert (logits - whole).abs().max() < 1e-4


def test_the_first_scored_token_passes_through_the_cache(model):
    """An eviction of everything changes the very first scored logit: token P-1 goes through the changed cache."""
    from transformers.cache_utils import DynamicLayer

    class Forgets(DynamicLayer):
        def update(self, key_states, value_states, *args, **kwargs):
            result = super().update(key_states, value_states)
            self.keys, self.values = self.keys[:, :, :1], self.values[:, :, :1]
            return result

    def forgetful():
        cache = DynamicCache(config=model.config)
        cache.layers[:] = [Forgets() for _ in cache.layers]
        return cache

    changed, plain = side(model, Candidate(model, cache=forgetful), "candidate"), side(model)
    first = []
    for each in (changed, plain):
        with each.running():
            first.append(teacher_forced(each, IDS, 25, parse_pattern("one-shot", 15))[:, 0])
    assert (first[0] - first[1]).abs().max() > 0.1


def test_questions_do_not_see_one_another(model):
    plain = side(model)
    with plain.running():
        state = prefill(plain, IDS[:, :20], parse_pattern("one-shot", 4))
        alone = extend(plain, fork(plain, state), IDS[:, 30:])
        extend(plain, fork(plain, state), IDS[:, 20:30])
        again = extend(plain, fork(plain, state), IDS[:, 30:])
    assert torch.equal(alone, again)
    assert state.cache.get_seq_length() == 20


class Stubborn(DynamicCache):
    """A cache that cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("not copyable")


class Sharing(DynamicCache):
    """A cache whose copy is itself: a question would stay in it."""

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize("kind", [Stubborn, Sharing])
def test_a_cache_that_cannot_be_copied_is_filled_again(model, kind):
    around = Candidate(model, cache=lambda: kind(config=model.config))
    foreign, plain = side(model, around, "candidate"), side(model)
    results = []
    for each in (foreign, plain):
        with each.running():
            state = prefill(each, IDS[:, :20], parse_pattern("one-shot", 4))
            extend(each, fork(each, state), IDS[:, 20:30])
            results.append(extend(each, fork(each, state), IDS[:, 30:]))
    assert torch.equal(*results)


def test_a_cache_that_is_filled_again_gets_the_question_after_the_compression(model):
    """A prompt is cut when its call ends: context and question in one call would be another, easier problem."""
    from transformers.cache_utils import DynamicLayer

    class Cut(DynamicLayer):
        def update(self, key_states, value_states, *args, **kwargs):
            result = super().update(key_states, value_states)
            if key_states.shape[2] > 15:  # a prompt
                self.keys, self.values = self.keys[:, :, -8:], self.values[:, :, -8:]
            return result

    def cut(kind):
        cache = kind(config=model.config)
        cache.layers[:] = [Cut() for _ in cache.layers]
        return cache

    results, held = [], []
    for kind in (Stubborn, Sharing, DynamicCache):
        each = side(model, Candidate(model, cache=functools.partial(cut, kind)), "candidate")
        with each.running():
            state = prefill(each, IDS[:, :20], parse_pattern("one-shot", 4))
            extend(each, state, IDS[:, 20:25], step=5)
            free = fork(each, state)
            held.append(free.cache.layers[0].keys.shape[2])
            again = fork(each, free)
            results.append((greedy(each, free, 4), extend(each, again, IDS[:, 25:35], step=1)))
    assert held == [13, 13, 13]
    for made, logits in results[:2]:
        assert torch.equal(made, results[2][0])
        assert torch.equal(logits, results[2][1])


def test_greedy_repeats_the_argmax_of_one_forward_pass(model):
    plain = side(model)
    with plain.running():
        made = greedy(plain, prefill(plain, IDS[:, :20], parse_pattern("one-shot", 4)), 6)
    ids = IDS[:, :20]
    for _ in range(6):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(made, ids[:, 20:])


@pytest.mark.parametrize("name", ["oneshot", "chunk-0", "chunk-x", "chunk", ""])
def test_unknown_patterns_are_refused(name):
    with pytest.raises(ContractError, match="call pattern"):
        parse_pattern(name, 4)


def test_a_context_that_leaves_nothing_to_score_is_refused(model):
    with pytest.raises(ContractError, match="leaves nothing to score"):
        teacher_forced(side(model), IDS, 40, parse_pattern("one-shot", 1))


def test_nan_names_side_and_position(model):
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.embed_tokens.weight[int(IDS[0, 13])] = float("nan")
    form, cache, first = call_form(broken), None, IDS[0].tolist().index(int(IDS[0, 13]))
    with pytest.raises(NonFiniteError, match=f"NaN logits of the candidate at position {first} "):
        for position in range(20):
            _, cache = call(broken, form, IDS[:1, position : position + 1], cache, position, side="candidate")


def test_an_exception_is_the_sides_own(model):
    def fails(*args, **kwargs):
        raise ZeroDivisionError("page 7")

    broken = copy.deepcopy(model)
    broken.model.layers[0].self_attn.forward = fails
    form = call_form(broken)
    with pytest.raises(CandidateError, match="ZeroDivisionError: page 7"):
        call(broken, form, IDS, None, 0)
    with pytest.raises(EngineError, match="the baseline raised"):
        call(broken, form, IDS, None, 0, side="baseline")


def test_a_model_without_a_cache_keyword_is_refused():
    class NoCache(torch.nn.Module):
        def forward(self, input_ids):
            return input_ids

    with pytest.raises(EngineError, match="cannot be measured through its cache"):
        call_form(NoCache())


def test_recurrent_models_keep_their_state():
    """A wrong cache keyword would lose the state of these classes without an error."""
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=60, hidden_size=16, state_size=4, num_hidden_layers=2, initializer_range=0.3)
    recurrent = MambaForCausalLM(config).eval()
    plain = side(recurrent)
    with torch.no_grad():
        whole = recurrent(IDS).logits[:, 24:-1]
    with plain.running():
        logits = teacher_forced(plain, IDS, 25, parse_pattern("one-shot", 1))
    assert (logits - whole).abs().max() < 1e-3


def test_contexts_and_attention_are_restored_when_a_call_fails(model):
    class Context:
        active = False

        def __call__(self, model):
            return self

        def __enter__(self):
            self.active = True

        def __exit__(self, *args):
            self.active = False

    context = Context()
    changed = side(model, Candidate(model, context=context, attn_implementation="eager"), "candidate")
    with pytest.raises(KeyError), changed.running():
        assert context.active
        assert model.config._attn_implementation == "eager"
        raise KeyError
    assert not context.active
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("takes_model", [True, False])
def test_both_forms_of_a_context_are_entered(model, takes_model):
    entered = []

    class Press:
        def __call__(self, given):
            entered.append(given)
            return self

        def __enter__(self):
            return self

        def __exit__(self, *args):
            return None

    press = Press()
    around = Candidate(model, context=press if takes_model else (lambda: press(model)))
    with side(model, around, "candidate").running():
        assert entered == [model]


def test_storages_are_counted_once_and_views_cost_what_they_hold():
    base = torch.zeros(1, 2, 100, 8)

    class Layer:
        keys = base[:, :, :10]
        values = base[:, :, 10:20]

        def __init__(self):
            self.keys, self.values = type(self).keys, type(self).values

    class Cache:
        layers = [Layer()]  # noqa: RUF012

    found = layer_storage(Cache())
    assert [(layer.entries, layer.storage_bytes) for layer in found] == [(10, base.numel() * 4)]


def test_hidden_tensors_are_found_wherever_they_hang():
    class Slots:
        __slots__ = ("kept",)

    hidden = [torch.full((3,), float(number)) for number in range(6)]
    slots = Slots()
    slots.kept = hidden[0]
    tagged = torch.zeros(1)
    tagged.original = hidden[1]
    cell = hidden[2]
    root = {
        "slots": [slots],
        "tag": (tagged,),
        "closure": lambda: cell,
        "partial": functools.partial(print, hidden[3]),
        "bound": {hidden[4]}.copy,
        "default": (lambda x=hidden[5]: x),
    }
    found = {id(tensor) for tensor in tensors_of(root)}
    missing = [number for number, tensor in enumerate(hidden) if id(tensor) not in found]
    assert missing == [4]  # the inside of a built-in method is out of reach; the process-wide search covers it


def test_models_are_not_part_of_a_cache(model):
    assert list(tensors_of({"model": model})) == []


def test_a_memo_forgets_the_oldest_and_never_grows_past_its_limit():
    memo = TensorMemo(limit_bytes=100)
    for number in range(4):
        memo.put(number, torch.zeros(10))
    memo.put("huge", torch.zeros(1000))
    assert [memo.get(number) is not None for number in range(4)] == [False, False, True, True]
    assert memo.get("huge") is None


def test_a_cache_that_is_not_fresh_is_refused(model):
    """A factory that hands out the same object would show every text the one before it."""
    shared = DynamicCache(config=model.config)
    used = side(model, Candidate(model, cache=lambda: shared), "candidate")
    with used.running():
        prefill(used, IDS[:, :20], parse_pattern("one-shot", 4))
        with pytest.raises(CandidateError, match="already holds 20 tokens"):
            prefill(used, IDS[:, :20], parse_pattern("one-shot", 4))
