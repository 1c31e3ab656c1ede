"""What a record is bound to: digests of files, versions and settings that are known before an item runs.

The static digest of a planned item and the fingerprint of a record are whitelists of causal fields: clock speeds, host
names and paths are left out, because a record must stay valid on an equal machine and go stale on a different one.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["accelerators", "candidate_digest", "digest_file", "digest_of", "is_bound_to_source", "package_versions"]

# lm-eval holds the prompts and filters of its tasks, datasets what is read for them.
_PACKAGES = ("pytest-attnaccept", "torch", "transformers", "kvpress", "numpy", "scipy", "lm-eval", "datasets")


def digest_of(value: object) -> str:
    """Return a short hash of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=256)
def _digest_file(path: str, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]


def digest_file(path: Path) -> str:
    """Return the hash of a file's content, or "absent"."""
    try:
        stat = path.stat()
    except OSError:
        return "absent"
    return _digest_file(str(path), stat.st_size, stat.st_mtime_ns)


def digest_tree(path: Path) -> str:
    """Return one hash for every file of a model folder (names and contents)."""
    if path.is_file():
        return digest_file(path)
    files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    return digest_of([[p.relative_to(path).as_posix(), digest_file(p)] for p in files])


@functools.lru_cache(maxsize=1)
def package_versions() -> Mapping[str, str]:
    """Return installed versions of the packages that can change a measurement, without importing them."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    versions["code"] = _own_code()
    return versions


def _own_code() -> str:
    """Return a digest of this package's sources: a development install keeps its version while its code changes."""
    folder = Path(__file__).parent
    return digest_of([[p.relative_to(folder).as_posix(), digest_file(p)] for p in sorted(folder.rglob("*.py"))])


def accelerators() -> list[str]:
    """Return the models of the accelerators of this machine, read without importing torch; empty: a CPU.

    Another accelerator asks for a new measurement, whatever "auto" resolves to there.
    """
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model")]
    return found


def is_bound_to_source(candidate: Any) -> bool:
    """Whether a change of `candidate` shows in its digest: not for a compiled function, which only has a name."""
    return "." not in candidate_digest(candidate)


def candidate_digest(candidate: Any) -> str:
    """Return a digest of where a candidate function or factory is defined: its source file, or its module's version."""
    target: Callable[..., Any] | None = candidate if callable(candidate) else None
    if target is None:
        return ""
    try:
        file = inspect.getsourcefile(inspect.unwrap(getattr(target, "func", target)))
    except TypeError:
        file = None
    if file is not None:
        return digest_file(Path(file))
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', type(target).__name__)}"
