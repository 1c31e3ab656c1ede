"""Whether a prefix cache reuses only what is equal: same tokens, same identity, same rows, and finds what it stored.

Positions
---------
1. A match that claims too much FAILS at once; one that falls short by more than the contract allows FAILS, and a cache that
   never matches anything is INVALID, because nothing of it was measured.
2. Whether fetched tensors are views of the store is reported, not judged; that they keep their values while they are in
   use is judged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_attnaccept.errors import CandidateError, ContractError
from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.keywords import call_as_code
from pytest_attnaccept.state.prefix_oracle import PrefixContract, make_prefix_contract
from pytest_attnaccept.state.prefix_programs import (
    PREFIX_THEMES,
    crowd_programs,
    simpler_step,
    typed_programs,
    wide_programs,
)
from pytest_attnaccept.state.prefix_replay import PrefixBroken, PrefixReplay, PrefixStep, run_prefix_program
from pytest_attnaccept.state.shrink import Shrinker
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["PREFIX_CHECKS", "PrefixContract", "make_prefix_contract", "measure_prefix_cache"]

PREFIX_CHECKS: tuple[str, ...] = tuple(PREFIX_THEMES)
_ORIGIN = "contract: rows are a function of the whole prefix and the identity, compared bit by bit"
# A crowd has two thousand steps, and each costs microseconds.
_SHRINK_STEPS = 150_000
_WORDS = {
    "long": "matches beyond what was inserted",
    "short": "matches that fall short",
    "rows": "wrong rows fetched",
    "form": "unusable returns",
    "changed": "tensors changed while in use",
}


@dataclass(slots=True)
class _Tally:
    programs: int = 0
    matches: int = 0
    hits: int = 0
    fetched: int = 0
    wide: str = "not asked"
    typed: str = "not asked"
    broken: PrefixBroken | None = None
    program: list[PrefixStep] = field(default_factory=list)
    strict: bool = True
    digest: Any = field(default_factory=hashlib.sha256)


def measure_prefix_cache(
    check: str, factory: Callable[[], Any], contract: PrefixContract, *, seed: int, device: str, programs: int
) -> Measured:
    """Run one check of a prefix cache.

    Parameters
    ----------
    check
        One of `PREFIX_CHECKS`.
    factory
        Makes a fresh prefix cache; called once per program.
    contract
        From `make_prefix_contract`.
    seed
        Of programs and rows.
    device
        Where the candidate's tensors are.
    programs
        How many random programs (checks with a fixed family run all of it).

    Raises
    ------
    CandidateError
        The candidate raised; its cause is the original, its text the minimal program.
    """
    if check not in PREFIX_CHECKS:
        raise ContractError(f"accept.prefix_cache: unknown check {check!r}. Known: {', '.join(PREFIX_CHECKS)}.")
    can_evict = PrefixReplay(factory, contract, device=device).can_evict
    if check == "eviction" and not can_evict:
        return Measured(refusals=(Refusal(verdict=Verdict.NOT_APPLICABLE, reason="the cache has no evict"),), seed=seed)
    if programs < 1 and check == "programs":
        reason = Refusal(verdict=Verdict.INCONCLUSIVE, reason="no program was asked for")
        return Measured(refusals=(reason,), seed=seed)
    measurement = _Measurement(factory, contract, seed, device, can_evict)
    tally = measurement.run_all(check, programs)
    if tally.broken is not None and (tally.broken.kind != "short" or tally.hits):
        return measurement.failed(check, tally)
    return measurement.held(tally)


class _Measurement:
    """One check of one cache: runs the programs, shrinks the first that breaks."""

    def __init__(
        self, factory: Callable[[], Any], contract: PrefixContract, seed: int, device: str, can_evict: bool
    ) -> None:
        self.factory, self.contract, self.seed, self.device = factory, contract, seed, device
        self.can_evict = can_evict

    def fresh(self, strict: bool) -> PrefixReplay:
        """Return a replay of a fresh cache."""
        return PrefixReplay(self.factory, self.contract, seed=self.seed, device=self.device, strict=strict)

    def run_all(self, check: str, programs: int) -> _Tally:
        """Run every program; keep the first broken one, a wrong claim before a short match."""
        tally = _Tally()
        self._run(tally, PREFIX_THEMES[check](self.contract, self.seed, programs), strict=True)
        if check in ("collisions", "identity") and not self._decided(tally):
            wanted = crowd_programs(self.contract, self.seed)
            crowds = [program for number, program in enumerate(wanted) if (number == 0) == (check == "collisions")]
            # A thousand entries may exceed a bounded cache: here a short match is no failure.
            self._run(tally, crowds, strict=False)
        if check == "collisions" and not self._decided(tally):
            tally.wide = self._run_refusable(tally, wide_programs(self.contract))
        if check == "identity" and not self._decided(tally):
            tally.typed = self._run_refusable(tally, typed_programs(self.contract))
        return tally

    def _decided(self, tally: _Tally) -> bool:
        return tally.broken is not None and tally.broken.kind != "short"

    def _run(self, tally: _Tally, programs: Iterable[list[PrefixStep]], *, strict: bool) -> None:
        for program in programs:
            steps = [step for step in program if step.name != "evict" or self.can_evict]
            tally.digest.update(repr(steps).encode())
            run = self.fresh(strict)
            broken, done = run_prefix_program(run, steps)
            tally.programs += 1
            tally.matches += run.matches
            tally.hits += run.hits
            tally.fetched += run.fetched
            if broken is not None and (tally.broken is None or (tally.broken.kind == "short" != broken.kind)):
                tally.broken, tally.program, tally.strict = broken, done, strict
            if self._decided(tally):
                return

    def _run_refusable(self, tally: _Tally, programs: Iterable[list[PrefixStep]]) -> str:
        """Run programs of inputs that a cache need not take; say how many of them it refused with an exception."""
        refused, total, kinds = 0, 0, set()
        for program in programs:
            # A cache that takes them may still keep nothing under them: a short match is no failure here.
            broken, done = run_prefix_program(self.fresh(False), program)
            total += 1
            if broken is not None and broken.error is not None:
                refused += 1
                kinds.add(type(broken.error).__name__)
            elif broken is not None:
                tally.broken, tally.program, tally.strict = broken, done, False
                break
        return f"{refused} of {total} programs refused ({', '.join(sorted(kinds))})" if refused else "supported"

    def failed(self, check: str, tally: _Tally) -> Measured:
        """Shrink, explain and report the first failure."""
        first = tally.broken
        if first is None:
            raise ValueError("failed() needs a failure")
        least = Shrinker(
            lambda program: self._breaks(program, first, tally.strict), simpler_step, budget=_SHRINK_STEPS
        ).shrink(tally.program)
        again, done = run_prefix_program(self.fresh(tally.strict), least)
        broken, shown = (again, done) if again is not None and again.kind == first.kind else (first, tally.program)
        code = "\n".join(self.as_code(shown, broken.text))
        if broken.error is not None:
            raise CandidateError(f"{check}: {broken.text}. Minimal program:\n{code}") from broken.error
        gate = Threshold(
            name=_WORDS[broken.kind],
            value=1.0,
            limit=0.0,
            unit="programs",
            n=tally.matches,
            where=f"after {len(shown)} steps: {broken.text}",
            origin=_ORIGIN,
            seems=broken.seems,
        )
        refusals = (Refusal(verdict=Verdict.FAIL, reason=broken.text),) if broken.kind == "form" else ()
        return Measured(
            gates=(gate,),
            refusals=refusals,
            facts=_facts(tally),
            seems=broken.seems,
            reproduce=code,
            data_digest=tally.digest.hexdigest()[:16],
            seed=self.seed,
        )

    def _breaks(self, program: list[PrefixStep], first: PrefixBroken, strict: bool) -> list[PrefixStep] | None:
        broken, done = run_prefix_program(self.fresh(strict), program)
        same = broken is not None and broken.kind == first.kind and type(broken.error) is type(first.error)
        return done if same else None

    def held(self, tally: _Tally) -> Measured:
        """Report that nothing broke, or that nothing was ever matched."""
        refusals: tuple[Refusal, ...] = ()
        if not tally.hits:
            reason = f"the cache never matched anything in {tally.matches} requests: no reuse was measured"
            refusals = (Refusal(verdict=Verdict.INVALID, reason=reason),)
        gate = Threshold(
            name="wrong claims or rows", value=0.0, limit=0.0, unit="programs", n=tally.matches, origin=_ORIGIN
        )
        return Measured(
            gates=(gate,),
            refusals=refusals,
            facts=_facts(tally),
            resolution="equal keys of two contexts are found for every key of up to 16 bits and the named longer ones; "
            f"identities of other types: {tally.typed}",
            data_digest=tally.digest.hexdigest()[:16],
            seed=self.seed,
        )

    def as_code(self, program: list[PrefixStep], comment: str) -> Iterator[str]:
        """Yield the lines of a runnable program that raises at its last step."""
        yield "from pytest_attnaccept.state.prefix import make_prefix_contract"
        yield "from pytest_attnaccept.state.prefix_replay import PrefixReplay"
        if "dtype" in self.contract.keywords():
            yield "import torch"
        yield ""
        yield f"contract = {call_as_code('make_prefix_contract', self.contract.keywords())}"
        yield f"run = PrefixReplay(factory, contract, seed={self.seed}, device={self.device!r})"
        for index, step in enumerate(program):
            note = f"  # {comment}" if index == len(program) - 1 else ""
            identity = f", {dict(step.entry.identity)!r}" if step.name != "evict" else ""
            yield f"run.{step.name}({list(step.entry.tokens)!r}{identity}){note}"


def _facts(tally: _Tally) -> tuple[Fact, ...]:
    return (
        Fact(name="programs", value=tally.programs),
        Fact(name="matches asked", value=tally.matches),
        Fact(name="matches that found something", value=tally.hits),
        Fact(name="fetches compared bit by bit", value=tally.fetched),
        Fact(name="tokens of 61 bits", value=tally.wide),
        Fact(name="identities of other types", value=tally.typed),
    )
