"""The registry: every method of the design is there, names are taken once, knobs are checked."""

import pytest

from pytest_attnaccept.errors import UnknownNameError, UsageError
from pytest_attnaccept.registry import Registry, check_knobs, check_mark_kind
from pytest_attnaccept.taxonomy import Kind, Knob, Layer, Method, Surface

EXACT = (
    *("flash_attention", "mqa", "gqa", "mla", "paged_attention", "copy_on_write", "prefix_cache"),
    *("speculative_decoding", "prompt_lookup", "continuous_batching", "chunked_prefill", "preemption"),
    *("torch_compile", "fused_kernel"),
)
APPROXIMATE = (
    *("sliding_window", "streaming_llm", "h2o", "snapkv", "tova", "pyramidkv", "random_eviction"),
    *("fp8_attention", "kv8", "kv4", "kv2", "w4a16", "w8a8"),
)
ARCHITECTURE = ["linear_attention", "mamba", "checkpoint_conversion"]


@pytest.fixture
def registry() -> Registry:
    return Registry.builtin()


def test_every_method_of_the_design(registry: Registry) -> None:
    kinds = {m.name: m.kind for m in registry}
    expected = {**dict.fromkeys(EXACT, Kind.EXACT), **dict.fromkeys(APPROXIMATE, Kind.APPROXIMATE)}
    assert kinds == {**expected, **dict.fromkeys(ARCHITECTURE, Kind.ARCHITECTURE)}
    assert {registry.get(a).name for a in ("fa1", "fa2", "fa3")} == {"flash_attention"}
    assert all(m.surface is Surface.MODEL for m in registry if m.kind is not Kind.EXACT)
    assert all(m.note and m.layer for m in registry)


def test_every_number_knob_of_a_lossy_method_says_where_it_gets_worse(registry: Registry) -> None:
    for method in registry:
        for knob in method.knobs:
            if set(knob.types) & {int, float} and method.kind is Kind.APPROXIMATE:
                assert knob.worst in ("lower", "higher"), (method.name, knob.name)
            assert knob.doc


def method(name: str, *aliases: str) -> Method:
    return Method(name=name, kind=Kind.EXACT, layer=Layer.KERNEL, surface=Surface.KERNEL, note="", aliases=aliases)


@pytest.mark.parametrize("taken", [method("h2o"), method("fa2"), method("new", "h2o"), method("new", "fa1")], ids=str)
def test_names_are_taken_once(registry: Registry, taken: Method) -> None:
    before = set(registry.names())
    with pytest.raises(UsageError, match="registered twice"):
        registry.method(taken)
    assert set(registry.names()) == before


def test_only_methods_can_be_registered(registry: Registry) -> None:
    with pytest.raises(UsageError, match="must be a pytest_attnaccept.Method"):
        registry.method("h3o")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["h20", "", "H2O", None, 3, ["h2o"]])
def test_unknown_names(registry: Registry, name: object) -> None:
    assert registry.find(name) is None
    with pytest.raises(UnknownNameError, match="here: unknown method"):
        registry.get(name, "here")


@pytest.mark.parametrize(("declared", "kind"), [(d, k) for d in (None, *Kind) for k in Kind])
def test_mark_kinds(declared: Kind | None, kind: Kind) -> None:
    tested = Method(name="x", kind=kind, layer=Layer.KERNEL, surface=Surface.MODEL, note="")
    if declared in (None, kind):
        check_mark_kind(tested, declared, "here")
        return
    with pytest.raises(UsageError, match="rule 3.2|registered as"):
        check_mark_kind(tested, declared, "here")


@pytest.mark.parametrize("budget", [0.25, 1.0, 1, 64, 1e-6])
def test_budgets(registry: Registry, budget: float) -> None:
    assert check_knobs(registry.get("h2o"), {"kv_budget": budget}, "here") == {"kv_budget": budget, "sinks": 4}


@pytest.mark.parametrize(
    "budget", [0, 0.0, -0.1, -3, 1.01, 2.0, float("inf"), float("nan"), True, None, "0.5", [0.5], 0.5j]
)
def test_budgets_that_are_refused(registry: Registry, budget: object) -> None:
    with pytest.raises(UsageError, match="h2o"):
        check_knobs(registry.get("h2o"), {"kv_budget": budget}, "here")


@pytest.mark.parametrize("knobs", [{"sinks": -1}, {"sinks": 1.5}, {"sinks": None}, {"sinks": True}])
def test_counts_that_are_refused(registry: Registry, knobs: dict) -> None:
    with pytest.raises(UsageError, match="sinks"):
        check_knobs(registry.get("h2o"), {"kv_budget": 0.5, **knobs}, "here")


def test_choices_and_bits(registry: Registry) -> None:
    assert check_knobs(registry.get("kv4"), {"axis": "token"}, "here")["bits"] == 4
    with pytest.raises(UsageError, match="must be one of 'token', 'channel'"):
        check_knobs(registry.get("kv4"), {"axis": "row"}, "here")
    with pytest.raises(UsageError, match="method='kv8'"):
        check_knobs(registry.get("kv4"), {"bits": 8}, "here")


def test_defaults_of_a_method_win_over_defaults_of_its_knob() -> None:
    knob = Knob(name="level", types=(int,), doc="d", default=1)
    tested = Method(
        name="x",
        kind=Kind.EXACT,
        layer=Layer.KERNEL,
        surface=Surface.KERNEL,
        note="",
        knobs=(knob,),
        defaults={"level": 7},
    )
    assert check_knobs(tested, {}, "here") == {"level": 7}
