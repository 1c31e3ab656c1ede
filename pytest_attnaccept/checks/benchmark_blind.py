"""What would somebody score in a benchmark who has read nothing? (`blind_score`: two answers that know no question)

A task of somebody else says nothing about guessing: the letters of a generated multiple choice may be unevenly spread, a
filter or a metric may accept anything, every answer may be the same. So the task itself is asked with two models that do
not read: one says nothing and takes the first choice, the other gives the most frequent right answer every time (which is
not counted where it was taken from). A baseline that does not beat the better of them shows no ability to lose.

Imported only when a benchmark runs: lm-eval is an optional dependency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api.model import LM

from pytest_attnaccept.checks.benchmark_docs import Outcome
from pytest_attnaccept.errors import AttnAcceptError, ContractError

__all__ = ["BlindLM", "blind_score"]


class BlindLM(LM):  # type: ignore[misc]
    """A model that answers every document of a task alike.

    Parameters
    ----------
    answers
        By task, the text that is generated (missing: nothing).
    places
        By task, the number of the choice that is the likeliest (missing: the first).
    """

    def __init__(self, answers: Mapping[str, str], places: Mapping[str, int]) -> None:
        super().__init__()
        self._answers, self._places = answers, places

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return 0 for the chosen place and less for every other; nothing is ever the greedy continuation."""
        return [(0.0 if r.idx == self._places.get(r.task_name, 0) else -1.0, False) for r in requests]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Refuse, as the sides do."""
        raise ContractError(f"{len(requests)} requests for a rolling log-likelihood have no score per document")

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the text of the task for every request."""
        return [self._answers.get(r.task_name, "") for r in requests]


def blind_score(outcomes: Sequence[Outcome], run: Callable[[LM], list[Outcome]]) -> float:
    """Score in [0, 1] of the better of two models that read nothing.

    Parameters
    ----------
    outcomes
        Documents as a side answered them, with what is right.
    run
        Asks the same documents of another model.
    """
    origins: dict[str, str] = {}
    answers: dict[str, str] = {}
    places: dict[str, int] = {}
    for task in dict.fromkeys(o.task for o in outcomes):
        mine = [o for o in outcomes if o.task == task]
        (target, place), _ = Counter((o.target, o.place) for o in mine).most_common(1)[0]
        answers[task], places[task] = target, place
        origins[task] = next(o.unit for o in mine if (o.target, o.place) == (target, place))
    silent = _score(outcomes, run, BlindLM({}, {}), {})
    return max(silent, _score(outcomes, run, BlindLM(answers, places), origins))


def _score(
    outcomes: Sequence[Outcome], run: Callable[[LM], list[Outcome]], model: LM, origins: Mapping[str, str]
) -> float:
    """Mean over all documents but those that the answers were taken from; 0 where the task cannot score such answers."""
    try:
        found = run(model)
    except AttnAcceptError:  # a task's own code may refuse an answer that no model gives
        return 0.0
    metrics = {o.unit: o.metric for o in outcomes}
    values = [o.score for o in found if o.unit != origins.get(o.task) and o.metric == metrics.get(o.unit)]
    return sum(values) / len(values) if values else 0.0
