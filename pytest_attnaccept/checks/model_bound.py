"""What the results of a model comparison are bound to: weights, tokenizers, configurations, software, where it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_attnaccept.engines.fingerprints import config_digest, library_versions, tokenizer_digest

if TYPE_CHECKING:
    from pytest_attnaccept.checks.model_session import ModelSession

__all__ = ["baseline_marks", "marks_of"]


def marks_of(session: ModelSession) -> dict[str, str]:
    """Return what was measured, both sides of it: the fingerprint of a record."""
    marks = {
        "device": session.device,
        "dtype": session.dtype,
        "seed": str(session.seed),
        "stack": " + ".join(claim.source for claim in session.claims) or "none",
        **library_versions(),
    }
    for side in (session.baseline, session.candidate):
        marks[f"{side.name}.spec"] = side.loaded.spec
        marks[f"{side.name}.weights"] = session.weights[side.name]
        marks[f"{side.name}.config"] = config_digest(side.model)
        marks[f"{side.name}.tokenizer"] = tokenizer_digest(side.loaded.tokenizer)
        # Tiers are multiples of it, and it may stand in a file that belongs to no configuration.
        marks[f"{side.name}.trained_length"] = str(side.loaded.trained_length)
        marks[f"{side.name}.trust_remote_code"] = str(side.loaded.trust_remote_code).lower()
        marks[f"{side.name}.attention"] = side.around.attn_implementation or str(
            getattr(side.model.config, "_attn_implementation", "")
        )
    return marks


def baseline_marks(session: ModelSession) -> str:
    """Return everything that a result of the plain baseline depends on besides its input."""
    marks = marks_of(session)
    names = ("weights", "config", "tokenizer", "attention")
    loaded = session.baseline.loaded
    ends = (loaded.prefix_ids, getattr(loaded.tokenizer, "eos_token_id", None))  # no part of a tokenizer's file
    # What hooks and replaced functions do shows in no file: the answer to a probe is part of the key.
    answers = "" if session.intact is None else session.intact.digest
    return "|".join([session.device, *(marks[f"baseline.{name}"] for name in names), repr(ends), answers])
