"""measure_cache: refusals, code that can be run again, what a failure says, and exceptions of the candidate."""

import pytest
import torch

from fixtures.broken.caches import NoCopyOnWrite, PageAddressWraps, RacingRows, TruncateDoesNothing
from fixtures.good.caches import ContiguousCache, PagedCache, attention
from pytest_attnaccept.errors import AcceptanceFailure, CandidateError, ContractError
from pytest_attnaccept.state.cache import CACHE_CHECKS, make_cache_contract, measure_cache
from pytest_attnaccept.state.replay import CacheReplay
from pytest_attnaccept.taxonomy import Verdict

KEYWORDS = {"q_heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 4, "dtype": "float32", "capacity_tokens": 96}
POOL = {"kv_heads": 2, "head_dim": 16, "page_size": 4, "capacity_tokens": 96}


def measure(check, factory, programs=15, seed=0, **change):
    return measure_cache(
        check, factory, make_cache_contract(**{**KEYWORDS, **change}), seed=seed, device="cpu", programs=programs
    )


def verdicts(measured):
    return {refusal.verdict for refusal in measured.refusals}


def failed(measured):
    return any(not gate.value <= gate.limit for gate in measured.gates)


@pytest.mark.parametrize(("check", "operation"), [("fork", "fork"), ("reuse", "free"), ("rollback", "truncate")])
def test_undeclared_operation_is_not_applicable(check, operation):
    declared = tuple(name for name in ("fork", "free", "truncate") if name != operation)
    measured = measure(check, ContiguousCache, operations=declared)
    assert verdicts(measured) == {Verdict.NOT_APPLICABLE}
    assert measured.gates == ()


def test_a_cache_without_the_three_operations_is_measured():
    class Plain:
        def __init__(self):
            self.inner = ContiguousCache()
            self.append, self.attend = self.inner.append, self.inner.attend

    for check in ("edges", "programs", "pressure"):
        measured = measure(check, Plain, operations=())
        assert not measured.refusals
        assert not failed(measured)


def test_window_out_of_reach_is_inconclusive():
    measured = measure("edges", ContiguousCache, window=90, capacity_tokens=64)
    assert verdicts(measured) == {Verdict.INCONCLUSIVE}
    assert "needs 98" in measured.refusals[0].reason


def test_a_pool_too_large_to_fill_is_inconclusive():
    assert verdicts(measure("pressure", ContiguousCache, capacity_tokens=2**22)) == {Verdict.INCONCLUSIVE}


def test_no_program_is_inconclusive():
    assert verdicts(measure("programs", ContiguousCache, programs=0)) == {Verdict.INCONCLUSIVE}


def test_unknown_check():
    with pytest.raises(ContractError, match="unknown check"):
        measure("program", ContiguousCache)


def test_a_bound_that_hides_a_wrong_token_is_invalid(monkeypatch):
    import pytest_attnaccept.state.cache_reference as reference

    monkeypatch.setattr(reference, "LAMBDA", 1e9)
    measured = measure("programs", ContiguousCache)
    assert verdicts(measured) == {Verdict.INVALID}
    assert "cannot see a wrong token" in measured.refusals[0].reason


def test_same_seed_same_measurement():
    one, two, other = (
        measure("programs", ContiguousCache),
        measure("programs", ContiguousCache),
        measure("programs", ContiguousCache, seed=1),
    )
    assert one == two
    assert one.data_digest != other.data_digest


def test_a_failure_is_minimal_named_and_runs_again():
    measured = measure("fork", lambda: NoCopyOnWrite(**POOL))
    assert failed(measured)
    assert "copy-on-write" in measured.seems
    code = measured.reproduce
    steps = [line.split("(")[0] for line in code.splitlines() if line.startswith("run.")]
    assert (len(steps), steps[:2], steps[-1]) == (5, ["run.append", "run.fork"], "run.attend")
    with pytest.raises(AcceptanceFailure, match="times the allowed rounding"):
        exec(code, {"factory": lambda: NoCopyOnWrite(**POOL)})
    exec(code, {"factory": lambda: PagedCache(**POOL)})


@pytest.mark.parametrize(("kind", "check"), [(TruncateDoesNothing, "rollback"), (PageAddressWraps, "programs")])
def test_printed_programs_raise_on_the_broken_and_hold_on_the_correct_cache(kind, check):
    code = measure(check, lambda: kind(**POOL), programs=60).reproduce
    with pytest.raises(AcceptanceFailure):
        exec(code, {"factory": lambda: kind(**POOL)})
    exec(code, {"factory": lambda: PagedCache(**POOL)})


def test_a_loud_windowed_bfloat16_program_is_printed_runnable():
    class Forgets(PagedCache):
        def visible(self, count, length):
            seen = super().visible(count, length)
            seen[:, 0] = length < 3
            return seen

    pool = {**POOL, "dtype": torch.bfloat16, "window": 7, "sink_tokens": 2}
    measured = measure("edges", lambda: Forgets(**pool), dtype="bfloat16", window=7, sink_tokens=2)
    with pytest.raises(AcceptanceFailure):
        exec(measured.reproduce, {"factory": lambda: Forgets(**pool)})


def test_exceptions_are_the_candidates_and_carry_the_minimal_program():
    class Raises(PagedCache):
        def truncate(self, seq, length):
            raise KeyError("no such page")

    with pytest.raises(CandidateError, match="run.truncate") as caught:
        measure("rollback", lambda: Raises(**POOL))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_missing_method_is_the_candidates_fault():
    class NoFork:
        append, attend = ContiguousCache.append, ContiguousCache.attend

        def __init__(self):
            self.rows = {}

    with pytest.raises(CandidateError, match="fork"):
        measure("fork", NoFork)


def test_memory_error_in_attend_fails():
    class NoScratch(PagedCache):
        def attend(self, seq, queries):
            if self.lengths[seq] > 5:
                raise MemoryError("no scratch")
            return super().attend(seq, queries)

    measured = measure("programs", lambda: NoScratch(**POOL))
    assert failed(measured)
    assert "needs no new page" in measured.gates[0].where


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda out: out[0], "shape"),
        (lambda out: out.half(), "narrower"),
        (lambda out: out.int(), "narrower"),
        (lambda out: out * float("nan"), "NaN"),
        (lambda out: None, "not a tensor"),
    ],
)
def test_wrong_form_fails(wrong, words):
    class Wrong(ContiguousCache):
        def attend(self, seq, queries):
            return wrong(super().attend(seq, queries))

    measured = measure("edges", Wrong)
    assert verdicts(measured) == {Verdict.FAIL}
    assert words in measured.refusals[0].reason


