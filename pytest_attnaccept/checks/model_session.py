"""`open_session`: two sides of a model comparison, built once per test, measured by check id, and closed.

Positions
---------
1. A side may be a model, a SPEC, a `Candidate` or a callable that returns one; without a candidate the stack of
   registered methods is applied to the baseline's model, which is not edited.
2. A candidate that edits the baseline in place would change both sides: the baseline is looked at before the candidate is
   built, after it, and after every check. The same object without anything around it is INVALID.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from torch import Tensor

from pytest_attnaccept.checks.model_bound import baseline_marks, marks_of
from pytest_attnaccept.checks.model_budgets import budget_knobs, budget_share, knobs_at, rebuilder
from pytest_attnaccept.checks.model_evidence import TOKEN_ONLY
from pytest_attnaccept.checks.model_findings import findings
from pytest_attnaccept.checks.model_held import forget_stored, stored_too_much
from pytest_attnaccept.checks.model_intact import Snapshot, changes, snapshot
from pytest_attnaccept.checks.model_params import Params
from pytest_attnaccept.checks.model_sides import build_side, with_model
from pytest_attnaccept.engines.calls import NonFiniteError
from pytest_attnaccept.engines.draws import same_draws
from pytest_attnaccept.engines.fingerprints import weights_digest
from pytest_attnaccept.engines.loading import resolve_dtype
from pytest_attnaccept.engines.memo import baseline_memo
from pytest_attnaccept.engines.sides import Side, side_of
from pytest_attnaccept.errors import CandidateError, ContractError
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
    answered
        Each side that was asked, and its answers by batch of contexts, by the side's id. The side is held with them: the id
        of one that is gone is given to the next.
    rebuild
        Makes the candidate with other knobs of the method that has a budget; None when that is not possible.
    intact
        The baseline when both sides were built; None: it is not looked at again.
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
    answered: dict[int, tuple[Side, dict[Hashable, Tensor]]] = field(default_factory=dict)
    rebuild: Callable[[Mapping[str, object]], Side] | None = None
    intact: Snapshot | None = None

    @property
    def claim(self) -> Claim:
        """What the whole stack promises."""
        return combine(self.claims)

    @property
    def approximate(self) -> bool:
        """Whether the stack declares a change that must be visible."""
        return any(method.kind is not Kind.EXACT for method, _ in self.stack)

    @property
    def baseline_key(self) -> str:
        """What a result of the plain baseline depends on besides its input: the key of shared results."""
        if "baseline key" not in self.memo:
            self.memo["baseline key"] = baseline_marks(self)
        key: str = self.memo["baseline key"]
        return key

    @property
    def batch(self) -> int:
        """How many rows of equal length go through a model at once, the same for both sides.

        Small models spend their time between the operations; a cache or context of the user's own may know one row only.
        """
        foreign = self.identity is None and self.candidate.changes
        small = max(_parameters(side.model) for side in (self.baseline, self.candidate)) <= _SMALL_MODEL
        return _BATCH if small and not foreign and not self.baseline.changes else 1

    def budget(self, tokens: int) -> float | None:
        """Return the budget of the stack as a share of `tokens`, or None when no method has one."""
        knobs = budget_knobs(self.stack)
        return None if knobs is None else budget_share(knobs, tokens)

    def at_budget(self, share: float, tokens: int) -> Side | None:
        """Return the candidate with `share` of `tokens` as its budget, or None when it cannot be built so."""
        if self.rebuild is None:
            return None
        key = f"budget:{share!r}:{tokens}"
        if key not in self.memo:
            self.memo[key] = self.rebuild(knobs_at(self.stack, share, tokens))
        side: Side = self.memo[key]
        return side

    @property
    def trained_length(self) -> int | None:
        """Trained length of the baseline, the unit of length tiers."""
        return self.baseline.loaded.trained_length

    def measure(self, check_id: str, params: Mapping[str, object] | None = None) -> Measured:
        """Run one check.

        Parameters
        ----------
        check_id
            A name of `model_registry.CHECKS`; ``needle-<tier>x`` and ``long-range-<family>`` go on with a length or a name.
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
        baseline_memo.begin()
        try:
            with same_draws(self.seed):
                measured = self._run(function, wanted)
        except NonFiniteError as error:
            measured = Measured(refusals=(self._not_finite(error),))
        except BaseException:
            self._left_behind()
            raise
        refusals = (*self.findings, *measured.refusals)
        # Where nothing was shown, nothing was shown of storage: a failure would outrank the reason.
        if not any(refusal.verdict is Verdict.INVALID for refusal in refusals):
            refusals += stored_too_much(self)
        return replace(measured, refusals=(*refusals, *self._left_behind()), seed=self.seed)

    def _not_finite(self, error: NonFiniteError) -> Refusal:
        """Refuse NaN: the candidate's is its failure, the baseline's leaves nothing to compare with."""
        blind = error.side == self.baseline.name
        return Refusal(verdict=Verdict.INVALID if blind else Verdict.FAIL, reason=str(error))

    def _left_behind(self) -> tuple[Refusal, ...]:
        """Look for what a check's run left in the baseline: from then on a comparison has the same fault on both sides."""
        left = [] if self.intact is None else changes(self.intact, snapshot(self.baseline, self.intact))
        if not left:
            return ()
        baseline_memo.take_back()  # what the changed model answered must serve nobody
        reason = f"something of the candidate stays in the baseline's model after it ran: {', '.join(left)}"
        return (Refusal(verdict=Verdict.FAIL, reason=reason),)

    def _run(self, function: Callable[[ModelSession, Params], Measured], params: Params) -> Measured:
        """Run a check; a candidate that cannot take several tokens on a filled cache is run token by token.

        Caches with another length per layer (PyramidKV) are of this kind: transformers builds one mask for all layers.
        """
        forget_stored(self)
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
        return marks_of(self)

    def close(self) -> None:
        """Drop results and sides."""
        self.memo.clear()
        self.answered.clear()

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
    base_model, base_around = build_side("baseline", baseline, device, name, None)
    first = side_of("baseline", base_model, base_around)
    before = snapshot(first)
    if candidate is None:
        if not stack:
            raise ContractError("neither a candidate nor a registered method was given: there is nothing to compare")
        around = apply_stack(first.model, stack, seed=seed).candidate
        second = side_of("candidate", with_model(base_model, around, device, name), around)
        still = identity_stack(first.model, stack, seed=seed)
        plain = still.candidate if still else None
        third = side_of("candidate", with_model(base_model, plain, device, name), plain) if plain else None
    else:
        model, around = build_side("candidate", candidate, device, name, base_model)
        second, third = side_of("candidate", model, around), None
    after = snapshot(first, before)
    theirs = after.weights if second.model is first.model else weights_digest(second.model)
    same = theirs == after.weights
    return ModelSession(
        baseline=first,
        candidate=second,
        identity=third,
        stack=tuple(stack),
        claims=tuple(claim_of(method.name, knobs) for method, knobs in stack),
        seed=seed,
        device=device,
        dtype=str(next(first.model.parameters()).dtype).removeprefix("torch."),
        weights={"baseline": after.weights, "candidate": theirs},
        rebuild=rebuilder(candidate, base_model, first.model, stack, device=device, dtype=name, seed=seed),
        findings=findings(first, second, stack, edited=changes(before, after), same_weights=same),
        intact=after,
    )


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
