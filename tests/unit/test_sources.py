"""Which project files evidence depends on."""

import importlib.util
import sys
from pathlib import Path

import pytest

from pytest_attnaccept.sources import digests_of, installed_versions, module_files, source_closure


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("--", "_")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def names(root: Path, source: str) -> set[str]:
    return {p.relative_to(root).as_posix() for p in source_closure(root / source, root)}


def test_imports_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    (tmp_path / "src/lib").mkdir(parents=True)
    for name, text in {
        "conftest.py": "import helper\n",
        "helper.py": "",
        "tests/conftest.py": "",
        "tests/test_a.py": "import os, numpy\nfrom lib import kernel\ndef f():\n    import lazy\n",
        "tests/lazy.py": "import not_there\n",
        "tests/unrelated.py": "",
        "tests/conftest_of_nobody.py": "",
        "src/lib/__init__.py": "",
        "src/lib/kernel.py": "from . import tiles\nfrom .deep import thing\n",
        "src/lib/tiles.py": "from lib import kernel\n",
        "src/lib/deep.py": "thing = 1\n",
        "src/lib/unused.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "helper.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names(tmp_path, "tests/test_a.py") == {
        "conftest.py", "helper.py", "tests/conftest.py", "tests/test_a.py", "tests/lazy.py",
        "src/lib/__init__.py", "src/lib/kernel.py", "src/lib/tiles.py", "src/lib/deep.py",
    }  # fmt: skip


def test_files_that_cannot_be_parsed_count_with_their_content(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def broken(:\n")
    (tmp_path / "a.accept.yaml").write_text("schema: 1\n")
    assert names(tmp_path, "test_a.py") == {"test_a.py"}
    assert names(tmp_path, "a.accept.yaml") == {"a.accept.yaml"}


def test_digests_follow_content_and_are_relative(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    first = digests_of([path, tmp_path / "none.py"], tmp_path)
    assert set(first) == {"a.py", "none.py"}
    assert first["none.py"] == "absent"
    path.write_text("x = 22\n")
    assert digests_of([path], tmp_path)["a.py"] != first["a.py"]


def test_versions_of_installed_packages_that_are_imported(tmp_path: Path) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(
        "import os, yaml, numpy.linalg, not_installed_at_all\nfrom hypothesis import given\nfrom . import local\n"
    )
    found = installed_versions([path])
    assert found["numpy"]
    assert found["hypothesis"]
    assert "os" not in found
    assert "not_installed_at_all" not in found


def test_every_import_of_this_file_is_left_out_when_installed() -> None:
    here = Path(__file__)
    found = source_closure(here, here.parent)
    assert here in found
    assert not any("site-packages" in p.parts for p in found)
    assert not any(p.is_relative_to(sys.base_prefix) for p in found)


def test_modules_that_only_text_names_are_found_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "mykv/__init__.py",
        "mykv/accept.py",
        "site-packages/whole/__init__.py",
        "site-packages/whole/deep/code.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit\n", encoding="utf-8")
    (tmp_path / "site-packages/whole/deep/__init__.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    found = module_files(
        ["mykv.accept", "whole.deep", "", "nowhere.at.all", "pytest_attnaccept.methods"], tmp_path / "a.py"
    )
    shown = {p.relative_to(tmp_path).as_posix() for p in found}
    inside = {"__init__.py", "deep/__init__.py", "deep/code.py"}
    assert shown == {"mykv/accept.py", *(f"site-packages/whole/{name}" for name in inside)}
    assert "mykv" not in sys.modules


def test_modules_that_an_import_hook_finds_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an editable install of a flat folder leaves behind: no folder of the path holds the package."""
    package = tmp_path / "elsewhere" / "flat_kv"
    package.mkdir(parents=True)
    for name in ("__init__.py", "cache.py"):
        (package / name).write_text("", encoding="utf-8")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            if name != "flat_kv":
                return None
            place = package / "__init__.py"
            return importlib.util.spec_from_file_location(name, place, submodule_search_locations=[str(package)])

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    (tmp_path / "test_a.py").write_text("def test():\n    from flat_kv.cache import Cache\n", encoding="utf-8")
    assert names(tmp_path, "test_a.py") == {"test_a.py", "elsewhere/flat_kv/__init__.py", "elsewhere/flat_kv/cache.py"}
