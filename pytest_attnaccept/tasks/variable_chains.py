"""Can the model gather everything that leads to one value? (`variable_chains`: assignments, forwards and shuffled)

``VAR ABCDE = 12345`` starts a chain, ``VAR FGHIJ = ABCDE`` hands it on. The question names the value and asks for every
variable that holds it, in the order of the chain. Early links look useless until the last one is read. Decoys are single
variables with values of their own. ``order="shuffled"`` puts links anywhere, so that a chain cannot be resolved while it
is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.tasks.filler import ENGLISH_FILLERS
from pytest_attnaccept.tasks.fitting import Fact, compose
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker

__all__ = ["DEFAULTS", "RANGES", "variable_chains"]

DEFAULTS: Final[dict[str, Parameter]] = {
    "chains": 2, "hops": 3, "decoys": 4, "order": "ordered", "questions": 1, "filler": "varied",
}  # fmt: skip
RANGES: Final[dict[str, Allowed]] = {
    "chains": Range(low=1, high=4),
    "hops": Range(low=1, high=8),
    # Beside a single chain a decoy is needed, else every variable is an answer.
    "decoys": Range(low=lambda p: 1 if p["chains"] == 1 else 0, high=10_000),
    "order": ("ordered", "shuffled"),
    "questions": Range(low=1, high="chains"),
    "filler": ENGLISH_FILLERS,
}


def variable_chains(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    chains: int,
    hops: int,
    decoys: int,
    order: str,
    questions: int,
    filler: str,
) -> TaskItem:
    """One context with ``chains`` chains of ``hops`` hand-overs each, of which ``questions`` are asked."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "chains": chains, "hops": hops, "decoys": decoys, "order": order,
        "questions": questions, "filler": filler,
    }  # fmt: skip
    stream = Stream(seed, "variable_chains", parameters, index)
    taken: set[str] = set()
    letters, number = maker("letters5"), maker("digits5")
    members = [[distinct(stream, letters, taken, "variable_chains") for _ in range(hops + 1)] for _ in range(chains)]
    values = [distinct(stream, number, taken, "variable_chains") for _ in range(chains + decoys)]
    facts: list[Fact] = []
    for chain, value in zip(members, values, strict=False):
        depths = [(i + stream.unit()) / (hops + 1) for i in range(hops + 1)]
        depths = depths if order == "ordered" else stream.shuffled(depths)
        texts = [f"VAR {a} = {b}." for a, b in zip(chain, [value, *chain], strict=False)]
        facts += [Fact(text=text, depth=depth) for text, depth in zip(texts, depths, strict=True)]
    links = len(facts)
    for value in values[chains:]:
        name = distinct(stream, letters, taken, "variable_chains")
        facts.append(Fact(text=f"VAR {name} = {value}.", depth=stream.unit()))
    asked = stream.sample(range(chains), questions)
    texts = [f" Which variables have the value {values[c]}?" for c in asked]
    prefixes = [f" The variables with the value {values[c]} are" for c in asked]
    answers = [" " + ", ".join(chain) for chain in members]
    endings = [t + p + answers[c] for t, p, c in zip(texts, prefixes, asked, strict=True)]
    layout = compose(facts, endings, stream=stream, fit=fit, target=target_tokens, filler=filler)
    return make_item(
        task="variable_chains",
        context=layout.context,
        questions=tuple(
            Question(
                text=text,
                answer_prefix=prefix,
                answer=answers[c],
                foils=tuple(other for other in answers if other != answers[c]),
                max_new_tokens=fit(answers[c]),
                depth=min(span.depth for span in layout.spans[c * (hops + 1) : (c + 1) * (hops + 1)]),
                references=tuple(members[c]),
                metric="set_f1",
                form=FORMS["letters5"],
            )
            for text, prefix, c in zip(texts, prefixes, asked, strict=True)
        ),
        key_spans=layout.spans[:links],
        chance=(hops + 1) / (chains * (hops + 1) + decoys),
        parameters=parameters,
    )
