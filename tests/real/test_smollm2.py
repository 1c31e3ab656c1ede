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
    pytester: pytest.Pytester, wikitext: Path, mark: str, *arguments: str, documents: int, tier: float
) -> dict[str, str]:
    """Run one marked test under the profile and return the verdict of each check."""
    profile = pytester.path / "real.yaml"
    profile.write_text(PROFILE.format(text=wikitext, documents=documents, tier=tier), encoding="utf-8")
    pytester.makepyfile(
        test_case=f"import pytest\n\n\n@pytest.mark.approximate({mark})\ndef test_it(accept):\n    accept.model()\n"
    )
    pytester.runpytest_inprocess(
        f"--accept-profile={profile}", "--accept-model=smollm2-135m", "-p", "no:cacheprovider", *arguments
    )
    verdicts = json.loads((pytester.path / ".attnaccept" / "verdict.json").read_text(encoding="utf-8"))
    return {i["item"].rsplit("[", 1)[1][:-1]: i["headline"] for i in verdicts["items"]}


def test_perplexity_does_not_fail_streaming_llm_and_the_needle_does(pytester, wikitext, smollm2):
    """Half of the cache is gone: next tokens are a little worse, and most facts cannot be found any more."""
    mark = "method='streaming_llm', kv_budget=0.5"
    found = gate(pytester, wikitext, mark, "-k", "perplexity or needle", documents=24, tier=0.0625)
    assert not found["perplexity"].startswith("FAIL"), found
    assert found["needle-0.125x"].startswith("FAIL"), found


@pytest.mark.parametrize("tier", [pytest.param(1 / 64, id="128"), pytest.param(1 / 32, id="256", marks=pytest.mark.full)])
def test_two_bits_fail_on_text_and_eight_do_not(pytester, wikitext, smollm2, tier):
    size = {"documents": 60, "tier": tier}
    eight = gate(pytester, wikitext, "method='kv8'", "-k", "perplexity", **size)
    assert eight["perplexity"].startswith("PASS"), eight
    two = gate(pytester, wikitext, "method='kv2'", "-k", "perplexity", **size)
    assert two["perplexity"].startswith("FAIL"), two
