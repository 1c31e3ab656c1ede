"""Imports go one way, and who may import pytest, YAML and the numeric libraries is written down here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "pytest_attnaccept"
ROOT = Path(__file__).parent.parent / PACKAGE

# Lowest first. A module may import from its own layer and from layers before it, also inside functions.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("taxonomy",),
    ("stats",),
    ("measurement", "candidate"),
    ("fingerprint", "sources", "strict_yaml", "options"),
    ("catalog", "registry"),
    ("tasks",),
    ("limits", "profile_checks"),
    ("profiles",),
    ("protocol",),
    ("matrix",),
    ("marks", "rows", "stacking", "suite_logs", "suites", "items", "suite_plan"),
    ("methods",),
    ("engines",),
    ("kernel", "state", "checks"),
    ("records",),
    ("blame", "contrasts", "compounding", "verdict", "verdict_clusters", "verdict_parts", "completeness"),
    ("logs", "log_tables", "log_metrics", "log_pairs", "log_refusals", "compare", "compare_junit"),
    ("controls", "selftest"),
    ("shards",),
    ("kv_layers", "kv_ledger", "budget", "budget_report", "reports"),
    ("session",),
    ("item_run", "model_item"),
    ("accept",),
    ("hookspecs", "glue", "unseen", "item_hooks", "generate", "collect", "ending", "exits", "plugin"),
    ("__main__", "__init__"),
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}

NUMERIC = {"torch", "numpy", "scipy", "transformers", "safetensors", "gguf", "datasets", "lm_eval", "tokenizers"}
NUMERIC_PACKAGES = {"stats", "kernel", "state", "checks", "engines", "methods", "tasks", "controls"}
PYTEST_MODULES = {"plugin", "glue", "unseen", "item_hooks", "ending", "exits", "collect", "hookspecs"}

# (module, imported name): why it is allowed all the same.
ALLOWED = {
    ("options", "torch"): "resolve_device asks torch for cuda, inside the function, when something is measured",
    ("ending", "_pytest"): "the JUnit plugin offers no public way to add a property of the run; guarded by ImportError",
}


@dataclass(frozen=True)
class Import:
    """One import statement."""

    file: Path
    line: int
    name: str
    typing_only: bool
    lazy: bool

    @property
    def module(self) -> str:
        """Top-level module or package of the importing file inside the package."""
        return self.file.relative_to(ROOT).with_suffix("").parts[0]

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT.parent)}:{self.line}"


def _target(module: str, name: str) -> str:
    """Return the module that ``from module import name`` needs: the submodule when `name` is one."""
    if not module.startswith(PACKAGE):
        return module
    folder = ROOT.joinpath(*module.split(".")[1:])
    inside = (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    return f"{module}.{name}" if inside or module == PACKAGE else module


def imports_of(path: Path) -> Iterator[Import]:
    """Yield every import of a file with its place."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def walk(node: ast.AST, typing_only: bool, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(path, child.lineno, alias.name, typing_only, lazy)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                for name in dict.fromkeys(_target(str(child.module), a.name) for a in child.names):
                    yield Import(path, child.lineno, name, typing_only, lazy)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from walk(child, True, lazy)
            else:
                yield from walk(child, typing_only, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    yield from walk(tree, False, False)


FILES = sorted(ROOT.rglob("*.py"))
IMPORTS = [i for f in FILES if "_data" not in f.parts for i in imports_of(f)]


def test_every_module_has_a_layer() -> None:
    modules = {f.relative_to(ROOT).with_suffix("").parts[0] for f in FILES} - {"_data"}
    assert modules == set(LAYER_OF), modules ^ set(LAYER_OF)


def test_imports_go_downwards() -> None:
    wrong = []
    for item in IMPORTS:
        if not item.name.startswith(f"{PACKAGE}.") or item.typing_only:
            continue
        target = item.name.split(".")[1]
        if target not in LAYER_OF:  # a public name of the package itself
            continue
        if LAYER_OF[target] > LAYER_OF[item.module] and (item.module, target) not in ALLOWED:
            wrong.append(f"{item.where}: {item.module} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_no_cycles_between_modules_at_import_time() -> None:
    graph: dict[str, set[str]] = {}
    for item in IMPORTS:
        if item.name.startswith(f"{PACKAGE}.") and not item.typing_only and not item.lazy:
            name = ".".join(item.file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
            graph.setdefault(name, set()).add(item.name)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for target in graph.get(name, ()):
            visit(target, (*path, name))
        done.add(name)

    for name in list(graph):
        visit(name, ())


@pytest.mark.parametrize("library", sorted(NUMERIC))
def test_numeric_libraries_stay_in_numeric_packages(library: str) -> None:
    wrong = [
        f"{i.where}: imports {i.name}"
        for i in IMPORTS
        if i.name.split(".")[0] == library
        and not i.typing_only
        and i.module not in NUMERIC_PACKAGES
        and (i.module, library) not in ALLOWED
    ]
    assert not wrong, "\n".join(wrong)


def test_pytest_is_imported_by_the_plugin_modules_only() -> None:
    wrong = [
        f"{i.where}: imports {i.name}"
        for i in IMPORTS
        if i.name.split(".")[0] in ("pytest", "_pytest", "pluggy", "xdist")
        and not i.typing_only
        and (i.module not in PYTEST_MODULES or i.name.startswith("_pytest"))
        and (i.module, i.name.split(".")[0]) not in ALLOWED
    ]
    assert not wrong, "\n".join(wrong)


def test_yaml_is_imported_by_strict_yaml_only() -> None:
    wrong = [i.where for i in IMPORTS if i.name.split(".")[0] == "yaml" and i.module != "strict_yaml"]
    assert not wrong
    assert all(i.lazy for i in IMPORTS if i.name.split(".")[0] == "yaml")


def test_modules_are_small_and_say_what_they_answer() -> None:
    wrong = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 400:
            wrong.append(f"{path.name}: {text.count(chr(10))} lines (hard stop 400)")
        if text.strip() and not (ast.get_docstring(ast.parse(text)) or "").strip():
            wrong.append(f"{path.name}: no docstring")
    assert not wrong, "\n".join(wrong)


def test_allow_list_is_used() -> None:
    used = {(i.module, i.name.split(".")[0]) for i in IMPORTS} | {(i.module, i.name.split(".")[-1]) for i in IMPORTS}
    assert set(ALLOWED) <= used
