"""Marks and suite cells -> planned items: the one place where a test's checks are decided.

Plain functions without pytest, so that the plan of a run can be computed and tested on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_attnaccept.fingerprint import digest_file, digest_of, digest_tree, package_versions
from pytest_attnaccept.matrix import PlannedItem
from pytest_attnaccept.options import Options
from pytest_attnaccept.profiles import Profile, data_dir
from pytest_attnaccept.protocol import Requirement, StackEntry, required_depth, stack_kind
from pytest_attnaccept.taxonomy import Surface

__all__ = ["ItemSpec", "specs_of_test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSpec:
    """Everything one pytest item needs to run: its requirement, its stack, its limits."""

    planned: PlannedItem
    requirement: Requirement
    stack: tuple[StackEntry, ...]
    surface: Surface
    profile: Profile
    checkpoint: str | None = None
    model: object = None


def specs_of_test(
    *,
    cell: str,
    stack: Sequence[StackEntry],
    surface: Surface,
    profile: Profile,
    options: Options,
    source: Path,
    where: str,
    checkpoint: str | None = None,
    model: object = None,
) -> tuple[ItemSpec, ...]:
    """Return the items that a test needs, in the order of its depth.

    Parameters
    ----------
    source
        File that holds the test or suite; its content is part of the static digest.
    model
        Model column of a suite cell (a spec or a mapping), or None: the fixture ``accept_model`` gives it.
    """
    depth = required_depth(stack, surface, profile, where)
    kind = stack_kind(stack)
    text = " + ".join(e.label for e in stack)
    common = {
        "profile": profile.digest(),
        "stack": text,
        "device": options.device,
        "dtype": options.dtype,
        "seed": options.seed,
        "model": _model_digest(model if model is not None else options.model),
        "checkpoint": _model_digest(checkpoint),
        "source": digest_file(source),
        "versions": dict(package_versions()),
    }
    limits = {name: limit.max for name, limit in profile.limits.items()} if surface is Surface.MODEL else {}
    return tuple(
        ItemSpec(
            planned=PlannedItem(
                cell=cell,
                check=r.check,
                kind=kind.value,
                surface=surface.value,
                methods=tuple(e.method.name for e in stack),
                stack=text,
                reason=r.reason,
                profile=profile.name,
                exists=r.exists,
                params=dict(r.params),
                limits=limits,
                static=digest_of([r.check, dict(r.params), common]),
            ),
            requirement=r,
            stack=tuple(stack),
            surface=surface,
            profile=profile,
            checkpoint=checkpoint,
            model=model,
        )
        for r in depth
    )


def _model_digest(spec: object) -> str:
    """Return the spec and, when it names files on this machine, their content."""
    if spec is None:
        return ""
    text = str(spec.get("spec")) if isinstance(spec, Mapping) else str(spec)
    for folder in (data_dir("models") / text, Path(text).expanduser()):
        if folder.exists() and text:
            return f"{Path(text).name}:{digest_tree(folder)}"
    return str(dict(spec)) if isinstance(spec, Mapping) else text
