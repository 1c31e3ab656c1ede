"""By which ways a model comes to the same tokens: chunks, warm prefixes, padding, crops, windows, shifts, preemption.

Each way yields the shifts of its logits against one forward over the same tokens, alone and without cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_attnaccept.engines.storage import tensors_of
from pytest_attnaccept.state.model_runs import (
    ModelRun,
    Shift,
    allowed_share,
    copy_cache,
    has_sliding,
    position_limit,
    rotary_limit,
)

__all__ = ["WAYS", "Absent"]

_FILLED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Tokens of the longest request of any model that was trained on as many.
_LONG = 512
# Beyond this a sweep over window edges takes minutes on a CPU.
_MAX_WINDOW = 1024


class Absent(Exception):
    """The model or cache does not have what the check needs."""


def _sizes(length: int, window: int | None) -> Iterator[tuple[str, list[int]]]:
    half = length // 2
    yield "two chunks", [half, length - half]
    yield "all but one, then one", [length - 1, 1]
    yield "one by one", [1] * length
    uneven = [7, 1, 3, 1, 1, 5]
    while sum(uneven) < length:
        uneven.append(min(11, length - sum(uneven)))
    yield "uneven chunks", uneven
    if window is not None and window < length:
        yield "window, then the rest", [window, length - window]


def _chunked(run: ModelRun, length: int) -> Iterator[Shift]:
    tokens = run.tokens(length)
    for name, sizes in _sizes(length, has_sliding(run.model)):
        yield run.shift(name, run.through(tokens, run.cache(), sizes), run.alone(tokens))
    limit, long = rotary_limit(run.model), min(_LONG, position_limit(run.model) or length)
    if long > 2 * length:
        tokens, cut = run.tokens(long), long - long // 2 - 21
        got = run.through(tokens, run.cache(), [long // 2, cut, *([1] * 21)])
        yield run.shift(f"{long} tokens in two chunks, then one by one", got, run.alone(tokens))
    if limit is not None and length <= limit <= 1024:
        beyond = run.tokens(limit + 9)
        sizes = [limit - 8, 5, *([1] * 12)]
        yield run.shift("beyond the trained length", run.through(beyond, run.cache(), sizes), run.alone(beyond))


def _prefix(run: ModelRun, length: int) -> Iterator[Shift]:
    prefix, ends = run.tokens(length // 2), [run.tokens(length // 2) for _ in range(2)]
    warm = run.cache()
    run.through(prefix, warm, [len(prefix)])
    for number, end in enumerate((*ends, ends[0])):
        copied = copy_cache(warm)
        got = run.through(end, copied, [len(end)], start=len(prefix))
        want = run.alone(torch.cat([prefix, end]))[len(prefix) :]
        yield run.shift(f"continuation {number} of a warm prefix", got, want, first=len(prefix))
    # Two copies taken at once and fed in turns: shared storage of the copies shows only here.
    pair, half = [copy_cache(warm), copy_cache(warm)], len(ends[0]) // 2
    for part in (slice(0, half), slice(half, None)):
        for number, (end, copied) in enumerate(zip(ends, pair, strict=True)):
            at = len(prefix) + (part.start or 0)
            got = run.through(end[part], copied, [len(end[part])], start=at)
            want = run.alone(torch.cat([prefix, end]))[len(prefix) :][part]
            yield run.shift(f"copy {number} of two in turns, from {at}", got, want, first=at)
    got = run.through(ends[1], warm, [1] * len(ends[1]), start=len(prefix))
    want = run.alone(torch.cat([prefix, ends[1]]))[len(prefix) :]
    yield run.shift("the warm prefix itself, after its copies", got, want, first=len(prefix))


def _batch(run: ModelRun, length: int) -> Iterator[Shift]:
    if not run.form.positions:
        raise Absent("the model takes no position_ids: padding cannot be told to it")
    rows = [run.tokens(count) for count in (length, length - 5, length // 2, 3, 1)]
    more = [run.tokens(3) for _ in rows]
    yield from _padded(run, rows, more, "left")
    yield from _padded(run, rows, [], "right")


def _right_padding(run: ModelRun, length: int) -> Iterator[Shift]:
    """Continue behind right padding, which a recurrent state or a window passes through."""
    if not run.form.positions:
        raise Absent("the model takes no position_ids: padding cannot be told to it")
    if has_sliding(run.model) is not None:
        raise Absent("padding between prompt and continuation takes part in a window by design")
    rows = [run.tokens(count) for count in (length, length - 5, length // 2, 3, 1)]
    yield from _padded(run, rows, [run.tokens(3) for _ in rows], "right")


def _padded(run: ModelRun, rows: list[torch.Tensor], more: list[torch.Tensor], side: str) -> Iterator[Shift]:
    """Compare every row of a padded batch with the row alone; then, with `more`, three tokens behind it."""
    width = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    places = []
    for number, row in enumerate(rows):
        begin = width - len(row) if side == "left" else 0
        places.append(slice(begin, begin + len(row)))
        ids[number, places[-1]], mask[number, places[-1]] = row, 1
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    cache = run.cache()
    logits = run.forward(ids, cache=cache, positions=positions, mask=mask)
    for number, row in enumerate(rows):
        yield run.shift(f"{side} padding, row {number} of {len(row)}", logits[number, places[number]], run.alone(row))
    for step in range(3 if more else 0):
        mask = torch.cat([mask, torch.ones(len(rows), 1, dtype=torch.long)], 1)
        next_ids = torch.stack([tail[step] for tail in more])[:, None]
        next_positions = torch.tensor([[len(row) + step] for row in rows])
        logits = run.forward(next_ids, cache=cache, positions=next_positions, mask=mask)
        for number, (row, tail) in enumerate(zip(rows, more, strict=True)):
            want = run.alone(torch.cat([row, tail[: step + 1]]))[-1:]
            name = f"{side} padding, row {number} of {len(row)}, new token {step}"
            yield run.shift(name, logits[number], want, first=len(row) + step)


def _crop(run: ModelRun, length: int) -> Iterator[Shift]:
    for kept, drafts in ((length // 2, 4), (length // 2, 1), (3, 5)):
        tokens, cache = run.tokens(length), run.cache()
        run.through(tokens[:kept], cache, [kept])
        recording = callable(getattr(cache, "activate_past_recording", None))
        if recording:
            cache.activate_past_recording()  # transformers' protocol for layers that forget: after the prefill
        for round_ in range(2):
            run.through(run.tokens(drafts), cache, [drafts], start=kept)
            _crop_by(cache, drafts)
            got = run.through(tokens[kept : kept + 2], cache, [2], start=kept)
            want = run.alone(tokens)[kept : kept + 2]
            if recording:  # the next draft begins here; before transformers 5.24, crop(0) empties a cache
                _crop_by(cache, 0)
            name = f"{drafts} rejected after {kept} tokens, round {round_}"
            yield run.shift(name, got, want, first=kept)
            kept += 2


def _crop_by(cache: Any, count: int) -> None:
    croppable = getattr(cache, "is_croppable", None)
    if not callable(getattr(cache, "crop", None)) or croppable is False:
        raise Absent(f"{type(cache).__name__} cannot be cropped")
    try:
        cache.crop(-count)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise Absent(f"{type(cache).__name__} refuses to be cropped: {error}") from error


def _reuse(run: ModelRun, length: int) -> Iterator[Shift]:
    first, second = run.tokens(length), run.tokens(length // 3)
    cache = run.cache()
    run.through(first, cache, [length])
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, : length // 2] = 0
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    run.forward(torch.stack([first, first]), cache=run.cache(), positions=positions, mask=mask)
    for name, tokens in (("a shorter request", second), ("the first request again", first)):
        got = run.through(tokens, run.cache(), [len(tokens) - 1, 1])
        yield run.shift(f"{name}, after others, fresh cache", got, run.alone(tokens))
        again = run.forward(tokens[None])[0]
        yield run.shift(f"{name}, after others, no cache", again, run.alone(tokens))
    if callable(getattr(cache, "reset", None)):
        cache.reset()
        if _is_empty(cache):
            got = run.through(second, cache, [len(second) - 2, 1, 1])
            yield run.shift("the same cache object after reset", got, run.alone(second))


def _is_empty(cache: Any) -> bool:
    try:
        return int(cache.get_seq_length()) == 0
    except ValueError:  # a cache of recurrent layers has no length
        return True


def _window(run: ModelRun, _length: int) -> Iterator[Shift]:
    window = has_sliding(run.model)
    if window is None:
        raise Absent("the model has no sliding layers")
    if window > _MAX_WINDOW:
        raise Absent(f"needs a model with a window of at most {_MAX_WINDOW}, this one has {window}")
    for length in (window - 1, window, window + 1, 2 * window, 2 * window + 1):
        if length < 1:
            continue
        tokens = run.tokens(length + 3)
        for name, sizes in (("at once", [length, 1, 1, 1]), ("by halves", [length // 2, length - length // 2, 3])):
            got = run.through(tokens, run.cache(), [size for size in sizes if size])
            yield run.shift(f"window {window}, {length} tokens {name}, then 3", got, run.alone(tokens))


def _positions(run: ModelRun, length: int) -> Iterator[Shift]:
    limit = rotary_limit(run.model)
    if limit is None or not run.form.positions:
        raise Absent("the model has no rotary positions")
    tokens = run.tokens(length)
    for offset in (1, 37, 300, 1000):
        if offset + length > limit:
            continue
        got = run.forward(tokens[None], start=offset)[0]
        # An angle is position * frequency in float32: its error grows with the position.
        share = allowed_share(run.dtype) + 16 * offset * 2.0**-24
        yield run.shift(f"all positions {offset} later", got, run.alone(tokens), share)
    if has_sliding(run.model) is None:
        yield from _evicted(run, length)


def _evicted(run: ModelRun, length: int) -> Iterator[Shift]:
    """Evict the middle of a cache by hand; the reference is one forward whose later rows do not see it."""
    tokens, kept = run.tokens(length), length // 2
    for gone in (range(0, 5), range(4, 12), range(kept - 4, kept - 1)):
        cache = run.cache()
        run.through(tokens[:kept], cache, [kept])
        keep = [place for place in range(kept) if place not in gone]
        for layer in getattr(cache, "layers", []):
            held = [getattr(layer, name, None) for name in ("keys", "values")]
            if any(tensor is None or tensor.ndim != 4 or tensor.shape[2] != kept for tensor in held):
                return
            layer.keys, layer.values = layer.keys[:, :, keep].contiguous(), layer.values[:, :, keep].contiguous()
        mask = torch.full((length, length), torch.finfo(run.dtype).min, dtype=run.dtype).triu(1)
        mask[kept:, list(gone)] = torch.finfo(run.dtype).min
        want = run.forward(tokens[None], mask=mask[None, None])[0, kept:]
        got = run.through(tokens[kept:], cache, [1] * (length - kept), start=kept)
        yield run.shift(f"positions {gone.start} to {gone.stop - 1} evicted", got, want, first=kept)


def _preempt(run: ModelRun, length: int) -> Iterator[Shift]:
    mine, other = run.tokens(length), run.tokens(length)
    cut, late = length // 2, length - 6
    my_cache, other_cache = run.cache(), run.cache()
    run.through(mine[:cut], my_cache, [cut])
    run.through(other[:cut], other_cache, [cut])
    swapped = copy_cache(my_cache)
    _overwrite(run, my_cache, keep=other_cache)  # its room is somebody else's now
    del my_cache
    got = run.through(other[cut:late], other_cache, [1] * (late - cut), start=cut)
    yield run.shift("the neighbour, while the request is out", got, run.alone(other)[cut:late], first=cut)
    got = run.through(mine[cut:late], swapped, [1] * (late - cut), start=cut)
    yield run.shift("resumed from a copy", got, run.alone(mine)[cut:late], first=cut)
    recomputed = run.cache()
    run.through(mine[:late], recomputed, [late])
    got = run.through(mine[late:], recomputed, [1] * (length - late), start=late)
    yield run.shift("resumed by recomputing", got, run.alone(mine)[late:], first=late)
    got = run.through(other[late:], other_cache, [1] * (length - late), start=late)
    yield run.shift("the neighbour, after the request came back", got, run.alone(other)[late:], first=late)


def _overwrite(run: ModelRun, cache: Any, keep: Any) -> None:
    """Fill what only `cache` holds with NaN: neither the model's tensors nor a pool that it shares with others."""
    spared = {tensor.untyped_storage().data_ptr() for tensor in (*run.model.parameters(), *run.model.buffers())}
    for other in (keep, run.cache()):
        spared |= {tensor.untyped_storage().data_ptr() for tensor in tensors_of(other) if tensor.numel()}
    for tensor in tensors_of(cache):
        mine = tensor.numel() and tensor.is_floating_point() and tensor.untyped_storage().data_ptr() not in spared
        if mine and tensor.dtype in _FILLED:
            tensor.fill_(float("nan"))


WAYS: Mapping[str, Callable[[ModelRun, int], Iterator[Shift]]] = {
    "chunked": _chunked,
    "prefix": _prefix,
    "batch": _batch,
    "right-padding": _right_padding,
    "crop": _crop,
    "reuse": _reuse,
    "window": _window,
    "positions": _positions,
    "preempt": _preempt,
}
