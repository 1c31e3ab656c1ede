"""Cells of one lossy stack share what their texts and contexts gave; nothing else is ever shared."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pytest_attnaccept import Candidate
from pytest_attnaccept.checks.model_session import ModelSession, open_session
from pytest_attnaccept.checks.stack_memo import shared_key, stack_memo
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.methods.stack import apply_stack
from pytest_attnaccept.registry import Registry, check_knobs

REGISTRY = Registry.builtin()
CHECKS: tuple[tuple[str, dict[str, object]], ...] = (
    ("perplexity", {"documents": 3, "tokens": 96}),
    ("divergence", {"documents": 3, "tokens": 96}),
    ("needle-1x", {"contexts": 3, "tokens": 160, "questions_per_context": 2}),
    ("long-range-kv_recall", {"contexts": 3, "tokens": 160}),
)


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    stack_memo.clear()
    yield
    stack_memo.clear()


def stack(*members: str, **knobs: object) -> list[tuple[Any, dict[str, object]]]:
    return [(REGISTRY.get(n), check_knobs(REGISTRY.get(n), knobs if n == members[0] else {}, "here")) for n in members]


def opened(*members: str, seed: int = 0, model: object = "toy-gqa", **knobs: object) -> ModelSession:
    return open_session(baseline=model, stack=stack(*members, **knobs), seed=seed)


def measure_counting(session: ModelSession) -> tuple[list[Measured], int]:
    """Measure everything; return it and how often a cache of the candidate was made."""
    made = 0
    factory = session.candidate.around.cache
    assert factory is not None

    def counted() -> Any:
        nonlocal made
        made += 1
        return factory()

    object.__setattr__(session.candidate.around, "cache", counted)
    return [session.measure(check, params) for check, params in CHECKS], made


def test_a_cell_with_drafts_reads_what_the_stack_gave() -> None:
    first, cost = measure_counting(opened("kv4"))
    second, again = measure_counting(opened("kv4", "prompt_lookup"))
    assert [m.gates for m in first] == [m.gates for m in second]
    assert [m.details.get("losses") for m in first] == [m.details.get("losses") for m in second]
    assert cost == 3  # a batch of texts, of needle contexts, of key-value contexts
    assert again == 0


@pytest.mark.parametrize(
    ("other", "more"),
    [
        (("kv2",), {}),
        (("kv4",), {"seed": 1}),
        (("kv4",), {"residual": 8}),
        (("kv4",), {"model": "toy-mha"}),
        (("kv4", "w8a8"), {}),
    ],
)
def test_another_stack_seed_or_model_reads_nothing(other: tuple[str, ...], more: dict[str, Any]) -> None:
    _, cost = measure_counting(opened("kv4"))
    _, again = measure_counting(opened(*other, **more))
    assert again >= cost


def test_a_candidate_of_the_users_own_is_never_served_and_never_serves() -> None:
    base = load(parse_spec("toy-gqa"))
    made = apply_stack(base.model, stack("kv4")).candidate
    own = open_session(baseline=base, candidate=lambda: made, stack=stack("kv4"))
    assert shared_key(own, own.candidate) is None
    _, cost = measure_counting(own)
    opened_after = opened("kv4")
    _, after = measure_counting(opened_after)
    assert after == 3
    own = open_session(baseline=base, candidate=Candidate(base.model, cache=made.cache), stack=stack("kv4"))
    _, again = measure_counting(own)
    assert again == cost


def test_other_sides_of_a_session_have_no_key() -> None:
    session = opened("h2o", kv_budget=0.5)
    assert shared_key(session, session.candidate) is not None
    assert shared_key(session, session.baseline) is None
    assert session.identity is not None
    assert shared_key(session, session.identity) is None
    side = session.at_budget(0.25, 160)
    assert side is not None
    assert shared_key(session, side) is None


def test_nothing_of_a_stack_goes_to_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNACCEPT_BASELINES", str(tmp_path))
    stack_memo.put(("stack",), torch.zeros(2))
    assert stack_memo.get(("stack",)) is not None
    assert not list(tmp_path.iterdir())
