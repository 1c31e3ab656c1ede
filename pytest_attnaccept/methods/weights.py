"""How a model with quantized weights is made beside its baseline: a copy that shares every tensor that stays as it is.

Positions
---------
1. The baseline is never edited: modules are copied, tensors are shared, and a changed weight is a new tensor of the copy.
2. Every linear layer but the output head is changed; the head and the embedding stay as they are, as in checkpoints of
   GPTQ, AWQ and compressed-tensors. What cannot be changed here (fused experts, other matrix modules) is refused: a model
   of which a part keeps its weights is not what the method claims.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from pytest_attnaccept.errors import EngineError

__all__ = ["linear_layers", "requantized"]

Change = Callable[[str, nn.Linear], nn.Module]

# policy: biases, norms, convolutions and router gates are small; above this share something large would stay as it is
_UNTOUCHED_SHARE = 0.05


def linear_layers(model: Any) -> Iterator[tuple[str, nn.Linear]]:
    """Yield (name, module) of every linear layer that weight quantization changes."""
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            yield name, module


def requantized(model: Any, change: Change, method: str) -> Any:
    """Return a copy of `model` with every linear layer replaced by ``change(name, layer)``.

    Raises
    ------
    EngineError
        When the model has no linear layer, or more than 5 % of its matrix weights are in other modules.
    """
    layers = dict(linear_layers(model))
    _require_coverage(model, layers, method)
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    for name in layers:
        parent, _, own = name.rpartition(".")
        # the layer of the twin: its hooks and its bias are copied and shared
        setattr(twin.get_submodule(parent), own, change(name, twin.get_submodule(name)))
    twin.name_or_path = ""  # its tokenizer is the baseline's, not what a path would load
    return twin.eval()


def _require_coverage(model: Any, layers: dict[str, nn.Linear], method: str) -> None:
    inside = {id(layer.weight) for layer in layers.values()}
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        inside |= {id(parameter) for parameter in module.parameters()} if module is not None else set()
    changed = sum(layer.weight.numel() for layer in layers.values())
    left = {n: p.numel() for n, p in model.named_parameters() if id(p) not in inside and p.dim() > 1}
    if changed and sum(left.values()) <= _UNTOUCHED_SHARE * changed:
        return
    largest = max(left, key=lambda name: left[name], default="none")
    raise EngineError(
        f"{method} changes linear layers, and {type(model).__name__} keeps {sum(left.values())} of its matrix weights in"
        f" other modules (largest: {largest}; linear: {changed}): pass the quantized checkpoint,"
        " accept.model(candidate=...) or checkpoint=..."
    )
