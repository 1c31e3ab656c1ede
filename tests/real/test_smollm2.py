"""The gate on SmolLM2-135M with WikiText-2: what perplexity sees, and what only the needle sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

# Sizes for minutes on two cores, of 8192 trained tokens. 59 documents are the least that may pass; fewer can still fail.
PROFILE = """
schema: 1
name: real
title: SmolLM2 in minutes
claim: no collapse on short contexts
alpha: 0.05
data: {{text: {text}}}
checks:
  footprint: {{tier: 0.03125}}
  perplexity: {{documents: {documents}, tier: {tier}, continuation: 32}}
  needle: {{tiers: [0.125], contexts: 28, questions_per_context: 1}}
limits:
  perplexity: {{max: 0.10, origin: "policy: smoke"}}
  needle: {{max: 0.10, origin: "policy: smoke"}}
"""


def gate(
    pytester: pytest.Pytester, wikitext: Path, marks: dict[str, str], *arguments: str, documents: int, tier: float
) -> dict[str, str]:
    """Run one marked test per name in one session, which measures the baseline once; return the headline of each item."""
    profile = pytester.path / "real.yaml"
    profile.write_text(PROFILE.format(text=wikitext, documents=documents, tier=tier), encoding="utf-8")
    cases = [
        f"@pytest.mark.approximate({mark})\ndef test_{name}(accept):\n    accept.model()\n"
        for name, mark in marks.items()
    ]
    pytester.makepyfile(test_case="\n\n".join(["import pytest\n", *cases]))
    pytester.runpytest_inprocess(
        f"--accept-profile={profile}", "--accept-model=smollm2-135m", "-p", "no:cacheprovider", *arguments
    )
    verdicts = json.loads((pytester.path / ".attnaccept" / "verdict.json").read_text(encoding="utf-8"))
    return {i["item"].rsplit("::test_", 1)[1]: i["headline"] for i in verdicts["items"]}


def test_perplexity_does_not_fail_streaming_llm_and_the_needle_does(pytester, wikitext, smollm2):
    """Half of the cache is gone: next tokens are a little worse, and most facts cannot be found any more."""
    marks = {"half": "method='streaming_llm', kv_budget=0.5"}
    found = gate(pytester, wikitext, marks, "-k", "perplexity or needle", documents=16, tier=0.0625)
    assert not found["half[perplexity]"].startswith("FAIL"), found
    assert found["half[needle-0.125x]"].startswith("FAIL"), found


@pytest.mark.parametrize(
    "tier", [pytest.param(1 / 64, id="128"), pytest.param(1 / 32, id="256", marks=pytest.mark.full)]
)
def test_two_bits_fail_on_text_and_eight_do_not(pytester, wikitext, smollm2, tier):
    marks = {"eight": "method='kv8'", "two": "method='kv2'"}
    found = gate(pytester, wikitext, marks, "-k", "perplexity", documents=60, tier=tier)
    assert found["eight[perplexity]"].startswith("PASS"), found
    assert found["two[perplexity]"].startswith("FAIL"), found
