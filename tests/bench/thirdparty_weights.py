"""Quantized models of torchao, optimum-quanto and hqq, and checkpoint folders."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from thirdparty_rows import HONEST, REFUSED, Row

__all__ = ["rows"]


def _row(
    name: str,
    method: str,
    knobs: dict[str, object],
    build: Callable[[Any], object],
    needs: str,
    expected: str = HONEST,
    words: str = "",
    **more: Any,
) -> Row:
    return Row(
        name=name, group="quantized models", method=method, knobs=knobs, build=build, expected=expected, words=words,
        needs=(needs,) if needs else (), **more,
    )  # fmt: skip


def _linear_but_head(module: Any, name: str) -> bool:
    return isinstance(module, torch.nn.Linear) and "lm_head" not in name


def _torchao(make: Callable[[Any], Any]) -> Callable[[Any], object]:
    def build(accept_model: Any) -> object:
        import torchao.quantization as ao

        model = copy.deepcopy(accept_model.model)
        ao.quantize_(model, make(ao), filter_fn=_linear_but_head)
        return model

    return build


def _quanto(weights: str, activations: str | None = None) -> Callable[[Any], object]:
    def build(accept_model: Any) -> object:
        import optimum.quanto as quanto

        model = copy.deepcopy(accept_model.model)
        names = {"weights": getattr(quanto, weights)}
        if activations:
            names["activations"] = getattr(quanto, activations)
        quanto.quantize(model, **names, exclude="lm_head")
        if activations:
            with quanto.Calibration(), torch.no_grad():
                model(torch.arange(1, 200)[None])
        quanto.freeze(model)
        return model

    return build


def _hqq(bits: int, group: int) -> Callable[[Any], object]:
    def build(accept_model: Any) -> object:
        from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

        model = copy.deepcopy(accept_model.model)
        for name, module in list(model.named_modules()):
            if not _linear_but_head(module, name):
                continue
            config = BaseQuantizeConfig(nbits=bits, group_size=group, axis=1)
            coded = HQQLinear(module, config, compute_dtype=torch.float32, device="cpu", initialize=True)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, coded)
        return model

    return build


def _by_config(make: Callable[[], Any]) -> Callable[[Any], object]:
    """Load the embedded model's folder with a quantization config, as users of transformers do."""

    def build(accept_model: Any) -> object:
        from transformers import AutoModelForCausalLM

        place = accept_model.model.name_or_path
        return AutoModelForCausalLM.from_pretrained(
            place, quantization_config=make(), dtype=torch.float32, device_map="cpu"
        )

    return build


def _rounded(bits: int, group: int = 32) -> Callable[[Any], object]:
    """Round every linear weight but the head to `bits` and keep floats: what a dequantized checkpoint holds."""

    def build(accept_model: Any) -> object:
        model = copy.deepcopy(accept_model.model)
        for name, module in model.named_modules():
            if _linear_but_head(module, name):
                rows = module.weight.data.view(-1, group)
                low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
                step = (high - low).clamp(min=1e-9) / (2**bits - 1)
                module.weight.data = (((rows - low) / step).round() * step + low).view_as(module.weight)
        return model

    return build


def folder(accept_model: Any, bits: int, under: Path) -> str:
    """Save the model rounded to `bits` as a checkpoint folder; returns its place."""
    place = under / f"rounded-{bits}"
    model: Any = _rounded(bits)(accept_model)
    model.save_pretrained(place)
    accept_model.tokenizer.save_pretrained(place)
    return str(place)


def rows() -> list[Row]:
    """Return every row of quantized models."""
    ao, quanto, hqq = "torchao", "optimum.quanto", "hqq"
    return [
        _row(
            "torchao Int8WeightOnly",
            "w8a8",
            {},
            _torchao(lambda t: t.Int8WeightOnlyConfig()),
            ao,
            REFUSED,
            "activations are not rounded",
        ),
        _row(
            "torchao Int8DynamicActivationInt8Weight",
            "w8a8",
            {},
            _torchao(lambda t: t.Int8DynamicActivationInt8WeightConfig()),
            ao,
        ),
        _row(
            "torchao IntxWeightOnly int4, groups of 32",
            "w4a16",
            {"group_size": 32},
            _torchao(lambda t: t.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=_groups(32))),
            ao,
        ),
        _row(
            "torchao Int8DynamicActivationIntx int4",
            "w4a16",
            {"group_size": 32},
            _torchao(
                lambda t: t.Int8DynamicActivationIntxWeightConfig(
                    weight_dtype=torch.int4, weight_granularity=_groups(32)
                )
            ),
            ao,
        ),
        _row(
            "torchao Int8WeightOnly under w4a16",
            "w4a16",
            {},
            _torchao(lambda t: t.Int8WeightOnlyConfig()),
            ao,
            REFUSED,
            "levels",
        ),
        _row("TorchAoConfig, from_pretrained", "w8a8", {}, _by_config(_torchao_config), ao),
        _row("quanto qint4", "w4a16", {"group_size": 128}, _quanto("qint4"), quanto),
        _row("quanto qint4, group not declared", "w4a16", {}, _quanto("qint4"), quanto),
        _row("quanto qint8", "w8a8", {}, _quanto("qint8"), quanto, REFUSED, "activations are not rounded"),
        _row("quanto qint8, activations qint8", "w8a8", {}, _quanto("qint8", "qint8"), quanto),
        _row("quanto qfloat8, activations qfloat8", "w8a8", {}, _quanto("qfloat8", "qfloat8"), quanto),
        _row("QuantoConfig int4, from_pretrained", "w4a16", {}, _by_config(_quanto_config), quanto),
        _row("hqq 4 bit, groups of 64", "w4a16", {"group_size": 64}, _hqq(4, 64), hqq),
        _row("hqq 4 bit, groups of 32", "w4a16", {"group_size": 32}, _hqq(4, 32), hqq),
        _row("hqq 4 bit, group not declared", "w4a16", {}, _hqq(4, 64), hqq),
        _row("hqq 8 bit under w4a16", "w4a16", {"group_size": 64}, _hqq(8, 64), hqq, REFUSED, "levels"),
        _row("hqq 4 bit under w8a8", "w8a8", {}, _hqq(4, 64), hqq, REFUSED, "activations are not rounded|levels"),
        _row(
            "HqqConfig, from_pretrained",
            "w4a16",
            {"group_size": 64},
            _by_config(_hqq_config),
            hqq,
            REFUSED,
            "not available",
            note="transformers 5.24 refuses it",
        ),
        _row("weights rounded to 4 bits, as floats", "w4a16", {"group_size": 32}, _rounded(4), ""),
        _row("weights rounded to 16 bits", "w4a16", {"group_size": 32}, _rounded(16), "", REFUSED, "levels|never ran"),
        _row("checkpoint folder, 4 bits", "w4a16", {"group_size": 32}, _rounded(4), "", bits=4),
        _row(
            "checkpoint folder, 16 bits",
            "w4a16",
            {"group_size": 32},
            _rounded(16),
            "",
            REFUSED,
            "levels|never ran",
            bits=16,
        ),
    ]


def _groups(size: int) -> Any:
    from torchao.quantization import PerGroup

    return PerGroup(size)


def _torchao_config() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8DynamicActivationInt8WeightConfig())


def _quanto_config() -> Any:
    from transformers import QuantoConfig

    return QuantoConfig(weights="int4")


def _hqq_config() -> Any:
    from transformers import HqqConfig

    return HqqConfig(nbits=4, group_size=64)
