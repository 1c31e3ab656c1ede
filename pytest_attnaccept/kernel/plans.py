"""Which cases each check uses: sizes and families inside one contract.

Positions
---------
1. Every wanted size goes through the contract (`fit_q`, `fit_kv`); a size that cannot be had is replaced by the closest.
2. On CPU, q_len * kv_len stays below 2^22 up to 16384 keys and below 2^23 above, so that a dense candidate still fits
   into memory; a square (or top-left causal) contract therefore ends at 2047 keys there, and the item says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_attnaccept.kernel.cases import LAYOUTS, CaseSpec
from pytest_attnaccept.kernel.contract import KernelContract
from pytest_attnaccept.kernel.families import applies

__all__ = ["Planner"]

_VALUE_TOP = 8192
_PRODUCT = 2**22
_PRODUCT_LONG = 2**23
# Keys of square cases on CPU: the scores of 8 heads are 128 MB in float32.
_SQUARE = 2047


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
        self._seed = seed
        self._cpu = cpu

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
    ) -> CaseSpec:
        """Return the closest allowed case; with `deep`, a top-left causal case gets enough rows to see all of its keys."""
        contract = self.contract
        kv = contract.fit_kv(min(kv_len, self.max_length))
        if kv > self.max_length:
            kv = 0
        if contract.q_lens == "square" or (contract.q_lens == "square_or_decode" and q_len != 1):
            kv = contract.fit_kv(min(kv, _SQUARE if self._cpu else 16384))
        q = contract.fit_q(q_len, kv)
        if deep and contract.causal and contract.alignment == "top_left" and contract.q_lens == "any" and kv >= 256:
            kv = contract.fit_kv(min(kv, _SQUARE if self._cpu else 16384))
            q = contract.fit_q(kv, kv)
        bound = _PRODUCT if kv <= 16384 else _PRODUCT_LONG
        while self._cpu and q > 16 and q * kv >= bound and contract.q_lens == "any":
            q = contract.fit_q(q // 2, kv)
        if contract.strides == "contiguous":
            layout = "contiguous"
        return CaseSpec(family=family, batch=batch, q_len=q, kv_len=kv, layout=layout, variant=variant, seed=self._seed)

    def fits(self, specs: Iterable[CaseSpec]) -> list[CaseSpec]:
        """Drop doubles and families that this contract cannot represent, keep the order."""
        variants = self.contract.variants()
        chosen = [spec for spec in specs if applies(spec.family, self.contract, variants[spec.variant % len(variants)])]
        return list(dict.fromkeys(chosen))

    def value(self) -> list[CaseSpec]:
        """Return three families at three lengths up to 8192, decode and square, and every further variant once."""
        top = min(self.max_length, _VALUE_TOP)
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
        top = min(self.max_length, _VALUE_TOP)
        found = [self.spec("diffuse", 2, 33, 337), self.spec("diffuse", 1, 16, top)]
        for family in ("zero_keys", "ones", "codes", "shift", "needle", "ramp_up"):
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
        """Return at most a dozen cases: three families at the longest length, index-width lengths, decode, many rows."""
        top = self.max_length
        ragged = 2 if self.contract.has_lengths else 1
        found = [
            self.spec("diffuse", 1, 16, top),
            self.spec("needle", 1, 16, top),
            self.spec("shift", 1, 16, top),
            self.spec("diffuse", 1, 1, top),
            self.spec("zero_keys", 1, 3, top) if self.contract.returns_lse else self.spec("ones", 1, 3, top),
            self.spec("codes", ragged, 2, top),
        ]
        for edge in (65537, 32769):
            if edge < top:
                found.append(self.spec("diffuse", 1, 63, edge, "transposed"))
        if top > 65536 and self.contract.q_lens == "any":
            # Row indices above 2^16: many queries, few keys.
            found.append(self.spec("diffuse", 1, 65600, 33))
        return self.fits(found)

    def layouts(self) -> tuple[str, ...]:
        """Return the layouts that the contract allows."""
        return LAYOUTS if self.contract.strides == "any" else LAYOUTS[:1]
