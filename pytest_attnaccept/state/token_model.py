"""What a cache must hold: one plain list of tokens per sequence, and how many pages these lists need at most.

Positions
---------
1. A token is a number; two tokens are equal only if they are the same append's same row, so any wrong sharing shows.
2. Pages are counted as the contract does: shared full pages once, and every sequence's partial last page separately,
   because a cache may copy a shared partial page at the fork or at the next write.
3. A window cache may forget what no later query sees. So under a window a truncation stays inside the last append,
   keeps one of its tokens and happens once per append: what is left is what one verification of a draft needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_attnaccept.state.cache_contract import CacheContract

__all__ = ["Op", "SeqState", "TokenModel"]


@dataclass(frozen=True, slots=True)
class Op:
    """One step of a program.

    Attributes
    ----------
    name
        "append", "attend", "fork", "free" or "truncate".
    arg
        append: number of tokens; attend: 1 for the last append's size, 0 for one query; fork: the child; truncate: the
        length that is left.
    loud
        append only: keys and values so large that one stale row of them decides an output.
    """

    name: str
    seq: int
    arg: int = 0
    loud: bool = False


@dataclass(slots=True)
class SeqState:
    """The tokens of one sequence, the pages that hold them, and what may be done next."""

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    last_append: int = 0
    rollback_from: int = 0


class TokenModel:
    """All live sequences and what has been removed (`ghosts`: token lists before a free or a truncation)."""

    def __init__(self, contract: CacheContract) -> None:
        self.contract = contract
        self.sequences: dict[int, SeqState] = {}
        self.ghosts: list[tuple[str, int, list[int]]] = []
        self.relatives: dict[int, set[int]] = {}
        self.next_token = 0
        self._next_page = 0

    def copy(self) -> TokenModel:
        """Return an independent copy (to ask what an operation would need)."""
        other = TokenModel(self.contract)
        other.sequences = {
            seq: replace(state, tokens=list(state.tokens), pages=list(state.pages))
            for seq, state in self.sequences.items()
        }
        other.ghosts = list(self.ghosts)
        other.relatives = {seq: set(kin) for seq, kin in self.relatives.items()}
        other.next_token, other._next_page = self.next_token, self._next_page
        return other

    def length(self, seq: int) -> int:
        """Return the length of `seq`, 0 when it does not exist."""
        state = self.sequences.get(seq)
        return len(state.tokens) if state else 0

    def queries(self, op: Op) -> int:
        """Return how many queries an attend has: the last append's size when the contract allows it, else 1."""
        return max(1, self.sequences[op.seq].last_append) if op.arg else 1

    def valid(self, op: Op) -> bool:
        """Return whether the contract lets a caller do this now."""
        state = self.sequences.get(op.seq)
        if op.name == "append":
            return op.arg >= 1
        if state is None or (op.name in ("fork", "free", "truncate") and op.name not in self.contract.operations):
            return False
        if op.name == "fork":
            return op.arg not in self.sequences
        if op.name == "truncate":
            return self.lowest_truncation(op.seq) <= op.arg <= len(state.tokens)
        return True

    def lowest_truncation(self, seq: int) -> int:
        """Return the shortest length that a truncation of `seq` may leave."""
        state = self.sequences[seq]
        return 1 if self.contract.window is None else max(1, state.rollback_from)

    def apply(self, op: Op) -> list[int]:
        """Change the lists as the operation says; return the tokens that an append added."""
        if op.name == "append":
            return self._append(op.seq, op.arg)
        if op.name == "fork":
            parent = self.sequences[op.seq]
            self.sequences[op.arg] = SeqState(
                tokens=list(parent.tokens), pages=list(parent.pages), rollback_from=len(parent.tokens)
            )
            kin = self.relatives.get(op.seq, set()) | {op.seq, op.arg}
            for member in kin:
                self.relatives[member] = self.relatives.get(member, set()) | kin
        elif op.name == "free":
            self.ghosts.append(("freed", op.seq, self.sequences.pop(op.seq).tokens))
            for kin in self.relatives.values():
                kin.discard(op.seq)
            self.relatives.pop(op.seq, None)
        elif op.name == "truncate":
            self._truncate(op.seq, op.arg)
        return []

    def needed_pages(self) -> int:
        """Return the pages that the contract lets a cache use now."""
        full: set[int] = set()
        partial = 0
        for state in self.sequences.values():
            whole = len(state.tokens) // self.contract.page_size
            full.update(state.pages[:whole])
            partial += len(state.pages) - whole
        return len(full) + partial

    def may_refuse(self, op: Op) -> bool:
        """Return whether a MemoryError is allowed for this operation now."""
        if op.name not in ("append", "fork"):
            return False
        after = self.copy()
        after.apply(op)
        return after.needed_pages() > self.contract.capacity_pages

    def _append(self, seq: int, count: int) -> list[int]:
        state = self.sequences.setdefault(seq, SeqState())
        before = len(state.tokens)
        tokens = list(range(self.next_token, self.next_token + count))
        self.next_token += count
        state.tokens.extend(tokens)
        if before % self.contract.page_size and self._shared(seq, state.pages[-1]):
            state.pages[-1] = self._new_page()
        while len(state.pages) < self.contract.pages(len(state.tokens)):
            state.pages.append(self._new_page())
        state.last_append, state.rollback_from = count, before + 1
        return tokens

    def _truncate(self, seq: int, length: int) -> None:
        state = self.sequences[seq]
        if length < len(state.tokens):
            self.ghosts.append(("truncated", seq, list(state.tokens)))
        state.tokens = state.tokens[:length]
        state.pages = state.pages[: self.contract.pages(length)]
        state.last_append, state.rollback_from = 0, length

    def _shared(self, seq: int, page: int) -> bool:
        return any(page in state.pages for other, state in self.sequences.items() if other != seq)

    def _new_page(self) -> int:
        self._next_page += 1
        return self._next_page
