"""Which cases each check uses: sizes and families inside one contract.

Positions
---------
1. Every wanted size goes through the contract (`fit_q`, `fit_kv`); a size that cannot be had is replaced by the closest.
2. On CPU, q_len * kv_len stays below 2^22 up to 16384 keys and below 2^23 above, so that a dense candidate still fits
   into memory; square (or top-left causal) contracts take 2047 keys, and once 2305 (4097 above 16384 keys): the item says so.
3. Every listed variant meets the longest length, with few rows and with one: a table sized for another one shows there.
   Above 16384 keys at most `LONGEST_CALLS` cases have it, and what does not fit is said by `left_out`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytest_attnaccept.kernel.cases import LAYOUTS, CaseSpec
from pytest_attnaccept.kernel.contract import KernelContract
from pytest_attnaccept.kernel.families import applies

__all__ = ["LONGEST_CALLS", "Planner"]

_VALUE_TOP = 8192
# Lengths up to this one are cheap enough for any number of calls.
_CHEAP = 16384
# Candidate calls at the longest length above 16384 keys.
LONGEST_CALLS = 12
_PRODUCT = 2**22
_PRODUCT_LONG = 2**23
# Keys of square cases on CPU: the scores of 8 heads are 128 MB in float32; one case goes to the top (170 and 537 MB).
_SQUARE = 2047
_SQUARE_TOP = 2305
_SQUARE_TOP_LONG = 4097
_SQUARE_GPU = 16384
_PAIR_ELEMENTS = 2**27


class Planner:
    """Turns wanted sizes into allowed cases.

    Parameters
    ----------
    cpu
        Whether the candidate runs on CPU, where products of lengths are bounded.
    """

    def __init__(self, contract: KernelContract, max_length: int, seed: int, *, cpu: bool) -> None:
        self.contract = contract
        self.max_length = max_length
        self.seed = seed
        self._cpu = cpu

    @property
    def top(self) -> int:
        """Longest length of checks that make many calls."""
        return self.max_length if self.max_length <= _CHEAP else _VALUE_TOP

    def spec(
        self,
        family: str,
        batch: int,
        q_len: int,
        kv_len: int,
        layout: str = "contiguous",
        variant: int = 0,
        *,
        deep: bool = True,
        square: int = _SQUARE,
    ) -> CaseSpec:
        """Return the closest allowed case; with `deep`, a top-left causal case gets enough rows to see all of its keys.

        `square` is the longest square case on CPU.
        """
        contract = self.contract
        kv = contract.fit_kv(min(kv_len, self.max_length))
        if kv > self.max_length:
            kv = 0
        limit = square if self._cpu else _SQUARE_GPU
        if contract.q_lens == "square" or (contract.q_lens == "square_or_decode" and q_len != 1):
            kv = contract.fit_kv(min(kv, limit))
        q = contract.fit_q(q_len, kv)
        if deep and contract.causal and contract.alignment == "top_left" and contract.q_lens == "any" and kv >= 256:
            kv = contract.fit_kv(min(kv, limit))
            q = contract.fit_q(kv, kv)
        elif self._cpu:
            q, kv = self._bounded(q, kv)
        if contract.strides == "contiguous":
            layout = "contiguous"
        return CaseSpec(family=family, batch=batch, q_len=q, kv_len=kv, layout=layout, variant=variant, seed=self.seed)

    @property
    def squares(self) -> bool:
        """Whether long cases have as many queries as keys."""
        contract = self.contract
        top_left = contract.causal and contract.alignment == "top_left" and contract.q_lens == "any"
        return top_left or contract.q_lens in ("square", "square_or_decode")

    def _bounded(self, q: int, kv: int) -> tuple[int, int]:
        """Lower q_len, and kv_len where the contract needs many queries, until the product is small enough."""
        contract = self.contract
        bound = _PRODUCT if kv <= _CHEAP else _PRODUCT_LONG
        while q > 16 and q * kv >= bound and contract.q_lens == "any":
            q = contract.fit_q(q // 2, kv)
        if isinstance(contract.q_lens, tuple) and q > 16 and q * kv >= bound:
            q = max(contract.q_lens[0], min(q, (bound - 1) // kv))
            if q * kv >= bound:
                kv = contract.fit_kv((bound - 1) // q)
        return q, kv

    def fits(self, specs: Iterable[CaseSpec]) -> list[CaseSpec]:
        """Drop doubles and families that this contract cannot represent, keep the order."""
        variants = self.contract.variants()
        chosen = [spec for spec in specs if applies(spec.family, self.contract, variants[spec.variant % len(variants)])]
        return list(dict.fromkeys(chosen))

    def value(self) -> list[CaseSpec]:
        """Return three families at three lengths up to 8192, decode and square, and every further variant once."""
        top = self.top
        found = []
        for family in ("diffuse", "needle", "shift"):
            found += [
                self.spec(family, 2, 33, 337),
                self.spec(family, 1, 64, 1025, "transposed"),
                self.spec(family, 1, 64, top),
            ]
        found += [
            self.spec("diffuse", 2, 1, min(2047, top)),
            self.spec("diffuse", 1, 257, 257),
            self.spec("diffuse", 1, 40, 130, deep=False),
            self.spec("needle", 1, 1, top),
        ]
        for variant in range(1, len(self.contract.variants())):
            found += [
                self.spec("diffuse", 2, 17, 1021, variant=variant),
                self.spec("needle", 1, 5, 333, variant=variant),
            ]
        return self.fits(found)

    def inputs(self) -> list[CaseSpec]:
        """Return the families beyond the three of `value`, small and at up to 4090 keys."""
        names = (
            "raise",
            "deep",
            "hot",
            "ramp_up",
            "ramp_down",
            "zero_keys",
            "ones",
            "same_keys",
            "same_values",
            "codes",
            "cap",
            "ties",
            "resonant",
            "large_v",
            "tail",
            "fingerprint",
        )
        found = [self.spec("diffuse", 2, 9, 515)]
        for name in names:
            found += [self.spec(name, 2, 17, 777), self.spec(name, 1, 5, 4090)]
        return self.fits(found)

    def mass(self) -> list[CaseSpec]:
        """Return cases that show the denominator: through lse where it is declared, else through V = 1 and block codes."""
        top = self.top
        found = [self.spec("diffuse", 2, 33, 337), self.spec("diffuse", 1, 16, top)]
        for family in ("zero_keys", "same_keys", "ones", "same_values", "codes", "shift", "needle", "ramp_up"):
            found += [self.spec(family, 2, 5, 519), self.spec(family, 1, 16, top)]
        if self.contract.returns_lse:
            found += [
                self.spec("zero_keys", 1, 64, 1000),
                self.spec("diffuse", 3, 9, 5),
                self.spec("zero_keys", 2, 3, 0),
            ]
        for variant in range(1, len(self.contract.variants())):
            found.append(self.spec("diffuse", 1, 7, 300, variant=variant))
        return self.fits(found)

    def long(self) -> list[CaseSpec]:
        """Return the cases at the longest length, then index-width lengths, many rows, and the longest square one."""
        top = self.max_length
        found = self._longest()
        for edge, rows in ((65537, 63), (32769, 129)):
            if edge < top:
                found.append(self.spec("diffuse", 1, rows, edge, "transposed"))
        if top > 65536 and self.contract.q_lens == "any":
            # Row indices above 2^16: many queries, few keys.
            found.append(self.spec("diffuse", 1, 65600, 33))
        if self.squares:
            variants = range(len(self.contract.variants()))
            largest = _SQUARE_TOP if top <= _CHEAP or len(variants) > 1 else _SQUARE_TOP_LONG
            found += [self.spec("diffuse", 1, 64, top, variant=at, square=largest) for at in variants]
        if top > _CHEAP:
            found += [self.spec("needle", 2, 5, _CHEAP, variant=at) for at in self.left_out()]
        return self.fits(found)

    def _pair(self) -> int:
        """Return two batch rows where K and V of the longest length then stay below 512 MB in float32, else one."""
        first = self.contract.variants()[0]
        return 2 if 2 * first.kv_heads * (first.head_dim + first.v_head_dim) * self.max_length <= _PAIR_ELEMENTS else 1

    def left_out(self) -> tuple[int, ...]:
        """Return the variants that have no case at the longest length, because at most a dozen calls are made there."""
        if self.max_length <= _CHEAP:
            return ()
        used = {spec.variant for spec in self._longest()}
        return tuple(at for at in range(len(self.contract.variants())) if at not in used)

    def _longest(self) -> list[CaseSpec]:
        """Return the cases at the longest length: families, decode, strides, and every variant as far as calls allow."""
        top = self.max_length
        ragged = 2 if self.contract.has_lengths else 1
        found = [
            self.spec("diffuse", 1, 16, top),
            self.spec("needle", 1, 16, top),
            self.spec("shift", 1, 16, top),
            self.spec("codes", ragged, 2, top),
            self.spec("zero_keys", 1, 3, top) if self.contract.returns_lse else self.spec("same_values", 1, 3, top),
            self.spec("diffuse", 1, 5, top, "padded"),
            self.spec("diffuse", self._pair(), 1, top, "cache"),
            self.spec("needle", 1, 2, top, "fused"),
        ]
        others = range(1, len(self.contract.variants()))
        if top <= _CHEAP:
            pairs = [
                (self.spec("diffuse", 1, 16, top, variant=at), self.spec("needle", 2, 1, top, variant=at))
                for at in others
            ]
            return [*found, *(spec for pair in pairs for spec in pair)]
        free = LONGEST_CALLS - len(found)
        for number, at in enumerate(others):
            if number < free:
                found.append(self.spec("needle", 1, 16 if number % 2 else 1, top, variant=at))
            elif number - free < 5:
                # Further variants take over cases whose point does not depend on the first one.
                place = 7 - (number - free)
                found[place] = replace(found[place], variant=at)
        return found

    def layouts(self) -> tuple[str, ...]:
        """Return the layouts that the contract allows; with pages only q and the pair of pools have any."""
        if self.contract.strides != "any":
            return LAYOUTS[:1]
        return LAYOUTS if self.contract.page_size == (None,) else LAYOUTS[:3]
