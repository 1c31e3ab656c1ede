"""Which model, tokenizer and software were measured: short digests that change when any of them changes."""

from __future__ import annotations

import hashlib
import json
import platform
from typing import Any

import torch
from torch import Tensor

__all__ = ["config_digest", "library_versions", "tokenizer_digest", "weights_digest"]

# Above this size a tensor is read as an exact integer checksum plus a sample instead of being hashed in full (a hash
# reads about 1 GB/s; the checksum is bound by memory and still changes with every single bit).
_FULL_HASH_BYTES = 1 << 24
_SAMPLE = 4096


def _bytes(flat: Tensor) -> bytes:
    """Return the content of a uint8 tensor."""
    return flat.cpu().numpy().tobytes()


def _update(digest: Any, name: str, tensor: Tensor) -> None:
    digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}".encode())
    data = tensor.detach()
    for inner in _plain_tensors(data):
        flat = inner.contiguous().reshape(-1).view(torch.uint8) if inner.numel() else inner.reshape(-1)
        if flat.numel() <= _FULL_HASH_BYTES:
            digest.update(_bytes(flat))
            continue
        words = flat[: flat.numel() // 8 * 8].view(torch.int64)
        digest.update(str(int(words.sum())).encode())  # wraps around: equal on every platform
        sample = words[:: max(1, words.numel() // _SAMPLE)].contiguous().view(torch.uint8)
        digest.update(_bytes(sample) + _bytes(flat[-8:]))


def _plain_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the tensors inside a tensor subclass (quantized weights), or the tensor itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or type(tensor) is Tensor or type(tensor) is torch.nn.Parameter:
        return [tensor]
    names, _ = flatten()
    return [plain for name in names for plain in _plain_tensors(getattr(tensor, name))]


def weights_digest(model: Any) -> str:
    """Return a digest over name, shape, dtype and content of every parameter and persistent buffer."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            _update(digest, name, tensor)
        else:
            digest.update(f"{name}|{tensor!r}".encode())
    return digest.hexdigest()[:16]


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest over the serialised tokenizer, or over its vocabulary and a probe when it has no such form."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        text = backend.to_str()
    else:
        probe = tokenizer("The 42nd probe:\n 密码 naïve", add_special_tokens=False)["input_ids"]
        text = json.dumps([sorted(tokenizer.get_vocab().items()), list(probe)], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def config_digest(model: Any) -> str:
    """Return a digest over the configuration, without where it was loaded from and which version saved it."""
    config = model.config.to_dict()
    kept = {
        k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def library_versions() -> dict[str, str]:
    """Return the versions that can change a number."""
    import transformers

    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
