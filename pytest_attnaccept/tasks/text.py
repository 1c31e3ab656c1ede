"""Natural-looking documents whose people come back, for perplexity that depends on the far past (`text`).

Every person has a city, a job, an animal with a color and a favorite food. The first mention is news; a later one can
be predicted only by a model that still holds the first. ``key_spans`` marks the first ones (role "fact") and those later
ones whose sentence has already said whom it is about (role "recall", with the distance to the last earlier mention); the
questions are cloze questions about them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pytest_attnaccept.tasks.filler import TAILS, filler_sentence
from pytest_attnaccept.tasks.fitting import Supply, stretch
from pytest_attnaccept.tasks.items import KeySpan, Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.words import ANIMALS, CITIES, COLORS, FOODS, JOBS, NAMES

__all__ = ["DEFAULTS", "RANGES", "text"]

DEFAULTS: Final[dict[str, Parameter]] = {"people": 4, "questions": 2}
RANGES: Final[dict[str, Allowed]] = {
    "people": Range(low=1, high=len(COLORS)),
    "questions": Range(low=0, high=100),
}
_FOILS = 4
_FILLER_SHARE = 0.25  # share of sentences about nobody, so that people are not mentioned in every sentence
_LISTS: Final[dict[str, tuple[str, ...]]] = {
    "city": CITIES, "job": JOBS, "animal": ANIMALS, "color": COLORS, "food": FOODS,
}  # fmt: skip

# A form is a sentence; words in braces are attributes of one person.
_INTRODUCTIONS = (
    "{name} is a {job} from {city}.",
    "{name} lives in {city} and works as a {job}.",
    "A {job} called {name} came from {city}.",
)
_FORMS = (
    "{name} has a {color} {animal}.",
    "The {animal} of {name} is {color}.",
    "{name} likes {food}.",
    "{name} lives in {city}.",
    "{name} went back to {city} with the {color} {animal}.",
    "Everybody in {city} knows {name} the {job}.",
    "The {job} {name} likes {food} very much.",
    "{name} gave some {food} to the {color} {animal}.",
    "After a long day {name} the {job} went home to {city}.",
    "In {city} there is {food} for {name}.",
)
_CLOZE = (
    ("city", " Where does {name} live?", " {name} lives in"),
    ("food", " What does {name} like?", " {name} likes"),
)


@dataclass(slots=True)
class _Story:
    """The people of one document, and what each sentence said about them."""

    stream: Stream
    people: list[dict[str, str]]
    waiting: list[int]
    seen: list[int] = field(default_factory=list)
    marks: list[list[tuple[int, str, str, bool]]] = field(default_factory=list)

    def sentence(self, number: int) -> str:
        """The next sentence; its attributes are noted in ``marks``: offset, key, word, whether its owner is told."""
        stream = self.stream
        if self.waiting and (not self.seen or stream.unit() < 0.5):
            who = self.waiting.pop()
            self.seen.append(who)
            return self._say(stream.pick(_INTRODUCTIONS), who)
        if number and stream.unit() < _FILLER_SHARE:
            self.marks.append([])
            return filler_sentence("varied", stream)
        return self._say(stream.pick(_FORMS), stream.pick(self.seen))

    def _say(self, form: str, who: int) -> str:
        result, notes, told = "", [], False
        for piece in form.replace("}", "{").split("{"):
            if piece in _LISTS:
                notes.append((len(result), f"{who}.{piece}", self.people[who][piece], told))
            told = told or piece in self.people[who]  # from here on the sentence says whom it is about
            result += self.people[who].get(piece, piece)
        self.marks.append(notes)
        return result


def _spans(sentences: list[str], story: _Story, length: int) -> tuple[KeySpan, ...]:
    """First mentions (fact) and later ones (recall) in the joined document."""
    spans, last, offset = [], dict[str, int](), 0
    for number, sentence in enumerate(sentences):
        # Sentences after the drawn ones are short fillers: they have no marks.
        for position, key, word, told in story.marks[number] if number < len(story.marks) else []:
            if sentence[position : position + len(word)] != word:
                break
            start = offset + position
            known = key in last
            if told or not known:
                spans.append(
                    KeySpan(
                        start=start,
                        end=start + len(word),
                        depth=start / length,
                        role="recall" if known else "fact",
                        distance=start - last[key] if known else 0,
                    )
                )
            last[key] = start
        offset += len(sentence) + 1
    return tuple(spans)


def _questions(story: _Story, context: str, count: int, fit: Callable[[str], int]) -> tuple[Question, ...]:
    """Cloze questions about what the document really said, as many as it allows up to ``count``."""
    stream = story.stream
    result: list[Question] = []
    options = [(who, cloze) for who in range(len(story.people)) for cloze in _CLOZE]
    for who, (key, ask, prefix) in stream.shuffled(options):
        person = story.people[who]
        said = _said(person[key], context)
        if said is None or len(result) == count:
            continue
        foils = stream.sample([word for word in _LISTS[key] if word != person[key]], _FOILS)
        result.append(
            Question(
                text=ask.format(name=person["name"]),
                answer_prefix=prefix.format(name=person["name"]),
                answer=f" {person[key]}",
                foils=tuple(f" {word}" for word in foils),
                max_new_tokens=fit(f" {person[key]}"),
                depth=said.start() / len(context),
            )
        )
    return tuple(result)


def _said(word: str, context: str) -> re.Match[str] | None:
    """Where a word is said for the first time; "tea" is not said by "teacher"."""
    return re.search(rf"\b{word}\b", context)


def _chance(story: _Story, context: str) -> float:
    """A blind guess among the people's own values, as far as the document has come to say them."""
    counts = (sum(_said(who[key], context) is not None for who in story.people) for key, _, _ in _CLOZE)
    return 1.0 / max(1, min(counts))


def text(
    *, fit: Callable[[str], int], target_tokens: int, seed: int, index: int, people: int, questions: int
) -> TaskItem:
    """One document of ``target_tokens`` tokens (questions not included) about ``people`` people."""
    parameters: dict[str, Parameter] = {"target_tokens": target_tokens, "people": people, "questions": questions}
    stream = Stream(seed, "text", parameters, index)
    names = stream.sample(NAMES, people)
    lists = {key: stream.sample(words, people) for key, words in _LISTS.items()}
    cast = [{"name": names[i], **{key: words[i] for key, words in lists.items()}} for i in range(people)]
    story = _Story(stream=stream, people=cast, waiting=list(range(people)))
    supply = Supply(story.sentence, TAILS["varied"], fit)

    def attempt(size: int) -> str:
        return " ".join(sentence for sentence, _ in supply.take(size))

    room = stretch(attempt, [""], fit=fit, target=target_tokens, grain=supply.shortest)
    sentences = [sentence for sentence, _ in supply.take(room)]
    context = " ".join(sentences)
    return make_item(
        task="text",
        context=context,
        questions=_questions(story, context, questions, fit),
        key_spans=_spans(sentences, story, len(context)),
        chance=_chance(story, context),
        parameters=parameters,
    )
