"""Candidates that reach for the scoring, for other runs, or for tokens they must not see; and honest ones that look alike."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_read, open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import CandidateError
from pytest_attnaccept.methods.codec import Codec
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.layer import PolicyLayer
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
NEEDLE = {"tier": 0.25, "contexts": 2, "questions_per_context": 2}
TEXT = {"tier": 0.25, "documents": 2, "continuation": 16}


def stack(*members):
    return [(REGISTRY.get(name), check_knobs(REGISTRY.get(name), knobs, "test")) for name, knobs in members]


KV8, HALF = ("kv8", {}), ("streaming_llm", {"kv_budget": 0.5})


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def caches(toy, layer=PolicyLayer, cache_class=DynamicCache, **given):
    given = given or {"policy": None, "codec": Codec(bits=8)}

    def factory():
        cache = cache_class(config=toy.model.config)
        cache.layers[:] = [layer(layer_idx=at, seed=0, **given) for at in range(len(cache.layers))]
        return cache

    return factory


def of_half(toy, layer, cache_class=DynamicCache):
    return caches(toy, layer, cache_class, policy=SinksAndRecent(budget=0.5, sinks=4), codec=None)


def opened(toy, around, member=KV8):
    return open_session(candidate=around, baseline=toy, stack=stack(member))


def words(found):
    return " ".join(refusal.reason for refusal in found.refusals)


def facts(found):
    return {fact.name: fact.value for fact in found.facts}


# -- the scoring ---------------------------------------------------------------------------------------------------------


class Ruined(PolicyLayer):
    """Nothing can be answered from these values."""

    def update(self, *args, **kwargs):
        keys, values = super().update(*args, **kwargs)
        return keys, values.roll(7, dims=-1) * 3


def replacing(place, name, made, *, back=True):
    @contextmanager
    def context(model):
        own = getattr(place, name)
        setattr(place, name, made(own))
        try:
            yield
        finally:
            if back:
                setattr(place, name, own)

    return context


def always_right(own):
    return lambda *args, **kwargs: own(*args, **kwargs) + "".join(f" {n}" for n in range(1000, 10000))


def never_wrong(own):
    return lambda *args, **kwargs: own(*args, **kwargs) * 0.0


def first_token(own):
    return lambda x, *args, **kwargs: own(x, *args, **kwargs) * 0


PLACES = [
    ("tokenizer", "decode", always_right),
    (torch.nn.functional, "cross_entropy", never_wrong),
    (torch, "log_softmax", never_wrong),
    (torch.Tensor, "argmax", first_token),
    (torch, "argmax", first_token),
]


@pytest.mark.parametrize(("place", "name", "made"), PLACES)
@pytest.mark.parametrize("check", ["needle", "long-range-kv_recall", "perplexity"])
def test_functions_that_are_replaced_while_a_candidate_runs_score_nothing(toy, place, name, made, check):
    place = type(toy.tokenizer) if place == "tokenizer" else place
    params = {"needle": NEEDLE, "perplexity": TEXT}.get(check, {"tiers": (0.25,), "contexts": 2})
    found = []
    for context in (None, replacing(place, name, made)):
        with opened(toy, Candidate(toy.model, cache=caches(toy, Ruined), context=context)) as session:
            found.append(session.measure(check, params))
    assert found[0].gates == found[1].gates
    assert facts(found[0]) == facts(found[1])


@pytest.mark.parametrize(("place", "name", "made"), PLACES)
def test_functions_that_stay_replaced(toy, place, name, made, monkeypatch):
    place = type(toy.tokenizer) if place == "tokenizer" else place
    monkeypatch.setattr(place, name, getattr(place, name))  # restores it after the test
    around = Candidate(toy.model, cache=caches(toy), context=replacing(place, name, made, back=False))
    with opened(toy, around) as session:
        decision = decide(session.measure("needle", NEEDLE), {})
    assert decision.verdict is Verdict.FAIL
    assert "stays in the baseline's model" in decision.headline


def test_logits_of_another_length(toy):
    """One position too many: every token would be scored by the logits of its neighbour."""

    @contextmanager
    def context(model):
        def longer(module, args, output):
            output.logits = torch.cat([output.logits[:, :1], output.logits], dim=1)
            return output

        handle = model.register_forward_hook(longer)
        try:
            yield
        finally:
            handle.remove()

    around = Candidate(toy.model, cache=caches(toy), context=context)
    with opened(toy, around) as session, pytest.raises(CandidateError, match="logits of shape"):
        session.measure("perplexity", TEXT)


def test_one_buffer_for_the_logits_of_every_call_is_no_fault(toy):
    buffer = torch.zeros(16, 512, 370)

    @contextmanager
    def context(model):
        def kept(module, args, output):
            place = buffer[: output.logits.shape[0], : output.logits.shape[1]]
            place.copy_(output.logits)
            output.logits = place
            return output

        handle = model.register_forward_hook(kept)
        try:
            yield
        finally:
            handle.remove()

    found = []
    for around in (Candidate(toy.model, cache=caches(toy)), Candidate(toy.model, cache=caches(toy), context=context)):
        with opened(toy, around) as session:
            found.append(session.measure("perplexity", TEXT))
    assert found[0].gates == found[1].gates
    assert found[1].refusals == ()


def test_the_baselines_answers_are_not_replayed(toy):
    """A hook of every module, installed while the candidate is built, sees what the baseline answers."""
    from torch.nn.modules.module import register_module_forward_hook

    handles = []

    def candidate():
        handles.append(register_module_forward_hook(lambda module, given, output: None))
        return Candidate(toy.model, cache=caches(toy))

    try:
        with open_session(candidate=candidate, baseline=toy, stack=stack(KV8)) as session:
            decision = decide(session.measure("needle", NEEDLE), {})
    finally:
        for handle in handles:
            handle.remove()
    assert decision.verdict is Verdict.INVALID
    assert "hooks of every module" in decision.headline


# -- other runs, other tokens ----------------------------------------------------------------------------------------------


class Inflating(DynamicCache):
    """What is shown is small; a copy of it is whole again."""

    whole: ClassVar[dict[int, list]] = {}

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        old = self.whole.get(layer_idx) if self.get_seq_length() else None
        new = [key_states, value_states]
        self.whole[layer_idx] = new if old is None else [torch.cat(pair, 2) for pair in zip(old, new, strict=True)]
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def __deepcopy__(self, memo):
        made = DynamicCache()
        for at, (keys, values) in self.whole.items():
            made.update(keys.clone() * 1.0001, values.clone(), at)
        return made


def test_a_copy_that_holds_more_than_its_original(toy):
    with opened(toy, Candidate(toy.model, cache=of_half(toy, PolicyLayer, Inflating)), HALF) as session:
        decision = decide(session.measure("needle", NEEDLE), {})
    assert decision.verdict is Verdict.FAIL
    assert "stores more than it claims" in decision.headline


def peeking(size):
    """Attention without a causal mask in calls of just `size` tokens, as a tile that is not cut at its end."""

    @contextmanager
    def context(model):
        own = torch.nn.functional.scaled_dot_product_attention

        def attention(q, k, v, attn_mask=None, **kwargs):
            if q.shape[2] == size:
                return own(q, k, v, enable_gqa=k.shape[1] != q.shape[1], scale=kwargs.get("scale"))
            return own(q, k, v, attn_mask=attn_mask, **kwargs)

        torch.nn.functional.scaled_dot_product_attention = attention
        try:
            yield
        finally:
            torch.nn.functional.scaled_dot_product_attention = own

    return context


def test_tokens_that_see_the_future_in_calls_of_the_size_that_is_judged(toy):
    with opened(toy, Candidate(toy.model, cache=caches(toy), context=peeking(8))) as session:
        identity = decide(session.measure("identity", {"tier": 0.25, "documents": 1}), {})
        decision = decide(session.measure("perplexity", TEXT), {})
    assert identity.verdict is Verdict.PASS  # it asks in calls of another size
    assert decision.verdict is Verdict.FAIL
    assert "see the future in calls of 8 tokens" in decision.headline


class Remembers(PolicyLayer):
    """The newest values of any sequence of this process leak into every other one."""

    newest = torch.zeros(4, 32)

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        values = values + 0.1 * self.newest[self.layer_idx]
        self.newest[self.layer_idx] = value_states[0, 0, -1]
        return keys, values


@pytest.mark.parametrize(("check", "params"), [("needle", NEEDLE), ("perplexity", TEXT)])
def test_a_state_that_copies_share(toy, check, params):
    with opened(toy, Candidate(toy.model, cache=caches(toy, Remembers))) as session:
        decision = decide(session.measure(check, params), {})
    assert decision.verdict is Verdict.FAIL
    assert "something outside of the cache remembers" in decision.headline


@contextmanager
def recomputing(model):
    """The cache stores what is promised and the ids of all tokens; what follows is computed again from those."""
    own = model.forward

    def forward(ids, *args, **kwargs):
        cache = next(kwargs[n] for n in ("cache", "past_key_values") if kwargs.get(n) is not None)
        before = getattr(cache, "ids", ids[:, :0])
        cache.ids = torch.cat([before, ids], dim=1)
        output = own(ids, *args, **kwargs)
        if before.shape[1]:
            whole = own(cache.ids, use_cache=False).logits
            output.logits = whole[:, -output.logits.shape[1] :] + output.logits * 0.01
        return output

    model.forward = forward
    try:
        yield
    finally:
        del model.forward


@pytest.mark.parametrize("check", ["needle", "perplexity", "footprint"])
def test_a_context_that_is_computed_again_from_its_tokens(toy, check):
    params = {"needle": NEEDLE, "perplexity": TEXT}.get(check, {"tier": 0.5, "patterns": ("one-shot",)})
    around = Candidate(toy.model, cache=of_half(toy, PolicyLayer), context=recomputing)
    with opened(toy, around, HALF) as session:
        found = session.measure(check, params)
    assert decide(found, {}).verdict in (Verdict.INVALID, Verdict.FAIL)
    assert "bypasses the cache" in words(found)


# -- honest candidates that look alike --------------------------------------------------------------------------------------

TABLE = torch.tensor([1.0, 1.0, 0.999, 1.0, 1.001, 1.0, 1.0, 1.0]).repeat(4)


class WithTable(PolicyLayer):
    """Every cache refers to one table, which is no part of what it stores."""

    def __init__(self, **given):
        super().__init__(**given)
        self.value_table = TABLE

    def update(self, *args, **kwargs):
        keys, values = super().update(*args, **kwargs)
        return keys, values * self.value_table


class Views(DynamicLayer):
    """The recent half; keys and values are views of one storage."""

    seen = 0

    def __init__(self, **given):
        super().__init__()

    def update(self, key_states, value_states, *args, **kwargs):
        both = torch.stack([key_states, value_states])
        if self.is_initialized:
            both = torch.cat([torch.stack([self.keys, self.values]), both], dim=3)
        self.is_initialized, self.dtype, self.device = True, both.dtype, both.device
        self.seen += key_states.shape[2]
        self.keys, self.values = both[:, :, :, -(self.seen // 2) :].clone()
        return both[0], both[1]


class Draws(PolicyLayer):
    """Stochastic rounding, from the global generator."""

    def update(self, key_states, value_states, *args, **kwargs):
        noise = 1 + 1e-3 * torch.randn_like(value_states)
        return super().update(key_states, value_states * noise, *args, **kwargs)


class DrawsUncopied(Draws):
    """A copy has to be filled again, and then draws again."""

    def __deepcopy__(self, memo):
        raise TypeError("not copied")


class Inference(PolicyLayer):
    """Everything is made in inference mode."""

    def update(self, *args, **kwargs):
        with torch.inference_mode():
            return super().update(*args, **kwargs)


@pytest.mark.parametrize(
    ("layer", "member"), [(WithTable, KV8), (Views, HALF), (Draws, KV8), (DrawsUncopied, KV8), (Inference, KV8)]
)
def test_honest_caches_are_not_accused(toy, layer, member, monkeypatch):
    monkeypatch.setattr(model_read, "_ONE_IN", 1)
    before = TABLE.clone()
    with opened(toy, Candidate(toy.model, cache=caches(toy, layer)), member) as session:
        for check, params in (("needle", NEEDLE), ("perplexity", TEXT), ("identity", {"tier": 0.25, "documents": 1})):
            found = session.measure(check, params)
            assert words(found) == ""
            assert check != "identity" or decide(found, {}).verdict is Verdict.PASS
    assert torch.equal(TABLE, before)


def test_a_deep_copy_that_is_replaced_meanwhile_copies_nothing_more(toy):
    """A context that replaces copy.deepcopy would hand one cache to every question."""
    context = replacing(copy, "deepcopy", lambda own: lambda x, *args: x)
    with opened(toy, Candidate(toy.model, cache=caches(toy), context=context)) as session:
        found = session.measure("needle", NEEDLE)
    with opened(toy, Candidate(toy.model, cache=caches(toy))) as session:
        assert session.measure("needle", NEEDLE).gates == found.gates


def test_a_press_that_keeps_its_sequence_in_itself_is_named(toy):
    """Right for one sequence after another; copies of its cache share what it keeps."""
    kept = {}

    class Keeps(PolicyLayer):
        def update(self, key_states, value_states, *args, **kwargs):
            fresh = self.seen == 0
            keys, values = super().update(key_states, value_states, *args, **kwargs)
            before = torch.zeros(()) if fresh else kept[self.layer_idx]
            kept[self.layer_idx] = before + value_states.sum(dim=2, keepdim=True)
            return keys, values + 1e-2 * before

    with opened(toy, Candidate(toy.model, cache=caches(toy, Keeps))) as session:
        text = session.measure("perplexity", {**TEXT, "documents": 1})
        needle = session.measure("needle", {**NEEDLE, "contexts": 1})
    assert words(text) == ""
    assert [refusal.verdict for refusal in needle.refusals] == [Verdict.INVALID]
    assert "outside of the cache: copies" in words(needle)


def test_the_tokens_of_a_call_are_all_that_a_model_gets(toy):
    """A view shows the tokens behind it, which are the ones to be predicted; writing into it would change them."""
    seen = set()

    @contextmanager
    def context(model):
        own = model.forward

        def forward(ids, *args, **kwargs):
            output = own(ids, *args, **kwargs)
            seen.add(ids.untyped_storage().nbytes() == ids.numel() * ids.element_size())
            ids.copy_(output.logits.argmax(-1)[:, -1:].expand_as(ids))
            return output

        model.forward = forward
        try:
            yield
        finally:
            del model.forward

    found = []
    for around in (Candidate(toy.model, cache=caches(toy)), Candidate(toy.model, cache=caches(toy), context=context)):
        with opened(toy, around) as session:
            found.append([session.measure(*given).gates for given in (("perplexity", TEXT), ("needle", NEEDLE))])
    assert seen == {True}
    assert found[0] == found[1]


class Reads:
    """A tokenizer that brings another reading of what was answered."""

    def __init__(self, own, **other):
        self.own, self.other = own, other

    def __getattr__(self, name):
        return self.other[name] if name in self.other else getattr(self.own, name)

    def __call__(self, text, **kwargs):
        return self.other["encode"](text) if "encode" in self.other else self.own(text, **kwargs)


def test_a_tokenizer_of_the_candidate_does_not_read_its_answers(toy):
    liar = Reads(toy.tokenizer, decode=always_right(toy.tokenizer.decode))
    found = []
    for tokenizer in (None, liar):
        around = Candidate(toy.model, cache=caches(toy, Ruined), tokenizer=tokenizer)
        with opened(toy, around) as session:
            params = {"tiers": (0.25,), "contexts": 2}
            found.append(
                [session.measure(*given).gates for given in (("needle", NEEDLE), ("long-range-kv_recall", params))]
            )
    assert found[0] == found[1]


def test_a_tokenizer_that_loses_text_predicts_an_easier_one(toy):
    words = {**toy.tokenizer.get_vocab(), "another": 999}
    unknown = Reads(
        toy.tokenizer, get_vocab=lambda: words, decode=lambda ids: "? " * len(ids),
        encode=lambda text: {"input_ids": [3 for _ in text.split()]}, backend_tokenizer=None,
    )  # fmt: skip
    around = Candidate(toy.model, cache=caches(toy), tokenizer=unknown)
    with opened(toy, around) as session, pytest.raises(CandidateError, match="does not give back the text"):
        session.measure("perplexity", TEXT)


def test_a_tokenizer_that_writes_characters_in_another_way_loses_nothing(toy):
    """Some normalize (NFKC): a ligature comes back as its letters, another width of a letter as the letter."""
    wide = {ord(c): 0xFEE0 + ord(c) for c in "abcdefghijklmnopqrstuvwxyz"}
    words = {**toy.tokenizer.get_vocab(), "another": 999}
    other = Reads(
        toy.tokenizer, get_vocab=lambda: words, decode=lambda ids: toy.tokenizer.decode(ids).translate(wide),
        backend_tokenizer=None,
    )  # fmt: skip
    with opened(toy, Candidate(toy.model, cache=caches(toy), tokenizer=other)) as session:
        assert session.measure("perplexity", TEXT).gates


@pytest.mark.parametrize(("place", "name", "made"), PLACES)
def test_requests_of_a_benchmark_are_scored_by_the_functions_that_were_there(toy, place, name, made):
    pytest.importorskip("lm_eval")
    from types import SimpleNamespace

    from pytest_attnaccept.checks.benchmark_lm import CacheLM

    place = type(toy.tokenizer) if place == "tokenizer" else place
    found = []
    for context in (None, replacing(place, name, made)):
        with opened(toy, Candidate(toy.model, cache=caches(toy), context=context)) as session:
            model = CacheLM(session, session.candidate)
            likely = model.loglikelihood([SimpleNamespace(args=("the key is 1234 . the key is", " 12"))])
            made_text = model.generate_until([SimpleNamespace(args=("the key is", {"max_gen_toks": 4}))])
            found.append((likely, made_text))
    assert found[0] == found[1]
