"""Cells and the plan: what has to be measured, decided before anything is measured.

A *cell* is one stack on one model column (or one marked test). A *planned item* is one check of one cell. The plan is a
plain value that is written to disk next to the records, so that any later job can compare what was recorded with what
was required, without pytest, torch or the test files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.fingerprint import digest_of

__all__ = ["Plan", "PlannedItem", "part_of_id", "slug"]

PLAN_SCHEMA = 1
STATISTICAL = ("divergence", "perplexity", "needle", "samples", "long-range", "benchmark")
_CURVES = ("budget-curve", "length-curve")
RULES = 4
"""Rules of the task family `instructions` where a profile does not say (a test holds it to the family's own default)."""
_ID_CHARS = "abcdefghijklmnopqrstuvwxyz0123456789._+-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedItem:
    """One check of one cell.

    Attributes
    ----------
    cell
        Stable name of the cell: test id without the check, or suite path and cell name. Never a pytest node id.
    static
        Digest of everything about the item that is known before it runs (profile, params, files, versions, device,
        dtype, seed). A record with another digest is stale.
    context
        What `static` was computed from besides check and params, so that a later run can compute it anew.
    exists
        False when this version cannot measure the check; the item ends INCOMPLETE.
    """

    cell: str
    check: str
    kind: str
    surface: str
    methods: tuple[str, ...]
    stack: str
    reason: str
    profile: str
    exists: bool = True
    params: Mapping[str, object] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    static: str = ""
    context: Mapping[str, object] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return ``cell[check]``, unique in a plan."""
        return f"{self.cell}[{self.check}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every planned item of a run, in order.

    Attributes
    ----------
    alpha
        Level of the profile, at which a wrong FAIL of the whole run is controlled.
    """

    items: tuple[PlannedItem, ...]
    profile: str
    claim: str = ""
    alpha: float = 0.05

    @property
    def family(self) -> int:
        """How many statistical tests the items hold; a wrong FAIL is controlled over all of them."""
        return sum(_tests(i) for i in self.items)

    def digest(self) -> str:
        """Return a hash of the plan; equal on every worker and shard of one run."""
        content = [[i.id, i.static] for i in sorted(self.items, key=lambda i: i.id)]
        return hashlib.sha256(json.dumps([self.profile, content]).encode()).hexdigest()[:16]

    def merged(self, other: Plan) -> Plan:
        """Return both plans as one; an item in both is taken from `self`."""
        known = {i.id for i in self.items}
        return replace(self, items=self.items + tuple(i for i in other.items if i.id not in known))

    def to_json(self) -> str:
        """Return the plan as one JSON document."""
        body = {
            "schema": PLAN_SCHEMA,
            "profile": self.profile,
            "claim": self.claim,
            "alpha": self.alpha,
            "digest": self.digest(),
            "items": [asdict(i) for i in self.items],
        }
        return json.dumps(body, ensure_ascii=False, indent=1, default=str)

    @classmethod
    def from_json(cls, text: str, where: str) -> Plan:
        """Read a plan; anything unreadable is an error, because a lost plan would make a run look complete."""
        try:
            body = json.loads(text)
            if (schema := body.get("schema")) != PLAN_SCHEMA:
                found = "no plan schema" if schema is None else f"plan schema {schema!r}"
                raise RecordError(f"{where}: {found}; this version reads plan schema {PLAN_SCHEMA}: measure again")
            items = tuple(PlannedItem(**{**i, "methods": tuple(i["methods"])}) for i in body["items"])
            # A plan without a level is older than the key, and was judged at the default one.
            plan = cls(items=items, profile=body["profile"], claim=body.get("claim", ""), alpha=body.get("alpha", 0.05))
            if not isinstance(plan.alpha, float) or not 0 < plan.alpha < 0.5:
                raise RecordError(f"{where}: alpha={plan.alpha!r} is no level in (0, 0.5)")
            if body["digest"] != plan.digest():
                raise RecordError(f"{where}: its items are not the ones it was written with (digest differs)")
            return plan
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{where}: is not a plan of this package ({error})") from error


def unique(items: Iterable[PlannedItem]) -> tuple[PlannedItem, ...]:
    """Return the items without repeats, first one kept."""
    seen: dict[str, PlannedItem] = {}
    for item in items:
        seen.setdefault(item.id, item)
    return tuple(seen.values())


def slug(text: str) -> str:
    """Return `text` as an id: lower case, ``[a-z0-9._+-]`` only.

    >>> slug("h2o(kv_budget=0.25)")
    'h2o-kv_budget-0.25'
    """
    parts = "".join(c if c in _ID_CHARS else "-" for c in text.lower()).split("-")
    return "-".join(p for p in parts if p)


def part_of_id(name: str) -> str:
    """Return a name as a part of an id; what is lost (Chinese, brackets) comes back as a digest, so ids stay apart."""
    text = slug(name)
    if name.isascii() and text:
        return text
    return "-".join(filter(None, (text, digest_of(name)[:6])))


def _tests(item: PlannedItem) -> int:
    """Return how many statistical tests an item holds: as many as its check has gates with p-values."""
    name = next((n for n in (*STATISTICAL, *_CURVES) if item.check == n or item.check.startswith(f"{n}-")), "")
    if not name:
        return 0
    if name in _CURVES:
        return _shipping_points(item) + ("halving" in item.params)
    count = 2 if name == "divergence" else 1  # KL and top-1
    if item.params.get("screen") is None:  # else the worst pattern, chosen on fresh texts, is the only one gated
        count *= _size(item, "patterns")
    if name != "long-range":
        return count
    return count * _size(item, "tiers") * _parts(item)


def _size(item: PlannedItem, name: str) -> int:
    value = item.params.get(name)
    return len(value) if isinstance(value, (list, tuple)) else 1


def _shipping_points(item: PlannedItem) -> int:
    """Return how many points of a curve carry a gate: the operating budget, or the lengths up to the operating one."""
    lengths, operating = item.params.get("lengths"), item.params.get("operating", 1.0)
    if not isinstance(lengths, (list, tuple)) or not isinstance(operating, (int, float)):
        return 1
    return max(1, len([length for length in lengths if length <= operating]))


def _parts(item: PlannedItem) -> int:
    """Return the gates of one cell of a task family: where every part must hold, each rule and the guarded secret has one."""
    if item.params.get("family") != "instructions" or item.params.get("score", "generated") != "generated":
        return 1
    given = item.params.get("parameters")
    rules = given.get("rules", RULES) if isinstance(given, Mapping) else RULES
    return (rules if isinstance(rules, int) else RULES) + 1
