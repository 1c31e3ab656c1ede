"""Which task families exist, what their parameters default to, and how one item of any of them is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import MappingProxyType

from pytest_attnaccept.errors import AttnAcceptError, ContractError, UnknownNameError
from pytest_attnaccept.tasks import (
    aliases,
    copy_span,
    graph_walk,
    instructions,
    json_dump,
    kv_recall,
    ledger,
    listops,
    lookalikes,
    many_questions,
    many_shot,
    mqar,
    multi_hop,
    multi_value,
    needle,
    passkey,
    phone_book,
    stories,
    text,
    variable_chains,
    variable_tracking,
    word_counting,
)
from pytest_attnaccept.tasks.foreign import require_sound
from pytest_attnaccept.tasks.items import Parameter, TaskItem

__all__ = ["GROUP", "Family", "generate", "task_families"]

GROUP = "pytest_attnaccept.tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One task family: what it asks of a model, its parameters, and the function that makes an item."""

    name: str
    summary: str
    defaults: Mapping[str, Parameter]
    make: Callable[..., TaskItem]


_TABLE: tuple[tuple[str, str, Mapping[str, Parameter], Callable[..., TaskItem]], ...] = (
    ("needle", "find one number that was said once (length x depth)", needle.DEFAULTS, needle.needle),
    ("kv_recall", "keep many key-value facts at once", kv_recall.DEFAULTS, kv_recall.kv_recall),
    (
        "variable_tracking",
        "follow a chain of references to its first value",
        variable_tracking.DEFAULTS,
        variable_tracking.variable_tracking,
    ),
    ("text", "predict words that depend on earlier mentions (perplexity)", text.DEFAULTS, text.text),
    ("passkey", "find one value of any length: word, 7 or 64 digits, uuid", passkey.DEFAULTS, passkey.passkey),
    ("lookalikes", "tell one fact from hundreds of its kind", lookalikes.DEFAULTS, lookalikes.lookalikes),
    (
        "variable_chains",
        "gather every variable that leads to one value",
        variable_chains.DEFAULTS,
        variable_chains.variable_chains,
    ),
    ("multi_value", "keep every value of one key", multi_value.DEFAULTS, multi_value.multi_value),
    (
        "many_questions",
        "answer many questions on one context, the first one twice",
        many_questions.DEFAULTS,
        many_questions.many_questions,
    ),
    ("word_counting", "say which words occur most often", word_counting.DEFAULTS, word_counting.word_counting),
    ("listops", "work through nested operations", listops.DEFAULTS, listops.listops),
    ("multi_hop", "join facts of several documents", multi_hop.DEFAULTS, multi_hop.multi_hop),
    ("json_dump", "look up a JSON object by key, position or value", json_dump.DEFAULTS, json_dump.json_dump),
    ("mqar", "recall associations after a gap (load x distance)", mqar.DEFAULTS, mqar.mqar),
    ("copy_span", "repeat a list word by word", copy_span.DEFAULTS, copy_span.copy_span),
    ("phone_book", "look up an entry of a phone book", phone_book.DEFAULTS, phone_book.phone_book),
    ("instructions", "obey every rule of a block, and keep a secret", instructions.DEFAULTS, instructions.instructions),
    ("ledger", "write a long list without drifting", ledger.DEFAULTS, ledger.ledger),
    ("stories", "keep up with people and things that move", stories.DEFAULTS, stories.stories),
    ("graph_walk", "walk a graph given by its edges", graph_walk.DEFAULTS, graph_walk.graph_walk),
    ("many_shot", "know the labels of early examples", many_shot.DEFAULTS, many_shot.many_shot),
    ("aliases", "find a fact under another name", aliases.DEFAULTS, aliases.aliases),
)
_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        name: Family(name=name, summary=summary, defaults=MappingProxyType(dict(defaults)), make=make)
        for name, summary, defaults, make in _TABLE
    }
)


def task_families() -> Mapping[str, Family]:
    """All built-in families by name (read-only)."""
    return _FAMILIES


def _installed(name: str) -> Family:
    """The family that another package offers under this name (entry-point group ``pytest_attnaccept.tasks``)."""
    points = list(entry_points(group=GROUP))
    found = {point.value: point for point in points if point.name == name}
    if not found:
        raise UnknownNameError("task family", name, [*_FAMILIES, *(point.name for point in points)])
    if len(found) > 1:
        raise ContractError(f"task family {name!r} is offered more than once: {', '.join(sorted(found))}")
    ((place, point),) = found.items()
    try:
        family = point.load()
    except Exception as error:  # the module of another package: whatever it raises, this is where it is named
        raise ContractError(
            f"task family {name!r}: {place} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(family, Family):
        raise ContractError(f"task family {name!r}: {place} is a {type(family).__name__}, not a Family")
    if not isinstance(family.defaults, Mapping) or not callable(family.make):
        raise ContractError(f"task family {name!r}: {place} has no mapping of defaults, or nothing that makes an item")
    return family


def _made(task: str, family: Family, arguments: Mapping[str, object]) -> TaskItem:
    """Call a foreign family, whatever it raises."""
    try:
        return family.make(**arguments)
    except AttnAcceptError:
        raise
    except Exception as error:  # code of another package: none of its errors is the candidate's
        raise ContractError(f"task family {task!r} raised {type(error).__name__}: {error}") from error


def generate(
    task: str,
    *,
    fit: Callable[[str], int],
    target_tokens: int,
    seed: int,
    index: int,
    **parameters: Parameter,
) -> TaskItem:
    """Make one item of a family.

    Parameters
    ----------
    task
        Name of the family.
    fit
        Number of tokens that the tested tokenizer makes of a text, without special tokens.
    target_tokens
        Tokens of context + longest question + its answer (``text``: of the context alone). Never exceeded; at most 2 %
        (or one shortest filler sentence, where that is more) are missing.
    seed, index
        With task and parameters they name the item: equal arguments give an equal item everywhere.
    **parameters
        Parameters of the family; its defaults are in ``task_families()[task].defaults``.
    """
    family = _FAMILIES[task] if task in _FAMILIES else _installed(task)
    for name, value in parameters.items():
        if name not in family.defaults:
            raise UnknownNameError(f"parameter of {task}", name, family.defaults)
        if type(value) is int and type(family.defaults[name]) is float:
            parameters[name] = float(value)
        elif type(value) is not type(family.defaults[name]):
            raise ContractError(f"{task}: {name}={value!r} must be of type {type(family.defaults[name]).__name__}.")
    if target_tokens < 1:
        raise ContractError(f"{task}: target_tokens={target_tokens} must be positive.")
    arguments = {
        "fit": fit, "target_tokens": target_tokens, "seed": seed, "index": index, **family.defaults, **parameters,
    }  # fmt: skip
    if task in _FAMILIES:
        return family.make(**arguments)
    return require_sound(task, lambda: _made(task, family, arguments), fit=fit, target_tokens=target_tokens)
