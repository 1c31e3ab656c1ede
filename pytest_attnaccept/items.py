"""Marks and suite cells -> planned items: the one place where a test's checks are decided.

Plain functions without pytest, so that the plan of a run can be computed and tested on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_attnaccept.errors import AttnAcceptError
from pytest_attnaccept.fingerprint import accelerators, digest_of, digest_tree, package_versions
from pytest_attnaccept.limits import Limit
from pytest_attnaccept.matrix import PlannedItem
from pytest_attnaccept.options import Options
from pytest_attnaccept.profile_checks import foreign_modules
from pytest_attnaccept.profiles import Profile, data_dir, load_profile
from pytest_attnaccept.protocol import Requirement, StackEntry, required_depth, stack_kind
from pytest_attnaccept.sources import digests_of, installed_versions, module_files, source_closure
from pytest_attnaccept.taxonomy import Surface

__all__ = ["ItemSpec", "restated", "spec_of_logs", "specs_of_test"]


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
    root: Path | None = None,
    base: Profile | None = None,
    checkpoint: str | None = None,
    model: object = None,
) -> tuple[ItemSpec, ...]:
    """Return the items that a test needs, in the order of its depth.

    Parameters
    ----------
    source
        File that holds the test or suite; its content, and that of what it imports, is part of the static digest.
    root
        Root folder of the project (default: the folder of `source`).
    base
        The profile before the test's own limits (default: `profile`).
    model
        Model column of a suite cell (a spec or a mapping), or None: the fixture ``accept_model`` gives it.
    """
    depth = required_depth(stack, surface, profile, where)
    kind = stack_kind(stack)
    text = " + ".join(e.label for e in stack)
    top = root if root is not None else source.parent
    # What applies a method, and families of other packages, are named by text: no import of the project leads there.
    named = [
        *(e.method.applies.partition(":")[0] for e in stack),
        *foreign_modules(profile.checks.get("long-range", {})),
    ]
    sources = source_closure(source, top, module_files(named, source))
    context = {
        "profile": profile.digest(),
        "base": (base or profile).digest(),
        "stack": text,
        "members": [[e.member, e.method.kind.value] for e in stack],
        "device": options.device,
        "accelerators": accelerators(),
        "dtype": options.dtype,
        "seed": options.seed,
        "suite_model": dict(model) if isinstance(model, Mapping) else model,
        "model": _model_digest(model if model is not None else options.model),
        "checkpoint_spec": checkpoint,
        "checkpoint": _model_digest(checkpoint),
        "files": digests_of([*sources, *map(Path, _data_files(profile))], top),
        "versions": {**installed_versions(sources), **package_versions()},
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
                static=_static(r.check, r.params, context),
                context=context,
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


def spec_of_logs(
    *, cell: str, stack: Sequence[StackEntry], files: Sequence[Path], profile: Profile, limit: Limit, root: Path
) -> tuple[ItemSpec, ...]:
    """Return the items of a cell that compares recorded logs; the logs' content is part of the static digest."""
    context = {"base": profile.digest(), "files": digests_of(files, root), "versions": dict(package_versions())}
    limited = profile.with_overrides(limits={"samples": limit})
    return tuple(
        ItemSpec(
            planned=PlannedItem(
                cell=cell,
                check=needed.check,
                kind=stack_kind(stack).value,
                surface=Surface.LOGS.value,
                methods=tuple(e.method.name for e in stack),
                stack=" + ".join(e.label for e in stack),
                reason=needed.reason,
                profile=profile.name,
                exists=needed.exists,
                limits={"samples": limit.max},
                static=_static(needed.check, {}, context),
                context=context,
            ),
            requirement=needed,
            stack=tuple(stack),
            surface=Surface.LOGS,
            profile=limited,
        )
        for needed in required_depth(stack, Surface.LOGS, profile, cell)
    )


def restated(item: PlannedItem, options: Options, profile: Profile, root: Path) -> PlannedItem:
    """Return `item`, planned by an earlier run, with the static digest that it has today.

    A run that collects only a part (``--lf``) must notice that the other part's files, options or profile have changed
    since: otherwise the old plan would agree with the old records for ever.
    """
    then = item.context
    files = then.get("files")
    names = list(files) if isinstance(files, Mapping) else []
    suite_model = then.get("suite_model")
    context = {
        **then,
        "base": _base_digest(item.profile, profile),
        "device": options.device,
        "accelerators": accelerators(),
        "dtype": options.dtype,
        "seed": options.seed,
        "model": _model_digest(suite_model if suite_model is not None else options.model),
        "checkpoint": _model_digest(then.get("checkpoint_spec")),
        "files": digests_of([root / n for n in names], root),
        "versions": {**installed_versions(p for n in names if (p := root / n).is_file()), **package_versions()},
    }
    return replace(item, context=context, static=_static(item.check, item.params, context))


def _static(check: str, params: Mapping[str, object], context: Mapping[str, object]) -> str:
    return digest_of([check, dict(params), context])


def _base_digest(name: str, session: Profile) -> str:
    """Return today's digest of the profile that an item was planned under ("" when it cannot be read any more)."""
    if name == session.name:
        return session.digest()
    try:
        return load_profile(name).digest()
    except AttnAcceptError:
        return ""


def _data_files(profile: Profile) -> list[str]:
    return [path for path in profile.data.values() if path != "builtin"]


def _model_digest(spec: object) -> str:
    """Return the spec and, when it names files on this machine, their content."""
    if spec is None:
        return ""
    text = str(spec.get("spec")) if isinstance(spec, Mapping) else str(spec)
    for folder in (data_dir("models") / text, Path(text).expanduser()):
        if folder.exists() and text:
            return f"{Path(text).name}:{digest_tree(folder)}"
    return str(dict(spec)) if isinstance(spec, Mapping) else text
