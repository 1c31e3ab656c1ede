"""Decoders: exact cells and ranks, levels that hold, forms, seeds, end tokens, and targets that can show nothing."""

import math

import numpy as np
import pytest
import torch

from fixtures.good.decoders import SpeculativeDecoder, TableModel, lookup_decoder, plain_decoder
from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.state.decoder import DECODER_CHECKS, make_decoder_contract, measure_decoder
from pytest_attnaccept.state.decoder_checks import ALPHA
from pytest_attnaccept.state.decoder_contract import DecoderPlan
from pytest_attnaccept.state.decoder_reference import TargetModel, tie_tolerance
from pytest_attnaccept.state.multinomial import detectable_distance, pearson_p, pool, worst_cell
from pytest_attnaccept.taxonomy import Verdict

MODEL = TableModel(vocab=5)
PLAN = DecoderPlan(
    greedy_prompts=6, greedy_tokens=12, prompts=1, draws=400, depth=4, paths=200, middle_draws=30, late_draws=3
)


def measure(check, candidate=None, target=MODEL, seed=0, plan=PLAN, **keywords):
    contract = make_decoder_contract(**{"vocab_size": 5, **keywords})
    return measure_decoder(
        check, candidate or plain_decoder(MODEL), target, contract, seed=seed, device="cpu", profile="smoke", plan=plan
    )


def verdicts(measured):
    return {refusal.verdict for refusal in measured.refusals}


def failed(measured):
    return any(not gate.value <= gate.limit for gate in measured.gates)


# -- the reference


def target():
    return TargetModel(MODEL, 5, "cpu")


@pytest.mark.parametrize("sampling", [{}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 3, "top_p": 0.6}])
def test_probabilities_equal_transformers_filters(sampling):
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    warpers = [logits_process.TemperatureLogitsWarper(0.7)]
    names = {"top_k": "TopKLogitsWarper", "top_p": "TopPLogitsWarper", "min_p": "MinPLogitsWarper"}
    warpers += [getattr(logits_process, names[name])(value) for name, value in sampling.items()]
    for first in range(5):
        scores = MODEL(torch.tensor([first, 1])).double()[None]
        for warper in warpers:
            scores = warper(None, scores)
        got = target().probabilities((first, 1), 0.7, sampling)
        np.testing.assert_allclose(got, scores.softmax(-1)[0].numpy(), atol=1e-12)


def test_cells_are_disjoint_and_exact():
    model = target()
    cells = model.cells((1, 2), 3, 1.0, {}, least=0.004)
    assert cells.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    for prefix, share in zip(cells.prefixes, cells.probabilities, strict=False):
        product = 1.0
        for place, token in enumerate(prefix):
            product *= model.probabilities((1, 2, *prefix[:place]), 1.0, {})[token]
        assert share == pytest.approx(product, rel=1e-12)
        assert not any(other != prefix and prefix[: len(other)] == other for other in cells.prefixes)
    assert max(map(len, cells.prefixes)) == 3


def test_cells_of_a_large_vocabulary_keep_63_children():
    big = TableModel(vocab=200, sharpness=0.1)
    cells = TargetModel(big, 200, "cpu").cells((1,), 3, 1.0, {}, least=1e-6 * 0.2)
    children = {prefix[:1] for prefix in cells.prefixes}
    assert len(children) <= 63
    assert cells.probabilities[-1] > 0.3


def test_counts_fall_into_the_cells_of_their_prefix():
    cells = target().cells((1, 2), 2, 1.0, {}, least=0.01)
    draws = [(*cells.prefixes[0], 0, 0)[:4], (*cells.prefixes[1], 0, 0)[:4], (*cells.prefixes[1], 1, 1)[:4]]
    counts = cells.count(draws)
    assert counts.sum() == 3
    assert counts[0] == 1
    assert counts[1] == 2


def test_ranks_are_uniform_for_tokens_of_the_target():
    model, generator, ranks = target(), np.random.default_rng(0), []
    for _ in range(2000):
        draw = []
        for _ in range(2):
            draw.append(int(generator.choice(5, p=model.probabilities((0, 1, *draw), 1.0, {}))))
        ranks += model.ranks((0, 1), tuple(draw), 1.0, {}, generator.random(2))[0]
    for kind in range(2):
        counts, _ = np.histogram([rank[kind] for rank in ranks], bins=10, range=(0, 1))
        assert pearson_p(counts.astype(float), np.full(10, 0.1)) > 1e-4


