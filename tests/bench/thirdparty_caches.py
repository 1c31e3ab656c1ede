"""Caches of transformers, and mistakes with caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thirdparty_rows import HONEST, REFUSED, Row

from pytest_attnaccept import Candidate

__all__ = ["row", "rows"]


def _quantized(backend: str, bits: int, **options: Any) -> Callable[[Any], object]:
    def build(accept_model: Any) -> object:
        from transformers import QuantizedCache

        config = accept_model.model.config
        return Candidate(
            accept_model.model, cache=lambda: QuantizedCache(backend=backend, config=config, nbits=bits, **options)
        )

    return build


def row(
    name: str,
    method: str,
    knobs: dict[str, object],
    build: Callable[[Any], object],
    expected: str = HONEST,
    words: str = "",
    **more: Any,
) -> Row:
    return Row(
        name=name, group=more.pop("group", "transformers caches"), method=method, knobs=knobs, build=build,
        expected=expected, words=words, **more,
    )  # fmt: skip


def _cache(make: Callable[[Any], Any]) -> Callable[[Any], object]:
    return lambda accept_model: Candidate(accept_model.model, cache=lambda: make(accept_model.model.config))


def _static(config: Any) -> Any:
    from transformers import StaticCache

    return StaticCache(config=config, max_cache_len=1280)


def _dynamic(config: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=config)


def _sliding_layers(config: Any) -> Any:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicSlidingWindowLayer

    cache = DynamicCache(config=config)
    cache.layers = [DynamicSlidingWindowLayer(sliding_window=64) for _ in range(config.num_hidden_layers)]
    return cache


def _mistral(window: int | None) -> Callable[[Any], object]:
    """Build the embedded model as a Mistral with a native window: the same weights, another class."""

    def build(accept_model: Any) -> object:
        from transformers import MistralConfig, MistralForCausalLM

        given = accept_model.model.config.to_dict()
        names = (
            *(
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "rms_norm_eps",
            ),
            *("num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rope_parameters"),
        )
        config = MistralConfig(**{n: given[n] for n in names}, sliding_window=window, tie_word_embeddings=False)
        model = MistralForCausalLM(config)
        model.load_state_dict(accept_model.model.state_dict())
        return Candidate(model.eval())

    return build


def _sixteen(config: Any) -> Any:
    """Make a quantized cache whose quantizer keeps what it is given: nbits=16 in effect."""
    from transformers import DynamicCache
    from transformers.cache_utils import QuantizedLayer

    class Sixteen(QuantizedLayer):
        def _quantize(self, tensor: Any, axis: int) -> Any:
            return tensor.clone()

        def _dequantize(self, q_tensor: Any) -> Any:
            return q_tensor

    cache = DynamicCache(config=config)
    cache.layers = [Sixteen(nbits=16, residual_length=32) for _ in range(config.num_hidden_layers)]
    return cache


def _caches() -> list[Row]:
    def kv(bits: int, residual: int = 32, group: int = 64) -> dict[str, object]:
        return {"group_size": group, "residual": residual}

    quanto, hqq = ("optimum.quanto",), ("hqq",)
    fp8_here = ("transformers.cache_utils:Fp8QuantizedLayer",)
    short = {"residual_length": 32}
    exact: dict[str, Any] = {"kind": "exact"}
    return [
        row("QuantizedCache quanto 4 bit, axis 0", "kv4", kv(4), _quantized("quanto", 4, **short), needs=quanto),
        row(
            "QuantizedCache quanto 4 bit, axis -1",
            "kv4",
            kv(4),
            _quantized("quanto", 4, axis_key=-1, axis_value=-1, **short),
            REFUSED,
            "divisor",
            needs=quanto,
            note="raises unless the group divides 2 x tokens",
        ),
        row("QuantizedCache quanto 2 bit", "kv2", kv(2), _quantized("quanto", 2, **short), needs=quanto),
        row(
            "QuantizedCache hqq 8 bit, axis 1",
            "kv8",
            kv(8),
            _quantized("hqq", 8, axis_key=1, axis_value=1, **short),
            needs=hqq,
        ),
        row(
            "QuantizedCache hqq 4 bit, axis 1",
            "kv4",
            kv(4),
            _quantized("hqq", 4, axis_key=1, axis_value=1, **short),
            REFUSED,
            "raised",
            needs=hqq,
            note="hqq raises at an odd number of groups",
        ),
        row(
            "QuantizedCache hqq 4 bit, axis 0",
            "kv4",
            kv(4),
            _quantized("hqq", 4, axis_key=0, axis_value=0, **short),
            needs=hqq,
        ),
        row(
            "QuantizedCache hqq 2 bit, axis 0",
            "kv2",
            kv(2),
            _quantized("hqq", 2, axis_key=0, axis_value=0, **short),
            REFUSED,
            "rows of a batch",
            needs=hqq,
            note="hqq's axis 0 makes groups across the rows of a batch",
        ),
        row("QuantizedCache fp8", "kv8", {}, _fp8, needs=fp8_here),
        row(
            "QuantizedCache hqq 4 bit, residual not declared",
            "kv4",
            {"group_size": 64},
            _quantized("hqq", 4, axis_key=0, axis_value=0),
            REFUSED,
            "bytes",
            needs=hqq,
        ),
        row(
            "QuantizedCache hqq 8 bit under kv4",
            "kv4",
            kv(4),
            _quantized("hqq", 8, axis_key=1, axis_value=1, **short),
            REFUSED,
            "bytes",
            needs=hqq,
        ),
        row(
            "QuantizedCache hqq 16 bit",
            "kv4",
            kv(4),
            _quantized("hqq", 16, axis_key=1, axis_value=1, **short),
            REFUSED,
            "has to be one of",
            needs=hqq,
        ),
        row("a quantizer that keeps 16 bits", "kv4", kv(4), _cache(_sixteen), REFUSED, "never ran|bytes"),
        row("StaticCache, exact", "chunked_prefill", {}, _cache(_static), **exact),
        row("StaticCache under kv8", "kv8", {}, _cache(_static), REFUSED, "entries", note="1280 entries are allocated"),
        row("DynamicSlidingWindowLayer, window 64", "sliding_window", {"window": 64}, _cache(_sliding_layers)),
        row("Mistral class with sliding_window=64", "sliding_window", {"window": 64}, _mistral(64)),
        row(
            "Mistral class without a window",
            "sliding_window",
            {"window": 64},
            _mistral(None),
            REFUSED,
            "never ran|copy",
        ),
        row("one cache object for every context", "kv8", {}, _one_object, REFUSED, "fresh|already holds"),
    ]


def _fp8(accept_model: Any) -> object:
    from transformers import QuantizedCache

    return Candidate(accept_model.model, cache=lambda: QuantizedCache(backend="fp8", config=accept_model.model.config))


def _one_object(accept_model: Any) -> object:
    cache = _dynamic(accept_model.model.config)
    return Candidate(accept_model.model, cache=lambda: cache)


def rows() -> list[Row]:
    """Return every row of caches."""
    return _caches()
