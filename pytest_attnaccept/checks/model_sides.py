"""How what a user gave for one side (model, SPEC, `Candidate`, callable) becomes a loaded model and what is around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.engines.loading import LoadedModel, load, load_tokenizer, prefix_of, trained_length
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import AttnAcceptError, CandidateError, ContractError, UnknownNameError

__all__ = ["build_side", "with_model"]


def build_side(
    side: str, given: object, device: str, dtype: str, fallback: LoadedModel | None
) -> tuple[LoadedModel, Candidate]:
    """Turn what a user gave for one side into a loaded model and what is around it."""
    if _is_factory(given):
        given = _called(side, given)
    if isinstance(given, Candidate):
        if given.generate_kwargs:
            raise ContractError(
                f"the {side} has generate_kwargs={dict(given.generate_kwargs)!r}, which no check of this version uses: what"
                " they change would not be measured. Gate a changed decoding with accept.decoder(...)"
            )
        inner = given.model if given.model is not None else fallback
        if inner is None:
            raise ContractError(
                f"the {side} is a Candidate without a model, and there is no other side to take it from"
            )
        if _is_factory(inner):
            inner = _called(side, inner)
        own = load_tokenizer(given.tokenizer) if isinstance(given.tokenizer, str) else given.tokenizer
        return _loaded(side, inner, device, dtype, fallback, own), given
    return _loaded(side, given, device, dtype, fallback), Candidate()


def _is_factory(given: object) -> bool:
    return (
        callable(given)
        and not isinstance(given, (torch.nn.Module, LoadedModel, Candidate))
        and not hasattr(given, "tokenizer")
    )


def _called(side: str, factory: object) -> object:
    if not callable(factory):
        raise ContractError(f"the {side} is not callable")
    try:
        return factory()
    except AttnAcceptError:
        raise
    except Exception as error:
        raise CandidateError(f"the callable for the {side} raised {type(error).__name__}: {error}") from error


def _loaded(
    side: str, given: object, device: str, dtype: str, fallback: LoadedModel | None, own: object = None
) -> LoadedModel:
    """Load `given`, or wrap it; `own` is the tokenizer that a Candidate brings."""
    if isinstance(given, (str, Mapping)):
        given = load(parse_spec(given, side), device=device, dtype=dtype)
    if isinstance(given, LoadedModel):
        return given if own is None else replace(given, tokenizer=own, prefix_ids=prefix_of(own))
    if isinstance(given, torch.nn.Module) and hasattr(given, "config"):
        return _around_model(given.eval(), own, fallback, side)
    model, tokenizer = getattr(given, "model", None), getattr(given, "tokenizer", None)
    if isinstance(model, torch.nn.Module) and tokenizer is not None:
        return _around_model(model.eval(), own or tokenizer, fallback, side)
    raise ContractError(
        f"the {side} must be a transformers model, a SPEC, a Candidate or a callable that returns one, got"
        f" {type(given).__name__}"
    )


def _around_model(model: Any, tokenizer: Any, fallback: LoadedModel | None, side: str) -> LoadedModel:
    """Find the tokenizer of a bare model: by name_or_path, else the baseline's."""
    if fallback is not None and model is fallback.model and tokenizer is None:
        return fallback
    place = getattr(model, "name_or_path", "") or ""
    if tokenizer is None and place:
        try:
            tokenizer = load_tokenizer(place)
        except (OSError, ValueError, ImportError, KeyError, UnknownNameError):
            tokenizer = None  # a path that is gone: the other side's tokenizer is the next choice
    if tokenizer is None and fallback is not None:
        return LoadedModel(
            model=model, tokenizer=fallback.tokenizer, trained_length=trained_length(model),
            spec=place or type(model).__name__, prefix_ids=fallback.prefix_ids,
        )  # fmt: skip
    if tokenizer is None:
        raise ContractError(
            f"the {side} model has no tokenizer: pass Candidate(model, tokenizer=...), or a model loaded from a path"
        )
    return LoadedModel(
        model=model, tokenizer=tokenizer, trained_length=trained_length(model), spec=place or type(model).__name__,
        prefix_ids=prefix_of(tokenizer),
    )  # fmt: skip


def with_model(base: LoadedModel, around: Candidate, device: str, dtype: str) -> LoadedModel:
    """Return the model of an applied stack: the baseline's own unless a method brought another one."""
    if around.model is None or around.model is base.model:
        return base
    return _loaded("candidate", around.model, device, dtype, base)
