"""Which call pattern is the worst one: all are screened on a few texts or contexts, and the gate asks that one.

Positions
---------
1. Screening compares the NLL of a pattern's continuation or answers with the baseline's in the same pattern. It decides
   what is measured, never a verdict: the gate uses other documents, so the choice cannot make it look worse or better.
2. Patterns agree when they differ by no more than the baseline's own patterns do. Then the first one is gated.
3. A batch that the candidate refuses is reported: an error is no wrong answer. A cache that cannot be copied is no warm
   prefix of another request, and has to be none. Padded rows are not asked of evictions:
   which of their entries a padding mask belongs to is declared by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.calls import NonFiniteError
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.engines.through_cache import CopyError
from pytest_attnaccept.errors import CandidateError, EngineError
from pytest_attnaccept.measurement import Fact

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["FRESH", "MeanNLL", "Screening", "chosen_patterns", "screening_facts"]

FRESH = 10_000_000  # index from which screening takes its texts: no gate goes there
PADDED = ("batch-left", "batch-right")
# measured: 14 times what cached and uncached float32 logits differ by (ROUNDING_ORIGIN), in nats per token
_ROUNDING = 1e-3

MeanNLL = Callable[[Side, str, Params], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """What screening found.

    Attributes
    ----------
    losses
        Mean NLL of the candidate minus the baseline's, per pattern, in nats per token.
    skipped
        Patterns that were not measured, with the reason.
    floor
        Largest difference that counts as agreement.
    chosen
        The pattern that is gated.
    """

    losses: Mapping[str, float]
    floor: float
    chosen: str
    first: str
    texts: int
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[str, str]:
        """The patterns with the largest and the smallest loss, among those that read the same text."""
        same = [name for name in self.losses if name not in PADDED]
        return max(same, key=lambda name: self.losses[name]), min(same, key=lambda name: self.losses[name])

    @property
    def spread(self) -> float:
        """Difference between them."""
        worst, best = self.ends
        return self.losses[worst] - self.losses[best]


def chosen_patterns(
    session: ModelSession, given: Params, kind: str, mean_nll: MeanNLL
) -> tuple[Params, Screening | None]:
    """Return `given` with the pattern to gate, and the screening; without ``screen`` every pattern is gated.

    Parameters
    ----------
    kind
        What is screened ("needle:256"): one screening per session and kind.
    mean_nll
        Mean NLL of one side in one pattern, for parameters that name fresh texts.
    """
    names = given.texts("patterns", ("one-shot",))
    count = given.optional_integer("screen")
    if count is None or len(names) < 2:
        return given, None
    key = f"screening:{kind}:{names}:{count}"
    if key not in session.memo:
        session.memo[key] = _screened(session, given, names, count, mean_nll)
    found: Screening = session.memo[key]
    return replace(given, given={**given.given, "patterns": (found.chosen,)}), found


def _screened(session: ModelSession, given: Params, names: tuple[str, ...], count: int, mean_nll: MeanNLL) -> Screening:
    fresh = replace(given, given={**given.given, "first": FRESH, "contexts": count, "documents": count})
    first = names[0]
    base, floor = mean_nll(session.baseline, first, fresh), _ROUNDING
    losses = {first: mean_nll(session.candidate, first, fresh) - base}
    skipped: dict[str, str] = {}
    for number, name in enumerate(names[1:]):
        if name in PADDED and session.claim.budget is not None:
            skipped[name] = "not asked of an eviction: nothing says which entry a padding mask belongs to"
            continue
        reference = base
        try:
            # A sound baseline is the same in every pattern; one measured difference says how much rounding that leaves.
            # Padded rows are shorter, which is another text.
            if number == 0 or name in PADDED:
                reference = mean_nll(session.baseline, name, fresh)
        except (EngineError, NonFiniteError, CopyError) as error:
            skipped[name] = f"the baseline cannot be called so: {error}"
            continue
        if name not in PADDED:
            floor = max(floor, 2 * abs(reference - base))
        try:
            losses[name] = mean_nll(session.candidate, name, fresh) - reference
        except CopyError as error:
            skipped[name] = f"not asked: {error}"
        except CandidateError as error:
            if not name.startswith("batch"):
                raise
            skipped[name] = f"refused: {error}"
    worst = max(losses, key=lambda name: losses[name])
    chosen = worst if losses[worst] > losses[first] + floor else first
    return Screening(losses=losses, floor=floor, chosen=chosen, first=first, texts=count, skipped=skipped)


def screening_facts(found: Screening | None) -> list[Fact]:
    """Report what screening found; the finding "order-dependent" when patterns do not agree."""
    if found is None:
        return []
    facts = [
        Fact(name="patterns_screened", value=f"{len(found.losses)} on {found.texts} fresh texts"),
        Fact(name="pattern_gated", value=found.chosen),
        Fact(name="pattern_spread", value=round(found.spread, 6), unit="nats/token"),
    ]
    if found.spread > found.floor:
        worst, best = found.ends
        facts.append(
            Fact(
                name="order_dependent",
                value=f"{worst} loses {found.spread:.3g} nats/token more than {best}"
                f" (rounding of the baseline: {found.floor:.1g})",
            )
        )
    facts += [
        Fact(name=f"pattern_loss[{name}]", value=round(loss, 6), unit="nats/token")
        for name, loss in found.losses.items()
    ]
    facts += [Fact(name=f"pattern_skipped[{name}]", value=reason) for name, reason in found.skipped.items()]
    return facts
