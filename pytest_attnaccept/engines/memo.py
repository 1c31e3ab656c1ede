"""Results of plain baselines, kept for the life of the process and, where a folder is named, beyond it.

Positions
---------
1. Keys hold the digest of the weights and the tokens themselves, so a changed model or text is never served an old result.
   On disk the key also holds code, versions, threads, instruction set and accelerators: another machine rounds differently.
2. A no-op is found by equal bits. The first stored result that a process would use is therefore measured again; unless it
   is equal to the last bit, nothing of the folder is used.
3. A damaged file is a missing one. Files are replaced as a whole, so that processes can share a folder without a lock.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import uuid
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pytest_attnaccept.fingerprint import accelerators, package_versions

__all__ = ["FOLDER_VARIABLE", "StoredTensors", "TensorMemo", "baseline_memo"]

_LIMIT_BYTES = 256 << 20  # policy: a quarter of a gigabyte is small next to any model that needs a memo
_FOLDER_BYTES = 1 << 30  # policy: a gigabyte on disk; the oldest files leave first
FOLDER_VARIABLE = "ATTNACCEPT_BASELINES"  # a folder, or "off"


class StoredTensors:
    """Tensors in a folder, one file each: SHA-256 of what follows, then an .npy file."""

    def __init__(self, folder: Path, limit_bytes: int = _FOLDER_BYTES) -> None:
        self.folder, self._limit = folder, limit_bytes
        self.trusted: bool | None = None  # None: not compared with a measurement of this process yet

    def get(self, key: Hashable) -> Tensor | None:
        """Return what is stored under `key`, or None when nothing readable is."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        digest, body = content[:32], content[32:]
        if hashlib.sha256(body).digest() != digest:
            return None
        try:
            return torch.from_numpy(np.load(io.BytesIO(body), allow_pickle=False))
        except (ValueError, TypeError, EOFError):
            return None

    def put(self, key: Hashable, value: Tensor) -> None:
        """Store `value`; what numpy cannot hold, or a full disk, leaves nothing behind."""
        if value.dtype not in (torch.float32, torch.float64) or value.numel() * value.element_size() > self._limit // 8:
            return
        stream = io.BytesIO()
        np.save(stream, value.detach().cpu().contiguous().numpy(), allow_pickle=False)
        body, path = stream.getvalue(), self._path(key)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(hashlib.sha256(body).digest() + body)
            temporary.replace(path)
            self._prune()
        except OSError:
            with suppress(OSError):
                temporary.unlink()

    def remove(self, key: Hashable) -> None:
        """Forget what is stored under `key`."""
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _prune(self) -> None:
        files = [(f.stat().st_mtime, f.stat().st_size, f) for f in self.folder.glob("*.bin")]
        total = sum(size for _, size, _ in files)
        for _, size, file in sorted(files, key=lambda entry: entry[0]):
            if total <= self._limit:
                return
            file.unlink(missing_ok=True)
            total -= size

    def _path(self, key: Hashable) -> Path:
        versions = sorted(package_versions().items())
        chips = tuple(accelerators())
        where = (platform.machine(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), chips)
        text = repr((key, versions, where))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.bin"


class TensorMemo:
    """Tensors by key; the oldest ones leave when the total passes a limit. Without `folder` they stay in memory."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES, *, folder: bool = True) -> None:
        self._limit, self._used, self._may_store = limit_bytes, 0, folder
        self._items: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._stored: StoredTensors | None = None
        self._named: str | None = None
        self._new: list[Hashable] = []

    def begin(self) -> None:
        """Begin a stretch of work whose results can be taken back."""
        self._new = []

    def take_back(self) -> None:
        """Forget what was put since `begin`, in memory and in the folder: it was measured on something else."""
        stored = self._folder()
        for key in self._new:
            gone = self._items.pop(key, None)
            self._used -= 0 if gone is None else gone.numel() * gone.element_size()
            if stored is not None:
                stored.remove(key)
        self._new = []

    def use_folder(self, folder: Path | None) -> None:
        """Keep results in `folder` too, for this and later processes; None: in memory only."""
        self._stored = None if folder is None else StoredTensors(folder)

    def get(self, key: Hashable) -> Tensor | None:
        """Return the tensor of `key`, or None."""
        held = self._items.get(key)
        if held is not None:
            return held
        stored = self._folder()
        if stored is None or not stored.trusted:
            return None
        found = stored.get(key)
        if found is not None:
            self._keep(key, found)
        return found

    def put(self, key: Hashable, value: Tensor) -> None:
        """Keep `value` if it fits at all."""
        self._keep(key, value)
        self._new.append(key)
        stored = self._folder()
        if stored is None:
            return
        if stored.trusted is None:
            before = stored.get(key)
            if before is not None:
                stored.trusted = before.dtype == value.dtype and torch.equal(before, value.cpu())
        stored.put(key, value)

    def clear(self) -> None:
        """Forget everything that is in memory."""
        self._items.clear()
        self._used = 0

    def _folder(self) -> StoredTensors | None:
        """Return the folder, which the environment may name or switch off."""
        if not self._may_store:
            return None
        named = os.environ.get(FOLDER_VARIABLE)
        if named != self._named:
            self._named = named
            # A folder that is no longer named is no longer used either.
            self._stored = None if named in (None, "", "off") else StoredTensors(Path(named).expanduser())
        return None if named == "off" else self._stored

    def _keep(self, key: Hashable, value: Tensor) -> None:
        size = value.numel() * value.element_size()
        if size > self._limit or key in self._items:
            return
        self._items[key] = value
        self._used += size
        while self._used > self._limit:
            _, old = self._items.popitem(last=False)
            self._used -= old.numel() * old.element_size()


baseline_memo = TensorMemo()
