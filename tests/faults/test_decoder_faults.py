"""Every broken decoder is caught by the check that its row names; what lies below the resolution is named, not hidden."""

import pytest
import torch

from fixtures.broken.decoders import BELOW_RESOLUTION, BROKEN_DECODERS, TARGET
from fixtures.good.decoders import SpeculativeDecoder, lookup_decoder, plain_decoder
from pytest_attnaccept.state.decoder import DECODER_CHECKS, make_decoder_contract, measure_decoder
from pytest_attnaccept.state.decoder_contract import DecoderPlan
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

# A few hundred of smoke's 3000 draws are enough for gross faults; the subtle ones need what smoke spends.
SUBTLE = {"SeedCut": 1500, "ClearsInPlace": 3000, "GumbelOnGrid": 1500, "RepeatsNoise": 1000}


def quick_plan(row):
    draws, late = SUBTLE.get(row.name, 450), 40 if "Behind" in row.name else 4
    return DecoderPlan(
        greedy_prompts=12,
        greedy_tokens=24,
        prompts=1,
        draws=draws,
        paths=min(draws, 1000),
        middle_draws=210 if row.name == "OneTokenUnverified" else 60,
        late_draws=late,
    )


FILTERS = {"temperatures": (0.8,), "sampling": {"top_k": 4, "top_p": 0.8}}
GOOD = {
    "plain": (plain_decoder(TARGET), {}),
    "speculative-1": (SpeculativeDecoder(TARGET, TARGET.noisy(), depth=1), {}),
    "speculative-2": (SpeculativeDecoder(TARGET, TARGET.noisy(), depth=2), {"temperatures": (0.0, 0.7)}),
    "speculative-5": (SpeculativeDecoder(TARGET, TARGET.noisy(noise=0.3), depth=5), {}),
    "speculative-poor-draft": (SpeculativeDecoder(TARGET, TARGET.noisy(noise=4.0)), {}),
    "speculative-filters": (SpeculativeDecoder(TARGET, TARGET.noisy()), FILTERS),
    "prompt-lookup": (lookup_decoder(TARGET), {}),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def measure(check, candidate, seed, plan, **keywords):
    contract = make_decoder_contract(vocab_size=8, **keywords)
    return measure_decoder(check, candidate, TARGET, contract, seed=seed, device="cpu", profile="smoke", plan=plan)


@pytest.mark.parametrize("row", BROKEN_DECODERS, ids=lambda row: f"{row.name}-{row.check}")
def test_broken_decoder_is_caught(row):
    measured = measure(row.check, row.candidate, 0, quick_plan(row), **row.keywords)
    assert decide(measured, {}).verdict is Verdict.FAIL


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(BELOW_RESOLUTION))
def test_what_is_below_the_resolution_stays_named(name):
    row, why = BELOW_RESOLUTION[name]
    assert why
    assert decide(measure(row.check, row.candidate, 0, None, **row.keywords), {}).verdict is Verdict.PASS


@pytest.mark.parametrize("check", DECODER_CHECKS)
@pytest.mark.parametrize("name", sorted(GOOD))
def test_correct_decoder_passes(name, check):
    candidate, keywords = GOOD[name]
    plan = DecoderPlan(
        greedy_prompts=8, greedy_tokens=16, prompts=1, draws=400, paths=120, middle_draws=30, late_draws=4
    )
    verdict = decide(measure(check, candidate, 1, plan, **keywords), {}).verdict
    assert verdict in (Verdict.PASS, Verdict.NOT_APPLICABLE)
    if verdict is Verdict.NOT_APPLICABLE:
        assert (check, name) in {("steps", "plain"), ("greedy", "speculative-filters")}
