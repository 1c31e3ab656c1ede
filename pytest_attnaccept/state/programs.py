"""Which programs are run against a cache: random ones per theme, and a fixed sweep over the edges of pages and windows.

Positions
---------
1. A program is made from the contract and a seed alone; it is valid by construction and stays valid when steps are left
   out, because steps that the contract does not allow at their time are skipped.
2. Every change is followed by attention to the changed sequence and often to a neighbour.
3. Lengths are drawn so that a sequence ends at, one before or one after a page or window edge more often than not.
4. Some programs hold up to twenty sequences at once, and some give out and take back more pages than any counter of eight
   bits counts; the others stay small, so that what they show stays readable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from pytest_attnaccept.state.cache_contract import CacheContract
from pytest_attnaccept.state.token_model import Op, TokenModel

__all__ = ["MAX_QUERIES", "THEMES", "edge_lengths", "edge_programs", "random_program"]

MAX_QUERIES = 64
_MAX_PREFILL = 1024
_IDS = (0, 1, 2, 3, 4, 5, 6, 7, 16, 19)
# Equal to one of the ids above modulo 10, 16, 32, 64, 128, 256 or 1024.
_MORE_IDS = (9, 10, 11, 12, 13, 17, 18, 20, 21, 23, 32, 35, 64, 67, 129, 133, 257, 262, 1027, 1029)
_FEW, _MANY = 6, 20
_BALLAST_ID = 8
_CYCLES = 140
_LONG_DECODE = 300
_MAX_BALLAST_ELEMENTS = 2**22

# Weights of the operations per theme; "full": share of operations that ignore the room left;
# "ballast": share of programs that begin with one sequence that nearly fills the pool; "loud": share of loud appends;
# "many": share of programs with up to twenty sequences; "cycles": share of programs that only append and free.
THEMES: Mapping[str, Mapping[str, float]] = {
    "programs": {
        "append": 6,
        "attend": 3,
        "fork": 2,
        "free": 1,
        "truncate": 2,
        "full": 0.03,
        "loud": 0.1,
        "ballast": 0.25,
        "many": 0.15,
        "cycles": 0.0,
    },
    "pressure": {
        "append": 8,
        "attend": 3,
        "fork": 2,
        "free": 1.5,
        "truncate": 1,
        "full": 0.6,
        "loud": 0.1,
        "ballast": 0.6,
        "many": 0.1,
        "cycles": 0.0,
    },
    "fork": {
        "append": 6,
        "attend": 3,
        "fork": 4,
        "free": 1,
        "truncate": 2,
        "full": 0.02,
        "loud": 0.2,
        "ballast": 0.1,
        "many": 0.25,
        "cycles": 0.0,
    },
    "reuse": {
        "append": 7,
        "attend": 2,
        "fork": 1,
        "free": 4,
        "truncate": 1,
        "full": 0.02,
        "loud": 0.4,
        "ballast": 0.2,
        "many": 0.15,
        "cycles": 0.06,
    },
    "rollback": {
        "append": 6,
        "attend": 3,
        "fork": 1,
        "free": 0.5,
        "truncate": 6,
        "full": 0.02,
        "loud": 0.2,
        "ballast": 0.1,
        "many": 0.1,
        "cycles": 0.0,
    },
}


def edge_lengths(contract: CacheContract) -> list[int]:
    """Return the sequence lengths that matter: page edges and window edges, each with its neighbours."""
    page, window, sinks = contract.page_size, contract.window, contract.sink_tokens
    edges = {1, 2, page - 1, page, page + 1, 2 * page - 1, 2 * page, 2 * page + 1, 3 * page, 5 * page + 1}
    edges.add(min(contract.capacity_pages * page, 17 * page - 1, _MAX_PREFILL))
    if window is not None:
        for edge in (window, window + sinks, 2 * window, window + page):
            edges |= {edge - 1, edge, edge + 1}
    return sorted(edge for edge in edges if 1 <= edge <= contract.capacity_pages * page)


def edge_programs(contract: CacheContract) -> list[list[Op]]:
    """Return the fixed sweep: every edge length reached in one append, in two, and token by token."""
    programs = []
    for length in edge_lengths(contract):
        neighbour = [Op("append", 9, 1), Op("attend", 9, 1)] if contract.pages(length) < contract.capacity_pages else []
        for ways in _ways(contract, length):
            program = list(neighbour)
            for count in ways:
                program += [Op("append", 3, count)]
                if 1 < count <= MAX_QUERIES:
                    program += [Op("attend", 3, 1)]
                program += [Op("attend", 3, 0)]
            programs.append(program + neighbour[1:])
    return [*programs, _long_decode(contract)]


def _long_decode(contract: CacheContract) -> list[Op]:
    """Return one long token by token continuation, each token looked at."""
    room = contract.capacity_pages * contract.page_size
    steps = min(room - 3, max(8 * contract.page_size + 3, 70), _LONG_DECODE)
    return [Op("append", 3, min(3, room)), *([Op("append", 3, 1), Op("attend", 3, 0)] * max(0, steps))]


def _ways(contract: CacheContract, length: int) -> list[list[int]]:
    ways = [[length]]
    cut = min(contract.page_size, length - 1)
    if length > 1:
        ways += [[length - 1, 1], [cut, length - cut]]
    if contract.window is not None and length > contract.window:
        ways.append([contract.window, *([1] * min(8, length - contract.window))])
    if 2 < length <= 40:
        ways += [[1] * length, [3] * (length // 3) + [length % 3], [2] * (length // 2) + [length % 2]]
    return [list(way) for way in dict.fromkeys(tuple(part for part in way if part) for way in ways)]


def random_program(contract: CacheContract, theme: str, key: str) -> list[Op]:
    """Return one program of a theme; the same key gives the same program."""
    return _Writer(contract, THEMES[theme], random.Random(f"{theme}/{key}")).write()


def _ballast(contract: CacheContract) -> int:
    """Return how many tokens fill the pool but for four pages; 0 when that is not worth a sequence."""
    most = _MAX_BALLAST_ELEMENTS // (contract.kv_heads * contract.head_dim)
    tokens = min((contract.capacity_pages - 4) * contract.page_size, most)
    return tokens if tokens >= 2 * contract.page_size else 0


class _Writer:
    """Writes one program step by step, asking the lists of tokens what is possible."""

    def __init__(self, contract: CacheContract, weights: Mapping[str, float], rng: random.Random) -> None:
        self.contract = contract
        self.weights = weights
        self.rng = rng
        self.model = TokenModel(contract)
        self.program: list[Op] = []
        self.room = contract.capacity_pages
        many = rng.random() < weights["many"]
        self.most = min(_MANY, max(_FEW, contract.capacity_pages - 2)) if many else _FEW
        self.ids = (*_IDS, *_MORE_IDS) if many else _IDS
        self.ballast = _ballast(contract) if rng.random() < weights["ballast"] and not many else 0
        self.step: Mapping[str, Callable[[], None]] = {
            "append": self._append,
            "attend": self._attend,
            "fork": self._fork,
            "free": self._free,
            "truncate": self._truncate,
        }

    def write(self) -> list[Op]:
        """Return the program."""
        if "free" in self.contract.operations and self.rng.random() < self.weights["cycles"]:
            self._cycle()
        elif self.most > _FEW:
            self._populate()
            self._random_steps(len(self.program) + self.rng.randrange(8, 30))
            self._turn_over()
        else:
            if self.ballast:  # high page numbers and a nearly full pool, without hundreds of steps
                self._do(Op("append", _BALLAST_ID, self.rng.randrange(self.ballast // 2, self.ballast) + 1))
            self._random_steps(self.rng.randrange(8, 36))
        for seq in self.model.sequences:
            self.program.append(Op("attend", seq, 0))
        return self.program

    def _random_steps(self, length: int) -> None:
        names = ["append", "attend", *self.contract.operations]
        shares = [self.weights[name] for name in names]
        while len(self.program) < length:
            self.step[self.rng.choices(names, shares)[0] if self.model.sequences else "append"]()

    def _populate(self) -> None:
        """Fill the cache with many sequences: forks of one parent more often than not, where there are forks."""
        page, forks = self.contract.page_size, "fork" in self.contract.operations and self.rng.random() < 0.6
        ids = self.rng.sample(self.ids, self.most)
        self._do(Op("append", ids[0], self.rng.choice((1, page - 1, page, page + 1, 2 * page)) or 1))
        for seq in ids[1:]:
            if not forks or not self._do(Op("fork", ids[0], seq)):
                self._do(Op("append", seq, self.rng.randrange(1, page + 1)))
            elif self.rng.random() < 0.3:
                self._do(Op("append", seq, 1))

    def _turn_over(self) -> None:
        """Free half of what is there, and give the room to others."""
        if "free" in self.contract.operations:
            for seq in self.rng.sample(list(self.model.sequences), len(self.model.sequences) // 2):
                self._do(Op("free", seq))
        for seq in self.rng.sample([seq for seq in self.ids if seq not in self.model.sequences], 5):
            self._do(Op("append", seq, self.rng.randrange(1, self.contract.page_size + 2), True))

    def _cycle(self) -> None:
        """Append and free again and again beside one sequence that stays: counters of pages and requests run over."""
        page = self.contract.page_size
        self._do(Op("append", 0, page + 1))
        for number in range(_CYCLES):
            seq = self.rng.choice(self.ids[1:])
            self._do(Op("append", seq, self.rng.randrange(1, 2 * page + 1)))
            if number % 8 == 7:
                self._look(seq)
                self._do(Op("append", 0, 1))
            if seq in self.model.sequences:
                self._do(Op("free", seq))

    def _do(self, op: Op) -> bool:
        if not self.model.valid(op):
            return False
        # A cache may refuse or accept what exceeds the room; the writer goes on as if it had refused.
        exceeds = op.name in ("append", "fork") and self.model.may_refuse(op)
        if exceeds and self.rng.random() >= self.weights["full"]:
            return False
        self.program.append(op)
        if not exceeds:
            self.model.apply(op)
        return True

    def _some(self) -> int:
        return self.rng.choice(list(self.model.sequences))

    def _look(self, seq: int) -> None:
        if seq in self.model.sequences:
            whole = self.rng.random() < 0.6 and self.model.queries(Op("attend", seq, 1)) <= MAX_QUERIES
            self.program.append(Op("attend", seq, int(whole)))
        if len(self.model.sequences) > 1 and self.rng.random() < 0.5:
            self.program.append(Op("attend", self._some(), 0))

    def _append(self) -> None:
        fresh = not self.model.sequences or (len(self.model.sequences) < self.most and self.rng.random() < 0.35)
        seq = self.rng.choice(self.ids) if fresh else self._some()
        op = Op("append", seq, self._count(self.model.length(seq)), self.rng.random() < self.weights["loud"])
        if self._do(op) or self._do(Op("append", seq, 1, op.loud)):
            self._look(seq)
        elif "free" in self.contract.operations:
            self._free()
        else:
            self.program.append(Op("attend", self._some(), 0))

    def _count(self, length: int) -> int:
        if self.rng.random() < 0.3:
            return self.rng.choice((1, 1, 2, 3))
        targets = [edge - length for edge in edge_lengths(self.contract) if edge > length]
        page = self.contract.page_size
        ahead = page - length % page
        targets += [ahead - 1, ahead, ahead, ahead + 1, ahead + page, self.rng.randrange(1, 2 * page + 2)]
        if self.weights["full"] > 0.5:
            free = self.room - self.model.needed_pages()
            targets += [free * page + ahead - 1, free * page, free * page + 1] if free > 0 else [ahead]
        return self.rng.choice([min(count, _MAX_PREFILL) for count in targets if count >= 1] or [1])

    def _attend(self) -> None:
        self._look(self._some())

    def _fork(self) -> None:
        if len(self.model.sequences) >= self.most:
            return self._free()
        parent, child = self._some(), self.rng.choice([seq for seq in self.ids if seq not in self.model.sequences])
        if self._do(Op("fork", parent, child)):
            for seq in self.rng.sample((parent, child), 2):
                if self.rng.random() < 0.7 and self._do(Op("append", seq, self.rng.choice((1, 1, 2, 3)))):
                    self._look(seq)
            self._look(parent)
        else:
            self._attend()
        return None

    def _free(self) -> None:
        if "free" not in self.contract.operations:
            return self._attend()
        self._do(Op("free", self._some()))
        if self.model.sequences:
            self._look(self._some())
        return None

    def _truncate(self) -> None:
        seq = self._some()
        length, low = self.model.length(seq), self.model.lowest_truncation(seq)
        page = self.contract.page_size
        targets = [length - 1, length - 2, length // page * page, length // page * page - 1, length, low]
        targets += [self.rng.randrange(low, length + 1)] if low <= length else []
        good = [target for target in targets if low <= target <= length]
        if good and self._do(Op("truncate", seq, self.rng.choice(good))) and self.rng.random() < 0.8:
            self._do(Op("append", seq, self.rng.choice((1, 2, page)), self.rng.random() < self.weights["loud"]))
        self._look(seq)
