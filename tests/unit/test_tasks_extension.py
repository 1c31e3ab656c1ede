"""The family of docs/adding-a-task.md works as it stands there, also through an entry point."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pytest_attnaccept.errors import ContractError, UnknownNameError
from pytest_attnaccept.profiles import parse_profile
from pytest_attnaccept.strict_yaml import load_text
from pytest_attnaccept.tasks import Family, Question, TaskItem, families, generate, task_families
from pytest_attnaccept.tasks.items import KeySpan, make_item

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
    monkeypatch.setattr(families, "entry_points", lambda group: points if group == families.GROUP else [])
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


# -- families that return nonsense: each of these would let an item pass, so each is an error with its reason -------------

QUESTION = Question(
    text=" Which color has the door?", answer_prefix=" The door is", answer=" red", foils=(" blue",), max_new_tokens=1, depth=0.1,
    form="[a-z]+",
)  # fmt: skip


def item_of(**changes) -> TaskItem:
    fields = {
        "task": "odd", "context": "The door is red. It rains.", "questions": (QUESTION,), "chance": 0.1, "parameters": {},
        "key_spans": (KeySpan(start=0, end=16, depth=0.0),),
    }  # fmt: skip
    return make_item(**{**fields, **changes})


def asking(**changes) -> TaskItem:
    return item_of(questions=(replace(QUESTION, **changes),))


COUNT = itertools.count()
ODD = {
    "nothing": (lambda: None, "returned a NoneType, not a TaskItem"),
    "a dict": (lambda: {"context": "x"}, "returned a dict"),
    "no context": (lambda: item_of(context=" "), "the context is empty"),
    "no question": (lambda: item_of(questions=()), "there is no question"),
    "a text for a question": (lambda: replace(item_of(), questions=("Which?",)), "something else among the questions"),
    "no parameters": (lambda: replace(item_of(), parameters=None), "parameters=None must be a mapping"),
    "one digest for all": (lambda: replace(item_of(), digest="0" * 64), "the digest is not that of the item"),
    "a span outside": (lambda: item_of(key_spans=(KeySpan(start=0, end=99, depth=0.0),)), "is not in the context"),
    "a span from its end to its start": (lambda: item_of(key_spans=(KeySpan(start=9, end=4, depth=0.0),)), "is not in the context"),
    "a span of a space": (lambda: item_of(key_spans=(KeySpan(start=3, end=4, depth=0.0),)), "holds spaces only"),
    "certain": (lambda: item_of(chance=1.0), r"chance=1.0 must be in \[0, 1\)"),
    "no number of chance": (lambda: item_of(chance=float("nan")), "chance=nan must be in"),
    "less than no chance": (lambda: item_of(chance=-0.5), "chance=-0.5 must be in"),
    "no answer": (lambda: asking(answer=" "), "a question, its answer or a reference is empty"),
    "an empty reference": (lambda: asking(references=("red", "")), "a question, its answer or a reference is empty"),
    "beyond the end": (lambda: asking(depth=7.0), "depth=7.0 must be in"),
    "no token": (lambda: asking(max_new_tokens=0), "max_new_tokens=0 at least 1"),
    "a broken form": (lambda: asking(form="["), "is no regular expression"),
    "an answer without its form": (lambda: asking(metric="exact", form=r"\d+"), "scores 0 by exact"),
    "another reference": (lambda: asking(references=("green",)), "the answer ' red' scores 0 by contains"),
    "the answer as a foil": (lambda: asking(foils=(" blue", " red")), "as right as the answer"),
    "an answer that is given away": (lambda: asking(text=" Is the door red?"), "stands in its question"),
    "too long": (lambda: item_of(context="The door is red. " + "It rains. " * 100), "tokens, 50 were asked for"),
    "random": (lambda: item_of(context=f"The door is red. {next(COUNT)}"), "two different items"),
    "broken": (lambda: 1 / 0, "raised ZeroDivisionError: division by zero"),
}  # fmt: skip


def offer(monkeypatch, *offered: object) -> None:
    class Point:
        name = "odd"

        def __init__(self, thing: object, number: int) -> None:
            self.thing, self.value = thing, f"package{number}:ODD"

        def load(self) -> object:
            if isinstance(self.thing, Exception):
                raise self.thing
            return self.thing

    points = [Point(thing, number) for number, thing in enumerate(offered)]
    monkeypatch.setattr(families, "entry_points", lambda group: points)


def made(make) -> Family:
    return Family(name="odd", summary="s", defaults={}, make=lambda **_: make())


@pytest.mark.parametrize(("make", "message"), ODD.values(), ids=ODD)
def test_items_that_cannot_be_trusted_are_refused(monkeypatch, make, message):
    offer(monkeypatch, made(make))
    with pytest.raises(ContractError, match=message):
        generate("odd", fit=words, target_tokens=50, seed=0, index=0)
    offer(monkeypatch, made(item_of))
    assert generate("odd", fit=words, target_tokens=50, seed=0, index=0) == item_of()


def test_a_question_may_name_all_of_its_choices(monkeypatch):
    choices = replace(QUESTION, text=" Is the door red, blue, green or white?", foils=(" blue", " green", " white"))
    offer(monkeypatch, made(lambda: item_of(chance=0.25, questions=(choices,))))
    assert generate("odd", fit=words, target_tokens=50, seed=0, index=0).chance == 0.25
    offer(monkeypatch, made(lambda: item_of(chance=0.2, questions=(choices,))))
    with pytest.raises(
        ContractError, match=r"a guess among the answers named there scores 0\.25, more than chance=0\.2"
    ):
        generate("odd", fit=words, target_tokens=50, seed=0, index=0)


def test_a_question_may_name_both_of_two_answers(monkeypatch):
    offer(
        monkeypatch, made(lambda: item_of(chance=0.5, questions=(replace(QUESTION, text=" Is the door red or blue?"),)))
    )
    assert generate("odd", fit=words, target_tokens=50, seed=0, index=0).chance == 0.5


def test_modules_that_cannot_be_loaded_and_names_that_two_packages_offer(monkeypatch):
    offer(monkeypatch, ImportError("no module named mytasks"))
    with pytest.raises(ContractError, match=r"package0:ODD cannot be loaded: ImportError: no module named mytasks"):
        generate("odd", fit=words, target_tokens=50, seed=0, index=0)
    offer(monkeypatch, made(item_of), made(item_of))
    with pytest.raises(ContractError, match="offered more than once: package0:ODD, package1:ODD"):
        generate("odd", fit=words, target_tokens=50, seed=0, index=0)
    offer(monkeypatch, Family(name="odd", summary="s", defaults=None, make=item_of))
    with pytest.raises(ContractError, match="has no mapping of defaults"):
        generate("odd", fit=words, target_tokens=50, seed=0, index=0, doors=3)


def test_the_page_lists_every_family():
    listed = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("## Which families") : PAGE.index("## What is scored")]))
    assert set(task_families()) <= listed
