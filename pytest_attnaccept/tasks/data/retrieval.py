"""Retrieval sets whose answer stands in the context once: lines, key-value pairs, pass keys, needles, and last words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_attnaccept.tasks.data.examples import DataFamily, Example, RowError, found_at, need, question, texts
from pytest_attnaccept.tasks.listops import OPERATIONS

__all__ = ["RETRIEVAL"]

_FOILS = 7
_OPERATIONS: Mapping[str, Callable[[Sequence[int]], int]] = {
    **OPERATIONS, "FIRST": lambda values: values[0], "LAST": lambda values: values[-1],
}  # fmt: skip
Fit = Callable[[str], int]


def _lines(row: Mapping[str, Any], fit: Fit) -> Example:
    """LongEval: "line NAME: REGISTER_CONTENT is <NUMBER>"."""
    prompt, number = need(row, "prompt"), str(need(row, "expected_number", (int, str)))
    head, mark, ask = prompt.partition("\nNow the record is over")
    found = re.findall(r"line (\S+): REGISTER_CONTENT is <(\d+)>", head)
    wanted = re.search(r"in line (\S+?)\?", ask)
    if not mark or not wanted:
        raise RowError("the prompt has no question")
    if [value for name, value in found if name == wanted[1]] != [number]:
        raise RowError(f"line {wanted[1]} does not hold {number} exactly once")
    others = list(dict.fromkeys(value for _, value in found if value != number))[:_FOILS]
    asked = question(
        mark + ask.rstrip(), f"\nThe number in line {wanted[1]} is", (number,), "exact", fit(f" {number}"),
        foils=tuple(others), form=r"\d+",
    )  # fmt: skip
    return Example(context=head, questions=(asked,), spans=found_at(head, f"<{number}>")[:1], chance=1.0 / len(found))


def _pairs(row: Mapping[str, Any], fit: Fit) -> Example:
    """Key-value retrieval: a JSON object of uuids."""
    pairs, key, value = need(row, "ordered_kv_records", list), need(row, "key"), need(row, "value")
    if [v for k, v in pairs if k == key] != [value] or sum(v == value for _, v in pairs) != 1:
        raise RowError("the key does not have its value exactly once")
    text = "A JSON object:\n{" + ",\n ".join(f'"{k}": "{v}"' for k, v in pairs) + "}"
    asked = question(
        f'\n\nWhat is the value of "{key}"?', '\nThe value is "', (value,), "contains", fit(value),
        foils=tuple(v for _, v in pairs if v != value)[:_FOILS], form="[0-9a-f-]{36}", space="",
    )  # fmt: skip
    return Example(context=text, questions=(asked,), spans=found_at(text, value), chance=1.0 / len(pairs))


def _passkey(row: Mapping[str, Any], fit: Fit) -> Example:
    """A pass key in repeated noise; the text ends in noise, so the question is added."""
    text, key = need(row, "input"), str(need(row, "target", (int, str)))
    if len(re.findall(rf"The pass key is {key}\b", text)) != 1:
        raise RowError(f"the text does not say once that the pass key is {key}")
    foils = tuple(str((int(key) + step * 7919) % 10 ** len(key)).zfill(len(key)) for step in range(1, 5))
    asked = question(
        "\nWhat is the pass key?", " The pass key is", (key,), "exact", fit(f" {key}"), foils=foils, form=r"\d+"
    )
    return Example(context=text, questions=(asked,), spans=found_at(text, key)[:1], chance=10.0 ** -len(key))


def _multikey(row: Mapping[str, Any], fit: Fit) -> Example:
    """RULER multikey: a haystack of needles; the question stands at the end of the input."""
    text, answers = need(row, "input"), texts(need(row, "outputs", list), "outputs")
    start = text.rfind("\nWhat ")
    if start < 0:
        raise RowError("the input has no question")
    context, ask = text[:start], text[start:]
    prefix = ask.rfind("? ")
    if prefix < 0 or any(context.count(answer) != 1 for answer in answers):
        raise RowError("the question has no answer prefix, or an answer does not stand in the text exactly once")
    values = re.findall(r" is: (\S+?)\.(?:\s|$)", context)
    asked = question(
        ask[: prefix + 1], ask[prefix + 1 :].rstrip(), answers, "contains",
        fit(" " + ", ".join(answers)), foils=tuple(v for v in values if v not in answers)[:_FOILS],
    )  # fmt: skip
    spans = found_at(context, *answers)
    return Example(context=context, questions=(asked,), spans=spans, chance=1.0 / max(1, len(values)))


def _last_word(row: Mapping[str, Any], fit: Fit) -> Example:
    """LAMBADA: {context, continuation} or {text}; the last word of the context is the question."""
    if "continuation" in row:
        context, word = need(row, "context"), need(row, "continuation").strip()
    else:
        context, _, word = need(row, "text").rstrip().rpartition(" ")
    start, _, last = context.rstrip().rpartition(" ")
    bare = re.sub(r"^\W+|\W+$", "", word)  # some last words begin with a quotation mark
    if not start or not last or not re.fullmatch(r"[\w'’-]+", bare):
        raise RowError(f"no context of two words, or {word!r} is no word")
    # One token more than the word: a word that would have gone on is not the word.
    asked = replace(question(f" {last}", "", (bare,), "word", fit(f" {word}") + 1, form=r"\w+"), answer=f" {word}")
    return Example(context=start, questions=(asked,), spans=found_at(start, bare))


def _value(tokens: list[str]) -> int:
    """Value of "[MAX 1 [MIN 2 3 ] ]", brackets of operations only."""
    stack: list[tuple[str, list[int]]] = []
    for token in tokens:
        if token.startswith("["):
            stack.append((token[1:], []))
        elif token == "]":
            name, values = stack.pop()
            result = _OPERATIONS[name](values)
            if not stack:
                return result
            stack[-1][1].append(result)
        else:
            stack[-1][1].append(int(token))
    raise ValueError("no end")


def _expression(row: Mapping[str, Any], fit: Fit) -> Example:
    """ListOps: label, tab, expression with the brackets of its binary tree, which are left out."""
    label, text = need(row, "0"), need(row, "1")
    tokens = [token for token in text.split() if token not in ("(", ")")]
    try:
        right = _value(tokens)
    except (ValueError, KeyError, IndexError) as error:
        raise RowError(f"the expression cannot be read: {error}") from error
    if str(right) != label:
        raise RowError(f"the label is {label}, the value {right}")
    rule = "MIN is the smallest, MAX the largest, MED the median without its fraction, SM the last digit of the sum"
    rule += f"{', FIRST the first, LAST the last' if {'[FIRST', '[LAST'} & set(tokens) else ''}.\n"
    asked = question(
        "\nWhat is the value of the expression?", " The value is", (label,), "exact", fit(f" {label}"),
        foils=tuple(str(digit) for digit in range(10) if str(digit) != label), form="[0-9]",
    )  # fmt: skip
    context = rule + " ".join(tokens)
    return Example(context=context, questions=(asked,), spans=((len(rule), len(context)),), chance=0.1)


RETRIEVAL: Final[tuple[DataFamily, ...]] = (
    DataFamily(name="longeval_lines", summary="LongEval line retrieval", convert=_lines),
    DataFamily(name="kv_retrieval", summary="key-value retrieval (lost in the middle)", convert=_pairs),
    DataFamily(name="passkey_text", summary="pass key in repeated noise", convert=_passkey),
    DataFamily(name="ruler_multikey", summary="RULER niah_multikey", convert=_multikey),
    DataFamily(name="lambada", summary="LAMBADA, last word", convert=_last_word, complete=5153),
    DataFamily(name="listops_text", summary="ListOps expressions", convert=_expression),
)
