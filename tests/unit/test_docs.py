"""What the pages say is true: links lead somewhere, examples are read, the commands of the planning model print what stands there."""

import ast
import itertools
import re
import shlex
from pathlib import Path

import pytest
import yaml

from pytest_attnaccept.__main__ import main
from pytest_attnaccept.profiles import load_profile, parse_profile
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.strict_yaml import load_text
from pytest_attnaccept.suites import load_suite

torch = pytest.importorskip("torch", reason="one page holds a cache, which needs torch")
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language, with the indentation of a list taken off."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.M | re.S)
    return ["\n".join(line.removeprefix(indent) for line in text.splitlines()) + "\n" for indent, text in found]


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_python_can_be_read(page):
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_yaml_can_be_read(page):
    for text in blocks(page, "yaml"):
        assert yaml.safe_load(text)


def yaml_files() -> list[tuple[str, str]]:
    """Return the YAML blocks whose first line names the file, with that name."""
    found = itertools.chain.from_iterable(blocks(page, "yaml") for page in PAGES)
    named = [(text.splitlines()[0].removeprefix("# ").strip(), text) for text in found if text.startswith("# ")]
    return [(Path(name).name, text) for name, text in named]


def test_suites_and_profiles_are_valid(tmp_path):
    seen = set()
    for name, text in yaml_files():
        if name.endswith(".accept.yaml"):
            (tmp_path / name).write_text(text, encoding="utf-8")
            assert load_suite(tmp_path / name, Registry.builtin()).cells
            seen.add(name)
    assert seen >= {"release.accept.yaml", "too-small-budget.accept.yaml"}


def test_the_profile_of_the_task_page_is_valid_but_for_the_family_that_it_adds():
    text = dict(yaml_files())["doors.profile.yaml"].replace("doors: {doors: 4}", "needle: {}")
    assert parse_profile(load_text(text, "p.yaml")).name == "doors"


def test_the_profile_of_the_benchmark_page_is_complete(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "mine.profile.yaml").write_text(dict(yaml_files())["mine.profile.yaml"], encoding="utf-8")
    found = load_profile(str(tmp_path / "mine.profile.yaml"))
    assert set(found.limits) == set(found.checks) - {"footprint"}


TRANSCRIPTS = re.findall(
    r"^\$ python -m pytest_attnaccept (budget .*)\n((?:(?!^```|^\$ ).*\n)+)",
    (ROOT / "docs/budget.md").read_text(encoding="utf-8"),
    re.M,
)


@pytest.mark.parametrize(("command", "printed"), TRANSCRIPTS, ids=[c for c, _ in TRANSCRIPTS])
def test_budget_prints_what_the_page_says(command, printed, capsys):
    status = main(shlex.split(command))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        line.rstrip() for line in printed.splitlines()
    ]
    assert status == ("--claim" in command)


def test_there_are_transcripts():
    assert len(TRANSCRIPTS) >= 4


def test_the_cache_of_the_quick_start_stores_codes_and_reads_them_back():
    source = next(text for text in blocks(ROOT / "docs/quickstart.md", "python") if text.startswith("# kv8cache.py"))
    names: dict[str, object] = {}
    exec(compile(source, "kv8cache.py", "exec"), names)  # the page's own example
    cache = names["MyKV8Cache"]()
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(1, 2, n, 32, generator=generator) for n in (5, 1, 7)]
    for part in parts:
        keys, values = cache.update(part, -part, 0)
    exact = torch.cat(parts, dim=-2)
    assert cache.get_seq_length() == 13
    assert {codes.dtype for codes, _ in cache.layers[0].codes} == {torch.int8}
    step = exact.abs().amax(-1, keepdim=True) / 127
    assert bool(((keys - exact).abs() <= step * 0.501).all())
    assert bool((values == -keys).all())
    assert not torch.equal(keys, exact)
