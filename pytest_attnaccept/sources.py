"""Which project files a test's evidence depends on: the test file, its conftests, and everything they import.

A record must go stale when the code under test changes, also when that code is not in the test file itself. The import
graph is followed statically (in-function imports too); the standard library, installed packages and this package are left
out, because their versions and digests are part of the evidence anyway.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from pytest_attnaccept.fingerprint import digest_file

__all__ = ["digests_of", "installed_versions", "module_files", "source_closure"]

_INSTALLED = ("site-packages", "dist-packages")


def digests_of(files: Iterable[Path], root: Path) -> dict[str, str]:
    """Return ``{path: digest}``, paths relative to `root` where they lie below it."""
    return {_name(path, root): digest_file(path) for path in files}


def source_closure(source: Path, root: Path, also: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Return `source`, the conftest files that act on it, `also`, and the project files that these import, sorted."""
    folders = [p for p in source.parents if p == root or root in p.parents]
    waiting = [source, *(p / "conftest.py" for p in folders), *also]
    seen: dict[Path, None] = {}
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen[path] = None
        if path.suffix == ".py":
            waiting.extend(_imports(path))
    return tuple(sorted(seen))


def module_files(names: Iterable[str], source: Path) -> tuple[Path, ...]:
    """Return the files of modules that only text names (``Method.applies``, an entry point), which no import shows.

    Of an installed package every file, because its version need not change with its code; nothing is imported.
    """
    found: dict[Path, None] = {}
    for name in names:
        path = _absolute(source, name) if name else None
        if path is None:
            continue
        folder = path.parent
        while (folder.parent / "__init__.py").is_file():
            folder = folder.parent
        whole = not _is_project(path) and (folder / "__init__.py").is_file()
        found.update(dict.fromkeys(sorted(folder.rglob("*.py")) if whole else [path]))
    return tuple(found)


def installed_versions(files: Iterable[Path]) -> dict[str, str]:
    """Return the versions of the installed packages that `files` import: a new kernel library asks for a new measurement."""
    tops = {name.split(".")[0] for path in files if path.suffix == ".py" for name in _absolute_names(path)}
    found = {}
    for top in sorted(tops - sys.stdlib_module_names - {"pytest_attnaccept", "pytest"}):
        version = _installed_version(top)
        if version:
            found[top] = version
    return found


@functools.lru_cache(maxsize=256)
def _installed_version(top: str) -> str:
    try:
        return metadata.version(top.replace("_", "-"))
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _absolute_names(path: Path) -> list[str]:
    stat = path.stat()
    return [n for n, level in _imported_names(str(path), stat.st_size, stat.st_mtime_ns) if not level]


def _name(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.as_posix()


def _imports(path: Path) -> Iterator[Path]:
    stat = path.stat()
    for name, level in _imported_names(str(path), stat.st_size, stat.st_mtime_ns):
        found = _relative(path, name, level) if level else _absolute(path, name)
        if found is not None and _is_project(found):
            yield found


@functools.lru_cache(maxsize=1024)
def _imported_names(path: str, size: int, mtime_ns: int) -> tuple[tuple[str, int], ...]:
    """Return ``(dotted name, level)`` of every import; `size` and `mtime_ns` only key the cache."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return ()
    names: dict[tuple[str, int], None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.update(dict.fromkeys((p, 0) for p in _prefixes(alias.name)))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names.update(dict.fromkeys((p, node.level) for p in _prefixes(base)))
            names.update(dict.fromkeys((f"{base}.{a.name}".lstrip("."), node.level) for a in node.names))
    return tuple(names)


def _prefixes(dotted: str) -> list[str]:
    parts = dotted.split(".") if dotted else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _relative(path: Path, name: str, level: int) -> Path | None:
    folder = path.parents[level - 1] if level <= len(path.parents) else path.parent
    return _module_file(folder, name)


def _absolute(path: Path, name: str) -> Path | None:
    top = name.split(".", 1)[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "pytest_attnaccept":
        return None
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if isinstance(loaded, str) and loaded.endswith((".py", ".so", ".pyd")):
        return Path(loaded)
    for entry in (str(path.parent), *sys.path):
        found = _module_file(Path(entry or "."), name)
        if found is not None:
            return found.resolve()
    return _found_by_hook(name)


def _found_by_hook(name: str) -> Path | None:
    """Return the file of a module that no folder of ``sys.path`` holds (an editable install); only looked for, not imported."""
    top, _, rest = name.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if rest:
        found = (_module_file(Path(folder), rest) for folder in spec.submodule_search_locations or ())
        return next((path for path in found if path is not None), None)
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _module_file(folder: Path, name: str) -> Path | None:
    base = folder.joinpath(*name.split("."))
    candidates = (base / "__init__.py", base.with_name(f"{base.name}.py")) if name else (folder / "__init__.py",)
    return next((p for p in candidates if p.is_file()), None)


def _is_project(path: Path) -> bool:
    if any(part in _INSTALLED for part in path.parts) or Path(__file__).parent in path.parents:
        return False
    return not any(Path(p) in path.parents for p in _library_folders())


@functools.lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib") if k in paths})
