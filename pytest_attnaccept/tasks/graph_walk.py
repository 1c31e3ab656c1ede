"""Can the model walk a graph that is given as a list of edges? (`graph_walk`: a layer of nodes, or the parents of one)

``ask="layer"`` wants every node whose shortest path from the root has exactly ``depth`` edges, ``ask="parents"`` every node
with an edge to the given one. Needs several hops and then all of what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream
from pytest_attnaccept.tasks.values import FORMS, distinct, maker

__all__ = ["DEFAULTS", "RANGES", "graph_walk"]

DEFAULTS: Final[dict[str, Parameter]] = {"ask": "layer", "depth": 2, "degree": 2, "nodes": 0, "filler": "varied"}
_MOST, _LONGEST = 500, 6  # nodes; length of an answer
# Graphs that are drawn until one has an answer. Measured: with 2 edges each, up to 3 steps, every graph has one; two steps over
# 3 edges find one up to 120 nodes, four steps over 2 up to 250 (one graph in six), and above that hardly ever.
_TRIES = 50
RANGES: Final[dict[str, Allowed]] = {
    "ask": ("layer", "parents"),
    "depth": Range(low=1, high=4),
    "degree": Range(low=1, high=4),
    "nodes": Range(low=lambda p: _smallest(p["degree"]), high=_MOST, special=(0, "as many as fit")),
    "filler": FILLERS,
}
_HEAD = "The edges of a directed graph:"


def _smallest(degree: int) -> int:
    """Fewest nodes of a graph whose nodes have ``degree`` edges each, so that not everything is near."""
    return 4 * degree + 2


def _layer(edges: list[tuple[int, int]], root: int, depth: int) -> list[int]:
    seen, layer = {root}, [root]
    for _ in range(depth):
        inside = set(layer)
        found = [b for a, b in edges if a in inside and b not in seen]
        layer = list(dict.fromkeys(found))
        seen |= set(layer)
    return layer


def _wanted(stream: Stream, edges: list[tuple[int, int]], nodes: int, ask: str, depth: int) -> tuple[int, list[int]]:
    """A node and its answer, which is neither empty nor longer than six; the edges allow one by construction."""
    for node in stream.shuffled(range(nodes)):
        found = _layer(edges, node, depth) if ask == "layer" else [a for a, b in edges if b == node]
        if 1 <= len(found) <= _LONGEST:
            return node, found
    return -1, []


def graph_walk(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    ask: str,
    depth: int,
    degree: int,
    nodes: int,
    filler: str,
) -> TaskItem:
    """One graph of as many nodes as fit (or exactly ``nodes``), each with ``degree`` edges to others."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "ask": ask, "depth": depth, "degree": degree, "nodes": nodes, "filler": filler,
    }  # fmt: skip

    def draft(units: int) -> Draft:
        stream = Stream(seed, "graph_walk", parameters, index)
        taken: set[str] = set()
        names = [distinct(stream, maker("letters5"), taken, "graph_walk") for _ in range(units)]
        for _ in range(_TRIES):
            edges = [(a, b) for a in range(units) for b in stream.sample([n for n in range(units) if n != a], degree)]
            edges = stream.shuffled(edges)
            node, found = _wanted(stream, edges, units, ask, depth)
            if found:
                break
        else:
            raise ContractError(
                f"graph_walk: depth={depth}, degree={degree}: no node of {_TRIES} graphs of {units} nodes has 1 to {_LONGEST}"
                " nodes at that depth. Use a smaller depth or degree, or another number of nodes."
            )
        body, spans = _HEAD, []
        for a, b in edges:
            text = f"{names[a]} to {names[b]},"
            if (a == node and ask == "layer") or (b == node and ask == "parents"):
                spans.append((len(body) + 1, len(body) + len(text)))
            body += " " + text
        answer = " " + ", ".join(names[n] for n in found)
        steps = f"exactly {depth} step{'s' if depth > 1 else ''}"
        text, prefix = (
            (f" Which nodes are {steps} from {names[node]}?", f" The nodes {steps} from {names[node]} are")
            if ask == "layer"
            else (f" Which nodes have an edge to {names[node]}?", f" The nodes with an edge to {names[node]} are")
        )
        question = Question(
            text=text, answer_prefix=prefix, answer=answer, foils=(), max_new_tokens=fit(answer), depth=0.0,
            references=tuple(names[n] for n in found), metric="set_f1", form=FORMS["letters5"],
        )  # fmt: skip
        return Draft(body=body[:-1] + ".", spans=tuple(spans), questions=(question,), deciding=(0,))

    grown = grow(
        draft, stream=Stream(seed, "graph_walk filler", parameters, index), fit=fit, target=target_tokens,
        filler=filler, low=nodes or _smallest(degree), high=nodes or _MOST,
    )  # fmt: skip
    size = len(grown.questions[0].references)
    return make_item(
        task="graph_walk",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=size / (grown.units - 1),
        parameters=parameters,
    )
