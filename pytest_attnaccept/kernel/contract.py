"""What an attention function promises: `KernelContract`, made and checked by `make_contract`; importing this needs no torch.

Positions
---------
1. Dtypes are kept by name, so that a contract can be printed, hashed and stored without torch.
2. A list stands for several supported values; lists are combined pairwise (`variants`), never as a full product. A value
   that fits no combination is an error, because it would silently stay untested.
3. ``multiple_of`` holds for kv_len and every kv_length, and for q_len where ``q_lens`` is "any" or "square"; a range or
   "decode" says what q_len is by itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pytest_attnaccept.errors import ContractError, suggest

__all__ = ["KernelContract", "Variant", "make_contract"]

_DTYPES = ("bfloat16", "float16", "float32")
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_FP8 = "float8_e4m3fn"
_LISTS = ("q_heads", "kv_heads", "head_dim", "v_head_dim", "window", "softcap", "page_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One concrete combination of the values that a contract may list."""

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None
    softcap: float | None
    page_size: int | None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelContract:
    """The declared properties of an attention function; keywords and defaults as in the public interface.

    Attributes
    ----------
    q_heads, kv_heads, head_dim, v_head_dim, window, softcap, page_size
        Every supported value; `variants` combines them.
    q_lens
        "any", "decode", "square", an inclusive range, or "square_or_decode" (only set for SDPA-like functions that take no mask).
    keywords
        What the user wrote, for reproducing code.
    """

    dtype: str = "bfloat16"
    q_heads: tuple[int, ...] = (8,)
    kv_heads: tuple[int, ...] = (2,)
    head_dim: tuple[int, ...] = (64,)
    v_head_dim: tuple[int | None, ...] = (None,)
    causal: bool = True
    alignment: str = "bottom_right"
    window: tuple[int | None, ...] = (None,)
    softcap: tuple[float | None, ...] = (None,)
    sinks: bool = False
    alibi: bool = False
    ragged: bool = False
    page_size: tuple[int | None, ...] = (None,)
    returns_lse: bool = False
    lse_base: str = "e"
    empty_rows: str = "zero"
    max_length: int | None = None
    score_dtype: str = "float32"
    probability_dtype: str = "input"
    q_lens: str | tuple[int, int] = "any"
    multiple_of: int = 1
    strides: str = "any"
    masked_read: str = "finite"
    batch_invariant: bool = False
    deterministic: bool = True
    backward: bool = False
    scale: float | None = None
    kv_dtype: str | None = None
    device: str | None = None
    keywords: tuple[tuple[str, object], ...] = ()

    @property
    def stored_dtype(self) -> str:
        """Name of the dtype of k and v."""
        return self.kv_dtype or self.dtype

    @property
    def has_lengths(self) -> bool:
        """Whether calls carry ``kv_lengths``."""
        return self.ragged or self.page_size[0] is not None

    def variants(self) -> tuple[Variant, ...]:
        """Return the pairwise combination of the listed values, the first values first."""
        return _pairwise(_combinations(self))

    def supports(self, variant: Variant) -> bool:
        """Whether the lists allow this combination, chosen for `variants` or not."""
        return variant in _combinations(self)

    def fit_kv(self, length: int) -> int:
        """Return the largest allowed kv length that is not above `length` (0 stays 0)."""
        if length <= 0:
            return 0
        return max(length // self.multiple_of, 1) * self.multiple_of

    def fit_q(self, q_len: int, kv_len: int) -> int:
        """Return the allowed q_len that is closest to the wanted one at this kv_len."""
        if self.q_lens == "decode":
            return 1
        if self.q_lens == "square":
            return kv_len
        if self.q_lens == "square_or_decode":
            return 1 if q_len == 1 else kv_len
        if isinstance(self.q_lens, tuple):
            return min(max(q_len, self.q_lens[0]), self.q_lens[1])
        return math.ceil(q_len / self.multiple_of) * self.multiple_of


def make_contract(**keywords: Any) -> KernelContract:
    """Check every keyword of `accept.kernel` and return the contract.

    Raises
    ------
    ContractError
        For an unknown keyword, a value of the wrong type or range, or a combination that cannot exist.
    """
    known = [f.name for f in fields(KernelContract) if f.name != "keywords"]
    for name in keywords:
        if name not in known:
            raise ContractError(
                f"unknown contract keyword {name!r}.{suggest(name, known)} Known: {', '.join(sorted(known))}."
            )
    values: dict[str, Any] = {name: _checked(name, value) for name, value in keywords.items()}
    written = tuple((name, _plain(value)) for name, value in keywords.items())
    contract = KernelContract(**values, keywords=written)
    _refuse_impossible(contract)
    return contract


def _checked(name: str, value: Any) -> Any:
    if name in _LISTS:
        items = list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
        if not items:
            raise ContractError(f"{name}=[] names no value: give one, or leave the keyword out.")
        if isinstance(value, (set, frozenset)):
            items.sort(key=lambda item: (item is not None, item))
        checked = tuple(_number(name, item) for item in items)
        if len(set(checked)) != len(checked):
            raise ContractError(f"{name}={value!r} names a value twice.")
        return checked
    if name in _FLAGS:
        return _flag(name, value)
    if name in _CHOICES:
        return _choice(name, _dtype_name(value), _CHOICES[name])
    if name == "q_lens":
        return _q_lens(value)
    return _single(name, value)


_FLAGS = ("causal", "sinks", "alibi", "ragged", "returns_lse", "batch_invariant", "deterministic", "backward")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": _DTYPES,
    "alignment": ("bottom_right", "top_left"),
    "lse_base": ("e", "2"),
    "empty_rows": ("zero", "nan"),
    "score_dtype": ("float32", "input"),
    "probability_dtype": ("float32", "input"),
    "strides": ("any", "contiguous"),
    "masked_read": ("finite", "never"),
}


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    hint = ""
    if name in ("sinks", "alibi"):
        hint = f" {name}=True says that the function takes them; the gate chooses the float32 values for each call."
    raise ContractError(f"{name}={_plain(value)!r} must be True or False.{hint}")


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value in allowed:
        return value
    raise ContractError(f"{name}={value!r} is not allowed.{suggest(value, allowed)} Allowed: {', '.join(allowed)}.")


