"""Whether a call gives the same answer again: run to run, under load, and after other calls with other scalars.

Positions
---------
1. Repeats are bitwise where the contract says deterministic (the default), else within rounding.
2. Between repeats the function sees the same shapes with other lengths, sinks, slopes, scales and pages: a cache keyed by
   shape alone replays the wrong ones, which the judged answer of those calls shows.
3. Engines refill the same buffers: a call whose tensors have the same addresses and other numbers is a call of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from pytest_attnaccept.kernel.cases import Case, with_keys
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.poison import same_layout
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.measurement import Fact

__all__ = ["check_repeat"]

_REPEATS = 12


def check_repeat(session: Session, plan: Planner) -> None:
    """Repeat small and larger cases, quiet and under load, with other cases of the same shape in between."""
    count = 0
    top = min(plan.max_length, 2047)
    for spec in plan.fits(
        [plan.spec("diffuse", 2, 33, 333), plan.spec("diffuse", 2, 1, top), plan.spec("needle", 1, 65, 600)]
    ):
        base = session.measure(spec)
        for _ in range(_REPEATS // 2):
            session.expect_same("repeat", base, session.run(base.case))
            count += 1
        for other in range(1, 4):
            changed = replace(spec, seed=spec.seed + 1000 * other, family="shift" if other == 2 else spec.family)
            for between in plan.fits([changed]):
                session.measure(between)
            session.expect_same("repeat after other calls", base, session.run(base.case))
            count += 1
        with _load(session.device):
            for _ in range(_REPEATS // 2):
                session.expect_same("repeat under load", base, session.run(base.case))
                count += 1
    _same_buffers(session, plan)
    _other_shapes(session, plan)
    # A fault that strikes one call in N is missed with probability (1 - 1/N) ** count.
    session.facts.append(Fact(name="repeats", value=count))
    session.resolution = (
        f"a fault that strikes more than one call in {max(1, round(count / 4.6))} is seen with probability 0.99"
    )


def _same_buffers(session: Session, plan: Planner) -> None:
    """Refill the tensors of one call with the numbers of another and call again, twice back and forth."""
    for spec in plan.fits([plan.spec("diffuse", 2, 3, 130), plan.spec("diffuse", 2, 1, 300)]):
        first = session.build(spec)
        keep = with_keys(first, **{name: same_layout(x) for name, x in _tensors(first).items()})
        session.judge(first, session.run(first))
        for seed in (1000, 2000, 0):
            other = replace(spec, seed=spec.seed + seed)
            if first.call.block_table is not None:
                # Page pools of other lengths have other sizes.
                other = replace(other, lengths=first.spec.lengths)
            source = keep if not seed else session.build(other)
            refilled = _refilled(first, source)
            if refilled is None:
                continue
            judged = session.judge(refilled, session.run(refilled))
            session.expect_same("refilled buffers", judged, session.run(source), bitwise=False)


def _tensors(case: Case) -> dict[str, Tensor]:
    names = ("q", "k", "v", "sinks", "alibi_slopes", "kv_lengths", "block_table")
    return {name: x for name in names if (x := getattr(case.call, name)) is not None}


def _refilled(first: Case, source: Case) -> Case | None:
    """Return `source` with its numbers in the tensors of `first`, or None where their shapes differ (page pools)."""
    target, values = _tensors(first), _tensors(source)
    if any(target[name].shape != x.shape for name, x in values.items()):
        return None
    for name, x in values.items():
        target[name].copy_(x)
    return with_keys(source, **target)


def _other_shapes(session: Session, plan: Planner) -> None:
    """Grow one sequence step by step through the same function, as a decode loop does."""
    for kv_len in (63, 64, 65, 128, 129, 257, 512, 1025):
        for spec in plan.fits([plan.spec("diffuse", 2, 1, kv_len)]):
            session.measure(spec)


@contextmanager
def _load(device: str) -> Iterator[None]:
    """Keep the device busy with matrix products in another thread (another stream on CUDA)."""
    stop = threading.Event()

    def work() -> None:
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(192, 192, generator=generator).to(device)
        cuda = torch.device(device).type == "cuda"
        stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        while not stop.is_set():
            if stream is None:
                _ = a @ a
            else:
                with torch.cuda.stream(stream):
                    _ = a @ a
                stream.synchronize()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
