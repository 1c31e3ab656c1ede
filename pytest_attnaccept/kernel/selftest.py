"""Whether this gate can fail at all under this contract: the check `selftest` judges known-bad and known-good kernels.

Positions
---------
1. The candidate is not called. What is tested is the gate, at the lengths and in the precision of the contract.
2. A mutant that no case rejects, or a correct kernel that some case rejects, makes the item INVALID: then a pass of the
   other checks proves less than it says.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_attnaccept.kernel.cases import Case
from pytest_attnaccept.kernel.emulate import Habit, attend
from pytest_attnaccept.kernel.guard import Output
from pytest_attnaccept.kernel.judge import exact_rows, is_rejected, judge_output
from pytest_attnaccept.kernel.mutants import mutants_for
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.reference import Rows
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.kernel.statistics import Stat
from pytest_attnaccept.measurement import Fact

__all__ = ["check_selftest", "legal_habits"]

_ROWS = 16


def check_selftest(session: Session, plan: Planner) -> None:
    """Judge the corpus at a short and at the longest length up to 8192."""
    top = min(plan.max_length, 8192)
    missed: list[str] = []
    seen = 0
    for length in sorted({min(top, 1000), top}):
        specs = plan.fits([plan.spec(family, 1, 16, length) for family in ("diffuse", "shift", "needle")])
        cases = [session.build(spec) for spec in specs]
        prepared = [(case, exact_rows(case, _ROWS)) for case in cases]
        session.judged_rows += sum(int(rows.count.numel()) for _, rows in prepared)
        session.longest = max(session.longest, length)
        for habit in legal_habits(session):
            _accept(session, prepared, habit)
        habit = legal_habits(session)[0]
        for name in mutants_for(cases[0]):
            seen += 1
            if not any(_rejects(case, rows, name, habit) for case, rows in prepared):
                missed.append(f"{name} at {length} keys")
        for case, rows in prepared:
            judge_output(case, _output(case, rows, habit), session.rejected, session.note_resolution, rows)
    session.facts.append(Fact(name="mutants", value=seen))
    session.invalid += [f"the gate does not see this fault under this contract: {name}" for name in missed]


def legal_habits(session: Session) -> list[Habit]:
    """Return correct kernels in the precision that the contract declares."""
    contract = session.contract
    base = Habit(
        alignment=contract.alignment,
        round_p=contract.probability_dtype == "input",
        round_s=contract.score_dtype == "input",
        lse_base=contract.lse_base,
        tile=128,
    )
    return [
        base,
        replace(base, tile=32, splits=4),
        replace(base, reverse=True, exp2=True),
        replace(base, lazy=8.0, round_p=False),
    ]


def _output(case: Case, rows: Rows, habit: Habit) -> Output:
    out, lse = attend(case.call, habit, rows=rows.index)
    return Output(out, lse if case.contract.returns_lse else None)


def _accept(session: Session, prepared: list[tuple[Case, Rows]], habit: Habit) -> None:
    for case, rows in prepared:
        judged = judge_output(case, _output(case, rows, habit), rows=rows)
        worst = max(judged.stats, key=lambda stat: stat.ratio, default=None)
        if worst is None:
            continue
        session.record(
            [
                Stat(
                    name="correct kernels",
                    value=worst.ratio,
                    limit=1.0,
                    where=f"{worst.name}, {worst.where}",
                    n=worst.n,
                )
            ],
            case,
        )
        if judged.failed:
            session.invalid.append(
                f"the gate rejects a correct kernel ({habit}) by {worst.name} {worst.value:.3g} at {case.label}"
            )


def _rejects(case: Case, rows: Rows, name: str, habit: Habit) -> bool:
    mutant = mutants_for(case).get(name)
    if mutant is None:
        return False
    out, lse = mutant(case.call, replace(habit, lse_base="e"), rows.index)
    shown = lse / 0.6931471805599453 if case.contract.lse_base == "2" else lse
    return is_rejected(case, Output(out, shown if case.contract.returns_lse else None), rows)