def _number(name: str, value: Any) -> int | float | None:
    optional = name in ("v_head_dim", "window", "softcap", "page_size")
    if value is None and optional:
        return None
    if name == "softcap":
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return float(value)
        raise ContractError(f"softcap={value!r} must be a finite number above 0, or None for no cap.")
    return _whole(name, value, " or None" if optional else "")


def _whole(name: str, value: Any, extra: str = "") -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise ContractError(f"{name}={value!r} must be a whole number of at least 1{extra}.")
    return int(value)


def _single(name: str, value: Any) -> Any:
    if name == "multiple_of":
        return _whole(name, value)
    if value is None:
        return None
    if name == "max_length":
        return _whole(name, value, " or None")
    if name == "scale":
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return float(value)
        raise ContractError(f"scale={value!r} must be a finite number above 0, or None for head_dim ** -0.5.")
    if name == "kv_dtype":
        return _choice(name, _dtype_name(value), (_FP8, *_DTYPES))
    return str(value)


def _q_lens(value: Any) -> str | tuple[int, int]:
    if isinstance(value, str):
        return _choice("q_lens", value, ("any", "decode", "square"))
    if isinstance(value, (tuple, list)) and len(value) == 2:
        low, high = (_whole("q_lens", item) for item in value)
        if low <= high:
            return low, high
    raise ContractError(
        f"q_lens={value!r} must be 'any', 'decode', 'square' or a pair (low, high) with 1 <= low <= high."
    )


