"""What a family declares of its parameters: a profile refuses the same values as the maker, and what is allowed can be made."""

from __future__ import annotations

import re

import pytest

from pytest_attnaccept.errors import ContractError, SchemaError
from pytest_attnaccept.profiles import parse_profile
from pytest_attnaccept.strict_yaml import load_text
from pytest_attnaccept.tasks import Family, Range, families, generate, task_families
from pytest_attnaccept.tasks.ranges import settle

FAMILIES = sorted(task_families())
LARGE = 64  # above it a parameter stays at its default: such a context takes seconds to make
# What goes with the largest of the others at the length that is asked here.
TOGETHER = {
    "graph_walk": {"degree": 2, "depth": 3},
    "multi_value": {"keys": 16, "questions": 16},
    "needle": {"digits": 16},
}


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch):
    """Looking for installed packages costs more than everything else here."""
    monkeypatch.setattr(families, "entry_points", lambda group: [])


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]", text))


def read(family: str, parameters: dict[str, object]):
    inside = "".join(f"        {name}: {value!r}\n" for name, value in parameters.items())
    text = f"schema: 1\nname: mine\nclaim: c\nchecks:\n  long-range:\n    families:\n      {family}:\n{inside}"
    return parse_profile(load_text(text, "p.yaml")).checks["long-range"]["families"][family]["parameters"]


def extreme(family: Family, end: int, most: float = float("inf")) -> dict[str, object]:
    """Every number at its smallest (0) or largest (1), in the order in which bounds follow from one another."""
    chosen: dict[str, object] = {}
    for name, allowed in family.ranges.items():
        chosen[name] = family.defaults[name]
        if isinstance(allowed, Range):
            bound = allowed.bounds(chosen)[end]
            if bound <= most:
                chosen[name] = type(family.defaults[name])(bound)
    return chosen


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_has_a_range_and_its_default_is_in_it(name):
    family = task_families()[name]
    assert set(family.ranges) == set(family.defaults)
    assert settle(name, family.defaults, family.ranges, {}) == dict(family.defaults)
    for parameter, allowed in family.ranges.items():
        assert isinstance(allowed, Range) == isinstance(family.defaults[parameter], (int, float))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_outside_is_refused_by_the_profile_and_by_the_maker(name):
    family = task_families()[name]
    for parameter, allowed in family.ranges.items():
        if isinstance(allowed, Range):
            low, high = allowed.bounds(dict(family.defaults))
            kind = type(family.defaults[parameter])
            wrong = [
                kind(low - 1),
                kind(high + 1),
                -(10**30),
                10**30,
                "many",
                True,
                kind(low) + 0.5 if kind is int else "0.5",
            ]
            wrong = [value for value in wrong if allowed.special is None or value != allowed.special[0]]
        else:
            wrong = ["nothing", 3, True, 0.5]
        for value in wrong:
            with pytest.raises(SchemaError, match=rf"^p\.yaml:8: {name}: {parameter}=.*{_said(allowed)}"):
                read(name, {parameter: value})
            with pytest.raises(ContractError, match=rf"^{name}: {parameter}="):
                generate(name, fit=words, target_tokens=500, seed=0, index=0, **{parameter: value})


def _said(allowed) -> str:
    return r"\.\." if isinstance(allowed, Range) else re.escape(", ".join(allowed))


