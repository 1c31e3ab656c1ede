"""Late tokens, long prompts, all declared prompts, limits of a target, and exact bets."""

import numpy as np
import pytest
import torch

from fixtures.good.decoders import SpeculativeDecoder, TableModel, plain_decoder
from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.state.decoder import make_decoder_contract, measure_decoder
from pytest_attnaccept.state.decoder_contract import DecoderPlan, plan_for
from pytest_attnaccept.state.decoder_prompts import Prompts
from pytest_attnaccept.state.decoder_reference import BENDS, TargetModel
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

MODEL = TableModel(vocab=5)
PLAN = DecoderPlan(greedy_prompts=6, greedy_tokens=12, prompts=1, draws=400, depth=4, paths=100, late_draws=8)


def measure(check, candidate=None, target=MODEL, seed=0, plan=PLAN, **keywords):
    contract = make_decoder_contract(**{"vocab_size": 5, **keywords})
    return measure_decoder(
        check, candidate or plain_decoder(MODEL), target, contract, seed=seed, device="cpu", profile="smoke", plan=plan
    )


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


class Watch:
    """A correct decoder that remembers what it was asked."""

    def __init__(self, limit=None):
        self.asked, self.limit = [], limit

    def __call__(self, prompt, max_new_tokens, temperature, seed):
        if self.limit is not None and len(prompt) + max_new_tokens > self.limit:
            raise IndexError("position table")
        self.asked.append((tuple(prompt.tolist()), max_new_tokens, temperature, seed))
        return plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed)


def limited(limit):
    def target(tokens):
        if len(tokens) > limit:
            raise IndexError("index out of range in self")
        return MODEL(tokens)

    return target


def prompts(target=MODEL, plan=PLAN, **keywords):
    contract = make_decoder_contract(vocab_size=5, **keywords)
    return Prompts(contract, plan, TargetModel(target, 5, "cpu"))


# -- which requests are made


def test_random_prompts_are_seeded_and_inside_the_vocabulary():
    made = prompts().short(16, seed=3)
    assert made == prompts().short(16, seed=3)
    assert made != prompts().short(16, seed=4)
    assert all(prompt and all(0 <= token < 5 for token in prompt) for prompt in made)
    assert {len(prompt) for prompt in made} >= {1, 2, 5, 6}


@pytest.mark.parametrize("profile", ["smoke", "longctx"])
def test_greedy_asks_long_prompts_and_long_continuations(profile):
    plan = plan_for(profile)
    requests = prompts(plan=plan).greedy(0)
    assert max(len(prompt) for prompt, _ in requests) >= 300
    assert sum(count >= 200 for _, count in requests) >= 1 + (profile != "smoke")
    assert {1, 63, 64, 65, 256, 257} <= {len(prompt) for prompt, _ in requests}
    assert {1, 2, 3} <= {count for _, count in requests}


