"""Is the baseline still the model that was given? Candidates may edit it, its classes or the library, and both sides change.

Two kinds of evidence, because neither sees everything: what a forward pass is made of (weights, buffers that no checkpoint
holds, hooks, methods, configuration), and what the baseline answers to a fixed probe. A replaced library function that
answers the same is no change; a window that is longer than the probe shows in the configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_attnaccept.checks.model_data import encode
from pytest_attnaccept.checks.model_evidence import largest_difference, rounding_bound
from pytest_attnaccept.engines.calls import call
from pytest_attnaccept.engines.fingerprints import weights_digest
from pytest_attnaccept.engines.loading import LoadedModel
from pytest_attnaccept.engines.sides import Side
from pytest_attnaccept.errors import AttnAcceptError

__all__ = ["Snapshot", "changes", "snapshot", "structure"]

_PROBE = 128  # tokens; short enough to be asked after every check
_KEPT = 8  # last positions of the probe that are compared
_TEXT = "The 42nd probe: 1234 and 5678.\n"
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
# Settings that users assign before generating; no forward pass with explicit arguments reads them.
_HARMLESS = (
    *("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "return_dict"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "output_attentions", "output_hidden_states"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A model at one moment.

    Attributes
    ----------
    weights
        Digest of parameters and buffers that are saved.
    places
        Address and version of these tensors: equal ones need no new digest.
    parts
        What else a forward pass is made of, by name.
    answer
        Logits (1, kept, vocab) of the probe; None where the model cannot be asked.
    """

    weights: str
    places: tuple[tuple[int, int, int], ...]
    parts: Mapping[str, object]
    answer: Tensor | None

    @property
    def digest(self) -> str:
        """Digest of the answer's bits."""
        return "" if self.answer is None else _digest(self.answer)


def snapshot(side: Side, earlier: Snapshot | None = None) -> Snapshot:
    """Return what `side` is now; the weights are read again only where they moved since `earlier`."""
    answer = _asked(side)  # first: rotary tables that grow with a text are back to their short form after it
    places = tuple(_place(value) for value in side.model.state_dict(keep_vars=True).values())
    return Snapshot(
        weights=earlier.weights if earlier is not None and earlier.places == places else weights_digest(side.model),
        places=places,
        parts={**structure(side.model), "tokenizer": _spelled(side.loaded), "scoring functions": _scores()},
        answer=answer,
    )


def _place(value: object) -> tuple[int, int, int]:
    """Return what changes when a tensor is replaced or written to (writing through ``.data`` is left to the probe)."""
    if type(value) not in (Tensor, nn.Parameter) or not isinstance(value, Tensor):
        return id(value), int(getattr(value, "_version", 0)), 0
    return id(value), value._version, value.data_ptr()


def structure(model: Any) -> dict[str, object]:
    """Return what a forward pass is made of besides weights, comparable within one process."""
    modules = list(model.named_modules(remove_duplicate=False))
    config = model.config.to_dict()
    return {
        "modules": {name: (id(module), type(module)) for name, module in modules},
        "forward hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for _, m in model.named_modules()),
        "hooks of every module": [len(getattr(torch.nn.modules.module, name, ())) for name in _GLOBAL_HOOKS],
        # The function, not the attribute: a method that was replaced and put back is an attribute of its object now.
        "forward methods": {name: _function(module.forward) for name, module in modules},
        "training mode": {name: module.training for name, module in modules},
        "buffers": {name: _digest(buffer) for name, buffer in _unsaved(model)},
        "configuration": repr(sorted((k, v) for k, v in config.items() if k not in _HARMLESS)),
        "attention function": getattr(model.config, "_attn_implementation", None),
    }


def _spelled(loaded: LoadedModel) -> str:
    """Return what the tokenizer makes of a fixed text, there and back."""
    ids = encode(loaded.tokenizer, _TEXT)
    return repr((ids, loaded.tokenizer.decode(ids), getattr(loaded.tokenizer, "eos_token_id", None), loaded.prefix_ids))


def _scores() -> str:
    """Return what the functions that score answers make of fixed logits, whoever replaced them."""
    logits = torch.linspace(-3.0, 4.0, 60).sin().reshape(2, 5, 6) * 3
    target = torch.arange(10).reshape(2, 5) % 6
    nll = torch.nn.functional.cross_entropy(logits.double().transpose(1, 2), target, reduction="none")
    shares = torch.log_softmax(logits, dim=-1)
    first = (logits.argmax(dim=-1), torch.argmax(logits, dim=-1), logits.topk(2, dim=-1).indices)
    return repr(
        ([round(x, 5) for x in [*nll.flatten().tolist(), *shares.flatten().tolist()]], [x.tolist() for x in first])
    )


def _function(method: Any) -> object:
    return getattr(method, "__func__", method)


def _unsaved(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    saved = set(model.state_dict())
    return ((name, buffer) for name, buffer in model.named_buffers(remove_duplicate=False) if name not in saved)


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous()
    content = flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.sha256(f"{tuple(flat.shape)}|{flat.dtype}|".encode() + content).hexdigest()[:16]


def _asked(side: Side) -> Tensor | None:
    """Return the last logits of a fixed text in one call, or None where the model cannot answer it."""
    # Half of a short trained length: a rotary table that grows with a text is made anew below its original length only.
    length = max(1, min(_PROBE, (side.loaded.trained_length or 2 * _PROBE) // 2))
    generator = torch.Generator().manual_seed(0)
    try:
        vocabulary = int(side.model.get_input_embeddings().weight.shape[0])
        ids = torch.randint(0, vocabulary, (1, length), generator=generator).to(next(side.model.parameters()).device)
        with side.running():
            return call(side.model, side.form, ids, None, 0, side=side.name)[0][:, -_KEPT:].clone()
    except (AttnAcceptError, AttributeError, NotImplementedError):
        return None  # a check that needs it says so with more words


def _kept_as_it_was(before: object, after: object) -> bool:
    """Whether nothing of `before` changed; a second name for what the model already had is no change.

    Presses of kvpress hand the model's rotary embedding to every attention layer: nothing that runs is another object.
    """
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return before == after
    known = set(before.values())
    same = all(name in after and after[name] == value for name, value in before.items())
    return same and all(value in known for name, value in after.items() if name not in before)


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Return what is not as it was, in words."""
    found = [] if before.weights == after.weights else ["weights"]
    found += [name for name, value in before.parts.items() if not _kept_as_it_was(value, after.parts[name])]
    ours, theirs = before.answer, after.answer
    if (ours is None) != (theirs is None):
        found.append("whether it answers a probe at all")
    elif ours is not None and theirs is not None:
        if ours.shape != theirs.shape:
            found.append("the shape of its logits")
        elif not largest_difference(ours, theirs) <= rounding_bound(ours):
            found.append(f"its logits on a probe (by {largest_difference(ours, theirs):.2g})")
    return found