def test_impossible_tokens_are_named():
    model = target()
    shares = model.probabilities((0, 1), 1.0, {"top_k": 2})
    excluded = int(np.flatnonzero(shares == 0)[0])
    assert model.ranks((0, 1), (excluded,), 1.0, {"top_k": 2}, np.zeros(1)) == ([], 0)


def test_tolerance_follows_the_dtype():
    logits = torch.tensor([38.0, 1.0])
    assert tie_tolerance(logits) == pytest.approx(3.04e-4, rel=1e-3)
    assert tie_tolerance(logits.bfloat16()) == pytest.approx(4 * 38 / 256, rel=1e-3)


# -- p-values


def test_pearson_holds_its_level_in_the_tail():
    generator = np.random.default_rng(7)
    shares = generator.dirichlet(np.full(40, 0.5))
    runs = 20_000
    samples = generator.multinomial(1500, shares, size=runs)
    p = np.array([pearson_p(*pool(row.astype(float), shares)) for row in samples])
    for level in (1e-1, 1e-2, 1e-3, 1e-4):
        expected = runs * level
        assert (p <= level).sum() <= expected + 4 * math.sqrt(expected) + 1
    assert (p <= 0.1).sum() > 0.07 * runs


def test_worst_cell_is_exact():
    counts, shares = np.array([7.0, 3.0, 0.0]), np.array([0.1, 0.4, 0.5])
    p, place = worst_cell(counts, shares)
    assert place == 0
    upper = sum(math.comb(10, k) * 0.1**k * 0.9 ** (10 - k) for k in range(7, 11))
    assert p == pytest.approx(3 * 2 * upper, rel=1e-9)


def test_detectable_distance_is_found():
    cells, total, alpha = 20, 2000, 1e-6
    distance = detectable_distance(total, cells, alpha)
    shares = np.full(cells, 1 / cells)
    moved = shares + distance / (cells / 2) * np.array([1, -1] * (cells // 2))
    generator = np.random.default_rng(1)
    found = sum(pearson_p(row.astype(float), shares) <= alpha for row in generator.multinomial(total, moved, size=300))
    assert found >= 0.85 * 300
    assert detectable_distance(4 * total, cells, alpha) == pytest.approx(distance / 2, rel=1e-6)


# -- measurements


@pytest.mark.parametrize("check", DECODER_CHECKS)
@pytest.mark.parametrize(
    "candidate",
    [plain_decoder(MODEL), SpeculativeDecoder(MODEL, MODEL.noisy()), lookup_decoder(MODEL)],
    ids=["plain", "speculative", "lookup"],
)
def test_correct_decoders_hold(check, candidate):
    measured = measure(check, candidate)
    assert not failed(measured), [gate for gate in measured.gates if gate.value > gate.limit]
    assert verdicts(measured) <= {Verdict.NOT_APPLICABLE}


def test_filters_reach_the_candidate_by_name_or_as_dict():
    def by_name(prompt, max_new_tokens, temperature, seed, top_k):
        return plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed, {"top_k": top_k})

    def open_ended(prompt, max_new_tokens, temperature, seed, **kwargs):
        return plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed, kwargs)

    for candidate in (by_name, open_ended, plain_decoder(MODEL)):
        assert not failed(measure("distribution", candidate, temperatures=(1.0,), sampling={"top_k": 3}))

    def closed(prompt, max_new_tokens, temperature, seed):
        return plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed)

    with pytest.raises(ContractError, match="sampling"):
        measure("distribution", closed, temperatures=(1.0,), sampling={"top_k": 3})


def test_undeclared_temperatures_are_not_applicable():
    assert verdicts(measure("greedy", temperatures=(1.0,))) == {Verdict.NOT_APPLICABLE}
    assert verdicts(measure("distribution", temperatures=(0.0,))) == {Verdict.NOT_APPLICABLE}
    assert verdicts(measure("seeds", temperatures=(0.0,))) == {Verdict.NOT_APPLICABLE}


def test_no_report_is_not_applicable_and_says_so():
    measured = measure("steps")
    assert verdicts(measured) == {Verdict.NOT_APPLICABLE}
    assert "not reported" in measured.refusals[0].reason


def test_step_factor_is_reported():
    facts = {fact.name: fact.value for fact in measure("steps", SpeculativeDecoder(MODEL, MODEL.noisy())).facts}
    assert 1.0 < facts["step factor"] < 4.0


def constant(tokens):
    return torch.zeros(5)


def test_a_target_without_preference_is_invalid():
    def any_token(prompt, max_new_tokens, temperature, seed):
        return torch.randint(5, (max_new_tokens,), generator=torch.Generator().manual_seed(seed))

    assert Verdict.INVALID in verdicts(measure("greedy", any_token, constant))


