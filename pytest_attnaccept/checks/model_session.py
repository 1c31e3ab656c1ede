"""`open_session`: two sides of a model comparison, built once per test, measured by check id, and closed.

Positions
---------
1. A side may be a model, a SPEC, a `Candidate` or a callable that returns one; without a candidate the stack of
   registered methods is applied to the baseline's model, which is not edited.
2. A candidate that edits the baseline in place would make both sides equal: weights are digested before and after it is
   built, and the same object without anything around it is INVALID.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks.model_evidence import TOKEN_ONLY
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.engines.calls import NonFiniteError
from pytest_attnaccept.engines.fingerprints import config_digest, library_versions, tokenizer_digest, weights_digest
from pytest_attnaccept.engines.loading import (
    LoadedModel,
    load,
    load_tokenizer,
    prefix_of,
    resolve_dtype,
    trained_length,
)
from pytest_attnaccept.engines.sides import Side, side_of
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.errors import AttnAcceptError, CandidateError, ContractError, UnknownNameError
from pytest_attnaccept.measurement import Measured, Refusal
from pytest_attnaccept.methods.claims import Claim, claim_of, combine
from pytest_attnaccept.methods.stack import apply_stack, identity_stack
from pytest_attnaccept.taxonomy import Kind, Method, Verdict

__all__ = ["ModelSession", "open_session"]

Entry = tuple[Method, Mapping[str, object]]

# measured: below this size a batch of 16 rows takes about three times as long as one row; above it, nothing is gained on
# two CPU cores
_SMALL_MODEL = 20_000_000
_BATCH = 16


@dataclass(kw_only=True)
class ModelSession:
    """Two sides that are ready to be measured; use as a context manager, or call `close`.

    Attributes
    ----------
    identity
        The candidate at its identity setting; None when the candidate is the user's own and has no such setting.
    findings
        Refusals that were found while the sides were built; they are part of every measurement.
    memo
        Results that several checks share (the text pass, soundness), by key.
    """

    baseline: Side
    candidate: Side
    identity: Side | None
    stack: tuple[Entry, ...]
    claims: tuple[Claim, ...]
    seed: int
    device: str
    dtype: str
    weights: Mapping[str, str]
    findings: tuple[Refusal, ...] = ()
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def claim(self) -> Claim:
        """What the whole stack promises."""
        return combine(self.claims)

    @property
    def approximate(self) -> bool:
        """Whether the stack declares a change that must be visible."""
        return any(method.kind is not Kind.EXACT for method, _ in self.stack)

    @property
    def batch(self) -> int:
        """How many rows of equal length go through a model at once, the same for both sides.

        Small models spend their time between the operations; a cache or context of the user's own may know one row only.
        """
        foreign = self.identity is None and self.candidate.changes
        small = max(_parameters(side.model) for side in (self.baseline, self.candidate)) <= _SMALL_MODEL
        return _BATCH if small and not foreign and not self.baseline.changes else 1

    @property
    def trained_length(self) -> int | None:
        """Trained length of the baseline, the unit of length tiers."""
        return self.baseline.loaded.trained_length

    def measure(self, check_id: str, params: Mapping[str, object] | None = None) -> Measured:
        """Run one check.

        Parameters
        ----------
        check_id
            ``identity``, ``footprint``, ``divergence``, ``perplexity``, ``equality`` or ``needle-<tier>x``.
        params
            Parameters of the check; unknown ones belong to the verdict and are ignored here.

        Raises
        ------
        CandidateError
            When the candidate raised.
        EngineError
            When the model or machine cannot be measured.
        """
        from pytest_attnaccept.checks.model_registry import check_function

        function, given = check_function(check_id, dict(params or {}))
        wanted = Params(check=check_id, given=given)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)  # for candidates that draw; restored afterwards
                measured = self._run(function, wanted)
        except NonFiniteError as error:
            return Measured(refusals=(*self.findings, Refusal(verdict=Verdict.FAIL, reason=str(error))), seed=self.seed)
        return replace(measured, refusals=(*self.findings, *measured.refusals), seed=self.seed)

    def _run(self, function: Callable[[ModelSession, Params], Measured], params: Params) -> Measured:
        """Run a check; a candidate that cannot take several tokens on a filled cache is run token by token.

        Caches with another length per layer (PyramidKV) are of this kind: transformers builds one mask for all layers.
        """
        try:
            return function(self, params)
        except CandidateError as error:
            if self.memo.get(TOKEN_ONLY) or not self.candidate.changes:
                raise
            self.memo[TOKEN_ONLY] = str(error)
            try:
                return function(self, params)
            except CandidateError:
                del self.memo[TOKEN_ONLY]  # not the reason: report the first error
                raise error from None

    def fingerprint(self) -> dict[str, str]:
        """Return what was measured: weights, tokenizers, configurations, software, device, dtype, stack and seed."""
        marks = {
            "device": self.device,
            "dtype": self.dtype,
            "seed": str(self.seed),
            "stack": " + ".join(claim.source for claim in self.claims) or "none",
            **library_versions(),
        }
        for side in (self.baseline, self.candidate):
            marks[f"{side.name}.spec"] = side.loaded.spec
            marks[f"{side.name}.weights"] = self.weights[side.name]
            marks[f"{side.name}.config"] = config_digest(side.model)
            marks[f"{side.name}.tokenizer"] = tokenizer_digest(side.loaded.tokenizer)
            marks[f"{side.name}.trust_remote_code"] = str(side.loaded.trust_remote_code).lower()
            marks[f"{side.name}.attention"] = side.around.attn_implementation or str(
                getattr(side.model.config, "_attn_implementation", "")
            )
        return marks

    def close(self) -> None:
        """Drop results and sides."""
        self.memo.clear()

    def __enter__(self) -> ModelSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_session(
    *,
    candidate: object = None,
    baseline: object,
    stack: Sequence[Entry] = (),
    device: str = "cpu",
    dtype: str | None = None,
    seed: int = 0,
) -> ModelSession:
    """Build both sides.

    Parameters
    ----------
    candidate, baseline
        A transformers model, SPEC (text or mapping), `Candidate`, object with ``model`` and ``tokenizer``, or a
        zero-argument callable that returns one. Candidate None: `stack` is applied to the baseline's model.
    stack
        Registered methods with their complete knobs, in the order in which they apply.
    dtype
        Dtype for models that are loaded here; None: float32. Models that are passed stay as they are.
    """
    if baseline is None:
        raise ContractError("a model comparison needs a baseline: accept.model(baseline=...) or --accept-model")
    name = str(resolve_dtype(dtype)).removeprefix("torch.")
    base_model, base_around = _built("baseline", baseline, device, name, None)
    first = side_of("baseline", base_model, base_around)
    before = weights_digest(first.model)
    findings: list[Refusal] = []
    if candidate is None:
        applied = apply_stack(first.model, stack, seed=seed) if stack else None
        if applied is None:
            raise ContractError("neither a candidate nor a registered method was given: there is nothing to compare")
        second = side_of("candidate", _with_model(base_model, applied.candidate, device, name), applied.candidate)
        still = identity_stack(first.model, stack, seed=seed)
        third = side_of("candidate", base_model, still.candidate) if still else None
    else:
        model, around = _built("candidate", candidate, device, name, base_model)
        second, third = side_of("candidate", model, around), None
    same = second.model is first.model
    after = weights_digest(first.model)
    if after != before:
        findings.append(
            _invalid("building the candidate changed the baseline's weights in place: both sides are the changed model")
        )
    elif same and not second.changes:
        findings.append(_invalid("the candidate is the baseline: the same model object with nothing changed around it"))
    theirs = after if same else weights_digest(second.model)
    if not same and not second.changes and theirs == after and type(second.model) is type(first.model):
        findings.append(_invalid("the candidate has the baseline's weights bit for bit and nothing changed around it"))
    return ModelSession(
        baseline=first,
        candidate=second,
        identity=third,
        stack=tuple(stack),
        claims=tuple(claim_of(method.name, knobs) for method, knobs in stack),
        seed=seed,
        device=device,
        dtype=str(next(first.model.parameters()).dtype).removeprefix("torch."),
        weights={"baseline": after, "candidate": theirs},
        findings=tuple(findings),
    )


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _invalid(reason: str) -> Refusal:
    return Refusal(verdict=Verdict.INVALID, reason=reason)


def _built(
    side: str, given: object, device: str, dtype: str, fallback: LoadedModel | None
) -> tuple[LoadedModel, Candidate]:
    """Turn what a user gave for one side into a loaded model and what is around it."""
    if _is_factory(given):
        given = _called(side, given)
    if isinstance(given, Candidate):
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


def _with_model(base: LoadedModel, around: Candidate, device: str, dtype: str) -> LoadedModel:
    """Return the model of an applied stack: the baseline's own unless a method brought another one."""
    if around.model is None or around.model is base.model:
        return base
    return _loaded("candidate", around.model, device, dtype, base)
