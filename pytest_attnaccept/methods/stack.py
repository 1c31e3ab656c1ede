"""How several methods become one candidate: at most one eviction, KV codec and weight format, any number of contexts.

The identity setting of a stack is the stack with every member at its own identity knobs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.errors import ContractError, EngineError
from pytest_attnaccept.methods.applied import Applied
from pytest_attnaccept.methods.attention import observing
from pytest_attnaccept.methods.claims import Claim, claim_of, combine
from pytest_attnaccept.methods.layer import policy_cache
from pytest_attnaccept.taxonomy import Method

__all__ = ["Stack", "apply_stack", "enter_context", "identity_stack", "require_capability", "stack_claim"]

Entry = tuple[Method, Mapping[str, object]]
# Fields of a Candidate that stand for the whole model: two members cannot share them, one would be lost.
_WHOLE = ("cache", "model", "generate_kwargs", "tokenizer", "kv_footprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A model with its methods applied, and what they promise together."""

    candidate: Candidate
    claim: Claim
    words: str


def stack_claim(stack: Sequence[Entry]) -> Claim:
    """Return what the members of `stack` promise about the cache, from their names and knobs alone."""
    return combine(claim_of(method.name, knobs) for method, knobs in stack)


def _module(method: Method) -> tuple[Any, str]:
    if not method.applies:
        raise ContractError(
            f"{method.name} cannot be applied by this package; pass the changed model: accept.model(candidate=...)"
        )
    path, _, function = method.applies.partition(":")
    return importlib.import_module(path), function or "apply"


def require_capability(method: Method, device: Any) -> None:
    """Refuse a CUDA device that could not run the real implementation; elsewhere the method is emulated.

    Raises
    ------
    EngineError
        When `device` (a ``torch.device``) is a CUDA device below ``method.min_capability``.
    """
    if method.min_capability is None or device.type != "cuda":
        return
    import torch

    found = torch.cuda.get_device_capability(device)
    if found < method.min_capability:
        wanted = ".".join(map(str, method.min_capability))
        raise EngineError(
            f"{method.name} needs CUDA compute capability {wanted} or higher, {device} has {'.'.join(map(str, found))};"
            " on CPU it is emulated: --accept-device cpu"
        )


def apply_stack(model: Any, stack: Sequence[Entry], *, seed: int = 0) -> Stack:
    """Apply the methods of `stack` (method and complete knobs, in this order) to `model`.

    The model itself is not edited: the result is a `Candidate` around it, and nothing stays when it is dropped.
    """
    parts: list[Applied] = []
    for method, knobs in stack:
        module, function = _module(method)
        require_capability(method, next(iter(model.parameters())).device)
        made = getattr(module, function)(model, knobs)
        parts.append(made if isinstance(made, Applied) else Applied(method=method.name, candidate=made))
    claim = stack_claim(stack)
    return Stack(candidate=_compose(model, parts, seed), claim=claim, words=claim.source)


def identity_stack(model: Any, stack: Sequence[Entry], *, seed: int = 0) -> Stack | None:
    """Apply `stack` with every member at its identity knobs, or return None when a member has no such setting."""
    entries: list[Entry] = []
    for method, knobs in stack:
        if not method.applies:
            return None
        identity = getattr(_module(method)[0], "identity", None)
        if identity is None:
            return None
        entries.append((method, identity(knobs)))
    return apply_stack(model, entries, seed=seed)


def _compose(model: Any, parts: Sequence[Applied], seed: int) -> Candidate:
    policy = _single(parts, "policy", "evictions")
    codec = _single(parts, "codec", "KV quantizations")
    weights = _single(parts, "weights", "weight quantizations")
    own = [part.candidate for part in parts if part.candidate is not None]
    if len(parts) == 1 and own:
        return own[0]
    if len(parts) > 1 and any(getattr(c, name) is not None for c in own for name in _WHOLE):
        raise ContractError("a method that brings its own cache or model cannot be stacked with another method")
    if len({c.attn_implementation for c in own if c.attn_implementation}) > 1:
        raise ContractError("two attention implementations cannot be stacked: only one of them would run")
    if weights is not None:
        model = weights(model)
    base = next((c.attn_implementation for c in own if c.attn_implementation), None) or _attention_of(model)
    contexts = [c.context for c in own if c.context is not None]
    needs_attention = policy is not None and (policy.needs_scores or policy.window is not None)
    return Candidate(
        model=model,
        cache=(lambda: policy_cache(model, policy=policy, codec=codec, seed=seed)) if policy or codec else None,
        context=_nested(contexts) if contexts else None,
        attn_implementation=observing(base) if needs_attention else None if base == _attention_of(model) else base,
    )


def _single(parts: Sequence[Applied], field: str, what: str) -> Any:
    found = [part for part in parts if getattr(part, field) is not None]
    if len(found) > 1:
        names = " and ".join(part.method for part in found)
        raise ContractError(f"{names}: two {what} in one stack act on the same entries; keep one of them")
    return getattr(found[0], field) if found else None


def _attention_of(model: Any) -> str:
    return str(getattr(model.config, "_attn_implementation", None) or "sdpa")


def enter_context(context: Callable[..., AbstractContextManager[Any]], model: Any) -> AbstractContextManager[Any]:
    """Call `context` with the model if it takes an argument (a kvpress press), else without one (a lambda)."""
    try:
        inspect.signature(context).bind(model)
    except (TypeError, ValueError):
        return context()
    return context(model)


def _nested(
    contexts: Sequence[Callable[..., AbstractContextManager[Any]]],
) -> Callable[[Any], AbstractContextManager[Any]]:
    @contextmanager
    def nested(model: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(enter_context(context, model))
            yield

    return nested
