"""Can the model follow a chain of references? (`variable_tracking`: who works with whom, and so where)

Each chain starts with a city and hands it on by name, link by link, in order but interleaved with the other chains. The
question is about its last member; the answer names every member on the way and then the city ("Carol works with" ->
" Bob. Bob works with Alice. Alice works in Paris"), so each link is looked up once and every one of them is needed. The
early link looks useless until then, which is what scores by past attention get wrong. Foils are the ends of the other
chains: who guesses among them is right once in ``chains``. ``ask="any"`` asks about members anywhere in their chains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import ENGLISH_FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import CITIES, NAMES

__all__ = ["DEFAULTS", "RANGES", "variable_tracking"]

DEFAULTS: Final[dict[str, Parameter]] = {"chains": 4, "hops": 2, "questions": 4, "ask": "last", "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "chains": Range(low=2, high=len(CITIES)),
    # Every member of every chain has a name of its own.
    "hops": Range(low=0, high=lambda p: len(NAMES) // p["chains"] - 1),
    "ask": ("last", "any"),
    "questions": Range(low=1, high=lambda p: p["chains"] * (1 if p["ask"] == "last" else p["hops"] + 1)),
    "filler": ENGLISH_FILLERS,
}


def _trail(chain: list[str], city: str, link: int) -> str:
    """What follows "NAME works with" (or "in") for the given member, down to the city."""
    names = [f" {name}. {name} works {'with' if number else 'in'}" for number, name in enumerate(chain[:link])]
    return "".join(reversed(names)) + f" {city}"


def variable_tracking(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    chains: int,
    hops: int,
    questions: int,
    ask: str,
    filler: str,
) -> TaskItem:
    """One context with ``chains`` chains of ``hops`` references each, of which ``questions`` are asked."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "chains": chains, "hops": hops, "questions": questions, "ask": ask,
        "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "variable_tracking", parameters, index)
    cities = stream.sample(CITIES, chains)
    names = stream.sample(NAMES, chains * (hops + 1))
    members = [names[c * (hops + 1) : (c + 1) * (hops + 1)] for c in range(chains)]
    facts: list[Fact] = []
    for city, chain in zip(cities, members, strict=True):
        # Links of a chain stay in order (a reader resolves each at once); chains are interleaved by their depths.
        depths = [(link + stream.unit()) / (hops + 1) for link in range(hops + 1)]
        facts.append(Fact(text=f"{chain[0]} works in {city}.", depth=depths[0]))
        facts += [
            Fact(text=f"{chain[link]} works with {chain[link - 1]}.", depth=depths[link]) for link in range(1, hops + 1)
        ]
    links = [hops] if ask == "last" else range(hops + 1)
    links = [hops] if ask == "last" else range(hops + 1)
    asked = stream.sample([(c, link) for c in range(chains) for link in links], questions)
    texts = [f" Where does {members[c][link]} work?" for c, link in asked]
    prefixes = [f" {members[c][link]} works {'with' if link else 'in'}" for c, link in asked]
    trails = [[_trail(members[c], cities[c], link) for c in range(chains)] for _, link in asked]
    answers = [trail[c] for trail, (c, _) in zip(trails, asked, strict=True)]
    endings = [text + prefix + answer for text, prefix, answer in zip(texts, prefixes, answers, strict=True)]
    layout = compose(facts, endings, stream=stream, fit=fit, target=target_tokens, filler=filler)
    result = tuple(
        Question(
            text=text,
            answer_prefix=prefix,
            answer=answer,
            foils=tuple(other for other in trail if other != answer),
            max_new_tokens=fit(answer),
            depth=layout.spans[c * (hops + 1)].depth,
        )
        for text, prefix, answer, trail, (c, _) in zip(texts, prefixes, answers, trails, asked, strict=True)
    )
    chance = 1.0 / chains
    return make_item(
        task="variable_tracking",
        context=layout.context,
        questions=result,
        key_spans=layout.spans,
        chance=chance,
        parameters=parameters,
    )
