"""Stored baselines: used only when equal to the last bit, never when damaged, never under another key."""

from __future__ import annotations

import pytest
import torch

from pytest_attnaccept.checks import model_text, open_session
from pytest_attnaccept.checks.stack_memo import stack_memo
from pytest_attnaccept.engines import memo
from pytest_attnaccept.engines.memo import FOLDER_VARIABLE, StoredTensors, TensorMemo, baseline_memo
from pytest_attnaccept.registry import Registry, check_knobs

VALUE = torch.arange(6, dtype=torch.float64).reshape(2, 3)


def process(folder):
    """A memo as a fresh process has it."""
    fresh = TensorMemo()
    fresh.use_folder(folder)
    return fresh


def test_the_first_result_is_measured_again_and_the_rest_is_read(tmp_path):
    first = process(tmp_path)
    first.put("a", VALUE)
    first.put("b", 2 * VALUE)
    second = process(tmp_path)
    assert second.get("a") is None  # not compared with this process yet
    second.put("a", VALUE)
    assert torch.equal(second.get("b"), 2 * VALUE)
    assert second.get("c") is None


def test_one_different_bit_makes_the_folder_worthless(tmp_path):
    process(tmp_path).put("a", VALUE)
    process(tmp_path).put("b", VALUE)
    second = process(tmp_path)
    second.put("a", VALUE + 1e-15 * (VALUE == 5))
    assert second.get("b") is None


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:40] + b"\xff" + b[41:], lambda b: b"", lambda b: b[:32]]
)
def test_a_damaged_file_is_a_missing_one(tmp_path, damage):
    first = process(tmp_path)
    first.put("a", VALUE)
    first.put("b", VALUE)
    stored = StoredTensors(tmp_path)
    path = stored._path("b")
    path.write_bytes(damage(path.read_bytes()))
    assert stored.get("b") is None
    second = process(tmp_path)
    second.put("a", VALUE)
    assert second.get("b") is None
    second.put("b", VALUE)
    assert torch.equal(stored.get("b"), VALUE)


def test_threads_are_part_of_the_key(tmp_path, monkeypatch):
    process(tmp_path).put("a", VALUE)
    monkeypatch.setattr(memo.torch, "get_num_threads", lambda: 77)
    assert StoredTensors(tmp_path).get("a") is None


def test_a_full_folder_loses_its_oldest_files(tmp_path):
    stored = StoredTensors(tmp_path, limit_bytes=2000)
    for number in range(9):
        stored.put(number, torch.full((50,), float(number)))
    held = [n for n in range(9) if stored.get(n) is not None]
    assert 0 < len(held) < 9
    stored.put("too large", torch.zeros(1000))
    stored.put("half", torch.zeros(3, dtype=torch.float16))
    assert stored.get("too large") is None
    assert stored.get("half") is None


def test_the_environment_names_a_folder_or_switches_it_off(tmp_path, monkeypatch):
    held = TensorMemo()
    held.put("a", VALUE)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    held.put("b", VALUE)
    assert len(list(tmp_path.glob("*.bin"))) == 1
    monkeypatch.setenv(FOLDER_VARIABLE, "off")
    held.put("c", VALUE)
    assert len(list(tmp_path.glob("*.bin"))) == 1


def test_a_session_reads_the_baseline_of_an_earlier_process(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    calls = []
    original = model_text.continued_text
    monkeypatch.setattr(
        model_text, "continued_text", lambda session, side, *a: calls.append(side.name) or original(session, side, *a)
    )
    # Several batches: the first is measured again.
    monkeypatch.setattr("pytest_attnaccept.checks.model_session._BATCH", 2)
    method = Registry.builtin().get("kv8")
    results = []
    for _ in range(2):
        baseline_memo.clear()
        baseline_memo._named = None  # as a fresh process
        stack_memo.clear()
        with open_session(baseline="toy-gqa", stack=[(method, check_knobs(method, {}, "test"))]) as session:
            params = {"documents": 6, "continuation": 16, "tier": 0.25}
            results.append(session.measure("divergence", params).gates)
    assert results[0] == results[1]
    # three batches, and one of them again in the second process; the candidate is measured every time
    assert (calls.count("baseline"), calls.count("candidate")) == (4, 6)
    baseline_memo.clear()
    baseline_memo.use_folder(None)
