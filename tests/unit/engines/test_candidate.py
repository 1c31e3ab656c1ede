"""The usual mistakes with a `Candidate` are named where they are made."""

import pytest
from transformers import DynamicCache

from pytest_attnaccept import Candidate
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.sides import side_of
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import ContractError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cache": DynamicCache()}, "a DynamicCache object; give a factory"),
        ({"context": 3}, "is a int object; give a callable"),
        ({"kv_footprint": [(1, 2)]}, "one pair per layer"),
        ({"generate_kwargs": ["a"]}, "give a mapping"),
        ({"attn_implementation": print}, "must be a name; register the function first"),
    ],
)
def test_a_wrong_kind_of_value(given: dict, words: str) -> None:
    with pytest.raises(ContractError, match="Candidate") as caught:
        Candidate(**given)
    assert words in str(caught.value)


@pytest.mark.parametrize("made", [None, {}, "dynamic"])
def test_a_factory_that_makes_no_cache(made: object) -> None:
    loaded = load(parse_spec("toy-gqa", "here"), device="cpu", dtype="float32")
    side = side_of("candidate", loaded, Candidate(cache=lambda: made))
    with pytest.raises(ContractError, match="must return a fresh"):
        side.new_cache()
