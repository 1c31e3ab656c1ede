"""What a failing kernel looks like, and the smallest call that shows it."""

from __future__ import annotations

from pytest_attnaccept.kernel.cases import CaseSpec
from pytest_attnaccept.kernel.contract import KernelContract
from pytest_attnaccept.kernel.plans import Planner
from pytest_attnaccept.kernel.session import Judged, Session

__all__ = ["describe", "shrink", "snippet"]


def describe(session: Session, judged: Judged) -> str:
    """Return the fault family in words."""
    worst = max(judged.stats, key=lambda stat: stat.ratio)
    return worst.where


def shrink(session: Session, plan: Planner) -> Judged:
    """Return the failing output with the fewest keys and rows."""
    return min(session.failures, key=lambda one: one.case.spec.kv_len * one.case.spec.q_len * one.case.spec.batch)


def snippet(contract: KernelContract, spec: CaseSpec) -> str:
    """Return code that repeats one case."""
    fields = {"family": spec.family, "batch": spec.batch, "q_len": spec.q_len, "kv_len": spec.kv_len, "seed": spec.seed}
    if spec.layout != "contiguous":
        fields["layout"] = spec.layout
    if spec.variant:
        fields["variant"] = spec.variant
    if spec.lengths is not None:
        fields["lengths"] = spec.lengths
    keywords = "".join(f", {name}={value!r}" for name, value in contract.keywords)
    return f"from pytest_attnaccept.kernel.run import replay\nreplay(fn, case={fields!r}{keywords})"
