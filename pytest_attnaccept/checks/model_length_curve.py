"""`length-curve`: retrieval and text at 1/4, 1/2, 1, 2 and 4 trained lengths: to which length is the change certified?

Positions
---------
1. Lengths up to the operating one (1 x the trained length unless the profile says otherwise) carry gates. Longer ones say
   how far the certified range goes; with a limit ``halving`` the first longer length is gated too.
2. Beyond the trained length the comparison is with the baseline at that length. A baseline that fails there makes the
   point void, and nothing is claimed. NaN, a likelihood worse than a blind guess and loops fail all the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_attnaccept.checks.curve_points import Point, baseline_void, cliff, plan_of, point_table, walk
from pytest_attnaccept.checks.model_data import documents
from pytest_attnaccept.checks.model_evidence import not_evidence, soundness_fact
from pytest_attnaccept.checks.model_free import continued, excess_p
from pytest_attnaccept.checks.model_needle import DEFAULTS as NEEDLE
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.calls import NonFiniteError
from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.measurement import Fact, Gate, Measured, Threshold
from pytest_attnaccept.stats.curves import certified_range, degradation_area
from pytest_attnaccept.stats.floors import baseline_floor
from pytest_attnaccept.stats.sequential import SequentialPlan

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["DEFAULTS", "learned_positions", "measure"]

DEFAULTS: Mapping[str, object] = {
    **NEEDLE,
    "lengths": (0.25, 0.5, 1.0, 2.0, 4.0),  # in trained lengths
    "operating": 1.0,  # the longest one that ships
    "beyond": 110,  # contexts at lengths above it
    "documents": 16,  # texts that are continued at the operating length and above it
    "continuation": 32,
    "free_tokens": 40,
    "step": 8,
    "text": "builtin",
    "margin": 0.05,  # the profile's limit on needle
    "halving": None,
}
_LOOPS_ALPHA = 1e-4  # policy: a hundred gates of this kind give one false alarm in a hundred runs at most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Health:
    """What a text shows at one length, whatever the baseline finds: likelihood and free-running output."""

    gates: tuple[Gate, ...]
    table: Mapping[str, object]
    void: str = ""


def measure(session: ModelSession, params: Params) -> Measured:
    """Measure every length."""
    given = Params(check=params.check, given={**DEFAULTS, **params.given})
    lengths = _lengths(session, given)
    operating = max((n for n, ships in lengths if ships), default=0)
    if not operating:
        raise ContractError(f"{params.check}: no length up to the operating one is left below max_tokens")
    points: list[Point] = []
    health: dict[int, _Health] = {}
    voids: dict[int, str] = {}
    for length, ships in lengths:
        if length >= operating:
            health[length] = _health(session, given, length)
        plan = plan_of(session, given, given.integer("contexts", 50) if ships else given.integer("beyond", 110))
        reason = ""
        if not ships:
            reason = health[length].void or baseline_void(session, given, length, plan)
        point = None if reason else _point(session, given, length, plan)
        if point is not None:
            points.append(point)
        voids[length] = reason or (point.void if point is not None and not ships else "")
    return _measured(session, given, points, health, voids, operating)


def _lengths(session: ModelSession, given: Params) -> list[tuple[int, bool]]:
    """Return the lengths in tokens, shortest first, each with whether it ships; a cap shortens what is longer.

    A model whose trained length is not known has the cap as its unit, as everywhere.
    """
    cap = given.optional_integer("max_tokens")
    trained = session.trained_length or cap
    if trained is None:
        spec = session.baseline.loaded.spec
        raise ContractError(f"{given.check}: the trained length of {spec} is not known; give max_tokens")
    operating, ends = given.number("operating", 1.0), learned_positions(session.baseline.model)
    found: dict[int, bool] = {}
    for tier in sorted(given.numbers("lengths", (1.0,))):
        length = max(1, round(tier * trained))
        ships = tier <= operating
        if ships or ends is None or length <= ends:
            found.setdefault(length if cap is None else min(length, cap), ships)
    return list(found.items())


def learned_positions(model: Any) -> int | None:
    """Return how many positions a model has a learned vector for, or None where positions are computed.

    Asking for one more is an error on a CPU and destroys the whole process on a GPU.
    """
    tables = [
        int(module.num_embeddings)
        for name, module in model.named_modules()
        if hasattr(module, "num_embeddings") and (name.endswith("wpe") or "position" in name.rpartition(".")[2])
    ]
    return min(tables, default=None)


def _point(session: ModelSession, given: Params, length: int, plan: SequentialPlan) -> Point:
    return walk(session, given, session.candidate, length, plan, at=float(length), label=f"{length} tokens")


def _measured(
    session: ModelSession,
    given: Params,
    points: Sequence[Point],
    health: Mapping[int, _Health],
    voids: Mapping[int, str],
    operating: int,
) -> Measured:
    shipping = [p for p in points if p.at <= operating]
    sound = [p for p in points if p.at <= operating or not p.void]
    gates: list[Gate] = [p.gate for p in shipping]
    beyond = [p for p in sound if p.at > operating]
    gates += _halving(given, beyond)
    gates += [gate for found in health.values() for gate in found.gates]
    claim = certified_range([p.on_curve() for p in sound], easy_end="low")
    edge, steps = cliff(sound, given.number("margin", 0.05), given.number("alpha", 0.05), session.seed)
    cliff_words = "no cliff in the tested range"
    facts = [Fact(name="operating_length", value=operating, unit="tokens"), soundness_fact(session, session.baseline)]
    if edge is not None:
        facts.append(Fact(name="cliff", value=f"between {sound[edge].at:g} and {sound[edge + 1].at:g} tokens"))
        facts.append(Fact(name="doublings_to_the_cliff", value=round(math.log2(sound[edge + 1].at / operating), 2)))
        cliff_words = f"cliff between {sound[edge].at:g} and {sound[edge + 1].at:g}"
    facts += [Fact(name=f"void[{length} tokens]", value=reason) for length, reason in voids.items() if reason]
    last = "nothing" if claim.last is None else f"{claim.last:g} tokens"
    facts.append(Fact(name="certified_to", value=f"{last} ({cliff_words})"))
    longest = int(max(p.at for p in shipping))
    identical = all(p.base_nll == p.cand_nll and not any(p.losses) for p in shipping)
    return Measured(
        gates=tuple(gates),
        facts=tuple(facts),
        refusals=not_evidence(session, longest, identical=identical, params=given),
        resolution=f"{claim.text}{_void_words(voids)}",
        data_digest=hashlib.sha256("".join(p.digest for p in points).encode()).hexdigest()[:16],
        details={
            "points": point_table(points),
            "certified": claim.text,
            "text": {str(length): dict(found.table) for length, found in health.items()},
            "steps": None if steps is None else {"z": list(steps.z), "critical": steps.critical},
            "area": degradation_area([p.at for p in sound], [p.loss for p in sound]),
        },
    )


def _halving(given: Params, beyond: Sequence[Point]) -> list[Gate]:
    """Return the gate on the first longer length, where a limit asks for one and the baseline can show such a loss there."""
    limit = given.optional_number("halving")
    if limit is None or not beyond:
        return []
    gate = beyond[0].gate
    if baseline_floor(gate.base_mean, gate.n_items, limit, gate.chance):
        return []
    return [replace(gate, name="halving")]


def _void_words(voids: Mapping[int, str]) -> str:
    found = [f"{length}" for length, reason in voids.items() if reason]
    return f"; at {', '.join(found)} tokens the baseline itself fails, so no loss can be seen there" if found else ""


def _health(session: ModelSession, given: Params, length: int) -> _Health:
    """Let both sides continue texts of `length` tokens, given and freely.

    A baseline that cannot run at this length (learned positions end, NaN) makes the point void; a candidate that cannot
    run where the baseline does fails.
    """
    count, tokens = given.integer("documents", 16), given.integer("continuation", 32)
    data = documents(session, given, count=count, length=length, continuation=tokens)
    asked = (tokens, given.integer("free_tokens", 40), given.text("pattern", "one-shot"), given.integer("step", 8))
    try:
        base_nll, base_free = continued(session, session.baseline, data.rows, *asked)
    except (EngineError, NonFiniteError) as error:
        return _Health(gates=(), table={"void": str(error)}, void=f"the baseline cannot run there: {error}")
    cand_nll, cand_free = continued(session, session.candidate, data.rows, *asked)
    guess = math.log(int(session.baseline.model.get_input_embeddings().weight.shape[0]))
    where = f"{length} tokens, {len(data.rows)} documents"
    gates = (
        Threshold(
            name=f"explosion[{length} tokens]", value=cand_nll, limit=max(guess, base_nll + 0.5), unit="nats/token",
            n=len(data.rows) * tokens, where=where, seems="a cache whose contents mislead the model",
            origin="derived: log of the vocabulary is a blind guess (half a nat more where the baseline is worse than that)",
        ),
        Threshold(
            name=f"loops[{length} tokens]", value=-math.log10(excess_p(base_free.loops, cand_free.loops)),
            limit=-math.log10(_LOOPS_ALPHA), unit="-log10 p", n=len(data.rows), where=where, seems="degeneration",
            origin="policy: sign test over texts at 1e-4, against the baseline's own loops",
        ),
    )  # fmt: skip
    table = {
        "baseline_nll": base_nll, "candidate_nll": cand_nll, "documents": len(data.rows),
        "baseline_loops": sum(base_free.loops), "candidate_loops": sum(cand_free.loops),
        "baseline_free_length": _mean(base_free.lengths), "candidate_free_length": _mean(cand_free.lengths),
        "baseline_distinct_pairs": round(base_free.distinct, 4), "candidate_distinct_pairs": round(cand_free.distinct, 4),
    }  # fmt: skip
    return _Health(gates=gates, table=table)


def _mean(values: Sequence[int]) -> float:
    return round(sum(values) / len(values), 2)
