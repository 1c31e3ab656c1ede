"""Which smaller program still breaks the cache: steps left out, numbers made smaller, sequences renamed.

Why not hypothesis: a record is bound to its seed, and hypothesis promises no stable stream of examples between
versions; its health checks read the clock; a racing candidate ends with Flaky where the verdict is FAIL; and it would
install a second pytest plugin for every user. The tests of this package do use it, against this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from pytest_attnaccept.state.token_model import Op

__all__ = ["Shrinker", "shrink_program"]

Step = TypeVar("Step")
# Steps that all tries together may take: about 500 tries of an ordinary program, and seconds for one of 300 steps.
BUDGET = 20_000


class Shrinker(Generic[Step]):
    """Leaves out steps (ddmin), then tries smaller variants of each step, until nothing helps or the budget is spent.

    Parameters
    ----------
    breaks
        Runs a program from a fresh start and returns the steps that were really done up to the failure, or None.
    smaller
        Yields simpler variants of one step, simplest first.
    budget
        Steps that all runs together may take; deterministic, unlike a time limit.
    """

    def __init__(
        self,
        breaks: Callable[[list[Step]], list[Step] | None],
        smaller: Callable[[Step], Iterator[Step]],
        budget: int = BUDGET,
    ) -> None:
        self._breaks = breaks
        self._smaller = smaller
        self._left = budget

    def shrink(self, program: list[Step]) -> list[Step]:
        """Return the smallest breaking program that was found; `program` itself must break."""
        before: list[Step] | None = None
        while before != program and self._left > 0:
            before = program
            program = self._simplify(self._leave_out(program))
        return program

    def _try(self, program: list[Step]) -> list[Step] | None:
        if self._left <= 0 or not program:
            return None
        self._left -= len(program)
        return self._breaks(program)

    def _leave_out(self, program: list[Step]) -> list[Step]:
        size = max(1, len(program) // 2)
        while True:
            start = 0
            while start < len(program):
                shorter = self._try(program[:start] + program[start + size :])
                if shorter is not None and len(shorter) < len(program):
                    program = shorter
                else:
                    start += size
            if size == 1:
                return program
            size //= 2

    def _simplify(self, program: list[Step]) -> list[Step]:
        place = 0
        while place < len(program):
            for variant in self._smaller(program[place]):
                simpler = self._try([*program[:place], variant, *program[place + 1 :]])
                if simpler is not None and len(simpler) <= len(program):
                    program = simpler
                    break
            place += 1
        return program


def shrink_program(program: list[Op], breaks: Callable[[list[Op]], list[Op] | None]) -> list[Op]:
    """Return a minimal breaking program with sequences numbered in order of appearance."""
    shrinker = Shrinker(breaks, _smaller_op)
    least, before = program, None
    while before != least:
        before = least = shrinker.shrink(least)
        for merged in _with_one_fork_less(least):
            done = breaks(merged)
            if done is not None and len(done) < len(least):
                least = done
                break
    renamed = _rename(least)
    return renamed if renamed != least and breaks(renamed) is not None else least


def _with_one_fork_less(program: list[Op]) -> Iterator[list[Op]]:
    """Yield the program without one fork, its child's later steps done by the parent: leaving out steps cannot do that."""
    for place, fork in enumerate(program):
        if fork.name == "fork":
            rest = [_under(op, fork.arg, fork.seq) for op in program[place + 1 :]]
            yield [*program[:place], *rest]


def _under(op: Op, child: int, parent: int) -> Op:
    seq = parent if op.seq == child else op.seq
    return replace(op, seq=seq, arg=parent if op.name == "fork" and op.arg == child else op.arg)


def _smaller_op(op: Op) -> Iterator[Op]:
    if op.loud:
        yield replace(op, loud=False)
    if op.name == "attend":
        if op.arg:
            yield replace(op, arg=0)
    elif op.name in ("append", "truncate"):
        for arg in dict.fromkeys((1, 2, op.arg // 2, op.arg - op.arg // 4, op.arg - 1)):
            if 1 <= arg < op.arg:
                yield replace(op, arg=arg)


def _rename(program: list[Op]) -> list[Op]:
    names: dict[int, int] = {}
    for op in program:
        for seq in (op.seq, op.arg) if op.name == "fork" else (op.seq,):
            names.setdefault(seq, len(names))
    return [replace(op, seq=names[op.seq], arg=names[op.arg] if op.name == "fork" else op.arg) for op in program]
