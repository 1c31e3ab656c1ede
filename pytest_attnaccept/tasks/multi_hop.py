"""Can the model join facts of several documents? (`multi_hop`: person, employer, city, country, ruler)

Every person starts a chain of documents of its own; all chains have the same relations, so the other ones are distractors.
The documents of an asked chain stand in different parts of the context. ``kind="bridge"`` asks for the end of a chain of
``hops`` facts, ``kind="comparison"`` whose employer is older (four documents, two answers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import distinct, maker
from pytest_attnaccept.tasks.words import JOBS, NAMES

__all__ = ["DEFAULTS", "RANGES", "multi_hop"]

DEFAULTS: Final[dict[str, Parameter]] = {"kind": "bridge", "hops": 2, "questions": 2, "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "kind": ("bridge", "comparison"),
    "hops": Range(low=2, high=4),
    "questions": Range(low=1, high=8),
    "filler": FILLERS,
}
# Which link of a chain says what: person -> employer -> city -> country -> ruler.
_LINKS = (
    "{0} works for {1} as a {job}.",
    "{0} was founded in {year} and has its office in {1}.",
    "{0} is a city in {1}.",
    "{0} is a country that is ruled by {1}.",
)
_ASK = {
    2: ("In which city is the employer of {p}?", "The employer of {p} is in the city of"),
    3: ("In which country is the employer of {p}?", "The employer of {p} is in the country of"),
    4: ("Who rules the country of the employer of {p}?", "The country of the employer of {p} is ruled by"),
}
_OLDER = ("Whose employer was founded earlier, that of {p} or that of {q}?", "The older one is the employer of")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """One person and what follows from it."""

    names: tuple[str, ...]  # person, employer, city, ...
    job: str
    year: int

    def document(self, link: int) -> str:
        return _LINKS[link].format(self.names[link], self.names[link + 1], job=self.job, year=self.year)


def _chain(stream: Stream, taken: set[str], links: int, years: list[int]) -> _Chain:
    coined = [distinct(stream, maker("coined"), taken, "multi_hop").capitalize() for _ in range(links + 1)]
    person = f"{stream.pick(NAMES)} {coined[0]}"
    return _Chain(names=(person, *coined[1:]), job=stream.pick(JOBS), year=years.pop())


def _order(stream: Stream, chains: list[_Chain], links: int, asked: int) -> list[tuple[int, int]]:
    """(chain, link) in the order of the context: the documents of an asked chain in different parts of it."""
    placed: list[tuple[float, int, int]] = []
    for c in range(len(chains)):
        parts = stream.shuffled(range(links))
        for link in range(links):
            depth = (parts[link] + stream.unit()) / links if c < asked else stream.unit()
            placed.append((depth, c, link))
    return [(c, link) for _, c, link in sorted(placed)]


def _question(
    kind: str, chains: list[_Chain], number: int, hops: int, fit: Callable[[str], int], stream: Stream
) -> Question:
    chain = chains[number]
    foils: tuple[str, ...]
    if kind == "comparison":
        other = chains[number + 1]
        first, second = stream.shuffled([chain, other])
        right, wrong = (chain, other) if chain.year < other.year else (other, chain)
        ask, begin = _OLDER
        answer, foils = f" {right.names[0]}", (f" {wrong.names[0]}",)
        people = {"p": first.names[0], "q": second.names[0]}
    else:
        ask, begin = _ASK[hops]
        answer, people = f" {chain.names[hops]}", {"p": chain.names[0]}
        foils = tuple(f" {c.names[hops]}" for c in chains if c is not chain)[:7]
    return Question(
        text=" " + ask.format(**people),
        answer_prefix=" " + begin.format(**people),
        answer=answer,
        foils=foils,
        max_new_tokens=fit(answer),
        depth=0.0,
        metric="exact",
        form="[A-Z][a-z]+ [A-Z][a-z]+" if kind == "comparison" else "[A-Z][a-z]+",
    )


def multi_hop(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    kind: str,
    hops: int,
    questions: int,
    filler: str,
) -> TaskItem:
    """One context of as many chains of documents as fit, ``questions`` of which are asked."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "kind": kind, "hops": hops, "questions": questions, "filler": filler,
    }  # fmt: skip
    links = 2 if kind == "comparison" else hops
    needed = questions * 2 if kind == "comparison" else max(2, questions)

    def draft(units: int) -> Draft:
        stream = Stream(seed, "multi_hop", parameters, index)
        years = stream.shuffled(range(1000, 1000 + max(900, 2 * units)))
        taken: set[str] = set()
        chains = [_chain(stream, taken, links, years) for _ in range(units)]
        asked = range(0, needed, 2) if kind == "comparison" else range(questions)
        pieces: list[str] = []
        where: dict[tuple[int, int], tuple[int, int]] = {}
        length = 0
        for number, (c, link) in enumerate(_order(stream, chains, links, needed), start=1):
            head = f"Document {number}: "
            text = head + chains[c].document(link)
            where[c, link] = (length + len(head), length + len(text))
            pieces.append(text)
            length += len(text) + 1
        keys = [(c, link) for c in range(needed) for link in range(links)]
        return Draft(
            body=" ".join(pieces),
            spans=tuple(where[key] for key in keys),
            questions=tuple(_question(kind, chains, number, hops, fit, stream) for number in asked),
            deciding=tuple(min(range(c * links, (c + 1) * links), key=lambda i: where[keys[i]]) for c in asked),
        )

    grown = grow(
        draft, stream=Stream(seed, "multi_hop filler", parameters, index), fit=fit, target=target_tokens,
        filler=filler, low=needed,
    )  # fmt: skip
    return make_item(
        task="multi_hop",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=0.5 if kind == "comparison" else 1.0 / grown.units,
        parameters=parameters,
    )
