"""The presses of kvpress that need no trained artefact, each under the mark of the nearest registered method."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from thirdparty_rows import HONEST, REFUSED, Row
from transformers import DynamicCache

from pytest_attnaccept import Candidate

__all__ = ["NEEDS_TRAINING", "rows"]

# Presses that cannot be built for any model: what they wait for is published for a few models only.
NEEDS_TRAINING = {
    "DuoAttentionPress": "attention patterns of the model; on_the_fly_scoring=True reads a data set from the Hub",
    "FinchPress": "a delimiter token inside the compressed text (context + delimiter + question): it has to see the question",
    "ExpectedAttentionStatsPress": "query statistics of the model from the Hub",
    "FastKVzipPress": "trained gates from the Hub",
    "KVzapPress": "a trained surrogate from the Hub",
    "LUKVPress": "budget curves of the model from the Hub",
    "QFilterPress": "trained filters from the Hub",
    "RestoreKVPress": "a trained adapter from the Hub",
}


def _press(make: Callable[[Any], Any], prefill: bool = False, **around: Any) -> Callable[[Any], object]:
    """Build a candidate whose context is the press that `make` makes from the module kvpress."""

    def build(accept_model: Any) -> object:
        import kvpress

        where = "prefill_context" if prefill else "context"
        return Candidate(accept_model.model, **{where: make(kvpress)}, **around)

    return build


def _row(
    name: str, method: str, make: Callable[[Any], Any], expected: str = HONEST, words: str = "", **more: Any
) -> Row:
    knobs = more.pop("knobs", {"kv_budget": 0.5})
    around = more.pop("around", {})
    build = more.pop("build", None) or _press(make, **around)
    return Row(
        name=name, group="kvpress", method=method, knobs=knobs, build=build, expected=expected, words=words,
        needs=("kvpress",), one_shot=more.pop("one_shot", True), **more,
    )  # fmt: skip


def _scored(k: Any) -> Any:
    return k.KnormPress(compression_ratio=0.5)


def _unused(accept_model: Any) -> object:
    import kvpress

    kvpress.KnormPress(compression_ratio=0.75)
    return Candidate(accept_model.model)


def _forgotten(accept_model: Any) -> object:
    import kvpress

    kvpress.KnormPress(compression_ratio=0.75)
    return Candidate(accept_model.model, context=nullcontext)


def _not_called(accept_model: Any) -> object:
    import kvpress

    press = kvpress.KnormPress(compression_ratio=0.75)
    return Candidate(accept_model.model, context=lambda: press)


def _scorers() -> list[Row]:
    half = 0.5
    return [
        _row("RandomPress", "random_eviction", lambda k: k.RandomPress(half, seed=0)),
        _row("KnormPress", "h2o", _scored),
        _row(
            "SnapKVPress",
            "snapkv",
            lambda k: k.SnapKVPress(half, window_size=32),
            knobs={"kv_budget": half, "observation": 32},
        ),
        _row("TOVAPress", "tova", lambda k: k.TOVAPress(half)),
        _row(
            "StreamingLLMPress",
            "streaming_llm",
            lambda k: k.StreamingLLMPress(half, n_sink=4),
            knobs={"kv_budget": half, "positions": "text"},
        ),
        _row(
            "ObservedAttentionPress (eager)",
            "h2o",
            lambda k: k.ObservedAttentionPress(half),
            around={"attn_implementation": "eager"},
        ),
        _row("ExpectedAttentionPress", "h2o", lambda k: k.ExpectedAttentionPress(half)),
        _row("KeyDiffPress", "h2o", lambda k: k.KeyDiffPress(half)),
        _row("LagKVPress", "h2o", lambda k: k.LagKVPress(half, lag_size=32)),
        _row("CURPress", "h2o", lambda k: k.CURPress(half)),
        _row("CapPress", "h2o", lambda k: k.CapPress(half)),
        _row("LeverageScorePress", "h2o", lambda k: k.LeverageScorePress(half)),
        _row("NonCausalAttnPress", "h2o", lambda k: k.NonCausalAttnPress(half, chunk_size=64)),
        _row("CompactorPress", "h2o", lambda k: k.CompactorPress(half, chunk_size=64)),
        _row("CriticalKVPress", "snapkv", lambda k: k.CriticalKVPress(k.SnapKVPress(half, window_size=32))),
    ]


_CACHE = "wants the cache handed over: Candidate(cache=DynamicCache)"
_ROW_0 = "kvpress 0.5.5 keeps the chunks of row 0 in every row of a batch"
_SHARED = "keeps state between calls: one question per context, as kvpress' own pipeline demands"


def _wrappers() -> list[Row]:
    return [
        _row("KeyRerotationPress(StreamingLLM)", "streaming_llm", lambda k: k.KeyRerotationPress(k.StreamingLLMPress(0.5, n_sink=4)), note="measured with the positions of the text, which its keys no longer have"),
        _row("ChunkPress(SnapKV)", "snapkv", lambda k: k.ChunkPress(k.SnapKVPress(0.5, window_size=16), chunk_length=64)),
        _row("ChunkKVPress(SnapKV)", "snapkv", lambda k: k.ChunkKVPress(k.SnapKVPress(0.5, window_size=32), chunk_length=8), REFUSED, "rows of a batch", note=_ROW_0),
        _row("EntropyGatedChunkKVPress(SnapKV)", "snapkv", lambda k: k.EntropyGatedChunkKVPress(k.SnapKVPress(0.5, window_size=32)), REFUSED, "rows of a batch", note=_ROW_0),
        _row("BlockPress(KeyDiff)", "h2o", lambda k: k.BlockPress(k.KeyDiffPress(0.5), block_size=64)),
        _row("MergingPress(Knorm)", "h2o", lambda k: k.MergingPress(press=_scored(k))),
        _row("PyramidKVPress", "pyramidkv", lambda k: k.PyramidKVPress(0.5, window_size=16)),
        _row("PerLayerCompressionPress(Knorm)", "pyramidkv", lambda k: k.PerLayerCompressionPress(_scored(k), [0.3, 0.4, 0.6, 0.7])),
        _row("SimLayerKVPress", "pyramidkv", lambda k: k.SimLayerKVPress(lazy_threshold=0.0, n_recent=44, n_initial=4)),
        _row("ComposedPress(SnapKV, ThinK)", "snapkv", lambda k: k.ComposedPress([k.SnapKVPress(0.5, window_size=32), k.ThinKPress(0.25)])),
        _row(
            "PrefillDecodingPress(Knorm, Decoding(Knorm))", "h2o",
            lambda k: k.PrefillDecodingPress(_scored(k), k.DecodingPress(_scored(k), compression_interval=8, target_size=128)),
            knobs={"kv_budget": 136}, note="decode_drift FAILS: norms of keys protect no recent token",
        ),
        _row(
            "PrefillDecodingPress(SnapKV, Decoding(SnapKV))", "snapkv",
            lambda k: k.PrefillDecodingPress(
                k.SnapKVPress(0.5, window_size=32),
                k.DecodingPress(k.SnapKVPress(0.5, window_size=4), compression_interval=8, target_size=128),
            ),
            knobs={"kv_budget": 136},
        ),
        _row(
            "PrefillDecodingPress(Knorm, CompressionRatioDecoding)", "h2o",
            lambda k: k.PrefillDecodingPress(
                _scored(k), k.CompressionRatioDecodingPress(_scored(k), target_compression_ratio=0.5, compression_interval=8)
            ),
        ),
        _row(
            "PrefillDecodingPress(Knorm, CAM)", "h2o",
            lambda k: k.PrefillDecodingPress(_scored(k), k.CAMPress(_scored(k), compression_interval=8, target_size=128)),
            REFUSED, "raised", knobs={"kv_budget": 136}, note=_SHARED, whole=True,
        ),
    ]  # fmt: skip


def _by_mask() -> list[Row]:
    """Presses that store everything and hide it: no memory is saved, which their documentation says too."""
    masked = "mask only"
    return [
        _row(
            "AdaKVPress(SnapKV)", "snapkv", lambda k: k.AdaKVPress(k.SnapKVPress(0.5, window_size=32)), REFUSED, masked
        ),
        _row(
            "CriticalAdaKVPress(SnapKV)",
            "snapkv",
            lambda k: k.CriticalAdaKVPress(k.SnapKVPress(0.5, window_size=32)),
            REFUSED,
            masked,
        ),
        _row(
            "DMSPress(Knorm)",
            "h2o",
            lambda k: k.DMSPress(_scored(k), threshold=-3.0, sliding_window_size=32),
            REFUSED,
            masked,
        ),
        _row("ThinKPress alone", "h2o", lambda k: k.ThinKPress(0.5), REFUSED, "entries"),
        _row(
            "DecodingPress alone",
            "h2o",
            lambda k: k.DecodingPress(_scored(k), compression_interval=8, target_size=128),
            REFUSED,
            "never ran|after a context",
            knobs={"kv_budget": 136},
        ),
    ]


def _on_the_way_out() -> list[Row]:
    """Presses that score in a second pass, when their context is left: around a prefill only, as their pipeline does."""
    late, masked = "never ran", "mask only"
    before: dict[str, Any] = {"prefill": True}
    return [
        _row("KVzipPress as context", "snapkv", lambda k: k.KVzipPress(0.5), REFUSED, late),
        _row("KVzipPress as prefill_context", "snapkv", lambda k: k.KVzipPress(0.5), REFUSED, masked, around=before),
        _row(
            "KVgradPress as prefill_context",
            "snapkv",
            lambda k: k.KVgradPress(0.5),
            REFUSED,
            masked,
            around={**before, "cache": DynamicCache},
            note=_CACHE,
        ),
        _row(
            "KVComposePress (eager) as prefill_context",
            "snapkv",
            lambda k: k.KVComposePress(compression_ratio=0.5),
            REFUSED,
            "raised",
            around={**before, "attn_implementation": "eager", "cache": DynamicCache},
            note="its layers keep different numbers of entries, for which eager attention (which it needs) has no mask",
        ),
        _row("SnapKVPress as prefill_context", "snapkv", lambda k: k.SnapKVPress(0.5, window_size=32), around=before),
    ]


def _broken() -> list[Row]:
    quarter = {"kv_budget": 0.25}
    chunks: dict[str, Any] = {"one_shot": False, "note": "compresses where position 0 begins a call"}
    return [
        _row("KnormPress, prompt in chunks", "h2o", _scored, REFUSED, "acts on one-shot prompts", **chunks),
        _row(
            "SnapKVPress, prompt in chunks",
            "snapkv",
            lambda k: k.SnapKVPress(0.5, window_size=32),
            REFUSED,
            "raised|acts on",
            **chunks,
        ),
        _row("KnormPress(0) under a quarter", "h2o", lambda k: k.KnormPress(0.0), REFUSED, "never ran", knobs=quarter),
        _row("KnormPress(.5) under a quarter", "h2o", _scored, REFUSED, "entries", knobs=quarter),
        _row(
            "a press that is built and not used",
            "h2o",
            _scored,
            REFUSED,
            "the candidate is the baseline",
            knobs=quarter,
            build=_unused,
        ),
        _row(
            "a context that does not use the press",
            "h2o",
            _scored,
            REFUSED,
            "never ran",
            knobs=quarter,
            build=_forgotten,
        ),
        _row(
            "lambda: press, without the model",
            "h2o",
            _scored,
            REFUSED,
            "no context manager",
            knobs=quarter,
            build=_not_called,
        ),
    ]


def rows() -> list[Row]:
    """Return every row of this library."""
    return [*_scorers(), *_wrappers(), *_by_mask(), *_on_the_way_out(), *_broken()]
