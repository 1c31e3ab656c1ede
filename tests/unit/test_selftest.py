"""The self-test notices when the gate can no longer fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_attnaccept import selftest
from pytest_attnaccept.controls import Control, statistics
from pytest_attnaccept.options import Options
from pytest_attnaccept.taxonomy import Verdict
from pytest_attnaccept.verdict import Decision

OPTIONS = Options(
    profile="smoke", explicit=True, model=None, device="cpu", dtype=None, seed=0, out=Path("x"), plan_only=False, time_s=None,
    selftest=True, resume=False, html=None,
)  # fmt: skip


@pytest.fixture
def only_statistics(monkeypatch):
    monkeypatch.setattr(selftest, "_all", lambda options: statistics.controls())


def test_controls_of_the_verdict_behave(only_statistics, capsys):
    assert selftest.run_selftest(OPTIONS) == 0
    assert "5 of 5 controls as expected" in capsys.readouterr().out


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE])
def test_a_gate_with_one_answer_is_found_out(only_statistics, monkeypatch, capsys, verdict):
    constant = Decision(verdict=verdict, headline="always", metrics=())
    monkeypatch.setattr(selftest, "decide", lambda *a, **k: constant)
    assert selftest.run_selftest(OPTIONS) == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_control_that_crashes_is_wrong_and_the_others_still_run(monkeypatch, capsys):
    def crash():
        raise RuntimeError("boom")

    broken = Control(surface="x", name="crash", check="c", expected=frozenset({Verdict.PASS}), measure=crash)
    monkeypatch.setattr(selftest, "_all", lambda options: [broken, *statistics.controls()])
    assert selftest.run_selftest(OPTIONS) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: boom" in out
    assert "5 of 6 controls" in out


def test_no_controls_is_not_a_pass(monkeypatch):
    monkeypatch.setattr(selftest, "_all", lambda options: [])
    assert selftest.run_selftest(OPTIONS) == 1


def test_columns_stand_below_each_other(monkeypatch, capsys):
    """The longest check of the shipped controls, and a short one."""
    longest, short = (
        Control(surface="model", name="its name", check=check, expected=frozenset(Verdict), measure=statistics_measure)
        for check in ("long-range-kv_recall", "needle")
    )
    monkeypatch.setattr(selftest, "_all", lambda options: [longest, short])
    selftest.run_selftest(OPTIONS)
    lines = capsys.readouterr().out.splitlines()[:2]
    assert len({line.index("its name") for line in lines}) == 1


def test_no_shipped_control_has_a_longer_check():
    text = "".join(p.read_text(encoding="utf-8") for p in (Path(selftest.__file__).parent / "controls").glob("*.py"))
    assert max(map(len, re.findall(r'"((?:long-range|needle|budget|length)-[\w.-]+)"', text))) <= 20


def statistics_measure():
    return next(iter(statistics.controls())).measure()
