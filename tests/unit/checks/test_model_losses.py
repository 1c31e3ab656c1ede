"""Records keep the loss of every document and context, named by content, also of a sample that was measured in looks."""

from __future__ import annotations

import json

import pytest

from pytest_attnaccept.checks import open_session
from pytest_attnaccept.checks.looks import measure_in_looks
from pytest_attnaccept.registry import Registry, check_knobs
from pytest_attnaccept.stats.sequential import plan_looks


def opened(name, **knobs):
    method = Registry.builtin().get(name)
    return open_session(baseline="toy-gqa", stack=[(method, check_knobs(method, knobs, "test"))])


def test_losses_of_documents_are_the_gates_own_and_are_named_by_content():
    kept = []
    for name in ("kv4", "kv2"):
        with opened(name) as session:
            measured = session.measure("perplexity", {"documents": 4, "continuation": 8, "tier": 0.25})
        kept.append(measured.details["losses"]["perplexity"])
        assert kept[-1]["sums"] == pytest.approx(measured.gates[0].sums, rel=1e-6)
        assert kept[-1]["tokens"] == list(measured.gates[0].tokens)
        assert measured.details["data_digest"] == measured.data_digest
        json.dumps(measured.details)
    assert kept[0]["units"] == kept[1]["units"]
    assert len(set(kept[0]["units"])) == 4
    assert kept[0]["sums"] != kept[1]["sums"]


def test_losses_of_a_sample_measured_in_looks_are_those_of_one_run():
    with opened("h2o", kv_budget=0.5) as session:
        plan = plan_looks(12, 0.5)
        looked = measure_in_looks(lambda given: session.measure("needle-0.25x", given), {"contexts": 12}, plan)
        whole = session.measure("needle-0.25x", {"contexts": len(looked.gates[0].losses)})
    kept, at_once = looked.details["losses"]["needle"], whole.details["losses"]["needle"]
    assert kept["units"] == at_once["units"]
    assert kept["losses"] == pytest.approx(at_once["losses"])
    assert kept["losses"] == pytest.approx(looked.gates[0].losses)
    # batches of another size round differently
    assert kept["candidate_nll"] == pytest.approx(at_once["candidate_nll"], abs=1e-3)
