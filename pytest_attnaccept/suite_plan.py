"""A suite file -> its plan, without pytest: what ``python -m pytest_attnaccept plan`` prints."""

from __future__ import annotations

from pathlib import Path

from pytest_attnaccept.items import specs_of_test
from pytest_attnaccept.matrix import Plan
from pytest_attnaccept.options import Options
from pytest_attnaccept.profiles import Profile, load_profile
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.suites import load_suite
from pytest_attnaccept.taxonomy import Surface

__all__ = ["plan_of_suite"]


def plan_of_suite(path: Path, profile_name: str | None) -> tuple[Plan, Profile]:
    """Return the plan of a suite and the profile it was made under."""
    suite = load_suite(path, Registry.builtin())
    chosen = profile_name or suite.profile or "smoke"
    profile = load_profile(chosen, "--profile").with_overrides(
        limits=suite.limits, data=suite.data, max_tokens=suite.max_tokens
    )
    options = Options(
        profile=chosen,
        explicit=True,
        model=None,
        device="auto",
        dtype=None,
        seed=0,
        out=Path(".attnaccept"),
        plan_only=True,
        time_s=None,
        selftest=False,
        resume=False,
        html=None,
    )
    items = [
        spec.planned
        for cell in suite.cells
        for spec in specs_of_test(
            cell=f"{path.name}::{cell.name}",
            stack=cell.stack,
            surface=Surface.MODEL,
            profile=profile,
            options=options,
            source=path,
            where=f"{path.name}:{cell.line}",
            model=cell.model,
            checkpoint=cell.checkpoint,
        )
    ]
    return Plan(items=tuple(items), profile=profile.name, claim=profile.claim), profile