def test_a_wider_output_is_fine():
    class Wide(ContiguousCache):
        def attend(self, seq, queries):
            return super().attend(seq, queries).double()

    assert not failed(measure("edges", Wide))


def test_a_race_is_reported_even_when_it_does_not_come_again():
    measured = measure("programs", lambda: RacingRows(**POOL), programs=60)
    assert failed(measured)
    assert measured.reproduce


def test_an_eager_copy_at_fork_is_no_leak():
    class EagerCopy(PagedCache):
        def fork(self, parent, child):
            length = self.lengths[parent]
            if length % self.page_size:
                self.reserve(1)
            super().fork(parent, child)
            if length % self.page_size:
                self.copy_page(self.tables[child], length)

    for check in ("pressure", "fork"):
        measured = measure(check, lambda: EagerCopy(**POOL), programs=40)
        assert not failed(measured), measured.gates
        assert not measured.refusals


def test_replay_raises_the_candidates_error():
    class Raises:
        def append(self, seq, keys, values):
            raise ValueError("wrong layout")

    with pytest.raises(CandidateError, match="wrong layout"):
        CacheReplay(Raises, make_cache_contract(**KEYWORDS)).append(0, 3)


def test_checks_have_plain_ids():
    assert all(check.isidentifier() for check in CACHE_CHECKS)
    assert len(set(CACHE_CHECKS)) == len(CACHE_CHECKS)


def facts(measured):
    return {fact.name: fact.value for fact in measured.facts}


@pytest.mark.parametrize("check", ["programs", "fork", "reuse"])
def test_some_programs_hold_twenty_sequences(check):
    measured = measure(check, lambda: PagedCache(**POOL), programs=40)
    assert facts(measured)["sequences at once"] >= 18
    small = measure(check, lambda: PagedCache(**{**POOL, "capacity_tokens": 32}), programs=40, capacity_tokens=32)
    assert not failed(small)
    assert not small.refusals


def test_unused_storage_is_overwritten_where_it_is_shown():
    measured = measure("reuse", lambda: PagedCache(**POOL), programs=10)
    assert facts(measured)["unused tensors poisoned"] > 100
    assert not failed(measured)
    assert facts(measure("reuse", ContiguousCache, programs=3))["unused tensors poisoned"] == 0


@pytest.mark.parametrize("shown", [5, None, "pages", [3, 4], [torch.zeros(2, dtype=torch.int32)]])
def test_what_is_no_storage_is_left_alone(shown):
    class Odd(PagedCache):
        def unused_storage(self):
            return shown

    measured = measure("reuse", lambda: Odd(**POOL), programs=3)
    assert not failed(measured)
    assert facts(measured)["unused tensors poisoned"] == 0


def test_a_twin_of_another_kernel_is_not_bitwise_equal():
    class Wider(ContiguousCache):
        def attend(self, seq, queries):
            keys, values = self.rows[seq]
            return attention(queries.double(), keys.double(), values.double()).to(queries.dtype)

    assert not failed(measure("programs", lambda: PagedCache(**POOL), programs=5, bitwise_to=ContiguousCache))
    measured = measure("programs", lambda: PagedCache(**POOL), programs=5, bitwise_to=Wider)
    assert failed(measured)
    assert "bit for bit" in measured.gates[0].where
    assert "bitwise_to=twin_factory" in measured.reproduce


def test_a_twin_that_raises_is_the_contracts_fault():
    class Raises(ContiguousCache):
        def attend(self, seq, queries):
            raise RuntimeError("no kernel")

    with pytest.raises(ContractError, match="no kernel"):
        measure("edges", lambda: PagedCache(**POOL), bitwise_to=Raises)
    with pytest.raises(ContractError, match="bitwise_to"):
        make_cache_contract(**{**KEYWORDS, "bitwise_to": 3})
