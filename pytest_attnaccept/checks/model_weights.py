"""Whether the linear layers of a candidate have the weights and activations that its method claims.

A layer is asked, not read: unit vectors in give its effective weights out, whatever it stores (rounded floats, packed codes,
a tensor subclass, a hook that quantizes on the fly). Random activations tell whether it rounds what it is given.

Position: up to 2 % of the linear weights may stay as they are (router gates, a single small matrix); a whole layer of the
usual 24 to 80 may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pytest_attnaccept.checks.layer_ranges import Range, input_ranges
from pytest_attnaccept.engines.grids import on_few_levels
from pytest_attnaccept.engines.storage import tensors_of
from pytest_attnaccept.measurement import Fact, Refusal, Threshold
from pytest_attnaccept.methods.claims import Claim
from pytest_attnaccept.methods.weights import linear_layers
from pytest_attnaccept.taxonomy import Verdict

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["WeightReport", "weight_report"]

_LEFT_OUT = 0.02  # policy: what recipes leave in 16 bits besides the head is router gates and single small matrices
_ORIGIN = (
    "policy: recipes leave out the head, router gates and single small matrices: less than 2 % of the linear weights"
)
# derived: 4-bit weights differ from their originals by 7 % and more, activations rounded to 8 bits change an answer by .7 %
_OTHER_WEIGHTS = 0.05
# measured: .81 to 1.34 (quanto, calibrated int8 and E4M3, two embedded models)
_FACTOR = 2.0
_COLUMNS = 512  # input features that are asked for, spread over the row in whole groups
_TOKENS = 32
_WINDOWS = (32, 16, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReport:
    """Gates, refusals and facts about the linear layers of the candidate."""

    gates: tuple[Threshold, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    name: str
    size: int
    coded: float | None  # share of its groups that lie on the grid; None: cannot be asked
    deviation: float  # of the answer to random activations from the product with the effective weights, relative
    stored: int


def weight_report(session: ModelSession) -> WeightReport:
    """Ask every linear layer of the candidate that the baseline has; an empty report when weights are not claimed."""
    claim = session.claim
    if claim.weight_bits is None:
        return WeightReport()
    with session.candidate.running():
        layers = list(_asked(session))
    total = sum(layer.size for layer in layers)
    if not total:
        return WeightReport(refusals=(_invalid(f"{claim.source}: the baseline has no linear layer to compare"),))
    unread = [layer for layer in layers if layer.coded is None]
    if sum(layer.size for layer in unread) > _LEFT_OUT * total:
        return WeightReport(refusals=(_invalid(
            f"the weights of {len(unread)} of {len(layers)} linear layers cannot be read ({unread[0].name}): the candidate has"
            " no module of that name and shape that can be called alone, so its bits are not shown"
        ),))  # fmt: skip
    wide = [layer for layer in layers if layer.coded is not None and layer.coded < 1.0]
    gates = [_gate("weights", wide, layers, f"more than {2**claim.weight_bits} levels: not {claim.weight_bits} bits")]
    if claim.activation_bits is not None:
        exact = [layer for layer in layers if layer.coded is not None and layer.deviation <= _rounding(_dtype(session))]
        gates.append(_gate("activations", exact, layers, "linear in its input: activations are not rounded"))
    other = [layer for layer in layers if layer.coded is not None and not layer.deviation <= _OTHER_WEIGHTS]
    gates.append(_gate("weights_used", other, layers, "activations meet other weights than unit vectors show"))
    original = sum(p.numel() * p.element_size() for _, m in linear_layers(session.baseline.model) for p in (m.weight,))
    stored = round(sum(layer.stored for layer in layers) / max(1, original), 4)
    facts = (Fact(name="linear_weights_share_of_baseline", value=stored),)
    return WeightReport(gates=tuple(gates), facts=facts)


def _gate(name: str, bad: list[_Layer], layers: list[_Layer], seems: str) -> Threshold:
    place = f"{len(bad)} of {len(layers)} layers, first {bad[0].name}" if bad else "every layer"
    return Threshold(
        name=name, value=sum(x.size for x in bad) / sum(x.size for x in layers), limit=_LEFT_OUT,
        unit="of the linear weights", n=len(layers), where=place, origin=_ORIGIN, seems=seems if bad else "",
    )  # fmt: skip


def _invalid(reason: str) -> Refusal:
    return Refusal(verdict=Verdict.INVALID, reason=reason)


def _asked(session: ModelSession) -> Iterator[_Layer]:
    claim, model = session.claim, session.candidate.model
    dtype = _dtype(session)
    device = session.baseline.model.get_input_embeddings().weight.device
    ranges = input_ranges(session.baseline) if claim.activation_bits is not None else {}
    for name, original in linear_layers(session.baseline.model):
        size = original.weight.numel()
        try:
            module = model.get_submodule(name)
        except AttributeError:
            yield _Layer(name=name, size=size, coded=None, deviation=0.0, stored=0)
            continue
        columns = _columns(original.in_features, claim.weight_group or _WINDOWS[0])
        span = ranges.get(name, Range())
        weights = _effective(module, original, columns, dtype, device, span.largest)
        if weights is None:
            yield _Layer(name=name, size=size, coded=None, deviation=0.0, stored=0)
            continue
        coded = _share_coded(weights, claim, _eps(dtype))
        gap = _deviation(module, weights, columns, original.in_features, dtype, span)
        if span.known and gap > _OTHER_WEIGHTS:  # a static scale over outliers rounds the usual inputs coarsely
            gap = min(gap, _deviation(module, weights, columns, original.in_features, dtype, span.near_its_limit))
        yield _Layer(name=name, size=size, coded=coded, deviation=gap, stored=_bytes_of(module))


def _share_coded(weights: Tensor, claim: Claim, eps: float) -> float:
    """Return the share of groups of `weights` (out, columns) that show no more levels than the claimed bits have.

    Without a declared group size: 8 bits share a scale along a row; for fewer bits windows of 32, 16 or 8 neighbours are
    tried, because a window inside of a larger group has no more levels than the group. So too where the declared size does
    not divide a row: quanto makes 96 of 128 in rows of 192.
    """
    bits, width = claim.weight_bits or 16, weights.shape[1]
    sizes: tuple[int, ...] = (claim.weight_group,) if claim.weight_group else (width,) if bits >= 8 else _WINDOWS
    if claim.weight_group and width % claim.weight_group and bits < 8:
        sizes = (claim.weight_group, *(size for size in _WINDOWS if size < claim.weight_group))
    best = 0.0
    for size in (min(size, width) for size in sizes):
        rows = weights[:, : width // size * size].reshape(-1, size)
        best = max(best, float(on_few_levels(rows, bits, eps).float().mean()))
        if best == 1.0:
            break
    return best


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def _columns(width: int, group: int) -> Tensor:
    """Return the input features to ask for: whole groups, spread evenly, at most about `_COLUMNS`."""
    if width <= _COLUMNS or width % group:
        return torch.arange(width)
    count = width // group
    wanted = max(1, min(count, _COLUMNS // group))
    starts = (torch.linspace(0, count - 1, wanted).round().long() * group)[:, None]
    columns: Tensor = (starts + torch.arange(group)).flatten()
    return columns


def _effective(
    module: nn.Module, original: nn.Linear, columns: Tensor, dtype: torch.dtype, device: torch.device, size: float
) -> Tensor | None:
    """Return the effective weights (out, columns), float32, or None when the module cannot be called alone.

    `size`: the one input that is not zero; calibrated activations have a range of their own.
    """
    probe = torch.zeros(1, len(columns) + 1, original.in_features, dtype=dtype, device=device)
    probe[0, torch.arange(len(columns)), columns] = size
    out = _called(module, probe)
    if out is None or out.shape != (*probe.shape[:2], original.out_features):
        return None
    return ((out[0, :-1] - out[0, -1:]).T.float() / size).contiguous()  # the last row is the bias


def _called(module: nn.Module, x: Tensor) -> Tensor | None:
    try:
        with torch.no_grad():
            out = module(x)
    except Exception:  # foreign code: a module that cannot be called alone is reported as one that cannot be read
        return None
    return out if isinstance(out, Tensor) else None


def _dtype(session: ModelSession) -> torch.dtype:
    parameters = session.candidate.model.parameters()
    found: torch.dtype = next(p.dtype for p in parameters if p.dtype.is_floating_point)
    return found


def _rounding(dtype: torch.dtype) -> float:
    """Return the deviation above which inputs are rounded to 8 bits.

    derived: int8 per token deviates by .7 % (step / sqrt(12) against a standard deviation of 1), the output's own rounding
    by .3 eps; half an eps, at least 1e-4, lies between them in every dtype.
    """
    return max(1e-4, 0.5 * _eps(dtype))


def _deviation(
    module: nn.Module, weights: Tensor, columns: Tensor, width: int, dtype: torch.dtype, span: Range
) -> float:
    """Return how far the answer to random activations is from the product with the effective weights, relative.

    A unit vector in a calibrated range is cut off or rounded as a whole: a common factor of a layer is no other weight.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(1, _TOKENS + 1, width)
    drawn = torch.randn(_TOKENS, len(columns), generator=generator) * span.usual
    x[0, :-1, columns] = drawn.clamp(-span.largest, span.largest) if span.known else drawn
    x = x.to(device=weights.device, dtype=dtype)
    out = _called(module, x)
    if out is None:
        return float("inf")
    expected, found = x[0, :-1, columns.to(x.device)].float() @ weights.T, (out[0, :-1] - out[0, -1:]).float()
    if span.known:
        factor = (found * expected).sum() / expected.square().sum().clamp(min=1e-30)
        expected = expected * factor.clamp(1 / _FACTOR, _FACTOR)
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _bytes_of(module: Any) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(dict(vars(module)))}
    return sum(storages.values())
