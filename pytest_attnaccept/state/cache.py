"""Whether a KV cache equals a plain list of tokens under any legal program, and the smallest one that shows otherwise.

Positions
---------
1. One check per theme, because a failure's theme tells where to look; all themes share writer, replay and oracle.
2. A check stops after three broken programs; the first is shrunk and printed as code that raises again.
3. A comparison that would not have seen a wrong token makes the check INVALID, and so does a contract whose room is too
   small for its own window (INCONCLUSIVE, with the room that is needed).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.cache_contract import CacheContract, CacheFactory, make_cache_contract
from pytest_attnaccept.state.cache_reference import ORIGIN
from pytest_attnaccept.state.diagnose import explain
from pytest_attnaccept.state.keywords import call_as_code
from pytest_attnaccept.state.programs import edge_programs, random_program
from pytest_attnaccept.state.replay import Broken, CacheReplay, run_program
from pytest_attnaccept.state.shrink import shrink_program
from pytest_attnaccept.state.token_model import Op
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["CACHE_CHECKS", "CacheContract", "make_cache_contract", "measure_cache"]

CACHE_CHECKS: tuple[str, ...] = ("edges", "programs", "pressure", "fork", "reuse", "rollback")

_NEEDS = {"fork": "fork", "reuse": "free", "rollback": "truncate"}
_STOP_AFTER = 3
# Filling a pool of more elements than this costs seconds and memory without another edge being reached.
_MAX_POOL_ELEMENTS = 2**25
# At least this share of the controls (the token aimed at replaced) must be visible; a blind comparison sees none.
_MIN_CONTROL_SHARE = 0.8


@dataclass(slots=True)
class _Tally:
    """What the programs of one check added up to."""

    programs: int = 0
    attended: int = 0
    refused: int = 0
    poisoned: int = 0
    live: int = 0
    worst: float = 0.0
    controls: list[int] = field(default_factory=lambda: [0, 0])
    broken: list[Broken] = field(default_factory=list)
    first: list[Op] = field(default_factory=list)
    first_seed: int = 0
    digest: str = ""


def measure_cache(
    check: str, factory: CacheFactory, contract: CacheContract, *, seed: int, device: str, programs: int
) -> Measured:
    """Run one check of a cache.

    Parameters
    ----------
    check
        One of `CACHE_CHECKS`.
    factory
        Makes a fresh cache; called once per program.
    contract
        From `make_cache_contract`.
    seed
        Of programs, keys, values and queries.
    device
        Where the candidate's tensors are; the reference is computed on the CPU.
    programs
        How many random programs (the check ``edges`` runs its fixed sweep instead).

    Raises
    ------
    CandidateError
        The candidate raised something else than MemoryError; its cause is the original, its text the minimal program.
    """
    if check not in CACHE_CHECKS:
        raise ContractError(f"accept.cache: unknown check {check!r}. Known: {', '.join(CACHE_CHECKS)}.")
    refusal = _not_measurable(check, contract, programs)
    if refusal is not None:
        return Measured(refusals=(refusal,), seed=seed)
    tally = _run_all(check, factory, contract, seed, device, programs)
    if tally.broken:
        return _failed(check, factory, contract, device, seed, tally)
    return _held(check, contract, seed, tally)


def _not_measurable(check: str, contract: CacheContract, programs: int) -> Refusal | None:
    needs = _NEEDS.get(check)
    if needs and needs not in contract.operations:
        return Refusal(verdict=Verdict.NOT_APPLICABLE, reason=f"the contract declares no operation {needs!r}")
    if check == "pressure" and _pool_elements(contract) > _MAX_POOL_ELEMENTS:
        return Refusal(
            verdict=Verdict.INCONCLUSIVE,
            reason=f"capacity_tokens={contract.capacity_tokens} is too large to fill; test the same cache with a pool "
            f"of at most {_MAX_POOL_ELEMENTS // (contract.kv_heads * contract.head_dim)} tokens",
        )
    least = max(contract.window or 0, contract.page_size) + contract.sink_tokens + 2 * contract.page_size
    if contract.capacity_pages * contract.page_size < least:
        return Refusal(
            verdict=Verdict.INCONCLUSIVE,
            reason=f"capacity_tokens={contract.capacity_tokens} keeps page or window edges out of reach; needs {least}",
        )
    if programs < 1 and check != "edges":
        return Refusal(verdict=Verdict.INCONCLUSIVE, reason="no program was asked for")
    return None


def _pool_elements(contract: CacheContract) -> int:
    return contract.capacity_tokens * contract.kv_heads * contract.head_dim


def _programs(check: str, contract: CacheContract, seed: int, programs: int) -> Iterable[list[Op]]:
    if check == "edges":
        return edge_programs(contract)
    return (random_program(contract, check, f"{seed}/{index}") for index in range(programs))


def _run_all(
    check: str, factory: CacheFactory, contract: CacheContract, seed: int, device: str, programs: int
) -> _Tally:
    tally, digest = _Tally(), hashlib.sha256(repr((contract, contract.bitwise_to is not None)).encode())
    for index, program in enumerate(_programs(check, contract, seed, programs)):
        digest.update(repr(program).encode())
        run_seed = seed * 1_000_003 + index
        run = CacheReplay(factory, contract, seed=run_seed, device=device)
        broken, done = run_program(run, program)
        tally.programs += 1
        tally.attended += run.attended
        tally.refused += run.refused
        tally.poisoned += run.poisoned
        tally.live = max(tally.live, run.live)
        tally.worst = max(tally.worst, run.worst)
        tally.controls = [a + b for a, b in zip(tally.controls, run.controls, strict=True)]
        if broken is not None:
            if not tally.broken:
                tally.first, tally.first_seed = done, run_seed
            tally.broken.append(broken)
            if len(tally.broken) == _STOP_AFTER:
                break
    tally.digest = digest.hexdigest()[:16]
    return tally


def _failed(
    check: str, factory: CacheFactory, contract: CacheContract, device: str, seed: int, tally: _Tally
) -> Measured:
    first = tally.broken[0]

    def fresh() -> CacheReplay:
        return CacheReplay(factory, contract, seed=tally.first_seed, device=device)

    def breaks(program: list[Op]) -> list[Op] | None:
        broken, done = run_program(fresh(), program)
        return done if broken is not None and _same(broken, first) else None

    least = shrink_program(tally.first, breaks)
    run = fresh()
    again, done = run_program(run, least)
    # A racing candidate may hold this time: then the first failure is reported as it was seen.
    broken, shown = (again, done) if again is not None and _same(again, first) else (first, tally.first)
    code = "\n".join(as_code(contract, tally.first_seed, shown, broken.text, device))
    if broken.error is not None:
        raise CandidateError(f"{check}: the cache raised {broken.text}. Minimal program:\n{code}") from broken.error
    seems = explain(run, broken) if broken is again else "not the same on every run (race or uninitialised memory)"
    gate = Threshold(
        name="worst deviation" if broken.kind == "value" else f"{broken.kind} errors",
        value=broken.ratio if broken.kind == "value" else 1.0,
        limit=1.0 if broken.kind == "value" else 0.0,
        unit="of the allowed rounding" if broken.kind == "value" else "errors",
        n=tally.attended,
        where=f"after {len(shown)} steps: {broken.text}",
        origin=ORIGIN if broken.kind == "value" else "contract: what a cache may return and when it may refuse",
        seems=seems,
    )
    refusals = (Refusal(verdict=Verdict.FAIL, reason=broken.text),) if broken.kind == "form" else ()
    facts = (*_facts(tally), Fact(name="broken programs", value=len(tally.broken)))
    return Measured(
        gates=(gate,), facts=facts, refusals=refusals, seems=seems, reproduce=code, data_digest=tally.digest, seed=seed
    )


def _same(broken: Broken, first: Broken) -> bool:
    return broken.kind == first.kind and type(broken.error) is type(first.error)


def _held(check: str, contract: CacheContract, seed: int, tally: _Tally) -> Measured:
    seen, controls = tally.controls
    refusals: list[Refusal] = []
    if tally.attended == 0:
        refusals.append(Refusal(verdict=Verdict.INVALID, reason="no attention was computed"))
    elif controls and seen < _MIN_CONTROL_SHARE * controls:
        refusals.append(
            Refusal(
                verdict=Verdict.INVALID,
                reason=f"the inputs cannot see a wrong token: only {seen} of {controls} planted ones were visible",
            )
        )
    gate = Threshold(
        name="worst deviation",
        value=tally.worst,
        limit=1.0,
        unit="of the allowed rounding",
        n=tally.attended,
        origin=ORIGIN,
    )
    return Measured(
        gates=(gate,),
        facts=_facts(tally),
        refusals=tuple(refusals),
        resolution=f"one wrong token was visible in {seen} of {controls} controls",
        data_digest=tally.digest,
        seed=seed,
        details={"check": check, "contract": repr(contract)},
    )


def _facts(tally: _Tally) -> tuple[Fact, ...]:
    return (
        Fact(name="programs", value=tally.programs),
        Fact(name="attentions compared", value=tally.attended),
        Fact(name="operations refused for lack of room", value=tally.refused),
        Fact(name="sequences at once", value=tally.live),
        Fact(name="unused tensors poisoned", value=tally.poisoned),
    )


def as_code(contract: CacheContract, seed: int, program: list[Op], comment: str, device: str = "cpu") -> Iterator[str]:
    """Yield the lines of a runnable program that raises at its last step."""
    yield "import torch"
    yield "from pytest_attnaccept.state.cache import make_cache_contract"
    yield "from pytest_attnaccept.state.replay import CacheReplay"
    yield ""
    yield f"contract = {call_as_code('make_cache_contract', contract.keywords())}"
    place = "" if device == "cpu" else f", device={device!r}"
    yield f"run = CacheReplay(factory, contract, seed={seed}{place})"
    last: dict[int, int] = {}
    for index, op in enumerate(program):
        arguments = [op.seq, op.arg]
        if op.name == "append":
            last[op.seq] = op.arg
        elif op.name == "attend":
            arguments[1] = last.get(op.seq, 1) if op.arg else 1
        elif op.name == "free":
            arguments = [op.seq]
        if op.name in ("fork", "truncate", "free"):
            last[op.arg if op.name == "fork" else op.seq] = 1
        loud = ", loud=True" if op.loud else ""
        note = f"  # {comment}" if index == len(program) - 1 else ""
        yield f"run.{op.name}({', '.join(map(str, arguments))}{loud}){note}"
