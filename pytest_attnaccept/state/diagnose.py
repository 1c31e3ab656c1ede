"""What a wrong attention output looks like: the one wrong list of tokens, or wrong rule, that would explain it.

Every explanation is tested by computing what it predicts; the first one that predicts the output within the allowed
rounding is named, so a name is never a guess from the size of an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from pytest_attnaccept.state.cache_reference import View
from pytest_attnaccept.state.replay import Broken, CacheReplay, Observation

__all__ = ["explain"]

# A wrong token aimed at moves an output by about half of its size; fewer bits move it by a few percent at most.
SMALL = 0.05

UNKNOWN = "no single wrong page, length, window or head map explains it"


class _Story(NamedTuple):
    words: str
    tokens: list[int]
    view: View


def explain(run: CacheReplay, broken: Broken) -> str:
    """Return what the failure looks like, in words; `run` is the replay that ended with `broken`."""
    if broken.kind == "memory":
        return "pages are leaked, or shared pages are counted more than once"
    if broken.kind == "bits":
        return "the layout changes the order or the number of roundings (another split, tile or accumulation)"
    if broken.kind != "value" or broken.seen is None:
        return ""
    after = " after a refused operation (a refusal must change nothing)" if run.refused else ""
    if not bool(broken.seen.out.any()):
        return "the output is all zero" + after
    for story in _stories(run, broken.seen):
        predicted = run.expected(broken.seen.queries, story.tokens, story.view)
        allowed = predicted.bound + broken.seen.want.bound
        if bool(((broken.seen.out - predicted.out).abs() <= allowed).all()):
            return story.words + after
    scale = broken.seen.want.out.abs().max()
    if bool((broken.seen.out - broken.seen.want.out).abs().max() < SMALL * scale):
        return (
            "a small error of many rows: keys and values kept, or attention computed, in fewer bits than declared"
            + after
        )
    return UNKNOWN + after


def _stories(run: CacheReplay, seen: Observation) -> Iterator[_Story]:
    tokens = run.model.sequences[seen.seq].tokens
    plain = View(window=run.contract.window, sinks=run.contract.sink_tokens)
    yield from _removed(run, seen.seq, tokens, plain)
    yield from _foreign_pages(run, seen.seq, tokens, plain)
    yield from _own_pages(run.contract.page_size, tokens, plain)
    yield from _lengths(run, tokens, plain)
    yield from _rules(run, tokens, plain, seen.out.shape[1])


def _removed(run: CacheReplay, seq: int, tokens: list[int], view: View) -> Iterator[_Story]:
    for how, owner, ghost in reversed(run.model.ghosts):
        if owner == seq and how == "truncated":
            yield _Story("the truncation was ignored: rejected tokens are still attended", ghost, view)
            for extra in (1, 2):
                kept = ghost[: len(tokens) + extra]
                yield _Story(f"the truncation left {extra} token(s) too many", kept, view)
            yield _Story(
                "tokens of before the truncation were not overwritten",
                [*ghost[: len(tokens)], *tokens[len(ghost) :]],
                view,
            )
            if len(tokens) > 1:
                yield _Story("rejected tokens stay in front of the new one", [*ghost, tokens[-1]], view)
        if owner == seq and how == "refused":
            for extra in (len(ghost) - len(tokens), *range(1, min(len(ghost) - len(tokens), run.contract.page_size))):
                kept = ghost[: len(tokens) + extra]
                yield _Story(f"a refused append left {extra} of its tokens", kept, view)
        if owner == seq and how == "freed":
            yield _Story("a freed sequence's tokens are still there under its number", [*ghost, *tokens], view)


def _foreign_pages(run: CacheReplay, seq: int, tokens: list[int], view: View) -> Iterator[_Story]:
    kin = run.model.relatives.get(seq, set())
    others = [
        (f"sequence {other}", other in kin, state.tokens)
        for other, state in run.model.sequences.items()
        if other != seq
    ]
    ghosts = [(f"{how} sequence {owner}", owner in kin, ghost) for how, owner, ghost in reversed(run.model.ghosts)]
    for name, related, theirs in [*others, *ghosts]:
        for start, stop in _spans(run.contract.page_size, len(tokens), len(theirs)):
            mixed = [*tokens[:start], *theirs[start:stop], *tokens[stop:]]
            if mixed == tokens:
                continue
            page = start // run.contract.page_size
            if related:
                words = f"fork shares page {page} and a write of {name} shows in it (copy-on-write missing)"
            elif name.startswith("freed"):
                words = f"page {page} holds what {name} left there (a freed page was not overwritten)"
            else:
                words = f"page {page} belongs to {name} at the same time (page reused before free, or freed twice)"
            yield _Story(words, mixed, view)
        yield _Story(f"it attends to all of {name} in place of its own tokens", theirs, view)


def _own_pages(page: int, tokens: list[int], view: View) -> Iterator[_Story]:
    last = (len(tokens) - 1) // page
    for one in range(max(0, last - 8), last):
        for other in (*range(max(0, last - 3), last + 1), 0):
            theirs = tokens[other * page : (other + 1) * page]
            if other == one or not theirs:
                continue
            mixed = [*tokens[: one * page], *theirs, *tokens[one * page + len(theirs) :]]
            yield _Story(f"pages {one} and {other} of the sequence are the same page (given out twice)", mixed, view)


def _spans(page: int, length: int, theirs: int) -> Iterator[tuple[int, int]]:
    """Return slot ranges that lie in both lists: whole pages, their tails and single slots near the end."""
    common = min(length, theirs)
    last = max(0, (common - 1) // page)
    for number in range(max(0, last - 8), last + 1):
        start, stop = number * page, min((number + 1) * page, common)
        yield start, stop
        for inner in range(max(start, stop - 16), stop):
            yield inner, stop
            yield inner, inner + 1


def _lengths(run: CacheReplay, tokens: list[int], view: View) -> Iterator[_Story]:
    page = run.contract.page_size
    for lost in (1, 2):
        if len(tokens) > lost:
            yield _Story(f"the newest {lost} token(s) are missing", tokens[:-lost], view)
            yield _Story(f"the oldest {lost} token(s) are missing", tokens[lost:], view)
    if len(tokens) > page:
        yield _Story("the last page is missing", tokens[: (len(tokens) - 1) // page * page], view)
        yield _Story("the first page is missing", tokens[page:], view)
        yield _Story("only the last page is attended", tokens[(len(tokens) - 1) // page * page :], view)
    yield _Story("the newest token is counted twice", [*tokens, tokens[-1]], view)
    for place in range(max(0, len(tokens) - 64), len(tokens)):
        yield _Story(f"the token at position {place} is missing", tokens[:place] + tokens[place + 1 :], view)


def _rules(run: CacheReplay, tokens: list[int], view: View, count: int) -> Iterator[_Story]:
    window, sinks = view.window, view.sinks
    if window is not None:
        for off in (1, -1, run.contract.page_size, -run.contract.page_size, sinks, -sinks):
            if off and window + off >= 1:
                yield _Story(
                    f"the window is {window + off} in place of {window}", tokens, View(window=window + off, sinks=sinks)
                )
        for off in (-sinks, 1, -1, run.contract.page_size - sinks):
            if off and sinks + off >= 0:
                yield _Story(
                    f"{sinks + off} sink tokens in place of {sinks}", tokens, View(window=window, sinks=sinks + off)
                )
        yield _Story("the window is ignored", tokens, View(window=None, sinks=0))
    if count > 1:
        yield _Story(
            "every query sees all keys (no causal limit inside an append)",
            tokens,
            View(window=window, sinks=sinks, offset=count),
        )
        yield _Story(
            "the causal limit is counted from the first key (top-left alignment)",
            tokens,
            View(window=window, sinks=sinks, offset=count - len(tokens)),
        )
    yield _Story(
        "query heads are mapped to KV heads as head % kv_heads",
        tokens,
        View(window=window, sinks=sinks, tiled_heads=True),
    )
    for stored in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        name = str(stored).removeprefix("torch.")
        yield _Story(f"keys and values are kept in {name}", tokens, View(window=window, sinks=sinks, stored=stored))
    yield _Story("all visible values are averaged", tokens, View(window=window, sinks=sinks, scale=0.0))
    dim = run.contract.head_dim
    for words, scale in (
        ("no scaling", dim**0.5),
        ("scaling by 1 / head_dim", dim**-0.5),
        ("exp2 in place of exp", 0.6931),
    ):
        yield _Story(f"the softmax is taken with {words}", tokens, View(window=window, sinks=sinks, scale=scale))
