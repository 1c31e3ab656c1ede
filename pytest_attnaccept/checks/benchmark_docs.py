"""What lm-eval says about every document of a task, for one side: a score in [0, 1], and what a blind guess would get.

Positions
---------
1. Data that cannot be had (offline, gated, gone) is an `EngineError`: the item is INCOMPLETE and says what is missing. A
   task name that nobody knows is the user's mistake.
2. The global generators are given back as they were, and no code of a data set or of a model's answer is run here.
3. One filter and one metric per task are compared, chosen by name or by a fixed order, the same for both sides.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.errors import AttnAcceptError, ContractError, EngineError, UnknownNameError

__all__ = ["METRICS", "Outcome", "lm_eval_outcomes"]

# Which metric is compared when none is named: the first of these that every document of the task has.
METRICS = ("acc", "exact_match", "em", "f1", "pass@1", "acc_norm")
_OFFLINE = re.compile(
    r"offline|connect|resolve|timed? ?out|gated|401|403|404|not found|doesn't exist|unable to load", re.I
)
_managers: dict[tuple[str, str, bool], Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One document: `unit` names task, document and prompt; `chance` is the score of a blind guess by `metric`.

    `target` is the right answer as a text, as far as the task says it.
    """

    unit: str
    task: str
    score: float
    parsed: bool
    chance: float
    metric: str = ""
    target: str = ""


def lm_eval_outcomes(
    task: str,
    model: Any,
    *,
    include_path: str = "",
    content: str = "",
    limit: int | None = None,
    num_fewshot: int | None = None,
    metric: str = "",
) -> list[Outcome]:
    """Run one task of lm-eval and return its documents in order.

    Parameters
    ----------
    model
        An ``lm_eval.api.model.LM``.
    include_path, content
        Folder of the user's YAML tasks, and a digest of what is in it.
    metric
        Name of the metric, or "metric,filter"; empty: the first known one and the task's first filter.
    """
    result = _quietly(task, lambda: _result(task, model, include_path, content, limit, num_fewshot))
    samples, higher = result["samples"], result.get("higher_is_better") or {}
    if not samples or not any(samples.values()):
        raise ContractError(f"benchmark: {task} has no document")
    return [
        outcome for name, rows in samples.items() for outcome in _outcomes(name, rows, metric, higher.get(name) or {})
    ]


def _quietly(task: str, run: Callable[[], Any]) -> Any:
    """Run with warnings and progress bars off, and give the global generators back.

    What the data sets raise becomes an error that says what is missing.
    """
    import numpy

    states = random.getstate(), numpy.random.get_state()
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return run()
        except (AttnAcceptError, MemoryError):
            raise
        except (KeyError, ValueError, TypeError) as error:
            raise (_missing if _OFFLINE.search(str(error)) else _broken)(task, error) from error
        except Exception as error:  # data sets raise errors of a dozen libraries; none of them is the candidate's
            raise (_broken if type(error).__module__.startswith("jinja2") else _missing)(task, error) from error
        finally:
            random.setstate(states[0])
            numpy.random.set_state(states[1])


def _broken(task: str, error: Exception) -> ContractError:
    return ContractError(f"benchmark: lm-eval cannot run {task}: {type(error).__name__}: {error}")


def _missing(task: str, error: Exception) -> EngineError:
    reason = next(iter(str(error).splitlines()), "no reason given")[
        :200
    ]  # an empty data set: StopIteration without a text
    return EngineError(
        f"benchmark: the data of {task} cannot be had ({type(error).__name__}: {reason}). Let the Hub be reached once, or"
        " name a YAML task with local data_files in include_path"
    )


def _result(
    task: str, model: Any, include_path: str, content: str, limit: int | None, num_fewshot: int | None
) -> Mapping[str, Any]:
    from lm_eval import simple_evaluate

    result: Mapping[str, Any] = simple_evaluate(
        model=model, tasks=[task], task_manager=_manager(task, include_path, content), limit=limit,
        num_fewshot=num_fewshot, bootstrap_iters=0, log_samples=True, random_seed=None, numpy_random_seed=None,
        torch_random_seed=None, fewshot_random_seed=1234, confirm_run_unsafe_code=False,
    )  # fmt: skip
    return result


