"""What would somebody score in a benchmark who has read nothing? (`blind_score`: two answers that know no question)

A task of somebody else says nothing about guessing: the letters of a generated multiple choice may be unevenly spread, a
filter or a metric may accept anything, every answer may be the same. So the task itself is asked with two models that do
not read: one says nothing and takes the shortest choice (as a model does for which all tokens are equally likely), the other
gives the most frequent right answer every time (which is not counted where it was taken from). A baseline that does not
beat the better of them shows no ability to lose. No model sees the number of a choice, so these do not use it either.

Imported only when a benchmark runs: lm-eval is an optional dependency.
"""

from __future__ import annotations

import hashlib
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
        By task, the text that is generated and the choice that is the likeliest (missing: nothing, and the shortest).
    """

    def __init__(self, answers: Mapping[str, str]) -> None:
        super().__init__()
        self._answers = answers

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return what a choice is worth; nothing is ever the greedy continuation."""
        return [(self._worth(r.task_name, *map(str, r.args[:2])), False) for r in requests]

    def _worth(self, task: str, context: str, choice: str) -> float:
        """Less for longer choices; equal ones are told apart by a digest, because the first of them would be taken."""
        chosen = choice.strip() == self._answers.get(task)
        digest = hashlib.sha256(f"{context}\0{choice}".encode("utf-8", "replace")).digest()
        return (0.0 if chosen else -1e6 - len(choice)) - 1e-3 * digest[0] / 256

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
    for task in dict.fromkeys(o.task for o in outcomes):
        mine = [o for o in outcomes if o.task == task]
        answers[task] = Counter(o.target for o in mine).most_common(1)[0][0]
        origins[task] = next(o.unit for o in mine if o.target == answers[task])
    return max(_score(outcomes, run, BlindLM({}), {}), _score(outcomes, run, BlindLM(answers), origins))


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
