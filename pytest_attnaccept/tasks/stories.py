"""Does the model keep up with a changing state? (`stories`: people move, take and drop things)

Only the latest event decides, so old facts must be overwritten and not only found. ``ask``: where somebody is, where he was
before, where a thing is, how many things somebody has, which ones, or whether somebody is somewhere (yes and no in turn).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import MANY, Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import CITIES, NAMES, THINGS

__all__ = ["DEFAULTS", "RANGES", "stories"]

DEFAULTS: Final[dict[str, Parameter]] = {
    "ask": "where", "people": 4, "things": 4, "moves": 0, "questions": 3, "filler": "varied",
}  # fmt: skip
RANGES: Final[dict[str, Allowed]] = {
    "ask": ("where", "before", "thing", "count", "list", "yesno"),
    "people": Range(low=2, high=16),
    "things": Range(low=2, high=16),
    "moves": Range(low=0, high=MANY),
    "questions": Range(low=1, high=lambda p: min(p["people"], p["things"])),
    "filler": FILLERS,
}
_PLACES = CITIES[:8]


@dataclass(slots=True)
class _World:
    """Who is where and has what, and the events so far."""

    stream: Stream
    people: list[str]
    things: list[str]
    at: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    holder: dict[str, str] = field(default_factory=dict)
    lies: dict[str, str] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)

    def move(self, who: str, number: int) -> str:
        here = self.at.get(who, "")
        self.before[who] = here
        self.at[who] = self.stream.pick([place for place in _PLACES if place != here])
        self.latest[who] = number
        return f"{who} went to {self.at[who]}."

    def event(self, number: int) -> str:
        who = self.stream.pick(self.people)
        mine = [thing for thing in self.things if self.holder.get(thing) == who]
        free = [t for t in self.things if t not in self.holder and self.lies.get(t, self.at[who]) == self.at[who]]
        choice = self.stream.unit()
        if mine and choice < 0.2:
            thing = self.stream.pick(mine)
            del self.holder[thing]
            self.lies[thing] = self.at[who]
            self.latest[thing] = number
            return f"{who} dropped the {thing}."
        if free and choice < 0.5:
            thing = self.stream.pick(free)
            self.holder[thing] = who
            self.latest[thing] = number
            return f"{who} took the {thing}."
        return self.move(who, number)

    def place_of(self, thing: str) -> str:
        """Where a thing is: with its holder, else where it was dropped; "" for one that nobody ever took."""
        return self.at[self.holder[thing]] if thing in self.holder else self.lies.get(thing, "")


def _asked(world: _World, ask: str, who: str, number: int, fit: Callable[[str], int]) -> Question:
    """The question about one person (or, for ``thing``, one thing)."""
    places = tuple(f" {place}" for place in _PLACES)
    held = [thing for thing in world.things if world.holder.get(thing) == who]
    yes = number % 2 == 0
    other = world.stream.pick([place for place in _PLACES if place != world.at.get(who)])
    there = world.at.get(who, "") if yes else other
    text, prefix, answer, foils, metric, form = {
        "where": (f" Where is {who}?", f" {who} is in", f" {world.at.get(who)}", places, "exact", "[A-Z][a-z]+"),
        "before": (
            f" Where was {who} before?", f" Before {who} was in", f" {world.before.get(who)}", places, "exact",
            "[A-Z][a-z]+",
        ),
        "thing": (f" Where is the {who}?", f" The {who} is in", f" {world.place_of(who)}", places, "exact",
                  "[A-Z][a-z]+"),
        "count": (
            f" How many things does {who} have?", f" The number of things of {who} is", f" {len(held)}",
            tuple(f" {n}" for n in range(len(world.things) + 1)), "exact", "[0-9]+",
        ),
        "list": (f" What does {who} have?", f" {who} has", " " + ", ".join(held), (), "set_f1", "[a-z]+"),
        "yesno": (f" Is {who} in {there}?", " The answer is", " yes" if yes else " no", (" yes", " no"), "exact",
                  "yes|no"),
    }[ask]  # fmt: skip
    return Question(
        text=text,
        answer_prefix=prefix,
        answer=answer,
        foils=tuple(foil for foil in foils if foil != answer),
        max_new_tokens=fit(answer),
        depth=0.0,
        references=tuple(held) if ask == "list" else (),
        metric=metric,
        form=form,
    )


def _chance(ask: str, people: int, things: int, questions: Sequence[Question]) -> float:
    """A blind guess: one of the places, yes or no, the likeliest count, or as many things as the answer has."""
    if ask == "yesno":
        return 0.5
    if ask == "count":
        # About half of the things (few people) to all of them (many) are held at any time, each by one of the people.
        shares = (0.45 / people, 1.0 / people)
        return max(math.comb(things, k) * p**k * (1 - p) ** (things - k) for p in shares for k in range(things + 1))
    if ask == "list":
        return sum(len(question.expected) for question in questions) / (things * len(questions))
    return 1.0 / len(_PLACES)


def stories(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    ask: str,
    people: int,
    things: int,
    moves: int,
    questions: int,
    filler: str,
) -> TaskItem:
    """One story of as many events as fit (or exactly ``moves`` after everybody's arrival)."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "ask": ask, "people": people, "things": things, "moves": moves,
        "questions": questions, "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "stories", parameters, index)
        world = _World(stream=stream, people=stream.sample(NAMES, people), things=stream.sample(THINGS, things))
        said = [world.move(who, number) for number, who in enumerate(world.people)]
        said += [world.move(who, people + number) for number, who in enumerate(world.people)]
        said += [f"{who} took the {thing}." for who, thing in zip(world.people, world.things, strict=False)]
        for number, (who, thing) in enumerate(zip(world.people, world.things, strict=False)):
            world.holder[thing], world.latest[thing] = who, 2 * people + number
        said += [world.event(len(said) + number) for number in range(units)]
        known = [t for t in world.things if world.place_of(t)]
        subjects = {"thing": known, "list": [w for w in world.people if w in world.holder.values()]}.get(
            ask, world.people
        )
        chosen = stream.sample(subjects, min(questions, len(subjects)))
        if not chosen:  # nobody holds anything: ask for somebody who will have to have taken something again
            world.holder[world.things[0]] = world.people[0]
            said.append(f"{world.people[0]} took the {world.things[0]}.")
            world.latest[world.things[0]] = len(said) - 1
            chosen = [world.people[0]]
        starts = [0]
        for sentence in said:
            starts.append(starts[-1] + len(sentence) + 1)
        places = [world.latest[who] for who in chosen]
        return Draft(
            body=" ".join(said),
            spans=tuple((starts[place], starts[place + 1] - 1) for place in places),
            questions=tuple(_asked(world, ask, who, index + n, fit) for n, who in enumerate(chosen)),
            deciding=tuple(range(len(chosen))),
        )

    grown = grow(
        draft, stream=Stream(seed, "stories filler", parameters, index), fit=fit, target=target_tokens, filler=filler,
        low=moves, high=moves or None,
    )  # fmt: skip
    return make_item(
        task="stories",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=_chance(ask, people, things, grown.questions),
        parameters=parameters,
    )
