"""What the two state benches share: the known-good objects, and a table with command, commit and seeds in its head."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
WINDOW = {"window": 7}
SINKS = {"window": 7, "sink_tokens": 2}
SHAPE = {"q_heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 4, "capacity_tokens": 96, "dtype": "float32"}


def good_caches() -> dict[str, tuple[Callable[[], Any], dict[str, Any]]]:
    """Return name -> (factory, changed contract keywords)."""
    import transformers

    from fixtures.good.caches import ContiguousCache, PagedCache, RingWindowCache
    from fixtures.good.transformers_objects import TransformersCache

    def paged(**change: Any) -> Callable[[], Any]:
        pool = {"kv_heads": 2, "head_dim": 16, "page_size": 4, "capacity_tokens": 96, **change}
        return lambda: PagedCache(**pool)

    heads = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    full = transformers.LlamaConfig(**heads)
    sliding = transformers.MistralConfig(**heads, sliding_window=7)
    return {
        "contiguous": (ContiguousCache, {}),
        "paged": (paged(), {}),
        "paged, page 1": (paged(page_size=1), {"page_size": 1}),
        "paged, window": (paged(**WINDOW), WINDOW),
        "paged, sinks": (paged(**SINKS), SINKS),
        "paged, bfloat16": (paged(dtype=torch.bfloat16), {"dtype": "bfloat16"}),
        "paged, float16": (paged(dtype=torch.float16), {"dtype": "float16"}),
        "ring window": (lambda: RingWindowCache(**WINDOW), WINDOW),
        "ring window with sinks": (lambda: RingWindowCache(**SINKS), SINKS),
        "transformers DynamicCache": (lambda: TransformersCache(lambda: transformers.DynamicCache(config=full)), {}),
        "transformers StaticCache": (
            lambda: TransformersCache(lambda: transformers.StaticCache(config=full, max_cache_len=256)),
            {},
        ),
        "transformers sliding layers": (
            lambda: TransformersCache(lambda: transformers.DynamicCache(config=sliding), 7),
            WINDOW,
        ),
    }


def good_prefix_caches() -> dict[str, tuple[Callable[[], Any], int]]:
    """Return name -> (factory, block size)."""
    from fixtures.good.prefix_caches import BlockHashPrefixCache, RadixPrefixCache, TablePrefixCache

    return {
        "table of lists": (TablePrefixCache, 1),
        "radix tree": (RadixPrefixCache, 1),
        "block hashes, block 1": (lambda: BlockHashPrefixCache(block_size=1), 1),
        "block hashes, block 4": (lambda: BlockHashPrefixCache(block_size=4), 4),
        "block hashes, block 16": (lambda: BlockHashPrefixCache(block_size=16), 16),
    }


def head(title: str, seeds: str) -> list[str]:
    """Return the first lines of a result: what was run, on which commit, when."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    command = f"python tests/bench/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
    day = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d")
    return [
        f"# {title}",
        "",
        f"Command: `{command}`. Commit {commit}, {day}, torch {torch.__version__}. Seeds: {seeds}.",
        "",
    ]


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return [*lines, *("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)]
