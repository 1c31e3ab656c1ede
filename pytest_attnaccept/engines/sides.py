"""One side of a comparison, ready to run: a model, its cache factory and what must be active while it is called.

Nothing is edited for good: attention function and contexts are set when a run begins and restored when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.engines.calls import CallForm, call_form
from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.errors import AttnAcceptError, CandidateError, ContractError
from pytest_attnaccept.methods.stack import enter_context

__all__ = ["Side", "side_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A runnable side.

    Attributes
    ----------
    name
        "baseline" or "candidate", for messages.
    changes
        Whether anything around the model differs from the plain model (cache, context, attention function).
    """

    name: str
    loaded: LoadedModel
    around: Candidate
    form: CallForm

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self.loaded.model

    @property
    def changes(self) -> bool:
        """Whether something around the model is changed."""
        around = self.around
        given = (around.cache, around.context, around.prefill_context, around.attn_implementation)
        return any(each is not None for each in given)

    def new_cache(self) -> Any:
        """Return a fresh cache, or None for the model's own default."""
        if self.around.cache is None:
            return None
        try:
            cache = self.around.cache()
            if not all(callable(getattr(cache, name, None)) for name in ("update", "get_seq_length")):
                raise ContractError(
                    f"the cache factory of the {self.name} returned {type(cache).__name__}; it must return a fresh"
                    " transformers Cache (was 'return' forgotten?)"
                )
            length = getattr(cache, "get_seq_length", None)
            filled = int(length()) if callable(length) else 0
        except AttnAcceptError:
            raise
        except Exception as error:
            words = f"the cache factory of the {self.name} raised {type(error).__name__}: {error}"
            raise CandidateError(words) from error
        if filled:
            raise CandidateError(
                f"the cache factory of the {self.name} returned a cache that already holds {filled} tokens: every context"
                " needs a fresh one, or it sees the text before it"
            )
        return cache

    @contextmanager
    def running(self) -> Iterator[None]:
        """Enter what the side needs around its calls and restore everything afterwards."""
        model, wanted = self.model, self.around.attn_implementation
        before = getattr(model.config, "_attn_implementation", None)
        if wanted is not None and wanted != before:
            try:
                model.set_attn_implementation(wanted)
            except ValueError as error:
                raise ContractError(f"attn_implementation={wanted!r}: {error}") from error
        try:
            with self._entered(self.around.context):
                yield
        finally:
            if wanted is not None and wanted != before and before is not None:
                model.set_attn_implementation(before)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Enter what the side needs around the calls that fill a cache; inside `running`."""
        with self._entered(self.around.prefill_context):
            yield

    @contextmanager
    def _entered(self, context: Callable[..., AbstractContextManager[Any]] | None) -> Iterator[None]:
        if context is None:
            yield
            return
        try:
            manager = enter_context(context, self.model)
            if not (hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__")):
                kind = type(manager).__name__
                call = (
                    "call it with the model: context=lambda model: press(model)" if callable(manager) else "return one"
                )
                raise ContractError(
                    f"the context of the {self.name} gave a {kind}, which is no context manager; {call}"
                )
            with torch.no_grad():  # as around every call: what a press computes must not hold a graph
                manager.__enter__()
        except AttnAcceptError:
            raise
        except Exception as error:
            raise CandidateError(f"the context of the {self.name} raised {type(error).__name__}: {error}") from error
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                manager.__exit__(None, None, None)
            raise
        try:
            with torch.no_grad():
                manager.__exit__(None, None, None)
        except AttnAcceptError:
            raise
        except Exception as error:
            words = f"the context of the {self.name} raised on its way out: {type(error).__name__}: {error}"
            raise CandidateError(words) from error


def side_of(name: str, loaded: LoadedModel, around: Candidate) -> Side:
    """Return the side called `name`."""
    return Side(name=name, loaded=loaded, around=around, form=call_form(loaded.model))
