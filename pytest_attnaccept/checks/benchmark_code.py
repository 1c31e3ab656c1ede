"""Does generated code pass its tests? Each program runs in a process of its own, with limits and without the network.

Positions
---------
1. Nothing runs unless the profile says ``run_code: true``. The limits (CPU and wall time, memory, file size, no sockets, no
   child processes, no writes, no foreign libraries) keep accidents apart; they are no wall against hostile code.
2. An exit status proves nothing, because a program may leave early: only a word that is drawn for each run and written
   after the last test counts as passed.
"""

from __future__ import annotations

import gzip
import json
import secrets
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_attnaccept.errors import ContractError, EngineError

__all__ = ["STOPS", "humaneval_problems", "passes"]

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # where a completion of a function body has ended
_FIELDS = ("task_id", "prompt", "entry_point", "test")
_SECONDS, _BYTES, _FILE_BYTES = 10, 1 << 30, 1 << 20  # policy: the reference solutions take a second and 50 MB at most

# What the other process runs: it reads the word and the program, sets the limits, runs, and then writes the word.
_RUNNER = """
import os, resource, sys
seconds, memory, size = map(int, sys.argv[1:4])
word, program = sys.stdin.read().split(chr(10), 1)
out = os.dup(1)
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
import builtins, collections, functools, hashlib, heapq, itertools, math, random, re, string, typing
for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, size)):
    resource.setrlimit(kind, (limit, limit))
denied = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill",
          "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.link", "os.symlink", "os.truncate",
          "shutil.", "ctypes.", "signal.pthread_kill", "resource.setrlimit", "urllib.", "http.", "ftplib.", "smtplib.")
def hook(event, arguments):
    if event.startswith(denied):
        raise PermissionError(event)
    if event == "open" and len(arguments) > 2 and isinstance(arguments[2], int) and (
        arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        raise PermissionError(event)
sys.addaudithook(hook)
exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
os.write(out, word.encode())
"""


def passes(program: str, *, seconds: int = _SECONDS) -> bool:
    """Run a program in a process of its own; true only when it reached its end."""
    if sys.platform == "win32":
        raise EngineError("generated code is run with POSIX limits, which this system does not have")
    word = secrets.token_hex(16)
    command = [sys.executable, "-I", "-c", _RUNNER, str(seconds), str(_BYTES), str(_FILE_BYTES)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, input=f"{word}\n{program}".encode("utf-8", "replace"), capture_output=True, timeout=seconds + 5,
                cwd=folder, env={"PYTHONHASHSEED": "0"}, check=False, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
    return done.stdout == word.encode() and done.returncode == 0


def humaneval_problems(source: str, limit: int | None = None) -> list[Mapping[str, Any]]:
    """Return the problems of HumanEval from a file (``HumanEval.jsonl`` or ``.jsonl.gz``, or its folder), or from the Hub.

    Raises
    ------
    EngineError
        When there is no file and the Hub cannot be reached.
    ContractError
        When a row lacks a field.
    """
    rows = _from_file(Path(source)) if source else _from_hub()
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ContractError(f"humaneval: row {number + 1} is no mapping but {type(row).__name__}")
        lacking = [name for name in _FIELDS if not isinstance(row.get(name), str)]
        if lacking:
            raise ContractError(f"humaneval: row {number + 1} lacks {', '.join(lacking)}")
    if not rows:
        raise ContractError(f"humaneval: {source or 'the Hub'} holds no problem")
    return rows[:limit]


def _from_file(path: Path) -> list[Mapping[str, Any]]:
    names = [path / name for name in ("HumanEval.jsonl.gz", "HumanEval.jsonl")] if path.is_dir() else [path]
    found = next((name for name in names if name.is_file()), None)
    if found is None:
        raise EngineError(f"humaneval: {path} holds neither HumanEval.jsonl.gz nor HumanEval.jsonl")
    try:
        content = found.read_bytes()
        text = (gzip.decompress(content) if found.suffix == ".gz" else content).decode("utf-8-sig")
        # Not splitlines: separators of other kinds may stand inside of a string.
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ContractError(f"humaneval: {found} cannot be read: {type(error).__name__}: {error}") from error


def _from_hub() -> list[Mapping[str, Any]]:
    try:
        from datasets import load_dataset

        return [dict(row) for row in load_dataset("openai/openai_humaneval", split="test")]
    except Exception as error:  # datasets raises the errors of a dozen libraries
        raise EngineError(
            f"humaneval: the data cannot be had from the Hub ({type(error).__name__}); put HumanEval.jsonl.gz into"
            " include_path"
        ) from error
