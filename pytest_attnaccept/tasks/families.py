"""Which task families exist, which parameters they take, and how one item of any of them is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType, ModuleType

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
from pytest_attnaccept.tasks.ranges import Allowed, Range, settle

__all__ = ["GROUP", "Family", "find_family", "generate", "offered", "task_families"]

GROUP = "pytest_attnaccept.tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One task family: what it asks of a model, its parameters, and the function that makes an item.

    ``ranges`` says which values a parameter may have: a `Range` of numbers or a tuple of names. A parameter that is not in it
    may be anything of the type of its default.
    """

    name: str
    summary: str
    defaults: Mapping[str, Parameter]
    make: Callable[..., TaskItem]
    ranges: Mapping[str, Allowed] = field(default_factory=dict)


# A family is a module of its name, with a function of that name.
_TABLE: tuple[tuple[ModuleType, str], ...] = (
    (needle, "find one number that was said once (length x depth)"),
    (kv_recall, "keep many key-value facts at once"),
    (variable_tracking, "follow a chain of references to its first value"),
    (text, "predict words that depend on earlier mentions (perplexity)"),
    (passkey, "find one value of any length: word, 7 or 64 digits, uuid"),
    (lookalikes, "tell one fact from hundreds of its kind"),
    (variable_chains, "gather every variable that leads to one value"),
    (multi_value, "keep every value of one key"),
    (many_questions, "answer many questions on one context, the first one twice"),
    (word_counting, "say which words occur most often"),
    (listops, "work through nested operations"),
    (multi_hop, "join facts of several documents"),
    (json_dump, "look up a JSON object by key, position or value"),
    (mqar, "recall associations after a gap (load x distance)"),
    (copy_span, "repeat a list word by word"),
    (phone_book, "look up an entry of a phone book"),
    (instructions, "obey every rule of a block, and keep a secret"),
    (ledger, "write a long list without drifting"),
    (stories, "keep up with people and things that move"),
    (graph_walk, "walk a graph given by its edges"),
    (many_shot, "know the labels of early examples"),
    (aliases, "find a fact under another name"),
)


def _built_in(module: ModuleType, summary: str) -> Family:
    name = module.__name__.rpartition(".")[2]
    return Family(
        name=name,
        summary=summary,
        defaults=MappingProxyType(dict(module.DEFAULTS)),
        ranges=MappingProxyType(dict(module.RANGES)),
        make=getattr(module, name),
    )


_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {family.name: family for family in (_built_in(module, summary) for module, summary in _TABLE)}
)


def task_families() -> Mapping[str, Family]:
    """All built-in families by name (read-only)."""
    return _FAMILIES


def offered() -> Sequence[EntryPoint]:
    """Families that other packages offer, not loaded. Looking for them costs 10 ms: only where a name is not built in."""
    return tuple(entry_points(group=GROUP))


def find_family(name: str) -> Family:
    """The family of a name: a built-in one, or that of another package (entry-point group ``pytest_attnaccept.tasks``)."""
    if name in _FAMILIES:
        return _FAMILIES[name]
    points = offered()
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
    _require_ranges(family, f"task family {name!r}: {place}")
    return family


def _require_ranges(family: Family, who: str) -> None:
    """Refuse ranges that nothing could be checked against."""
    if not isinstance(family.ranges, Mapping) or not set(family.ranges) <= set(family.defaults):
        raise ContractError(
            f"{who}: ranges={family.ranges!r} must be a mapping from parameters of {[*family.defaults]}"
        )
    for name, allowed in family.ranges.items():
        names = isinstance(allowed, (tuple, list)) and allowed and all(isinstance(each, str) for each in allowed)
        number = isinstance(family.defaults[name], (int, float))
        if not (isinstance(allowed, Range) if number else names):
            raise ContractError(
                f"{who}: ranges[{name!r}]={allowed!r} must be {'a Range' if number else 'a tuple of names'}"
            )


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
        Parameters of the family; its defaults and ranges are in ``task_families()[task]``.
    """
    family = find_family(task)
    chosen = settle(task, family.defaults, family.ranges, parameters)
    if target_tokens < 1:
        raise ContractError(f"{task}: target_tokens={target_tokens} must be positive.")
    arguments = {
        "fit": fit, "target_tokens": target_tokens, "seed": seed, "index": index, **chosen,
    }  # fmt: skip
    if task in _FAMILIES:
        return family.make(**arguments)
    return require_sound(task, lambda: _made(task, family, arguments), fit=fit, target_tokens=target_tokens)