def _dtype_name(value: Any) -> str:
    name = str(value).removeprefix("torch.")
    return _SHORT.get(name, name)


def _plain(value: Any) -> object:
    """Return `value` as something with a short, evaluable repr (dtypes become names)."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return _dtype_name(value)


def _combinations(contract: KernelContract) -> list[Variant]:
    found = []
    for values in itertools.product(*(getattr(contract, name) for name in _LISTS)):
        chosen = dict(zip(_LISTS, values, strict=True))
        if chosen["q_heads"] % chosen["kv_heads"]:
            continue
        chosen["v_head_dim"] = chosen["v_head_dim"] or chosen["head_dim"]
        variant = Variant(**chosen)
        if variant not in found:
            found.append(variant)
    return found


def _pairwise(rows: list[Variant]) -> tuple[Variant, ...]:
    """Choose greedily until every pair of values that occurs in `rows` occurs in the choice; rows[0] is always in it."""

    def pairs(row: Variant) -> set[tuple[tuple[str, object], tuple[str, object]]]:
        items = [(name, getattr(row, name)) for name in _LISTS]
        return set(itertools.combinations(items, 2))

    chosen, missing = [rows[0]], set().union(*(pairs(row) for row in rows)) - pairs(rows[0])
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return tuple(chosen)


def _refuse_impossible(contract: KernelContract) -> None:
    _refuse_lists(contract)
    masked = [w for w in contract.window if w is not None]
    if masked and not contract.causal:
        raise ContractError(f"window={masked[0]} needs causal=True: a window counts the most recent keys of a query.")
    if None in contract.page_size and len(contract.page_size) > 1:
        raise ContractError("page_size mixes None with numbers: test the paged and the dense function separately.")
    paged = contract.page_size[0] is not None
    if contract.kv_dtype == contract.dtype:
        object.__setattr__(contract, "kv_dtype", None)
    if contract.kv_dtype not in (None, _FP8):
        raise ContractError(
            f"kv_dtype={contract.kv_dtype!r} differs from dtype={contract.dtype!r}; only {_FP8} may differ."
        )
    if contract.backward and (paged or contract.kv_dtype):
        raise ContractError(
            "backward=True needs dense k and v in the dtype of q: page pools and FP8 values have no gradient here."
        )
    if contract.lse_base == "2" and not contract.returns_lse:
        raise ContractError("lse_base='2' without returns_lse=True: there is no lse to be in that base.")
    if contract.q_lens == "square" and contract.alignment == "top_left" and contract.ragged:
        raise ContractError(
            "q_lens='square' with ragged=True and alignment='top_left' is ambiguous: use bottom_right or ragged=False."
        )
    if contract.alignment == "top_left" and contract.q_lens == "decode" and contract.causal:
        raise ContractError(
            "q_lens='decode' with alignment='top_left' sees only key 0: a decoding kernel is bottom_right or not causal."
        )
    if contract.alignment == "top_left" and paged:
        raise ContractError(
            "alignment='top_left' with page_size: a paged cache is aligned bottom_right (the last query sees the last key)."
        )
    if contract.max_length is not None and contract.max_length < contract.multiple_of:
        raise ContractError(
            f"max_length={contract.max_length} is below multiple_of={contract.multiple_of}: no length is left to test."
        )


def _refuse_lists(contract: KernelContract) -> None:
    rows = _combinations(contract)
    if not rows:
        raise ContractError(
            f"q_heads={contract.q_heads} and kv_heads={contract.kv_heads}: q_heads must be a multiple of kv_heads."
        )
    for name in ("q_heads", "kv_heads"):
        unused = [value for value in getattr(contract, name) if value not in {getattr(row, name) for row in rows}]
        if unused:
            raise ContractError(
                f"{name}={unused[0]} fits no other listed value: q_heads must be a multiple of kv_heads "
                f"(q_heads={contract.q_heads}, kv_heads={contract.kv_heads})."
            )
