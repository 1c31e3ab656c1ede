"""What a prefix cache did with a program: the first step at which it shares, claims or returns something wrong."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_attnaccept.errors import AcceptanceFailure, CandidateError
from pytest_attnaccept.state.prefix_oracle import Entry, PrefixContract, PrefixOracle, common_length

__all__ = ["PrefixBroken", "PrefixReplay", "PrefixStep", "run_prefix_program"]


@dataclass(frozen=True, slots=True)
class PrefixStep:
    """One step: "insert", "match" (followed by fetches) or "evict".

    Attributes
    ----------
    note
        Why this step is in the program ("equal sum"); part of a failure's text.
    """

    name: str
    entry: Entry
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBroken:
    """The first wrong step.

    Attributes
    ----------
    kind
        "long" (match beyond what was inserted), "short", "rows" (fetch), "form", "changed" (a fetched tensor changed
        later) or "exception".
    """

    kind: str
    text: str
    seems: str = ""
    error: BaseException | None = None


class PrefixReplay:
    """Drives one fresh prefix cache and the oracle side by side; what `Measured.reproduce` prints uses it.

    Parameters
    ----------
    factory
        Makes the cache under test.
    contract
        What it declares.
    seed
        Of the rows.
    device
        Where the candidate's tensors are.
    strict
        Whether a match that falls short is a failure (not so where a bounded cache may have evicted by itself).
    """

    def __init__(
        self, factory: Any, contract: PrefixContract, *, seed: int = 0, device: str = "cpu", strict: bool = True
    ) -> None:
        self.contract = contract
        self.oracle = PrefixOracle(contract, seed)
        self.device = device
        self.strict = strict
        self.hits = 0
        self.matches = 0
        self.fetched = 0
        self.views = 0
        self._in_use: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._cache = factory()

    def insert(self, tokens: Sequence[int], identity: Mapping[str, object]) -> None:
        """Insert a list of tokens with its rows."""
        self._or_raise(PrefixStep("insert", Entry(tuple(tokens), tuple(identity.items()))))

    def match(self, tokens: Sequence[int], identity: Mapping[str, object]) -> None:
        """Match a list of tokens, then fetch what matched, and compare both."""
        self._or_raise(PrefixStep("match", Entry(tuple(tokens), tuple(identity.items()))))

    def evict(self, tokens: Sequence[int]) -> None:
        """Evict a list of tokens."""
        self._or_raise(PrefixStep("evict", Entry(tuple(tokens), ())))

    @property
    def can_evict(self) -> bool:
        """Whether the candidate has the optional operation."""
        return callable(getattr(self._cache, "evict", None))

    def step(self, step: PrefixStep) -> PrefixBroken | None:
        """Do one operation on both sides; return what broke, if anything did."""
        try:
            if step.name == "insert":
                self._insert(step.entry)
            elif step.name == "evict":
                self._cache.evict(list(step.entry.tokens))
                self.oracle.evict(step.entry.tokens)
            else:
                return self._match(step)
        except Exception as error:  # the candidate may raise anything; it is reported with its cause
            return PrefixBroken(kind="exception", text=f"{step.name}: {type(error).__name__}: {error}", error=error)
        return self._changed_in_use(step)

    def _insert(self, entry: Entry) -> None:
        keys, values = self.oracle.rows(entry)
        self._cache.insert(
            list(entry.tokens), keys.to(self.device, copy=True), values.to(self.device, copy=True), dict(entry.identity)
        )
        self.oracle.insert(entry)

    def _match(self, step: PrefixStep) -> PrefixBroken | None:
        entry = step.entry
        got = self._cache.match(list(entry.tokens), dict(entry.identity))
        note = f" ({step.note})" if step.note else ""
        try:
            length = operator.index(got)
        except TypeError:
            return PrefixBroken(kind="form", text=f"match returned {type(got).__name__}, not an int")
        if length < 0:
            return PrefixBroken(kind="form", text=f"match returned {length}")
        self.matches += 1
        self.hits += int(length > 0)
        longest, least = self.oracle.longest(entry), self.oracle.least(entry)
        if length > longest:
            text = f"match claims {length} of {len(entry.tokens)} tokens; {longest} were inserted under this identity{note}"
            return PrefixBroken(kind="long", text=text, seems=self._sharing(entry, length) or step.note)
        if length < least and self.strict:
            text = f"match finds {length} of {len(entry.tokens)} tokens; at least {least} are stored{note}"
            return PrefixBroken(kind="short", text=text, seems="stored blocks cannot be found again")
        for part in _fetch_lengths(length, self.contract.block_size):
            broken = self._fetch(step, part)
            if broken is not None:
                return broken
        return None

    def _fetch(self, step: PrefixStep, length: int) -> PrefixBroken | None:
        entry = step.entry
        got = self._cache.fetch(list(entry.tokens), length, dict(entry.identity))
        self.fetched += 1
        form = _form_error(got, (self.contract.kv_heads, length, self.contract.head_dim), self.contract.dtype)
        if form:
            return PrefixBroken(kind="form", text=f"fetch of {length} tokens returned {form}")
        want = self.oracle.rows(Entry(entry.tokens[:length], entry.identity))
        for name, one, right in zip(("keys", "values"), got, want, strict=True):
            if not torch.equal(one.detach().cpu(), right):
                wrong = (one.detach().cpu() != right).any(-1).any(0).nonzero().flatten().tolist()
                note = f" ({step.note})" if step.note else ""
                text = f"fetch of {length} tokens: {name} differ at position {wrong[0]} and {len(wrong) - 1} more{note}"
                return PrefixBroken(
                    kind="rows", text=text, seems=self._origin(entry, one.detach().cpu(), wrong[0], name)
                )
        for name, one, right in zip(("keys", "values"), got, want, strict=True):
            self._in_use.append((f"{name} of {length} tokens", one, right))
        del self._in_use[:-8]
        return None

    def _changed_in_use(self, step: PrefixStep) -> PrefixBroken | None:
        for what, tensor, right in self._in_use:
            if not torch.equal(tensor.detach().cpu(), right):
                text = f"{step.name} changed {what} that had been fetched before and were still in use"
                return PrefixBroken(kind="changed", text=text, seems="storage reused while it is referenced")
        return None

    def _sharing(self, entry: Entry, length: int) -> str:
        """Name the identity attributes, or the other list, whose confusion explains a match of `length`."""
        for identity, lists in self.oracle.ever.items():
            if max((common_length(kept, entry.tokens) for kept in lists), default=0) >= length:
                return f"requests that differ in {_difference(dict(entry.identity), dict(identity))} share a prefix"
        return ""

    def _origin(self, entry: Entry, rows: torch.Tensor, place: int, name: str) -> str:
        """Name the inserted list whose rows came back instead."""
        for identity, lists in self.oracle.ever.items():
            for kept in lists:
                theirs = self.oracle.rows(Entry(kept, identity))[name == "values"]
                for other in (place, *range(theirs.shape[1])):
                    if other < theirs.shape[1] and torch.equal(theirs[:, other], rows[:, place]):
                        same = "the same identity" if identity == entry.identity else f"identity {dict(identity)}"
                        return f"they are the rows of position {other} of tokens {_short(kept)} under {same}"
        return "they belong to nothing that was inserted (stale, unwritten or mixed storage)"

    def _or_raise(self, step: PrefixStep) -> None:
        broken = self.step(step)
        if broken is None:
            return
        if broken.error is not None:
            raise CandidateError(broken.text) from broken.error
        raise AcceptanceFailure(broken.text)


def run_prefix_program(
    run: PrefixReplay, program: Sequence[PrefixStep]
) -> tuple[PrefixBroken | None, list[PrefixStep]]:
    """Run the steps; return what broke first and the steps done.

    Only a list that is surely there is evicted: what a cache does with another one is not in the contract.
    """
    done: list[PrefixStep] = []
    for step in program:
        if step.name == "evict" and not run.oracle.holds(step.entry.tokens):
            continue
        done.append(step)
        broken = run.step(step)
        if broken is not None:
            return broken, done
    return None, done


def _fetch_lengths(length: int, block: int) -> Iterator[int]:
    """Yield the lengths that are fetched after a match of `length`."""
    yield from dict.fromkeys(
        part for part in (length, length - 1, length // block * block, block + 1, 1) if 0 < part <= length
    )


def _form_error(got: object, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        return f"{type(got).__name__}, not (keys, values)"
    for name, tensor in zip(("keys", "values"), got, strict=True):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} as {type(tensor).__name__}, not a tensor"
        if tuple(tensor.shape) != shape:
            return f"{name} of shape {tuple(tensor.shape)}, not {shape}"
        if tensor.dtype != dtype:
            return f"{name} of dtype {tensor.dtype}, not {dtype}"
    return ""


def _difference(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    names = [name for name in dict.fromkeys((*one, *other)) if _value(one, name) != _value(other, name)]
    return ", ".join(f"{name}={_value(one, name)}/{_value(other, name)}" for name in names)


def _value(identity: Mapping[str, object], name: str) -> str:
    return repr(identity[name]) if name in identity else "(missing)"


def _short(tokens: Sequence[int]) -> str:
    return str(list(tokens)) if len(tokens) <= 8 else f"{str(list(tokens[:8]))[:-1]}, ...] ({len(tokens)} tokens)"