@pytest.mark.parametrize("end", [0, 1], ids=["smallest", "largest"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_allowed_is_read_and_can_be_made(name, end):
    family = task_families()[name]
    whole = extreme(family, end)
    if whole.get("questions") != 0:
        assert read(name, whole) == whole
    chosen = {**extreme(family, end, LARGE), **(TOGETHER.get(name, {}) if end else {})}
    item = generate(name, fit=words, target_tokens=2500, seed=0, index=0, **chosen)
    assert len(item.questions) >= chosen.get("questions", 1) if name != "text" else item.context


def test_a_graph_that_has_no_answer_ends():
    with pytest.raises(ContractError, match="no node of 50 graphs of 60 nodes has 1 to 6 nodes at that depth"):
        generate("graph_walk", fit=words, target_tokens=5000, seed=0, index=0, depth=2, degree=4, nodes=60)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_name_can_be_asked(name):
    family = task_families()[name]
    for parameter, allowed in family.ranges.items():
        for value in () if isinstance(allowed, Range) else allowed:
            assert read(name, {parameter: value}) == {parameter: value}
            assert generate(name, fit=words, target_tokens=700, seed=0, index=0, **{parameter: value}).context


# -- families of other packages --------------------------------------------------------------------------------------------


def offer(monkeypatch, **fields):
    """Offer one family under the name ``odd``; return how often it was loaded."""
    loaded = []

    class Point:
        name, value = "odd", "package:ODD"

        def load(self):
            loaded.append(1)
            return Family(
                **{
                    "name": "odd",
                    "summary": "s",
                    "make": lambda **_: None,
                    "defaults": {"doors": 4, "rooms": 2, "color": "red"},
                    **fields,
                }
            )

    monkeypatch.setattr(families, "entry_points", lambda group: [Point()])
    return loaded


RANGES = {"doors": Range(low=2, high=5), "rooms": Range(low=1, high="doors"), "color": ("red", "blue")}


def test_a_foreign_family_may_say_what_it_can_ask(monkeypatch):
    offer(monkeypatch, ranges=RANGES)
    assert read("odd", {"doors": 5, "color": "blue"}) == {"doors": 5, "color": "blue"}
    for parameters, message in (
        ({"doors": 6}, r"p\.yaml:8: odd: doors=6 is outside 2\.\.5\. The nearest is 5"),
        ({"doors": 3, "rooms": 4}, r"p\.yaml:9: odd: rooms=4 is outside 1\.\.3 \(doors=3\)"),
        ({"color": "bleu"}, r"p\.yaml:8: odd: color='bleu' is unknown\. Allowed: red, blue\. Did you mean 'blue'"),
        ({"door": 3}, r"p\.yaml:8: unknown parameter of odd 'door'\. Did you mean 'doors'"),
    ):
        with pytest.raises(Exception, match=message):
            read("odd", parameters)


def test_without_ranges_a_foreign_family_is_checked_for_types(monkeypatch):
    offer(monkeypatch)
    assert read("odd", {"doors": -7}) == {"doors": -7}
    with pytest.raises(SchemaError, match=r"p\.yaml:8: odd: doors='7' must be of type int\. Did you mean 7"):
        read("odd", {"doors": "7"})


def test_a_package_is_loaded_only_for_parameters(monkeypatch):
    loaded = offer(monkeypatch, ranges=RANGES)
    assert read("odd", {}) == {}
    assert not loaded
    read("odd", {"doors": 3})
    assert loaded


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranges": None}, "ranges=None must be a mapping"),
        ({"ranges": {"windows": Range(low=1, high=2)}}, "must be a mapping from parameters of"),
        ({"ranges": {"doors": (2, 5)}}, r"ranges\['doors'\]=\(2, 5\) must be a Range"),
        ({"ranges": {"color": "red"}}, r"ranges\['color'\]='red' must be a tuple of names"),
        ({"ranges": {"color": ()}}, "must be a tuple of names"),
        (
            {"ranges": {"doors": Range(low=2, high=lambda before: before["nothing"])}},
            "the range of doors raised KeyError",
        ),
        (
            {"ranges": {"doors": Range(low=5, high=9)}, "defaults": {"doors": 4, "rooms": 2}},
            r"doors=4 \(the default\) is outside",
        ),
        ({"defaults": 3}, "has no mapping of defaults"),
    ],
    ids=range(8),
)
def test_ranges_that_say_nothing_are_refused_with_the_line(monkeypatch, fields, message):
    offer(monkeypatch, **fields)
    with pytest.raises(SchemaError, match=rf"p\.yaml:\d: .*{message}"):
        read("odd", {"rooms": 1})
    with pytest.raises(ContractError, match=message):
        generate("odd", fit=words, target_tokens=100, seed=0, index=0, rooms=1)
