"""Quantized models and caches of torchao, optimum-quanto and hqq: what they are passes, what they are not does not."""

from __future__ import annotations

import copy
import importlib.util
import warnings

import pytest
import torch
from torch import nn

with warnings.catch_warnings():  # transformers imports hqq where it is there, and hqq compiles: not ours to fix
    warnings.simplefilter("ignore")
    import transformers.cache_utils  # noqa: F401

from pytest_attnaccept.candidate import Candidate
from pytest_attnaccept.checks import open_session
from pytest_attnaccept.engines.loading import load
from pytest_attnaccept.engines.specs import parse_spec
from pytest_attnaccept.profiles import load_profile
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import decide

REGISTRY = Registry.builtin()
SMALL = {"tier": 0.25, "continuation": 8, "patterns": ("one-shot",)}
# The libraries warn about their own files and about torch; none of it is ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")


def there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def needs(name: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there(name), reason=f"{package} is not installed")


@pytest.fixture(scope="module")
def toy():
    return load(parse_spec("toy-gqa"))


def footprint(toy, candidate, method, **knobs):
    members = [(REGISTRY.get(method), check_knobs(REGISTRY.get(method), knobs, "test"))]
    with open_session(candidate=candidate, baseline=toy, stack=members) as session:
        return decide(session.measure("footprint", SMALL), load_profile("smoke").limits)


def coded(module, name):
    return isinstance(module, nn.Linear) and "lm_head" not in name


@needs("torchao", "torchao")
@pytest.mark.parametrize(
    ("config", "method", "good"),
    [
        ("Int8DynamicActivationInt8WeightConfig", "w8a8", True),
        ("Int8WeightOnlyConfig", "w8a8", False),
        ("Int8WeightOnlyConfig", "w4a16", False),
    ],
)
def test_torchao(toy, config, method, good):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization = importlib.import_module("torchao.quantization")
    model = copy.deepcopy(toy.model)
    quantization.quantize_(model, getattr(quantization, config)(), filter_fn=coded)
    decision = footprint(toy, model, method)
    assert (decision.verdict is Verdict.PASS) is good, decision.headline


@needs("optimum.quanto", "optimum-quanto")
@pytest.mark.parametrize(
    ("weights", "activations", "method", "knobs", "good"),
    [
        ("qint8", "qint8", "w8a8", {}, True),  # a static scale, found by calibration
        ("qfloat8", "qfloat8", "w8a8", {}, True),
        ("qint8", None, "w8a8", {}, False),
        ("qint4", None, "w4a16", {"group_size": 128}, True),  # 96 in rows of 192
        ("qint8", None, "w4a16", {}, False),
    ],
)
def test_quanto(toy, weights, activations, method, knobs, good):
    quanto = importlib.import_module("optimum.quanto")
    model = copy.deepcopy(toy.model)
    given = {"weights": getattr(quanto, weights)}
    if activations:
        given["activations"] = getattr(quanto, activations)
    quanto.quantize(model, **given, exclude="lm_head")
    if activations:
        with quanto.Calibration(), torch.no_grad():
            model(torch.arange(1, 200)[None])
    quanto.freeze(model)
    decision = footprint(toy, model, method, **knobs)
    assert (decision.verdict is Verdict.PASS) is good, decision.headline


@needs("hqq", "hqq")
@pytest.mark.parametrize(("bits", "good"), [(4, True), (8, False)])
def test_hqq_weights(toy, bits, good):
    hqq = importlib.import_module("hqq.core.quantize")
    model = copy.deepcopy(toy.model)
    for name, module in list(model.named_modules()):
        if coded(module, name):
            config = hqq.BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
            layer = hqq.HQQLinear(module, config, compute_dtype=torch.float32, device="cpu", initialize=True)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer)
    decision = footprint(toy, model, "w4a16", group_size=64)
    assert (decision.verdict is Verdict.PASS) is good, decision.headline


@pytest.mark.parametrize(
    ("backend", "bits", "method", "good"),
    [
        pytest.param("hqq", 4, "kv4", True, marks=needs("hqq", "hqq")),
        pytest.param("hqq", 8, "kv8", True, marks=needs("hqq", "hqq")),
        pytest.param("hqq", 8, "kv2", False, marks=needs("hqq", "hqq")),
    ],
)
def test_quantized_caches_of_transformers(toy, backend, bits, method, good):
    from transformers import QuantizedCache

    def cache():
        options = {"axis_key": 0, "axis_value": 0, "residual_length": 16}
        return QuantizedCache(backend=backend, config=toy.model.config, nbits=bits, **options)

    decision = footprint(toy, Candidate(toy.model, cache=cache), method, group_size=64, residual=16)
    assert (decision.verdict is Verdict.PASS) is good, decision.headline
