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

__all__ = ["KNOWN", "KvLedger", "ledger_of"]


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
        raise UsageError(f"budget: --model {spec}: no such file or folder; give a config.json or a folder that holds one")
    if "/" in spec:
        raise UsageError(
            f"budget: --model {spec}: no such folder, and the Hub is not asked; give the path of the model's config.json,"
            " or --layers, --kv-heads and --head-dim"
        )
    embedded = sorted(p.name for p in data_dir("models").glob("*") if (p / "config.json").is_file())
    raise UnknownNameError("model layout", spec, [*KNOWN, *embedded], "budget: --model (or a path to config.json)")


def _read(config: Mapping[str, Any], where: str, value_bytes: float, expanded: bool) -> KvLedger:
    layers, heads = _count(config, where, "num_hidden_layers"), _count(config, where, "num_attention_heads")
    kinds = config.get("layer_types")
    windows: tuple[int, ...] = ()
    if isinstance(kinds, list):
        kept = [str(kind) for kind in kinds if "linear" not in str(kind) and "mamba" not in str(kind)]
        layers = len(kept)
        sliding = sum("sliding" in kind for kind in kept)
        windows = (_count(config, where, "sliding_window"),) * sliding if sliding else ()
        if not layers:
            raise UsageError(f"budget: {where}: no layer of this model keeps keys and values")
    latent = None
    if config.get("kv_lora_rank") is not None:
        rope = _count(config, where, "qk_rope_head_dim")
        if not expanded:
            latent = _count(config, where, "kv_lora_rank") + rope
        key = _count(config, where, "qk_nope_head_dim") + rope
        head_dim = key + _count(config, where, "v_head_dim")  # keys and values differ in width: their sum, halved
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
    head_dim = config.get("head_dim") or _divided(_count(config, where, "hidden_size"), heads, where)
    kv_heads = config.get("num_key_value_heads") or heads
    return KvLedger(
        layers=layers, kv_heads=int(kv_heads), head_dim=int(head_dim), value_bytes=value_bytes, windows=windows
    )


def _count(config: Mapping[str, Any], where: str, name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"budget: {where}: {name}={value!r} must be a positive whole number")
    return value


def _divided(hidden: int, heads: int, where: str) -> int:
    if hidden % heads:
        raise UsageError(f"budget: {where}: no head_dim, and hidden_size {hidden} is no multiple of {heads} heads")
    return hidden // heads
