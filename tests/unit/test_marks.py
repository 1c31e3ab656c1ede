"""Marks -> stack, surface and limits, without pytest."""

from types import SimpleNamespace

import pytest

from pytest_attnaccept.errors import UnknownNameError, UsageError
from pytest_attnaccept.marks import brings_no_candidate, declared, surface_in_source
from pytest_attnaccept.registry import Registry
from pytest_attnaccept.taxonomy import Surface


def mark(name: str, *args: object, **kwargs: object) -> SimpleNamespace:
    return SimpleNamespace(name=name, args=args, kwargs=kwargs)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.builtin()


def read(registry: Registry, *marks: SimpleNamespace, wants_accept: bool = True):
    return declared(marks, registry, wants_accept=wants_accept, where="t.py::test_x")


def test_closest_first_in_outermost_first_out(registry: Registry) -> None:
    found = read(
        registry,
        mark("approximate", method="h2o", kv_budget=0.1),
        mark("optimization", method="kv8"),
        mark("approximate", method="h2o", kv_budget=0.9),
    )
    assert found is not None
    assert [(e.method.name, e.knobs.get("kv_budget")) for e in found.stack] == [("kv8", None), ("h2o", 0.1)]


def test_an_alias_is_the_same_method(registry: Registry) -> None:
    found = read(registry, mark("exact", method="fa2"), mark("exact", method="flash_attention"))
    assert found is not None
    assert [e.method.name for e in found.stack] == ["flash_attention"]


def test_closest_surface_limits_and_checkpoint_win(registry: Registry) -> None:
    near = {"needle": {"max": 0.02, "origin": "policy: near"}}
    far = {"needle": {"max": 0.9, "origin": "policy: far"}, "kl": {"max": 0.1, "origin": "policy: far"}}
    found = read(
        registry,
        mark("approximate", method="kv4", limits=near),
        mark("approximate", method="kv8", limits=far, surface="model", checkpoint="x"),
    )
    assert found is not None
    assert (found.limits["needle"].max, set(found.limits)) == (0.02, {"needle"})
    assert (found.surface, found.checkpoint) == (Surface.MODEL, "x")


@pytest.mark.parametrize(
    "foreign",
    [
        mark("exact"),
        mark("exact", "text"),
        mark("exact", method="simpson"),
        mark("exact", method=None),
        mark("other", method="h2o"),
    ],
    ids=str,
)
def test_foreign_marks(registry: Registry, foreign: SimpleNamespace) -> None:
    assert read(registry, foreign, wants_accept=False) is None


def test_a_foreign_mark_on_a_test_that_takes_accept_is_a_mistake(registry: Registry) -> None:
    with pytest.raises(UnknownNameError):
        read(registry, mark("exact", method="simpson"))
    with pytest.raises(UsageError, match="carries no mark"):
        read(registry, mark("other", method="h2o"))


@pytest.mark.parametrize("value", ["kernel", "model", None])
def test_surfaces(registry: Registry, value: str | None) -> None:
    found = read(registry, mark("exact", method="gqa", surface=value))
    assert found is not None
    assert found.surface == (None if value is None else Surface(value))


@pytest.mark.parametrize("value", ["Kernel", "", 3, Surface, "engine"])
def test_surfaces_that_are_refused(registry: Registry, value: object) -> None:
    with pytest.raises(UnknownNameError, match="unknown surface"):
        read(registry, mark("exact", method="gqa", surface=value))


@pytest.mark.parametrize(
    "limits",
    [
        3,
        [],
        "needle",
        {"needle": 0.1},
        {"needle": None},
        {"needle": {"max": True, "origin": "policy: x"}},
        {"needle": {"max": 0.0, "origin": "policy: x"}},
        {"needle": {"max": 0.1, "origin": "policy: x", "min": 0}},
        {3: {}},
    ],
    ids=str,
)
def test_limits_that_are_refused(registry: Registry, limits: object) -> None:
    with pytest.raises(UsageError):
        read(registry, mark("approximate", method="kv4", limits=limits))


def plain_kernel(accept):
    accept.kernel(lambda call: call)


def two_surfaces(accept):
    if accept.check == "x":
        accept.kernel(None)
    accept.model()


def aliased(accept):
    gate = accept
    gate.model()


def decoy(accept):
    other = SimpleNamespace(kernel=print)
    other.kernel("accept.cache()")
    accept.model()


def nested(accept):
    def inner():
        return accept.prefix_cache(object)

    inner()


@pytest.mark.parametrize(
    ("function", "surface"),
    [
        (plain_kernel, Surface.KERNEL),
        (two_surfaces, None),
        (aliased, None),
        (decoy, Surface.MODEL),
        (nested, Surface.PREFIX_CACHE),
        (len, None),
        (eval("lambda accept: accept.model()"), None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_surface_in_source(function: object, surface: Surface | None) -> None:
    assert surface_in_source(function) is surface  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("marks", "applied"),
    [
        ([("w4a16", "q")], []),
        ([("kv4", None), ("w4a16", "q")], ["kv4"]),
        ([("w4a16", None), ("checkpoint_conversion", "c")], ["w4a16"]),
        ([("kv8", "c")], ["kv8"]),
        ([("w8a8", None), ("w8a8", "q")], []),
    ],
    ids=str,
)
def test_weights_that_a_checkpoint_carries_are_not_quantized_again(registry: Registry, marks, applied) -> None:
    given = [
        mark("optimization", method=name, **({} if checkpoint is None else {"checkpoint": checkpoint}))
        for name, checkpoint in marks
    ]
    found = read(registry, *given)
    assert found is not None
    assert found.checkpoint is not None
    assert sorted(e.method.name for e in found.stack if e.checkpoint is None) == applied
    assert {e.checkpoint for e in found.stack} <= {None, found.checkpoint}


def own(accept):
    accept.model(candidate=object)


def own_by_position(accept):
    accept.model(object)


def own_somewhere(accept):
    accept.model() if accept.check == "identity" else accept.model(candidate=object)


def own_in_keywords(accept, **sides):
    accept.model(**sides)


def baseline_only(accept, model):
    accept.model(baseline=model)


@pytest.mark.parametrize(
    ("function", "applied"),
    [
        (decoy, True), (baseline_only, True), (own, False), (own_by_position, False), (own_somewhere, False),
        (own_in_keywords, False), (aliased, False), (plain_kernel, False), (len, False),
    ],
)  # fmt: skip
def test_brings_no_candidate(function: object, applied: bool) -> None:
    assert brings_no_candidate(function) is applied  # type: ignore[arg-type]
