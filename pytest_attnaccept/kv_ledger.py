"""How large a KV cache is: per token in KiB, at a context in GiB, from numbers, a name or a ``config.json``.

Positions
---------
1. Layers that keep no K and V (linear attention, state space) do not count; layers with a window count up to it.
2. A latent cache (MLA) holds one latent and one rotary key per token and layer, whatever the number of heads. Engines that
   cache the expanded heads instead pay for all of them: ``expanded=True``.
3. What cannot be read is refused: a guessed head size is a wrong ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_attnaccept.errors import UnknownNameError, UsageError
from pytest_attnaccept.kv_layers import MOST, count_of, layers_of

__all__ = ["KNOWN", "KvLedger", "ledger_of"]

_WIDEST = 8  # bytes of the widest value that a cache holds
_LONGEST = 10**12  # tokens; whoever writes more has made a typing mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLedger:
    """Size of a KV cache: ``2 * layers * kv_heads * head_dim * bytes`` per token, or ``layers * latent * bytes``.

    Attributes
    ----------
    latent
        Values per token and layer of a latent cache (MLA); None: keys and values per head.
    windows
        Windows of those layers that keep their most recent tokens only; the other layers keep all.
    """

    layers: int
    kv_heads: int
    head_dim: int
    value_bytes: float = 2.0
    latent: int | None = None
    windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim"):
            if not 0 < getattr(self, name) <= MOST:
                raise UsageError(f"budget: {name}={getattr(self, name)!r} must be a positive whole number")
        if not 0 < self.value_bytes <= _WIDEST:
            raise UsageError(
                f"budget: --kv-bytes={self.value_bytes!r} must be positive and at most {_WIDEST} (float64)"
            )

    @property
    def bytes_per_layer(self) -> float:
        """Return bytes per token and layer."""
        values = self.latent if self.latent is not None else 2 * self.kv_heads * self.head_dim
        return values * self.value_bytes

    @property
    def kib_per_token(self) -> float:
        """Return KiB per token of context, all layers."""
        return self.layers * self.bytes_per_layer / 1024

    def bytes_at(self, tokens: int) -> float:
        """Return bytes at a context length."""
        if tokens > _LONGEST:
            raise UsageError(
                f"budget: a context of {len(str(tokens))} digits is a typing mistake; at most {_LONGEST} tokens"
            )
        full = self.layers - len(self.windows)
        return self.bytes_per_layer * (full * tokens + sum(min(tokens, w) for w in self.windows))

    def gib(self, tokens: int) -> float:
        """Return GiB at a context length."""
        return self.bytes_at(tokens) / 1024**3

    def gb(self, tokens: int) -> float:
        """Return decimal GB at a context length."""
        return self.bytes_at(tokens) / 1e9


# Published layouts; a config.json says the same for any other model.
KNOWN: Mapping[str, KvLedger] = {
    "llama-2-7b": KvLedger(layers=32, kv_heads=32, head_dim=128),
    "llama-3-8b": KvLedger(layers=32, kv_heads=8, head_dim=128),
    "llama-3-70b": KvLedger(layers=80, kv_heads=8, head_dim=128),
    "deepseek-v3": KvLedger(layers=61, kv_heads=128, head_dim=160, latent=576),  # keys 192 and values 128 wide: halved
    "smollm2-135m": KvLedger(layers=30, kv_heads=3, head_dim=64),
}


def ledger_of(spec: str, *, value_bytes: float = 2.0, expanded: bool = False) -> KvLedger:
    """Return the ledger of a known name, an embedded model, a folder with ``config.json``, or such a file.

    Parameters
    ----------
    value_bytes
        Bytes of a stored value: 2 is fp16, 1 is FP8 or 8 bits, 0.5625 is 4 bits with a scale per 32 values.
    expanded
        For a latent attention whose engine caches the expanded heads.
    """
    if spec in KNOWN and not Path(spec).exists():
        found = KNOWN[spec]
        return KvLedger(
            layers=found.layers, kv_heads=found.kv_heads, head_dim=found.head_dim, value_bytes=value_bytes,
            latent=None if expanded else found.latent,
        )  # fmt: skip
    path = _config_file(spec)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"budget: {path} cannot be read as a model configuration ({error})") from error
    if not isinstance(config, dict):
        raise UsageError(f"budget: {path} holds no mapping")
    inner = config.get("text_config")
    return _read(inner if isinstance(inner, dict) else config, str(path), value_bytes, expanded)


def _config_file(spec: str) -> Path:
    from pytest_attnaccept.profiles import data_dir

    for place in (Path(spec), data_dir("models") / spec):
        if place.is_file():
            return place
        if (place / "config.json").is_file():
            return place / "config.json"
    place = Path(spec)
    if place.is_dir():
        raise UsageError(f"budget: --model {spec}: the folder holds no config.json")
    if place.is_absolute() or place.suffix == ".json" or spec.startswith(("./", "../", "~")):
        raise UsageError(
            f"budget: --model {spec}: no such file or folder; give a config.json or a folder that holds one"
        )
    if "/" in spec:
        raise UsageError(
            f"budget: --model {spec}: no such folder, and the Hub is not asked; give the path of the model's config.json,"
            " or --layers, --kv-heads and --head-dim"
        )
    embedded = sorted(p.name for p in data_dir("models").glob("*") if (p / "config.json").is_file())
    raise UnknownNameError("model layout", spec, [*KNOWN, *embedded], "budget: --model (or a path to config.json)")


def _read(config: Mapping[str, Any], where: str, value_bytes: float, expanded: bool) -> KvLedger:
    if config.get("num_attention_heads") is None and config.get("model_type") is not None:
        raise UsageError(
            f"budget: {where}: model type {config['model_type']!r} names no num_attention_heads: a model without attention has"
            " no KV cache; else give --layers, --kv-heads and --head-dim"
        )
    heads, kept = count_of(config, where, "num_attention_heads"), layers_of(config, where)
    layers, windows = len(kept), tuple(window for window in kept if window is not None)
    latent = None
    if config.get("kv_lora_rank") is not None:
        rope = count_of(config, where, "qk_rope_head_dim")
        if not expanded:
            latent = count_of(config, where, "kv_lora_rank") + rope
        key = count_of(config, where, "qk_nope_head_dim") + rope
        head_dim = key + count_of(config, where, "v_head_dim")  # keys and values differ in width: their sum, halved
        if head_dim % 2:
            raise UsageError(f"budget: {where}: expanded keys and values have {head_dim} values together")
        return KvLedger(
            layers=layers,
            kv_heads=heads,
            head_dim=head_dim // 2,
            value_bytes=value_bytes,
            latent=latent,
            windows=windows,
        )
    return KvLedger(
        layers=layers,
        kv_heads=_kv_heads(config, where, heads),
        head_dim=_head_dim(config, where, heads),
        value_bytes=value_bytes,
        windows=windows,
    )


def _kv_heads(config: Mapping[str, Any], where: str, heads: int) -> int:
    """Return how many heads keep keys and values; Falcon says MQA by a flag, which its newer architecture ignores."""
    if config.get("num_key_value_heads") is not None:
        return count_of(config, where, "num_key_value_heads")
    falcon = config.get("model_type") == "falcon"
    if config.get("multi_query", falcon) and not config.get("new_decoder_architecture"):
        return 1
    return count_of(config, where, "num_kv_heads") if config.get("num_kv_heads") is not None else heads


def _head_dim(config: Mapping[str, Any], where: str, heads: int) -> int:
    """Return the width of a head; where keys and values differ, half of their sum."""
    if config.get("head_dim") is not None:
        width = count_of(config, where, "head_dim")
    else:
        width = _divided(count_of(config, where, "hidden_size"), heads, where)
    if config.get("v_head_dim") is None:
        return width
    both = width + count_of(config, where, "v_head_dim")
    if both % 2:
        raise UsageError(f"budget: {where}: keys and values have {both} values together")
    return both // 2


def _divided(hidden: int, heads: int, where: str) -> int:
    if hidden % heads:
        raise UsageError(f"budget: {where}: no head_dim, and hidden_size {hidden} is no multiple of {heads} heads")
    return hidden // heads
