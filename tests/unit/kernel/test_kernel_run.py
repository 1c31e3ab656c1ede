"""The entry point: names, refusals, errors, rules around a call, SDPA-like functions."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F

from fixtures.broken.kernels_base import solve
from pytest_attnaccept.errors import CandidateError, ContractError, UnknownNameError
from pytest_attnaccept.kernel.contract import make_contract
from pytest_attnaccept.kernel.run import KERNEL_CHECKS, measure_kernel, replay
from pytest_attnaccept.kernel.sdpa import sdpa_parameters
from pytest_attnaccept.taxonomy import Verdict

SMALL = {"q_heads": 4, "kv_heads": 2, "head_dim": 32}


def run(check, fn, length=200, seed=5, **keywords):
    return measure_kernel(
        check, fn, make_contract(**SMALL | keywords), max_length=length, seed=seed, device="cpu", profile="smoke"
    )


def failed(measured):
    return any(not gate.value <= gate.limit for gate in measured.gates) or any(
        r.verdict is Verdict.FAIL for r in measured.refusals
    )


def test_names_of_the_checks():
    assert KERNEL_CHECKS == (
        "selftest",
        "value",
        "lse",
        "poison",
        "relations",
        "inputs",
        "shapes",
        "long",
        "repeat",
        "backward",
    )
    with pytest.raises(UnknownNameError, match="poison"):
        run("posion", solve)


@pytest.mark.parametrize("check", [name for name in KERNEL_CHECKS if name not in ("backward", "shapes")])
def test_a_correct_kernel_passes(check):
    measured = run(check, solve, returns_lse=True)
    assert not measured.refusals
    assert measured.gates
    assert all(gate.value <= gate.limit for gate in measured.gates)
    assert measured.data_digest
    assert all(gate.origin for gate in measured.gates)


def test_same_seed_same_data_other_seed_other_data():
    first, again, other = (run("value", solve, seed=seed).data_digest for seed in (1, 1, 2))
    assert first == again != other


def test_nothing_to_measure_is_not_applicable_with_a_reason():
    for check, keywords, text in (
        ("backward", {}, "backward=True"),
        ("poison", {"causal": False}, "nothing is masked"),
    ):
        (refusal,) = run(check, solve, **keywords).refusals
        assert refusal.verdict is Verdict.NOT_APPLICABLE
        assert text in refusal.reason


def test_lse_that_is_not_declared_is_measured_through_the_mass():
    measured = run("lse", lambda call: solve(call)[0])
    assert measured.gates and not measured.refusals
    assert any(fact.name == "lse" for fact in measured.facts)
    assert failed(run("lse", lambda call: solve(call, extra=5.0)[0]))


def test_exceptions_of_the_candidate_keep_their_cause():
    def broken(call):
        raise RuntimeError("illegal memory access")

    with pytest.raises(CandidateError, match="illegal memory access") as caught:
        run("value", broken)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_refusal_inside_the_contract_fails():
    def refuses(call):
        raise NotImplementedError("head_dim 32")

    (refusal,) = run("value", refuses).refusals
    assert refusal.verdict is Verdict.FAIL
    assert refusal.reason.startswith("refused: ")


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda c: solve(c)[0].transpose(1, 2), "output shape"),
        (lambda c: solve(c)[0].to(torch.float16), "output dtype"),
        (lambda c: "out", "returned str"),
        (lambda c: (1, 2, 3), "returned 3 values"),
        (lambda c: c.v.repeat_interleave(2, 1)[:, :, : c.q.shape[2]] if c.k.shape[2] < 0 else c.q, "shares storage"),
        (lambda c: solve(c)[0] + c.q.add_(1.0), "modified its input q"),
    ],
)
def test_rules_around_a_call(fn, text):
    (refusal,) = run("value", fn).refusals
    assert refusal.verdict is Verdict.FAIL
    assert text in refusal.reason


def test_a_missing_or_misshaped_lse_fails():
    for fn, text in (
        (lambda c: solve(c)[0], "no lse came back"),
        (lambda c: (solve(c)[0], solve(c)[1].sum(-1)), "lse has shape"),
    ):
        (refusal,) = run("value", fn, returns_lse=True).refusals
        assert refusal.verdict is Verdict.FAIL
        assert text in refusal.reason


def test_a_wider_output_and_an_undeclared_lse_are_fine():
    assert not failed(run("value", lambda c: (solve(c)[0].float(), "anything")))
    assert not failed(run("value", lambda c: solve(c, rounded=False)[0].double()))


def test_nan_fails_and_names_the_place():
    def spoils(call):
        out = solve(call)[0]
        out[:, -1, -1:, 0] = math.nan
        return out

    measured = run("value", spoils)
    gate = next(gate for gate in measured.gates if gate.name == "not finite")
    assert gate.value > gate.limit
    assert "head 3" in gate.where
    assert "NaN" in measured.seems


def test_a_wrong_value_of_empty_rows_fails():
    def nans(call):
        out, lse = solve(call)
        return torch.where(torch.isneginf(lse)[..., None], math.nan, out.float()).to(out.dtype)

    assert failed(run("shapes", nans, length=40))
    assert not failed(run("shapes", nans, length=40, empty_rows="nan"))


def test_certified_length_is_what_rows_really_saw():
    facts = {fact.name: fact.value for fact in run("value", solve, length=10**6, max_length=150).facts}
    assert facts["certified_to"] == 150


def test_a_check_that_cannot_reject_its_controls_is_invalid():
    (refusal,) = run("value", solve, length=1).refusals
    assert refusal.verdict is Verdict.INVALID
    assert "cannot reject" in refusal.reason


def test_failure_texts_say_where_what_and_how_to_repeat_it():
    def wrong(call):
        out = solve(call)[0]
        out[:, 2] *= 1.25
        return out

    measured = run("value", wrong)
    assert "only head 2" in measured.seems
    assert "1.25" in measured.seems
    assert "head 2" in next(gate.where for gate in measured.gates if gate.name == "maxz")
    assert measured.resolution
    scope = {"fn": wrong}
    exec(measured.reproduce.replace("replay(fn", "judged = replay(fn"), scope)
    assert scope["judged"].failed


def test_replay_of_a_correct_kernel_does_not_fail():
    assert not replay(solve, case={"family": "needle", "batch": 2, "q_len": 4, "kv_len": 70, "seed": 1}, **SMALL).failed


def sdpa_without_mask(query, key, value, is_causal=False):
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def sdpa_without_gqa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)


@pytest.mark.parametrize(
    "fn",
    [
        F.scaled_dot_product_attention,
        sdpa_without_mask,
        sdpa_without_gqa,
        functools.partial(F.scaled_dot_product_attention, dropout_p=0.0),
    ],
)
def test_sdpa_like_functions_are_taken_as_they_are(fn):
    assert sdpa_parameters(fn) is not None
    for check in ("value", "poison"):
        assert not failed(run(check, fn))


@pytest.mark.parametrize(
    "keywords",
    [{"causal": False}, {"window": 20}, {"ragged": True}, {"alignment": "top_left"}, {"q_lens": "decode"}],
    ids=str,
)
def test_sdpa_under_other_contracts(keywords):
    measured = run("value", F.scaled_dot_product_attention, **keywords)
    assert not failed(measured)
    assert not measured.refusals


def test_functions_of_one_call_are_not_sdpa_like():
    assert sdpa_parameters(solve) is None
    assert sdpa_parameters(lambda call: call) is None
    assert sdpa_parameters(lambda *arguments, **keywords: None) is None


@pytest.mark.parametrize(
    "keywords", [{"sinks": True}, {"softcap": 5.0}, {"page_size": 16}, {"returns_lse": True}, {"alibi": True}], ids=str
)
def test_what_the_sdpa_signature_cannot_carry_is_a_contract_error(keywords):
    with pytest.raises(ContractError, match="cannot be given"):
        run("value", F.scaled_dot_product_attention, **keywords)


def test_a_wrong_sdpa_is_seen():
    def no_mask(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        return F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)

    measured = run("value", no_mask)
    assert failed(measured)
    assert "causal mask ignored" in measured.seems