def test_a_target_without_entropy_is_invalid():
    def sharp(tokens):
        return torch.nn.functional.one_hot(tokens[-1] * 2 % 5, 5) * 100.0

    def follow(prompt, max_new_tokens, temperature, seed):
        tokens = prompt.tolist()
        for _ in range(max_new_tokens):
            tokens.append(tokens[-1] * 2 % 5)
        return torch.tensor(tokens[len(prompt) :])

    assert verdicts(measure("distribution", follow, sharp)) == {Verdict.INVALID}
    assert verdicts(measure("seeds", follow, sharp)) == {Verdict.INVALID}


def test_one_single_token_is_invalid():
    def always(tokens):
        return torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0])

    def ones(prompt, max_new_tokens, temperature, seed):
        return torch.ones(max_new_tokens, dtype=torch.long)

    assert verdicts(measure("greedy", ones, always)) == {Verdict.INVALID}


def test_a_near_tie_is_certified_and_counted():
    def close(tokens):
        logits = MODEL(tokens).clone()
        best = int(logits.argmax())
        logits[(best + 1) % 5] = logits[best] * (1 - 2e-6)
        return logits if len(tokens) % 4 == 0 else MODEL(tokens)

    def second(prompt, max_new_tokens, temperature, seed):
        tokens = prompt.tolist()
        for _ in range(max_new_tokens):
            best = int(close(torch.tensor(tokens)).argmax())
            tokens.append((best + 1) % 5 if len(tokens) % 4 == 0 else best)
        return torch.tensor(tokens[len(prompt) :])

    measured = measure("greedy", second, close)
    assert not failed(measured)
    assert {fact.name: fact.value for fact in measured.facts}["certified near-ties"] > 5


def test_greedy_failure_says_where_and_how():
    def off(prompt, max_new_tokens, temperature, seed):
        out = plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed)
        if len(out) > 7:
            out[7] = (out[7] + 1) % 5
        return out

    measured = measure("greedy", off)
    assert failed(measured)
    assert "new token 7" in measured.gates[0].where
    assert "argmax" in measured.reproduce


def stopping(prompt, max_new_tokens, temperature, seed):
    out = plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed).tolist()
    return torch.tensor(out[: out.index(4) + 1] if 4 in out else out)


@pytest.mark.parametrize("check", ["greedy", "distribution", "seeds", "state"])
def test_an_end_token_is_understood(check):
    measured = measure(check, stopping)
    assert not failed(measured), [gate for gate in measured.gates if gate.value > gate.limit]
    assert Verdict.FAIL not in verdicts(measured)


def test_global_random_state_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    measure("seeds")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda out: out[:0], "no token"),
        (lambda out: out.tolist(), "list"),
        (lambda out: out.float(), "LongTensor"),
        (lambda out: out[None], "1-D"),
        (lambda out: torch.cat([out, out]), "tokens"),
        (lambda out: out + 5, "vocabulary"),
        (lambda out: out - 9, "vocabulary"),
        (lambda out: (out, {"accepted": []}), "target_calls"),
        (lambda out: (out, {"target_calls": 3, "accepted": [1.5]}), "accepted"),
    ],
)
def test_wrong_form_fails(wrong, words):
    def candidate(prompt, max_new_tokens, temperature, seed):
        return wrong(plain_decoder(MODEL)(prompt, max_new_tokens, temperature, seed))

    measured = measure("greedy", candidate)
    assert verdicts(measured) == {Verdict.FAIL}
    assert words in measured.refusals[0].reason


def test_exceptions_are_the_candidates():
    def raises(prompt, max_new_tokens, temperature, seed):
        raise RuntimeError("no draft model")

    with pytest.raises(CandidateError, match="no draft model") as caught:
        measure("greedy", raises)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda tokens: torch.zeros(6), ContractError),
        (lambda tokens: torch.zeros(1, 5), ContractError),
        (lambda tokens: torch.full((5,), float("nan")), ContractError),
        (lambda tokens: 1 / 0, CandidateError),
    ],
)
def test_a_broken_target_is_no_verdict(bad, error):
    with pytest.raises(error):
        measure("greedy", target=bad)


@pytest.mark.full
def test_false_alarms_over_many_seeds():
    alarms = 0
    for seed in range(150):
        for candidate in (plain_decoder(MODEL), SpeculativeDecoder(MODEL, MODEL.noisy(seed))):
            alarms += failed(measure("distribution", candidate, seed=seed))
    assert alarms == 0
    assert ALPHA <= 1e-6
