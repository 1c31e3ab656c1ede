"""Can the model work through nested operations? (`listops`: smallest, largest, median, sum modulo ten)

Every bracket is a token of its own; the expression grows with the length (up to 1000 values) and its value is balanced
over the ten digits, so that no digit is a good guess. Small models need examples (``shots``) and may not discriminate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pytest_attnaccept.tasks.filler import FILLERS
from pytest_attnaccept.tasks.growing import Draft, grow
from pytest_attnaccept.tasks.items import Parameter, Question, TaskItem, make_item
from pytest_attnaccept.tasks.ranges import Allowed, Range
from pytest_attnaccept.tasks.stream import Stream

__all__ = ["DEFAULTS", "OPERATIONS", "RANGES", "listops", "value_of"]

DEFAULTS: Final[dict[str, Parameter]] = {"depth": 4, "arguments": 5, "values": 0, "shots": 3, "filler": "varied"}
RANGES: Final[dict[str, Allowed]] = {
    "depth": Range(low=1, high=10),
    "arguments": Range(low=2, high=10),
    "values": Range(low=2, high=lambda p: _most(p["arguments"], p["depth"]), special=(0, "as many as fit")),
    "shots": Range(low=0, high=20),
    "filler": FILLERS,
}
_TRIES = 40  # draws before the value is set by force; by then every digit that can come has come
_RULE = "MIN is the smallest, MAX the largest, MED the median without its fraction, SM the last digit of the sum."
Node = int | tuple[str, list["Node"]]


def _most(arguments: int, depth: int) -> int:
    """Most values of an expression."""
    most: int = min(1000, arguments**depth)
    return most


def _median(values: Sequence[int]) -> int:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


OPERATIONS: Final[dict[str, Callable[[Sequence[int]], int]]] = {
    "MIN": min, "MAX": max, "MED": _median, "SM": lambda values: sum(values) % 10,
}  # fmt: skip


def value_of(node: Node) -> int:
    """Value of an expression."""
    return node if isinstance(node, int) else OPERATIONS[node[0]]([value_of(part) for part in node[1]])


def _text(node: Node) -> str:
    return str(node) if isinstance(node, int) else f"( {node[0]} {' '.join(_text(part) for part in node[1])} )"


def _tree(stream: Stream, leaves: int, depth: int, arguments: int) -> Node:
    """A random expression of ``leaves`` digits, at most ``depth`` operations deep."""
    if leaves == 1:
        return stream.below(10)
    most = arguments ** (depth - 1)
    count = max(2 + stream.below(min(arguments, leaves) - 1), -(-leaves // most))
    shares = [1] * count
    for _ in range(leaves - count):
        place = stream.below(count)
        while shares[place] >= most:
            place = (place + 1) % count
        shares[place] += 1
    operation = stream.pick(tuple(OPERATIONS))
    return operation, [_tree(stream, share, depth - 1, arguments) for share in shares]


def _wanted(stream: Stream, leaves: int, depth: int, arguments: int, wanted: int) -> Node:
    """A random expression whose value is ``wanted``."""
    for _ in range(_TRIES):
        tree = _tree(stream, leaves, depth, arguments)
        if value_of(tree) == wanted:
            return tree
    parts: list[Node] = [tree]
    return "SM", [*parts, (wanted - value_of(tree)) % 10]


def listops(
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    depth: int,
    arguments: int,
    values: int,
    shots: int,
    filler: str,
) -> TaskItem:
    """One expression of as many values as fit (or exactly ``values``), after ``shots`` short examples."""
    parameters: dict[str, Parameter] = {
        "target_tokens": target_tokens, "depth": depth, "arguments": arguments, "values": values, "shots": shots,
        "filler": filler,
    }  # fmt: skip
    # One class after another, each seed from another one on: balanced over any ten neighbours.
    wanted = (index + Stream(seed, "listops class", {}, 0).below(10)) % 10

    def draft(units: int) -> Draft:
        stream = Stream(seed, "listops", parameters, index)
        examples = [_tree(stream, 2 + stream.below(arguments - 1), 1, arguments) for _ in range(shots)]
        tree = _wanted(stream, units, depth, arguments, wanted)
        said = [_RULE, *(f"{_text(example)} = {value_of(example)}." for example in examples)]
        start = len(" ".join(said)) + 1
        body = " ".join([*said, _text(tree) + "."])
        question = Question(
            text=" What is the value of the last expression?",
            answer_prefix=" The value is",
            answer=f" {wanted}",
            foils=tuple(f" {digit}" for digit in range(10) if digit != wanted),
            max_new_tokens=fit(f" {wanted}"),
            depth=0.0,
            metric="exact",
            form="[0-9]",
        )
        return Draft(body=body, spans=((start, len(body)),), questions=(question,), deciding=(0,))

    grown = grow(
        draft, stream=Stream(seed, "listops filler", parameters, index), fit=fit, target=target_tokens, filler=filler,
        low=values or 2, high=values or _most(arguments, depth),
    )  # fmt: skip
    return make_item(
        task="listops",
        context=grown.context,
        questions=grown.questions,
        key_spans=grown.spans,
        chance=0.1,
        parameters=parameters,
    )
