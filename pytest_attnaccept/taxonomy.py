"""The words of the gate: kinds, layers, verdicts, knobs and methods, as plain values.

Positions
---------
1. A kind is relative to the baseline checkpoint: a native sliding window is part of an exact kernel's contract there.
2. Only PASS is green and only NOT_APPLICABLE is neutral; every other verdict fails a build.
3. Nothing here imports anything: every other layer may use these words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Kind", "Knob", "Layer", "Method", "Surface", "Verdict", "worst_of"]


class Kind(str, Enum):
    """What an optimization does to the function that the baseline computes."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    ARCHITECTURE = "architecture"


class Layer(str, Enum):
    """Where an optimization acts."""

    DIMENSION = "dimension"
    CONTENT = "content"
    LAYOUT = "layout"
    KERNEL = "kernel"
    NUMERICS = "numerics"
    DECODING = "decoding"
    SCHEDULING = "scheduling"
    ARCHITECTURE = "architecture"


class Surface(str, Enum):
    """What a test hands to the fixture: `accept.<surface>(...)`."""

    KERNEL = "kernel"
    CACHE = "cache"
    PREFIX_CACHE = "prefix_cache"
    DECODER = "decoder"
    MODEL = "model"
    LOGS = "logs"


class Verdict(str, Enum):
    """The end of one item."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    INCOMPLETE = "INCOMPLETE"
    NOT_APPLICABLE = "NOT_APPLICABLE"

    @property
    def blocks(self) -> bool:
        """Whether this verdict keeps a release from going green."""
        return self not in (Verdict.PASS, Verdict.NOT_APPLICABLE)


# Worst first: a measured failure outranks a vacuous measurement, which outranks a missing one.
_SEVERITY = (
    Verdict.FAIL,
    Verdict.INVALID,
    Verdict.INCOMPLETE,
    Verdict.INCONCLUSIVE,
    Verdict.PASS,
    Verdict.NOT_APPLICABLE,
)


def worst_of(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict that decides a group; an empty group is INCOMPLETE, never green."""
    if not verdicts:
        return Verdict.INCOMPLETE
    return min(verdicts, key=_SEVERITY.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting of a method.

    Attributes
    ----------
    types
        Accepted Python types; bool is never accepted where a number belongs.
    default
        Value when the mark does not name it; ``None`` with ``required`` means the mark must.
    worst
        Direction in which quality gets worse: "lower", "higher", or "" when it has none.
    identity
        Value at which the method is the identity, or None when this knob has none.
    choices
        Allowed values, when they are few.
    low, high
        Inclusive bounds for numbers (a float in (0, 1] is given by ``low`` exclusive through ``low_open``).
    """

    name: str
    types: tuple[type, ...]
    doc: str
    default: object = None
    required: bool = False
    worst: str = ""
    identity: object = None
    choices: tuple[object, ...] = ()
    low: float | None = None
    high: float | None = None
    low_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A named optimization: what it is, how it is set, and what it needs.

    Attributes
    ----------
    surface
        The fixture method that tests it unless the mark or the test says otherwise.
    hardware
        Requirement in words; "" when it runs anywhere.
    min_capability
        CUDA compute capability that the *real* implementation needs, or None.
    applies
        ``"module:function"`` that applies the method to a transformers model (`accept.model` without a candidate), or
        "" when the method is tested only through a candidate.
    """

    name: str
    kind: Kind
    layer: Layer
    surface: Surface
    note: str
    knobs: tuple[Knob, ...] = ()
    aliases: tuple[str, ...] = ()
    hardware: str = ""
    min_capability: tuple[int, int] | None = None
    applies: str = ""
    control: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)

    def knob(self, name: str) -> Knob | None:
        """Return the knob called `name`, or None."""
        return next((k for k in self.knobs if k.name == name), None)

    @property
    def acts_on_kv(self) -> bool:
        """Whether the loss shows only through the cache."""
        return self.layer is Layer.CONTENT or self.name in ("kv8", "kv4", "kv2")

    @property
    def acts_on_weights(self) -> bool:
        """Whether the model's weights are what it changes: it may come in a checkpoint, and must show in the weights."""
        return self.name in ("w4a16", "w8a8")
