"""Whether outputs equal the exact answer within rounding: the checks `value`, `inputs`, `lse`, `long` and `shapes`.

These checks differ only in their cases; judging is the same everywhere.
"""

from __future__ import annotations

from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.session import Session
from pytest_attnaccept.kernel.shapes import boundary_shapes
from pytest_attnaccept.kernel.widths import check_widths
from pytest_attnaccept.measurement import Fact

__all__ = ["check_inputs", "check_long", "check_lse", "check_shapes", "check_value"]

# Large shapes are many and look for gross faults: fewer rows of each are compared.
_LARGE_KEYS = 1200
_LARGE_ROWS = 24


def check_value(session: Session, plan: Planner) -> None:
    """Standardised error on three families at lengths up to 8192."""
    for spec in plan.value():
        session.measure(spec)


def check_inputs(session: Session, plan: Planner) -> None:
    """Families that make each term matter."""
    for spec in plan.inputs():
        session.measure(spec)


def check_lse(session: Session, plan: Planner) -> None:
    """The denominator: lse in its declared base, or the mass through V = 1 and block codes."""
    for spec in plan.mass():
        session.measure(spec)
    if not session.contract.returns_lse:
        session.facts.append(Fact(name="lse", value="not declared: mass measured through V = 1 and block codes"))


def check_shapes(session: Session, plan: Planner) -> None:
    """Pairwise boundary shapes: small batches, q_len 0 to 17, tile, page and window edges, strided views."""
    for spec in boundary_shapes(plan):
        session.measure(spec, _LARGE_ROWS // spec.batch if spec.kv_len > _LARGE_KEYS else None)


def check_long(session: Session, plan: Planner) -> None:
    """Up to the longest length in at most a dozen calls, plus offsets, page ids and row numbers that need more bits."""
    for spec in plan.long():
        session.measure(spec)
    if plan.left_out():
        text = ", ".join(str(plan.contract.variants()[at]) for at in plan.left_out())
        session.facts.append(Fact(name="certified to 16384 keys only", value=text))
    check_widths(session, plan)
