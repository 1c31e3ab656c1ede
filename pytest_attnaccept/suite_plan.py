"""A suite file -> its plan, without pytest: what ``python -m pytest_attnaccept plan`` prints."""

from __future__ import annotations

from pathlib import Path

from pytest_attnaccept.errors import UnknownNameError, UsageError
from pytest_attnaccept.items import spec_of_logs, specs_of_test
from pytest_attnaccept.matrix import Plan
from pytest_attnaccept.options import Options
from pytest_attnaccept.profiles import Profile, load_profile
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.suites import Suite, load_suite
from pytest_attnaccept.taxonomy import Surface

__all__ = ["plan_of_suite"]


def plan_of_suite(path: Path, profile_name: str | None) -> tuple[Plan, Profile]:
    """Return the plan of a suite and the profile it was made under."""
    suite = _load(path)
    chosen = profile_name or suite.profile or "smoke"
    profile = load_profile(chosen, "--profile").with_overrides(
        limits=suite.limits, data=suite.data, max_tokens=suite.max_tokens
    )
    options = _options(chosen)
    file, root = _seen_from_here(path)
    items = [
        spec.planned
        for cell in suite.cells
        for spec in specs_of_test(
            cell=f"{file}::{cell.name}",
            stack=cell.stack,
            surface=Surface.MODEL,
            profile=profile,
            options=options,
            source=path,
            root=root,
            where=f"{path.name}:{cell.line}",
            model=cell.model,
            checkpoint=cell.checkpoint,
        )
    ]
    for logs in suite.logs:
        files = (path, logs.baseline, logs.candidate)
        found = spec_of_logs(
            cell=f"{file}::{logs.name}", stack=logs.stack, files=files, profile=profile, limit=logs.limit, root=root
        )
        items += [spec.planned for spec in found]
    return Plan(items=tuple(items), profile=profile.name, claim=profile.claim), profile


def _load(path: Path) -> Suite:
    try:
        return load_suite(path, Registry.builtin())
    except UnknownNameError as error:
        if "unknown method " not in str(error):
            raise
        hint = f"A method that a conftest.py registers is known to pytest alone: pytest {path} --accept-plan"
        raise UsageError(f"{error} {hint}") from error


def _options(profile: str) -> Options:
    """Return the options of a run that names the profile and nothing else."""
    return Options(
        profile=profile,
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


def _seen_from_here(path: Path) -> tuple[str, Path]:
    """Return the file's name in ids and the folder that it counts from: as pytest would show it, run in this folder."""
    here, file = Path.cwd().resolve(), path.resolve()
    if file.is_relative_to(here):
        return file.relative_to(here).as_posix(), here
    return path.name, file.parent
