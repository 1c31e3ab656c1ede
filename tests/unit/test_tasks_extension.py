"""The family of docs/adding-a-task.md works as it stands there, also through an entry point."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pytest_attnaccept import profile_checks
from pytest_attnaccept.errors import ContractError, UnknownNameError
from pytest_attnaccept.profiles import parse_profile
from pytest_attnaccept.strict_yaml import load_text
from pytest_attnaccept.tasks import families, generate, task_families

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-task.md").read_text(encoding="utf-8")


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]", text))


@pytest.fixture
def doors(tmp_path, monkeypatch):
    """Write the example as a module and offer it through an entry point."""
    code = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
    (tmp_path / "mytasks_of_docs.py").write_text(re.sub(r"^   ", "", code, flags=re.M), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint(name="doors", value="mytasks_of_docs:DOORS", group=families.GROUP),
        EntryPoint(name="function", value="mytasks_of_docs:doors", group=families.GROUP),
    ]
    for module in (families, profile_checks):
        monkeypatch.setattr(module, "entry_points", lambda group: points if group == families.GROUP else [])
    return "doors"


def test_the_example_is_a_family_like_any_other(doors):
    for index in range(20):
        item = generate(doors, fit=words, target_tokens=200, seed=0, index=index, doors=3)
        (question,) = item.questions
        assert re.findall(r"Door 1 is (\w+)\.", item.context) == [question.answer.strip()]
        assert 196 <= words(item.context + question.prompt + question.answer) <= 200
        assert item == generate(doors, fit=words, target_tokens=200, seed=0, index=index, doors=3)
    with pytest.raises(UnknownNameError, match="parameter of doors"):
        generate(doors, fit=words, target_tokens=200, seed=0, index=0, door=3)


def test_a_profile_may_name_it(doors):
    text = "schema: 1\nname: mine\nclaim: c\nchecks: {long-range: {families: [doors]}}\n"
    assert parse_profile(load_text(text, "p.yaml")).checks["long-range"]["families"]["doors"]["family"] == "doors"


def test_names_that_nobody_offers_and_things_that_are_no_family_are_refused(doors):
    with pytest.raises(UnknownNameError, match="Did you mean 'doors'"):
        generate("door", fit=words, target_tokens=200, seed=0, index=0)
    with pytest.raises(ContractError, match="is a function, not a Family"):
        generate("function", fit=words, target_tokens=200, seed=0, index=0)


def test_the_page_lists_every_family():
    listed = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("## Which families") : PAGE.index("## What is scored")]))
    assert set(task_families()) <= listed
