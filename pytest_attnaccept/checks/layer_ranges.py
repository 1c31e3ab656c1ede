"""In which range a linear layer expects its inputs.

Calibrated formats (static int8 or FP8 activations) cut off what is larger than anything they met. A probe of another size
would be answered with the cut, not with the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_attnaccept.engines.calls import call
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.methods.weights import linear_layers

__all__ = ["Range", "input_ranges"]

_TOKENS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Root mean square and largest size of a layer's inputs; ones where nobody looked (`known` is false)."""

    usual: float = 1.0
    largest: float = 1.0
    known: bool = False

    @property
    def near_its_limit(self) -> Range:
        """The same limit with inputs of a third of it: static int8 over outliers of thirty times the usual rounds that by 7 %."""
        return Range(usual=self.largest / 3, largest=self.largest, known=self.known)


def input_ranges(side: Side) -> dict[str, Range]:
    """Return the range of the inputs of every linear layer of `side` for random tokens, by name."""
    found: dict[str, Range] = {}
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(side.model.get_input_embeddings().weight.shape[0])
    ids = torch.randint(0, vocabulary, (1, _TOKENS), generator=generator).to(next(side.model.parameters()).device)

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def seen(_: nn.Module, given: tuple[Any, ...]) -> None:
            x = given[0].detach().float()
            largest = float(x.abs().max())
            if largest > 0.0:
                found[name] = Range(usual=float(x.square().mean().sqrt()), largest=largest, known=True)

        return seen

    with side.running():
        hooks = [module.register_forward_pre_hook(watch(name)) for name, module in linear_layers(side.model)]
        try:
            call(side.model, side.form, ids, None, 0, side=side.name)
        finally:
            for hook in hooks:
                hook.remove()
    return found