def test_every_declared_prompt_is_used():
    declared = [[number % 5, (number // 5) % 5, 1] for number in range(23)]
    for check in ("greedy", "distribution", "state"):
        watch = Watch()
        measure(check, watch, prompts=declared)
        assert {tuple(prompt) for prompt in declared} <= {prompt for prompt, *_ in watch.asked}, check


def test_longer_prompts_hold_only_declared_tokens():
    watch = Watch()
    measure("greedy", watch, prompts=[[1, 2], [2, 4, 1]])
    assert {token for prompt, *_ in watch.asked for token in prompt} == {1, 2, 4}
    assert max(len(prompt) for prompt, *_ in watch.asked) == 320


@pytest.mark.parametrize("limit", [40, 100, 333])
def test_a_limit_of_the_target_is_respected_and_named(limit):
    for check in ("greedy", "distribution", "state", "seeds"):
        watch = Watch(limit)
        measured = measure(check, watch, limited(limit))
        assert decide(measured, {}).verdict is Verdict.PASS, (check, measured)
        assert max(len(prompt) + count for prompt, count, *_ in watch.asked) <= limit
    measured = measure("greedy", Watch(limit), limited(limit))
    if limit < 320:
        assert "the target raises beyond that" in measured.resolution
    assert facts(measured)["certified_to"] <= limit
    assert "certified to" in decide(measured, {}).headline


def test_a_candidate_with_a_limit_declares_it():
    with pytest.raises(CandidateError, match="max_length"):
        measure("greedy", Watch(200))
    measured = measure("greedy", Watch(200), max_length=200)
    assert decide(measured, {}).verdict is Verdict.PASS
    assert facts(measured)["certified_to"] == 200
    assert "max_length=200" in measured.resolution


def test_a_speculative_decoder_may_look_beyond_what_it_was_asked():
    target = limited(120)

    class Rows(TableModel):
        def __call__(self, tokens):
            return target(tokens)

    decoder = SpeculativeDecoder(Rows(5), MODEL.noisy(), depth=5)
    for check in ("greedy", "distribution"):
        assert decide(measure(check, decoder, target), {}).verdict is Verdict.PASS


@pytest.mark.parametrize("value", [4, 0, True, "long"])
def test_impossible_limits_are_refused(value):
    with pytest.raises(ContractError, match="max_length"):
        make_decoder_contract(vocab_size=5, max_length=value)
    with pytest.raises(ContractError, match="max_length"):
        make_decoder_contract(vocab_size=5, max_length=9, prompts=[[0] * 9])


# -- what late tokens show


def late_fault(first, wrong):
    """A correct decoder whose tokens from `first` on are drawn by `wrong(logits, generator)`."""

    def decode(prompt, max_new_tokens, temperature, seed):
        generator, tokens = torch.Generator().manual_seed(seed), prompt.tolist()
        for place in range(max_new_tokens):
            logits = MODEL(torch.tensor(tokens)).double()
            if temperature == 0:
                tokens.append(int(logits.argmax()))
            elif place < first:
                tokens.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
            else:
                tokens.append(wrong(logits, generator))
        return torch.tensor(tokens[len(prompt) :])

    return decode


@pytest.mark.parametrize("first", [7, 24, 100])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda logits, generator: int(logits.argmax()),
        lambda logits, generator: int(torch.multinomial((1.5 * logits).softmax(-1), 1, generator=generator)),
        lambda logits, generator: int(torch.multinomial((0.6 * logits).softmax(-1), 1, generator=generator)),
        lambda logits, generator: int(torch.multinomial(logits.roll(1).softmax(-1), 1, generator=generator)),
    ],
    ids=["greedy", "colder", "hotter", "other-row"],
)
def test_late_faults_of_sampling_are_found(first, wrong):
    plan = DecoderPlan(greedy_prompts=2, greedy_tokens=8, prompts=1, draws=400, depth=4, paths=100, late_draws=24)
    measured = measure("distribution", late_fault(first, wrong), plan=plan)
    assert decide(measured, {}).verdict is Verdict.FAIL
    assert "wrong later" in "".join(gate.seems for gate in measured.gates)


def test_a_decoder_without_late_fault_holds():
    measured = measure("distribution", late_fault(999, None))
    assert decide(measured, {}).verdict is Verdict.PASS
    assert facts(measured)["last new token compared"] == 200


def test_seeds_that_share_late_noise_are_found():
    def decode(prompt, max_new_tokens, temperature, seed):
        begin = plain_decoder(MODEL)(prompt, min(max_new_tokens, 20), temperature, seed)
        rest = max_new_tokens - len(begin)
        if rest < 1:
            return begin
        # The noise belongs to the position, whatever the seed.
        tokens = [*prompt.tolist(), *begin.tolist()]
        for _ in range(rest):
            generator = torch.Generator().manual_seed(len(tokens))
            shares = MODEL(torch.tensor(tokens)).double().softmax(-1)
            tokens.append(int(torch.multinomial(shares, 1, generator=generator)))
        return torch.tensor(tokens[len(prompt) :])

    measured = measure("distribution", decode)
    gate = next(gate for gate in measured.gates if gate.name.startswith("equal ends"))
    assert gate.value > gate.limit
    assert "share their later random numbers" in gate.seems


def test_bets_have_mean_one_under_the_target():
    model = TargetModel(MODEL, 5, "cpu")
    for context in ((0, 1), (3, 3, 2), (4,)):
        shares = model.probabilities(context, 0.7, {"top_k": 4})
        bets = np.array(
            [
                model.rank(context, token, 0.7, {"top_k": 4}, 0.5).bets if shares[token] else [0.0] * len(BENDS)
                for token in range(5)
            ]
        )
        np.testing.assert_allclose((shares[:, None] * np.exp(bets)).sum(0), 1.0, atol=1e-12)


def test_a_token_at_the_edge_of_a_filter_is_not_judged():
    def target(tokens):
        return torch.tensor([0.5, 0.25, 0.125, 0.125]).log()

    model = TargetModel(target, 4, "cpu")
    assert model.rank((0,), 2, 1.0, {"top_p": 0.7499999}, 0.3) is not None
    assert model.rank((0,), 2, 1.0, {"top_p": 0.6}, 0.3) is None


def test_memory_is_bounded_for_large_vocabularies():
    calls = []

    def target(tokens):
        calls.append(len(tokens))
        return torch.zeros(50_000)

    model = TargetModel(target, 50_000, "cpu")
    for place in range(200):
        model.logits((place,))
    model.logits((199,))
    assert len(calls) == 200
    model.logits((0,))
    assert len(calls) == 201


@pytest.mark.parametrize("vocab", [5, 64, 65, 3000])
def test_vocabularies_of_every_size(vocab):
    weights = torch.randn(vocab, vocab if vocab < 100 else 8, generator=torch.Generator().manual_seed(vocab))
    other = torch.eye(vocab) if vocab < 100 else torch.randn(8, vocab, generator=torch.Generator().manual_seed(1))

    def target(tokens):
        return (weights[tokens[-1]] + 0.5 * weights[tokens[0]]) @ other

    plan = DecoderPlan(
        greedy_prompts=3, greedy_tokens=8, prompts=1, draws=300, depth=3, paths=60, middle_draws=30, late_draws=4
    )
    for check in ("greedy", "distribution", "seeds"):
        measured = measure(check, plain_decoder(target), target, plan=plan, vocab_size=vocab)
        assert decide(measured, {}).verdict is Verdict.PASS, (check, measured.refusals)


def test_much_entropy_is_no_lack_of_it():
    """Above a few thousand even outcomes no cell can be counted; the ranks still see a wrong temperature."""
    weights = torch.randn(16, 20_000, generator=torch.Generator().manual_seed(0))

    def target(tokens):
        return weights[int(tokens[-1]) % 16]

    def hot(prompt, max_new_tokens, temperature, seed):
        return plain_decoder(target)(prompt, max_new_tokens, 2.0 * temperature, seed)

    plan = DecoderPlan(
        greedy_prompts=2, greedy_tokens=4, prompts=1, draws=120, depth=3, paths=120, middle_draws=20, late_draws=4
    )
    right = measure("distribution", plain_decoder(target), target, plan=plan, vocab_size=20_000)
    assert decide(right, {}).verdict is Verdict.PASS, right.refusals
    wrong = measure("distribution", hot, target, plan=plan, vocab_size=20_000)
    assert decide(wrong, {}).verdict is Verdict.FAIL


# -- reports and filters


def test_a_declared_step_factor_is_judged():
    decoder = SpeculativeDecoder(MODEL, MODEL.noisy())
    assert decide(measure("steps", decoder, step_factor=1.2), {}).verdict is Verdict.PASS
    assert decide(measure("steps", decoder, step_factor=3.9), {}).verdict is Verdict.FAIL
    assert decide(measure("steps", plain_decoder(MODEL), step_factor=1.2), {}).verdict is Verdict.FAIL


@pytest.mark.parametrize("value", [0.5, True, "two", float("nan")])
def test_impossible_step_factors_are_refused(value):
    with pytest.raises(ContractError, match="step_factor"):
        make_decoder_contract(vocab_size=5, step_factor=value)


@pytest.mark.parametrize(
    "change",
    [
        lambda report: {"target_calls": np.int64(report["target_calls"]), "accepted": np.array(report["accepted"])},
        lambda report: {
            "target_calls": torch.tensor(report["target_calls"]),
            "accepted": torch.tensor(report["accepted"]),
        },
        lambda report: {**report, "accepted": tuple(report["accepted"]), "note": "draft of 3"},
        lambda report: {**report, "accepted": [kept + 1 for kept in report["accepted"]]},
        lambda report: {**report, "accepted": [kept for kept in report["accepted"] if kept]},
        lambda report: {"target_calls": report["target_calls"]},
        lambda report: {**report, "target_calls": report["target_calls"] + 1},
    ],
)
def test_usual_forms_of_a_report_are_understood(change):
    decoder = SpeculativeDecoder(MODEL, MODEL.noisy())

    def candidate(prompt, max_new_tokens, temperature, seed):
        out, report = decoder(prompt, max_new_tokens, temperature, seed)
        return out, change(report)

    assert decide(measure("steps", candidate), {}).verdict is Verdict.PASS


def test_filters_reach_candidates_that_take_any_keyword():
    def as_dict(prompt, max_new_tokens, temperature, seed, **rest):
        return plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed, rest["sampling"])

    def by_name(**given):
        sampling = {"top_k": given["top_k"]}
        return plain_decoder(MODEL)(
            given["prompt"], given["max_new_tokens"], given["temperature"], given["seed"], sampling
        )

    def forwards_names(prompt, max_new_tokens, temperature, seed, **rest):
        def inner(top_k):
            return plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed, {"top_k": top_k})

        return inner(**rest)

    def forwards_dict(**given):
        return plain_decoder(MODEL)(**given)

    for candidate in (as_dict, by_name, forwards_names, forwards_dict):
        measured = measure("distribution", candidate, temperatures=(1.0,), sampling={"top_k": 3})
        assert decide(measured, {}).verdict is Verdict.PASS, candidate


def test_answers_that_all_end_at_once_are_understood():
    """A target whose end token nearly always comes first leaves few tokens, no pairs, and no false alarm."""
    table = torch.tensor([[0.0, 0.5, 1.0, 0.2, 4.0], [0.3, 0.0, 0.1, 0.9, 4.2]])

    def target(tokens):
        return table[len(tokens) % 2]

    def stops(prompt, max_new_tokens, temperature, seed):
        out = plain_decoder(target)(prompt, max_new_tokens, temperature, seed).tolist()
        return torch.tensor(out[: out.index(4) + 1] if 4 in out else out)

    for check in ("distribution", "seeds", "state"):
        measured = measure(check, stops, target)
        assert not any(gate.value > gate.limit for gate in measured.gates), check
        assert all(gate.n > 0 for gate in measured.gates)
