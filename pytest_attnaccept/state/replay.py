"""What a cache did with a program: the first step at which it differs from the lists of tokens, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pytest_attnaccept.errors import AcceptanceFailure, CandidateError, ContractError
from pytest_attnaccept.state.cache_contract import CacheContract, CacheFactory
from pytest_attnaccept.state.cache_reference import Attended, Bank, View, aimed_queries, attend64, visible
from pytest_attnaccept.state.token_model import Op, TokenModel

__all__ = ["Broken", "CacheReplay", "Observation", "run_program"]

_POISON = {torch.float16: 64.0, torch.bfloat16: 1e3, torch.float32: 1e3, torch.float64: 1e3}
_WIDTH = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One wrong attend: what was asked, what came back, and the state that it should have seen."""

    seq: int
    queries: torch.Tensor
    out: torch.Tensor
    want: Attended


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The first step of a program at which the candidate broke its contract.

    Attributes
    ----------
    kind
        "value", "form" (shape, dtype, NaN), "bits" (not equal to the declared twin), "memory" (MemoryError with room left)
        or "exception".
    ratio
        value: worst deviation over its bound; else infinity.
    step
        Index in the program that was executed.
    """

    kind: str
    step: int
    text: str
    ratio: float = float("inf")
    seen: Observation | None = None
    error: BaseException | None = None


class CacheReplay:
    """Drives one fresh cache and the lists of tokens side by side.

    The public methods are what `Measured.reproduce` prints; each raises `AcceptanceFailure` at the first difference::

        run = CacheReplay(factory, make_cache_contract(...), seed=0)
        run.append(0, 3)
        run.fork(0, 1)
        run.append(1, 1)
        run.attend(0, 1)

    Parameters
    ----------
    factory
        Makes the cache under test.
    contract
        What it declares.
    seed
        Of keys, values and queries.
    device
        Where the candidate's tensors are.
    """

    def __init__(self, factory: CacheFactory, contract: CacheContract, *, seed: int = 0, device: str = "cpu") -> None:
        self.contract = contract
        self.device = device
        self.bank = Bank(contract, seed)
        self.model = TokenModel(contract)
        self.worst = 0.0
        self.attended = 0
        self.refused = 0
        self.controls = [0, 0]
        self.poisoned = 0
        self.live = 0
        self._seed = seed
        self._cache: Any = factory()
        self._twin: Any = None if contract.bitwise_to is None else contract.bitwise_to()
        self._poison()

    def append(self, seq: int, count: int, *, loud: bool = False) -> None:
        """Append `count` tokens to `seq`."""
        self._or_raise(Op("append", seq, count, loud))

    def attend(self, seq: int, count: int) -> None:
        """Attend with the last `count` positions of `seq` and compare."""
        self._or_raise(Op("attend", seq, int(count > 1)))

    def fork(self, parent: int, child: int) -> None:
        """Let `child` begin with everything that `parent` holds."""
        self._or_raise(Op("fork", parent, child))

    def free(self, seq: int) -> None:
        """Forget `seq`."""
        self._or_raise(Op("free", seq))

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` tokens of `seq`."""
        self._or_raise(Op("truncate", seq, length))

    def step(self, op: Op, index: int = 0) -> Broken | None:
        """Do one operation on both sides; return what broke, if anything did."""
        if op.name == "attend":
            return self._attend(op, index)
        allowed = None
        try:
            self._call(op, self._cache)
        except MemoryError:
            allowed = self.model.may_refuse(op)
            if allowed:
                self._remember_refusal(op)
                return None
            return Broken(kind="memory", step=index, text=self._memory_text(op))
        except Exception as error:  # the candidate may raise anything; it is reported with its cause
            return Broken(kind="exception", step=index, text=f"{type(error).__name__}: {error}", error=error)
        if self._twin is not None:
            self._call_twin(op)
        self.model.apply(op)
        self.live = max(self.live, len(self.model.sequences))
        if op.name in ("free", "truncate"):
            self._poison()
        return None

    def _poison(self) -> None:
        """Overwrite what belongs to no sequence, where the cache shows it: `unused_storage()` yields its tensors.

        The poison is finite: a kernel may multiply a masked row by zero.
        """
        show = getattr(self._cache, "unused_storage", None)
        shown = show() if callable(show) else ()
        for tensor in shown if isinstance(shown, (list, tuple)) else ():
            if isinstance(tensor, torch.Tensor) and tensor.dtype in _POISON:
                tensor.fill_(_POISON[tensor.dtype])
                self.poisoned += 1

    def _call_twin(self, op: Op) -> None:
        try:
            self._call(op, self._twin)
        except Exception as error:  # the twin is the user's; it is reported with its cause
            raise ContractError(f"accept.cache: bitwise_to's cache raised {type(error).__name__}: {error}") from error

    def _remember_refusal(self, op: Op) -> None:
        self.refused += 1
        if op.name == "append" and op.seq in self.model.sequences:
            after = self.model.copy()
            after.apply(op)
            self.model.ghosts.append(("refused", op.seq, after.sequences[op.seq].tokens))

    def _call(self, op: Op, cache: Any) -> None:
        if op.name == "append":
            start = self.model.next_token
            tokens = list(range(start, start + op.arg))
            if op.loud:
                self.bank.loud.update(tokens)
            else:
                self.bank.loud.difference_update(tokens)
            keys, values = self.bank.rows(tokens)
            cache.append(op.seq, keys.to(self.device, copy=True), values.to(self.device, copy=True))
        elif op.name == "free":
            cache.free(op.seq)
        else:
            getattr(cache, op.name)(op.seq, op.arg)

    def _attend(self, op: Op, index: int) -> Broken | None:
        # Few heads aim at few tokens per call: they ask more often.
        for _ in range(max(1, 3 // self.contract.q_heads)):
            broken = self._attend_once(op, index)
            if broken is not None:
                return broken
        return None

    def _attend_once(self, op: Op, index: int) -> Broken | None:
        tokens = self.model.sequences[op.seq].tokens
        count = self.model.queries(op)
        rng = np.random.default_rng([self._seed, 1, index, self.attended])
        queries = aimed_queries(self.bank, tokens, self._foreign(op.seq), count, rng)
        self.attended += 1
        try:
            out = self._cache.attend(op.seq, queries.to(self.device, copy=True))
        except MemoryError:
            return Broken(kind="memory", step=index, text=f"attend({op.seq}) raised MemoryError; it needs no new page")
        except Exception as error:  # as in step
            return Broken(kind="exception", step=index, text=f"{type(error).__name__}: {error}", error=error)
        form = _form_error(out, queries.shape, self.contract.dtype)
        if form:
            return Broken(kind="form", step=index, text=f"attend({op.seq}) returned {form}")
        got = out.detach().to("cpu", torch.float64)
        want = self.expected(queries, tokens)
        self._control(queries, tokens, want)
        seen = Observation(seq=op.seq, queries=queries, out=got, want=want)
        return self._compare(seen, index) or self._compare_bits(seen, out, index)

    def _compare_bits(self, seen: Observation, out: torch.Tensor, index: int) -> Broken | None:
        if self._twin is None:
            return None
        try:
            other = self._twin.attend(seen.seq, seen.queries.to(self.device, copy=True))
        except Exception as error:  # as in _call_twin
            raise ContractError(f"accept.cache: bitwise_to's cache raised {type(error).__name__}: {error}") from error
        if isinstance(other, torch.Tensor) and other.dtype == out.dtype and torch.equal(other, out):
            return None
        length = self.model.length(seen.seq)
        text = f"attend({seen.seq}) of {length} tokens is within rounding, but not bit for bit what bitwise_to's cache gives"
        return Broken(kind="bits", step=index, text=text)

    def expected(self, queries: torch.Tensor, tokens: Sequence[int], view: View | None = None) -> Attended:
        """Return the reference for `queries` as the last positions of `tokens`."""
        view = view or self._view()
        keys, values = self.bank.rows(tokens)
        return attend64(queries, keys, values, view, self.contract.dtype)

    def _view(self) -> View:
        return View(window=self.contract.window, sinks=self.contract.sink_tokens)

    def _compare(self, seen: Observation, index: int) -> Broken | None:
        ratio = (seen.out - seen.want.out).abs() / seen.want.bound
        worst = float(ratio.max())
        if worst <= 1.0:
            self.worst = max(self.worst, worst)
            return None
        head, row, _ = np.unravel_index(int(ratio.argmax()), tuple(ratio.shape))
        length = self.model.length(seen.seq)
        position = length - ratio.shape[1] + int(row)
        page, slot = divmod(position, self.contract.page_size)
        text = (
            f"attend({seen.seq}): head {head}, position {position} of {length} (page {page}, slot {slot}) "
            f"is off by {worst:.3g} times the allowed rounding"
        )
        return Broken(kind="value", step=index, text=text, ratio=worst, seen=seen)

    def _control(self, queries: torch.Tensor, tokens: Sequence[int], want: Attended) -> None:
        # The comparison counts only if it would have seen the token aimed at replaced by another one (rule 3.7).
        if self.attended % 8:
            return
        scores = self.bank.rows(tokens)[0][-1].double() @ queries[-1, -1].double()
        scores[~visible(1, len(tokens), self._view())[0]] = float("-inf")
        place = int(scores.argmax())
        other = self.expected(queries, [*tokens[:place], self.model.next_token + 1, *tokens[place + 1 :]])
        self.controls[1] += 1
        self.controls[0] += int(bool(((other.out - want.out).abs() > 2 * want.bound).any()))

    def _foreign(self, seq: int) -> list[int]:
        """Return tokens that `seq` must not see: removed ones and those at the ends of its neighbours."""
        own = set(self.model.sequences[seq].tokens)
        lists = [tokens for _, _, tokens in self.model.ghosts[-3:]]
        lists += [state.tokens for other, state in self.model.sequences.items() if other != seq]
        return [token for tokens in lists[-6:] for token in tokens[-2:] if token not in own]

    def _memory_text(self, op: Op) -> str:
        after = self.model.copy()
        after.apply(op)
        return (
            f"{op.name} on sequence {op.seq} raised MemoryError although {after.needed_pages()} of "
            f"{self.contract.capacity_pages} pages are needed after it"
        )

    def _or_raise(self, op: Op) -> None:
        broken = self.step(op)
        if broken is None:
            return
        if broken.error is not None:
            raise CandidateError(f"{op.name} raised {broken.text}") from broken.error
        raise AcceptanceFailure(broken.text)


def run_program(run: CacheReplay, program: Sequence[Op]) -> tuple[Broken | None, list[Op]]:
    """Run every step that the contract allows at its time; return what broke first and the steps really done."""
    done: list[Op] = []
    for op in program:
        if not run.model.valid(op):
            continue
        done.append(op)
        broken = run.step(op, len(done) - 1)
        if broken is not None:
            return broken, done
    return None, done


def _form_error(out: object, shape: torch.Size, dtype: torch.dtype) -> str:
    if not isinstance(out, torch.Tensor):
        return f"{type(out).__name__}, not a tensor"
    if out.shape != shape:
        return f"shape {tuple(out.shape)}, not {tuple(shape)}"
    if _WIDTH.get(out.dtype, 0) < _WIDTH[dtype]:
        return f"dtype {out.dtype}, narrower than {dtype}"
    if not bool(torch.isfinite(out).all()):
        return "NaN or infinity from finite inputs"
    return ""
