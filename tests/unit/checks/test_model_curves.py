"""Curves over budgets and lengths: what is certified, where the cliff is, and what makes a curve worthless."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import model_free, open_session
from pytest_attnaccept.checks.curve_points import Point, cliff
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.measurement import PairedScores
from pytest_attnaccept.methods.eviction import SinksAndRecent
from pytest_attnaccept.methods.layer import PolicyLayer, policy_cache
from pytest_attnaccept.profiles import Limit, load_profile
from pytest_attnaccept.protocol import StackEntry, required_depth
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Surface, Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
LIMITS = {
    "needle": Limit(max=0.1, origin="policy: test"),
    "halving": Limit(max=0.2, origin="policy: test"),
}
SMALL = {"contexts": 45, "questions_per_context": 4, "margin": 0.1, "tier": 0.5}


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def opened(toy, name, candidate=None, **knobs):
    method = REGISTRY.get(name)
    return open_session(baseline=toy, candidate=candidate, stack=[(method, check_knobs(method, knobs, "test"))])


def decided(measured):
    return decide(measured, LIMITS, family=1)


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


# -- budgets ---------------------------------------------------------------------------------------------------------------


def test_the_operating_point_passes_and_the_cliff_below_it_is_named(toy):
    with opened(toy, "h2o", kv_budget=0.99) as session:
        measured = session.measure("budget-curve", SMALL)
    decision = decided(measured)
    assert decision.verdict is Verdict.PASS
    assert decision.headline.startswith(
        "certified to budget 0.99 at 128 tokens (cliff between 0.99 and 0.495, within one"
    )
    assert measured.resolution == "certified from 1 to 0.99 of the context; 0.495 did not pass, at 128 tokens"
    assert facts(measured)["halvings_to_the_cliff"] == 1.0
    assert [p["verdict"] for p in measured.details["points"]] == ["PASS", "PASS", "FAIL", "FAIL", "FAIL"]


def test_a_limit_on_halving_fails_what_sits_at_a_cliff(toy):
    with opened(toy, "h2o", kv_budget=0.99) as session:
        decision = decided(session.measure("budget-curve", {**SMALL, "halving": 0.2}))
    assert decision.verdict is Verdict.FAIL
    assert decision.headline.startswith("halving:")


def test_an_operating_point_behind_the_cliff_fails(toy):
    with opened(toy, "streaming_llm", kv_budget=0.25) as session:
        measured = session.measure("budget-curve", SMALL)
    assert decided(measured).verdict is Verdict.FAIL
    assert [p["label"] for p in measured.details["points"]] == [f"budget {b}" for b in ("1", "0.5", "0.25", "0.125")]


def streaming(model, kv_budget, obeys=True):
    share = kv_budget if obeys else 0.99
    return Candidate(
        model,
        cache=lambda: policy_cache(model, policy=SinksAndRecent(budget=share, sinks=4), codec=None, seed=0),
    )


def test_a_candidate_of_ones_own_has_a_curve_when_its_factory_takes_the_budget(toy):
    with opened(toy, "streaming_llm", lambda: streaming(toy.model, 0.99), kv_budget=0.99) as session:
        refusals = session.measure("budget-curve", SMALL).refusals
    assert [r.verdict for r in refusals] == [Verdict.NOT_APPLICABLE]
    assert "def candidate(kv_budget=0.25)" in refusals[0].reason

    def takes_it(kv_budget=0.99):
        return streaming(toy.model, kv_budget)

    def ignores_it(kv_budget=0.99):
        return streaming(toy.model, kv_budget, obeys=False)

    with opened(toy, "streaming_llm", takes_it, kv_budget=0.99) as session:
        followed = session.measure("budget-curve", SMALL)
    assert decided(followed).verdict is Verdict.PASS
    assert [p["verdict"] for p in followed.details["points"]][2:] == ["FAIL"] * 3
    with opened(toy, "streaming_llm", ignores_it, kv_budget=0.99) as session:
        measured = session.measure("budget-curve", SMALL)
    assert decided(measured).verdict is Verdict.INVALID
    assert "not one of budgets" in decided(measured).headline


def test_a_method_without_a_budget_has_no_budget_curve(toy):
    with opened(toy, "kv8") as session:
        assert [r.verdict for r in session.measure("budget-curve", SMALL).refusals] == [Verdict.NOT_APPLICABLE]


# -- lengths ---------------------------------------------------------------------------------------------------------------

LENGTHS = {"contexts": 60, "beyond": 30, "margin": 0.1, "lengths": [0.25, 0.5, 4], "operating": 0.5, "documents": 6}


def test_beyond_the_baseline_nothing_is_claimed(toy):
    with opened(toy, "kv8") as session:
        measured = session.measure("length-curve", LENGTHS)
    assert decided(measured).verdict is Verdict.PASS
    assert decided(measured).headline.startswith("certified to 128 tokens")
    assert measured.resolution.endswith("at 1024 tokens the baseline itself fails, so no loss can be seen there")
    assert "void[1024 tokens]" in facts(measured)
    assert {gate.name for gate in measured.gates} >= {"explosion[1024 tokens]", "loops[128 tokens]"}


class Late(PolicyLayer):
    """Right up to 300 tokens; behind them the values are what `damage` makes of them."""

    damage = staticmethod(lambda values: values)

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = super().update(key_states, value_states)
        return keys, values if self.seen <= 300 else self.damage(values)


class LateNaN(Late):
    damage = staticmethod(lambda values: values * float("nan"))


class LateExplosion(Late):
    damage = staticmethod(lambda values: -30 * values)


@pytest.mark.parametrize(("layer", "words"), [(LateNaN, "NaN"), (LateExplosion, "explosion[1024 tokens]")])
def test_nan_and_explosion_fail_also_where_the_baseline_finds_nothing(toy, layer, words):
    def factory():
        cache = policy_cache(toy.model, policy=None, codec=None, seed=0)
        codec = _kv8()
        cache.layers[:] = [layer(policy=None, codec=codec, layer_idx=i, seed=0) for i in range(len(cache.layers))]
        return cache

    with opened(toy, "kv8", Candidate(toy.model, cache=factory)) as session:
        decision = decided(session.measure("length-curve", {**LENGTHS, "contexts": 30}))
    assert decision.verdict is Verdict.FAIL
    assert words in decision.headline


def _kv8():
    from pytest_attnaccept.methods.codec import Codec

    return Codec(bits=8)


def test_a_cap_leaves_out_longer_lengths(toy):
    with opened(toy, "kv8") as session:
        measured = session.measure("length-curve", {**LENGTHS, "max_tokens": 128, "contexts": 30})
    assert list(measured.details["text"]) == ["128"]


# -- parts -----------------------------------------------------------------------------------------------------------------


def point(at, losses):
    gate = PairedScores(name="needle", losses=tuple(losses), base_mean=0.9)
    return Point(
        at=at, label=str(at), gate=gate, verdict=Verdict.PASS, losses=tuple(losses), scores=(0.9,) * len(losses),
        base_nll=0.0, cand_nll=0.0, digest="",
    )  # fmt: skip


def test_a_cliff_is_one_significant_step_and_larger_than_the_margin():
    generator = torch.Generator().manual_seed(0)
    noise = [[float(x) for x in 0.1 * torch.randn(60, generator=generator)] for _ in range(3)]
    flat = [point(i, n) for i, n in enumerate(noise)]
    assert cliff(flat, 0.1, 0.05, 0)[0] is None
    broken = [*flat[:2], point(2, [x + 0.4 for x in noise[2]])]
    assert cliff(broken, 0.1, 0.05, 0)[0] == 1
    # every context loses the same: no spread, and a cliff all the same
    assert cliff([point(0, [0.0] * 30), point(1, [0.5] * 30)], 0.1, 0.05, 0)[0] == 0
    assert cliff([point(0, [0.0] * 30), point(1, [0.05] * 30)], 0.1, 0.05, 0)[0] is None


def test_loops_are_counted_against_the_baselines_own():
    assert model_free.is_loop([5, *([1, 2] * 4)])
    assert model_free.is_loop([9] * 4)
    assert not model_free.is_loop([1, 2, 1, 2, 3, 1, 2])
    assert not model_free.is_loop([])
    assert model_free.excess_p([False] * 16, [True] * 16) == pytest.approx(2**-16)
    assert model_free.excess_p([True] * 16, [True] * 16) == 1.0
    assert model_free.excess_p([True] * 16, [False] * 16) == 1.0
    assert model_free.length_until([4, 5, 0, 6], 0) == 2
    assert model_free.length_until([4, 5], None) == 2


def test_curves_are_items_where_profile_and_method_have_them():
    def checks(name, profile, **knobs):
        method = REGISTRY.get(name)
        entry = StackEntry(method=method, knobs=check_knobs(method, knobs, "test"))
        return {r.check: r.params for r in required_depth([entry], Surface.MODEL, load_profile(profile), "here")}

    assert "length-curve" in checks("kv8", "longctx")
    assert "budget-curve" not in checks("kv8", "longctx")
    assert "budget-curve" not in checks("h2o", "smoke", kv_budget=0.5)
    params = checks("h2o", "release", kv_budget=0.5)["budget-curve"]
    assert (params["margin"], params["halving"], params["contexts"]) == (0.02, 0.1, 830)
    assert checks("h2o", "longctx", kv_budget=0.5)["budget-curve"].get("halving") is None
    assert math.isclose(checks("h2o", "longctx", kv_budget=0.5)["needle-1x"]["longest_tier"], 1.0)


def test_a_window_is_a_budget_too(toy):
    """Entries are a share of the length of the tier; the context alone is shorter, which must not look like cheating."""
    with opened(toy, "sliding_window", window=126) as session:
        measured = session.measure("budget-curve", {**SMALL, "contexts": 24})
    assert measured.refusals == ()
    assert [p["label"] for p in measured.details["points"]][:3] == ["budget 1", "budget 0.984", "budget 0.492"]


def test_lengths_follow_cap_trained_length_and_learned_positions(toy):
    from types import SimpleNamespace

    from transformers import GPT2Config, GPT2LMHeadModel

    from pytest_attnaccept.checks.model_length_curve import _lengths, learned_positions
    from pytest_attnaccept.checks.model_params import Params
    from pytest_attnaccept.errors import ContractError

    def lengths(trained, model=toy.model, **given):
        session = SimpleNamespace(
            trained_length=trained, baseline=SimpleNamespace(model=model, loaded=SimpleNamespace(spec="x"))
        )
        return _lengths(session, Params(check="length-curve", given={"lengths": [0.25, 1, 2, 4], **given}))

    assert lengths(256) == [(64, True), (256, True), (512, False), (1024, False)]
    assert lengths(8192, max_tokens=512) == [(512, True)]
    assert lengths(256, max_tokens=300) == [(64, True), (256, True), (300, False)]
    assert lengths(None, max_tokens=128) == [(32, True), (128, True)]
    with pytest.raises(ContractError, match="give max_tokens"):
        lengths(None)
    table = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=512, vocab_size=32))
    assert learned_positions(table) == 512
    assert learned_positions(toy.model) is None
    assert lengths(256, table) == [(64, True), (256, True), (512, False)]


def test_a_budget_that_cannot_be_run_ends_the_curve_and_half_of_the_budget_must_be_there(toy):
    def few_only(kv_budget=0.99):
        if kv_budget < 0.3:
            raise ValueError("needs 40 entries")
        return streaming(toy.model, kv_budget)

    def not_half(kv_budget=0.99):
        if kv_budget < 0.9:
            raise ValueError("needs 120 entries")
        return streaming(toy.model, kv_budget)

    small = {**SMALL, "contexts": 24, "halving": 0.9}
    with opened(toy, "streaming_llm", few_only, kv_budget=0.99) as session:
        measured = session.measure("budget-curve", small)
    assert [p["label"] for p in measured.details["points"]] == ["budget 1", "budget 0.99", "budget 0.495"]
    assert "budget 0.25 cannot be run" in measured.resolution
    assert measured.refusals == ()
    with opened(toy, "streaming_llm", not_half, kv_budget=0.99) as session:
        measured = session.measure("budget-curve", small)
    assert [r.verdict for r in measured.refusals] == [Verdict.INCOMPLETE]