def _manager(task: str, include_path: str, content: str) -> Any:
    """Return a task manager that knows `task`; the user's folder alone is tried first, indexing all takes many seconds."""
    from lm_eval.tasks import TaskManager

    known: list[str] = []
    for defaults in (False, True) if include_path else (True,):
        key = (include_path, content, defaults)
        if key not in _managers:
            _managers[key] = TaskManager(include_path=include_path or None, include_defaults=defaults)
        known = list(_managers[key].all_tasks)
        if task in known:
            return _managers[key]
    raise UnknownNameError("task of lm-eval", task, [name for name in known if name[:2] == task[:2]][:20])


def _outcomes(task: str, rows: Sequence[Mapping[str, Any]], metric: str, higher: Mapping[str, bool]) -> list[Outcome]:
    name, _, wanted = metric.partition(",")
    filters = list(dict.fromkeys(str(row.get("filter", "none")) for row in rows))
    chosen = wanted or filters[0]
    if chosen not in filters:
        raise UnknownNameError(f"filter of {task}", chosen, filters)
    rows = [row for row in rows if str(row.get("filter", "none")) == chosen]
    name = name or next((m for m in METRICS if all(_bounded(row.get(m)) for row in rows)), "")
    if not name or not all(_bounded(row.get(name)) for row in rows):
        found = sorted(set(map(str, rows[0].get("metrics", ()))))
        raise ContractError(
            f"benchmark: {task} has no metric {name or ' or '.join(METRICS)!r} with a score in [0, 1] for every document"
            f" (it has {', '.join(found)}); name one with metric:"
        )
    return [_outcome(task, row, name, lower=higher.get(name) is False) for row in rows]


def _bounded(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and 0.0 <= float(value) <= 1.0


def _outcome(task: str, row: Mapping[str, Any], metric: str, *, lower: bool) -> Outcome:
    choices = len(row.get("arguments") or ())
    score = 1.0 - float(row[metric]) if lower else float(row[metric])  # a score: more is better
    if metric in ("acc", "acc_norm") and not lower:
        score /= _equally_likely(row, by_length=metric == "acc_norm")  # a model without a preference has guessed
    answered = row.get("filtered_resps")
    texts = [text for text in (answered if isinstance(answered, list) else [answered]) if isinstance(text, str)]
    return Outcome(
        unit=f"{task}:{row['doc_id']}:{row['doc_hash'][:12]}:{row['prompt_hash'][:12]}",
        task=task,
        score=score,
        parsed=not texts or any(text.strip() and text != "[invalid]" for text in texts),
        chance=1.0 / choices if choices > 1 else 0.0,
        metric=metric,
        target=_target(row),
    )


def _choices(row: Mapping[str, Any]) -> list[str]:
    """Return the texts that a document chooses among; none where it has one request."""
    arguments = row.get("arguments")
    pairs = arguments if isinstance(arguments, list) and len(arguments) > 1 else []
    return [str(pair[-1]) for pair in pairs if isinstance(pair, (list, tuple)) and len(pair) == 2]


def _target(row: Mapping[str, Any]) -> str:
    """Return the right answer as a text: that of the choice whose number is given; a list stands for its first entry."""
    right, choices = row.get("target"), _choices(row)
    right = right[0] if isinstance(right, (list, tuple)) and right else right
    if isinstance(right, int) and 0 <= right < len(choices):
        return choices[right].strip()
    return str("" if right is None else right).strip() if choices else str("" if right is None else right)


def _equally_likely(row: Mapping[str, Any], *, by_length: bool) -> int:
    """Return how many choices share the first place; lm-eval takes the first of them, which a task may know to be right."""
    found, choices = row.get("filtered_resps"), _choices(row)
    if not choices or not isinstance(found, list) or len(found) != len(choices):
        return 1
    if not all(isinstance(f, (list, tuple)) and f and isinstance(f[0], (int, float)) for f in found):
        return 1
    lengths = [max(1, len(text.removeprefix(" "))) if by_length else 1 for text in choices]
    worths = [float(f[0]) / length for f, length in zip(found, lengths, strict=True)]
    return max(1, sum(math.isclose(worth, max(worths), rel_tol=1e-12) for worth in worths))  # NaN equals nothing
