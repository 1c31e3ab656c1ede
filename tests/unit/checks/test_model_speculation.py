"""Speculation over lossy stacks: equal tokens pass, refusals are not measured, a wrong rollback fails."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from pytest_attnaccept.checks import model_speculation
from pytest_attnaccept.checks.model_session import open_session
from pytest_attnaccept.checks.rollback import CodedLayer, make_croppable
from pytest_attnaccept.errors import CandidateError, EngineError
from pytest_attnaccept.measurement import Measured
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
SMALL = {"documents": 3, "new_tokens": 24}


def stack(*members: tuple[str, dict[str, object]]) -> list[tuple[Any, dict[str, object]]]:
    return [(REGISTRY.get(n), check_knobs(REGISTRY.get(n), k, "here")) for n, k in members]


LOOKUP = ("prompt_lookup", {})


def measured(*members: tuple[str, dict[str, object]], model: str = "toy-gqa", candidate: object = None) -> Measured:
    session = open_session(baseline=model, candidate=candidate, stack=stack(*members))
    return session.measure("speculation", SMALL)


def verdict(found: Measured) -> Verdict:
    return decide(found, {}).verdict


@pytest.mark.parametrize(
    "members",
    [
        [("kv8", {}), LOOKUP],
        [("w4a16", {}), ("kv4", {}), LOOKUP],
        [("kv2", {}), ("speculative_decoding", {})],
        [("kv8", {}), ("speculative_decoding", {})],
        [("w4a16", {}), ("speculative_decoding", {})],
    ],
    ids=lambda m: "+".join(n for n, _ in m),
)
def test_equal_tokens_pass_and_acceptance_is_reported(members: list[tuple[str, dict[str, object]]]) -> None:
    found = measured(*members)
    assert verdict(found) is Verdict.PASS
    facts = {f.name: f.value for f in found.facts}
    assert float(facts["candidate_acceptance_length"]) > 1
    assert int(facts["candidate_drafted"]) > 0
    assert {"baseline_acceptance_length", "candidate_drafts_accepted"} <= set(facts)


def test_a_latent_cache_takes_part() -> None:
    assert verdict(measured(("kv4", {}), LOOKUP, model="toy-mla")) is Verdict.PASS


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("h2o", {"kv_budget": 0.5}), LOOKUP], "evicted entries cannot be rolled back"),
        ([("kv4", {"residual": 32}), LOOKUP], "full-precision tail"),
        ([("kv4", {"axis": "channel"}), LOOKUP], "scales across tokens"),
    ],
)
def test_what_cannot_be_rolled_back_is_not_measured(members: list[tuple[str, dict[str, object]]], reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        measured(*members)


def test_a_recurrent_state_is_not_measured() -> None:
    with pytest.raises(EngineError, match="the plain baseline refuses speculation"):
        measured(("w4a16", {}), LOOKUP, model="toy-mamba")


class Keeps(DynamicCache):
    """A cache that says it can be rolled back and keeps the rejected tokens but one."""

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(min(0, tokens_to_remove + 1))


class Refuses(DynamicCache):
    is_croppable = False


def other_cache(cache: type[DynamicCache]) -> Any:
    from pytest_attnaccept import Candidate

    return Candidate(cache=lambda: cache())


def test_a_rollback_that_leaves_tokens_behind_fails() -> None:
    found = measured(("kv8", {}), LOOKUP, candidate=other_cache(Keeps))
    assert verdict(found) is Verdict.FAIL
    assert found.gates[0].value > 1  # type: ignore[union-attr]


def test_a_coded_layer_that_crops_one_token_too_few_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CodedLayer.crop
    monkeypatch.setattr(CodedLayer, "crop", lambda self, n: right(self, min(0, n + 1)))
    assert verdict(measured(("kv4", {}), LOOKUP)) is Verdict.FAIL


def test_a_cache_that_refuses_is_not_measured() -> None:
    with pytest.raises(EngineError, match="refuses speculation"):
        measured(("kv8", {}), LOOKUP, candidate=other_cache(Refuses))


def test_a_cache_that_breaks_is_the_candidates_failure() -> None:
    class Breaks(DynamicCache):
        def crop(self, tokens_to_remove: int) -> None:
            raise RuntimeError("no")

    with pytest.raises(CandidateError, match="raised with drafts"):
        measured(("kv8", {}), LOOKUP, candidate=other_cache(Breaks))


def test_nothing_drafted_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator as Lookup

    monkeypatch.setattr(Lookup, "get_candidates", lambda self, ids, **more: (ids, None))
    found = measured(("kv8", {}), LOOKUP)
    assert verdict(found) is Verdict.INVALID
    assert "no token was ever drafted" in found.refusals[0].reason


@pytest.mark.parametrize("removed", [-3, -1, 0, 5])
def test_cropping_leaves_the_cache_in_which_the_tokens_never_were(removed: int) -> None:
    from pytest_attnaccept.methods.stack import apply_stack

    session = open_session(baseline="toy-gqa", stack=stack(("kv4", {})))
    made = apply_stack(session.baseline.model, stack(("kv4", {}))).candidate
    assert made.cache is not None
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((1, 2, 12, 32), generator=generator)
    cropped, never = (make_croppable(made.cache()).layers[0] for _ in range(2))
    cropped.update(states, states)
    cropped.crop(removed)
    keep = 12 + removed if removed <= 0 else removed
    never.update(states[:, :, :keep], states[:, :, :keep])
    assert cropped.get_seq_length() == never.get_seq_length() == keep
    more = torch.randn((1, 2, 4, 32), generator=generator)
    for ours, theirs in zip(cropped.update(more, more), never.update(more, more), strict=True):
        assert torch.equal(ours, theirs)


def test_more_than_there_is_cannot_be_taken_back() -> None:
    from pytest_attnaccept.methods.stack import apply_stack

    session = open_session(baseline="toy-gqa", stack=stack(("kv4", {})))
    made = apply_stack(session.baseline.model, stack(("kv4", {}))).candidate
    assert made.cache is not None
    layer = make_croppable(made.cache()).layers[0]
    layer.update(torch.randn(1, 2, 4, 32), torch.randn(1, 2, 4, 32))
    with pytest.raises(EngineError, match="cannot be taken back"):
        layer.crop(-5)


def test_the_draft_model_reads_the_compressed_view_too(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(baseline="toy-gqa", stack=stack(("kv2", {}), ("speculative_decoding", {})))
    draft = model_speculation._draft_model(session)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(20, 200, (1, 60), generator=generator) for _ in range(3)]

    def rejected() -> int:
        made = [model_speculation._generate(session.candidate, prompt, 24, 4, draft) for prompt in prompts]
        return sum(d.offered - d.accepted for d in made)

    shared = rejected()
    assert "generate" not in vars(draft)
    monkeypatch.setattr(model_speculation, "_on_the_view_of", lambda side, model: model.generate)
    full = rejected()
    # equal weights on an equal view propose what the target takes; at the end of a text a draft may be cut short
    assert shared <= len(prompts) < full


def test_a_draft_on_an_evicted_view_is_refused_like_its_target() -> None:
    with pytest.raises(EngineError, match="evicted entries cannot be rolled back"):
        measured(("streaming_llm", {"kv_budget": 0.5}), ("speculative_decoding", {}))
