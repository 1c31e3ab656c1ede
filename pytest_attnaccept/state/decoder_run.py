"""What the checks of one decoder share: the caller, the target, the prompts, how far a token lags, and counted faults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pytest_attnaccept.measurement import Fact, Measured, Refusal, Threshold
from pytest_attnaccept.state.decoder_calls import Caller
from pytest_attnaccept.state.decoder_contract import DecoderContract, DecoderPlan, Target
from pytest_attnaccept.state.decoder_prompts import Prompts
from pytest_attnaccept.state.decoder_reference import TargetModel, Tokens, tie_tolerance
from pytest_attnaccept.taxonomy import Verdict

__all__ = ["DecoderRun"]


class DecoderRun:
    """One check of one decoder."""

    def __init__(
        self,
        candidate: Callable[..., Any],
        target: Target,
        contract: DecoderContract,
        seed: int,
        device: str,
        plan: DecoderPlan,
    ) -> None:
        self.contract, self.seed, self.plan = contract, seed, plan
        self.call = Caller(candidate, contract, device)
        self.target = TargetModel(target, contract.vocab_size, device)
        self.prompts = Prompts(contract, plan, self.target)
        self.sampling = dict(contract.sampling)
        self.digest = hashlib.sha256(repr((contract, seed, plan)).encode()).hexdigest()[:16]

    def refused(self, verdict: Verdict, reason: str) -> Measured:
        """Return a measurement that is only a reason."""
        return Measured(refusals=(Refusal(verdict=verdict, reason=reason),), seed=self.seed, data_digest=self.digest)

    def reach(self) -> str:
        """Return in words why nothing longer was asked."""
        limit, declared = self.prompts.limit, self.contract.max_length
        if declared is not None and limit == declared:
            return f"max_length={declared} is declared"
        if limit < self.plan.long_prompt:
            return f"the target raises beyond that (tried), so nothing longer than {limit} tokens was asked"
        return "longer ones were not asked"

    def lag(self, context: Tokens, token: int) -> tuple[float, float]:
        """Return how far `token` is behind the best one, and the best before the second, in tolerances."""
        logits = self.target.logits(context)
        tolerance = tie_tolerance(logits)
        top = logits.double().topk(2).values
        return float(top[0] - logits.double()[token]) / tolerance, float(top[0] - top[1]) / tolerance

    def counted(self, name: str, problems: list[str], refusals: tuple[Refusal, ...], *facts: Fact) -> Measured:
        """Return a measurement that fails unless there are no problems."""
        gate = Threshold(
            name=name,
            value=float(len(problems)),
            limit=0.0,
            unit="faults",
            n=self.call.calls,
            where="; ".join(problems[:2]),
            origin="contract: the seed decides, requests are independent, reports are consistent",
            seems=problems[0] if problems else "",
        )
        return Measured(gates=(gate,), refusals=refusals, facts=facts, data_digest=self.digest, seed=self.seed)
