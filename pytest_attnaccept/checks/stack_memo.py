"""Which results of a candidate may serve another cell of the matrix: those of the same lossy stack of this package.

A stack with drafts prefills and answers as the same stack without them (`speculation` shows that it decodes the same tokens),
so `production` and `production with drafts` share what their texts and contexts gave. Only stacks that this package applied
itself are shared, in memory, inside one process: a candidate of the user's own may change from one test to the next.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from pytest_attnaccept.engines.memo import TensorMemo
from pytest_attnaccept.protocol import DRAFTED

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession
    from pytest_attnaccept.engines.sides import Side

__all__ = ["shared_key", "stack_memo"]

stack_memo = TensorMemo(folder=False)


def shared_key(session: ModelSession, side: Side) -> Hashable | None:
    """Return what `side`'s results depend on besides their input, or None when they must not serve another session.

    Only the candidate as it was applied has a key: its identity setting and other budgets are other candidates, and a
    session without an identity setting holds a candidate of the user's own.
    """
    if side is not session.candidate or session.identity is None or session.findings:
        return None
    members = [(method, knobs) for method, knobs in session.stack if method.name not in DRAFTED]
    if not members or not all((method.applies or "").startswith("pytest_attnaccept.") for method, _ in members):
        return None
    named = tuple((method.name, tuple(sorted((k, repr(v)) for k, v in knobs.items()))) for method, knobs in members)
    return (session.baseline_key, named, session.seed)
