"""Records: what is written can be read, survives a dying process, and is refused when damaged."""

import json
import math
import re
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_attnaccept.errors import RecordError
from pytest_attnaccept.records import Metric, Record, RecordWriter, plain, read_records, write_atomically
from pytest_attnaccept.taxonomy import Verdict


def record(**more: object) -> Record:
    fields = {
        "item": "t.py::test_注意力[needle-1x]", "cell": "t.py::test_注意力", "check": "needle-1x", "kind": "approximate",
        "surface": "model", "stack": "h2o(kv_budget=0.25)", "methods": ("h2o",), "profile": "smoke",
        "verdict": Verdict.PASS, "headline": "PASS", "run_id": "r1", "static": "s",
        "metrics": (Metric(name="needle", verdict="PASS", effect=0.01, n=5),), "facts": {"x": 1}, "time": "1",
    }  # fmt: skip
    return Record(**{**fields, **more})  # type: ignore[arg-type]


def test_round_trip() -> None:
    first = record(details={"text": "第一行\nsecond\r\u2028 line", "list": [1, 2.5, None, True]})
    again = Record.from_line(first.to_line(), "here")
    assert again == Record.from_line(again.to_line(), "here")
    assert (again.item, again.metrics, again.details["text"]) == (
        first.item,
        first.metrics,
        "第一行\nsecond\r\u2028 line",
    )
    assert "\n" not in first.to_line()


@given(st.text())
def test_any_text_can_be_written_as_one_utf8_line(text: str) -> None:
    line = record(headline=text, details={text: text}).to_line()
    assert "\n" not in line
    assert isinstance(Record.from_line(line.encode("utf-8").decode("utf-8"), "here"), Record)


def test_lone_surrogates_are_written_readably() -> None:
    line = record(headline="file \udcff").to_line()
    assert Record.from_line(line, "here").headline == "file \\udcff"
    line.encode("utf-8")


def test_numbers_that_are_not_finite_become_text() -> None:
    line = record(metrics=(Metric(name="m", verdict="FAIL", effect=math.nan, ci_high=math.inf),)).to_line()
    body = json.loads(line)
    assert (body["metrics"][0]["effect"], body["metrics"][0]["ci_high"]) == ("nan", "inf")


class Colour(str, Enum):
    RED = "red"


class Scalar:
    ndim = 0

    def item(self) -> float:
        return 1.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Colour.RED, "red"), (Path("a/b"), "a/b"), ({1}, [1]), ((1, (2,)), [1, [2]]), ({1: Scalar()}, {"1": 1.5}),
        (True, True), (None, None), (float("-inf"), "-inf"),
    ],
)  # fmt: skip
def test_plain(value: object, expected: object) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2}, {"verdict": "PERFECT"}, {"verdict": None}, {"metrics": [{"nome": 1}]}, {"metrics": 3}, {"surprise": 1},
        {"methods": 5}, {"item": None}, {"static": 3}, {"fingerprint": None}, {"time": 4}, {"cell": ["a"]},
    ],
    ids=str,
)  # fmt: skip
def test_damaged_lines_are_refused(change: dict) -> None:
    body = {**json.loads(record().to_line()), **change}
    with pytest.raises(RecordError, match="here"):
        Record.from_line(json.dumps(body), "here")


@pytest.mark.parametrize("line", ["", "{", "[]", "3", "null", '"text"', '{"schema": 1}'])
def test_lines_that_are_no_record(line: str) -> None:
    with pytest.raises(RecordError, match="here"):
        Record.from_line(line, "here")


def test_writer_appends_and_reader_sorts_by_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for worker, time in (("gw1", "3"), ("gw0", "1"), ("gw1", "2")):
        RecordWriter(folder, worker).append(record(time=time, worker=worker))
    assert [r.time for r in read_records(folder)] == ["1", "2", "3"]


def test_only_an_unfinished_last_line_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "records.r.main.jsonl"
    good = record().to_line()
    for text, count, problems in (
        (f"{good}\n{good[:50]}", 1, 0),
        (f"{good}\n{good[:50]}\n", 1, 1),
        (f"{good[:50]}\n{good}\n", 1, 1),
        (f"{good}\n{good}", 2, 0),
        (f"\n\n{good}\n\n", 1, 0),
    ):
        path.write_text(text, encoding="utf-8")
        found: list[str] = []
        assert (len(read_records(tmp_path, found)), len(found)) == (count, problems)


def test_bytes_that_are_not_utf8_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "records.r.main.jsonl"
    path.write_bytes(record().to_line().encode() + b"\n\xff\xfe\n")
    problems: list[str] = []
    assert len(read_records(tmp_path, problems)) == 1
    assert len(problems) == 1


def test_write_atomically(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomically(path, "一")
    write_atomically(path, "二")
    assert path.read_text(encoding="utf-8") == "二"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite_come_back_as_numbers(value: float) -> None:
    metric = Metric(name="perplexity", verdict="FAIL", effect=value, ci_high=value, n=3)
    again = Record.from_line(record(verdict=Verdict.FAIL, metrics=(metric,)).to_line(), "here").metrics[0]
    assert (repr(again.effect), repr(again.ci_high), again.n) == (repr(value), repr(value), 3)


@pytest.mark.parametrize("value", ["0.1", "Infinity", True, [1]])
def test_a_metric_that_is_no_number_is_refused(value: object) -> None:
    metric = Metric(name="perplexity", verdict="PASS", effect=value)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="effect must be a number"):
        Record.from_line(record(metrics=(metric,)).to_line(), "here")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "record schema 2; this version reads record schema 1: measure again"),
        ({"schema": None}, "no record schema; this version reads record schema 1"),
        ({"power": 0.8, "cost": 3}, "unknown cost, power in record schema 1; a later version may know them"),
    ],
    ids=str,
)
def test_a_record_of_another_version_says_what_was_found_and_what_is_read(change: dict, words: str) -> None:
    body = {**json.loads(record().to_line()), **change}
    with pytest.raises(RecordError, match=re.escape(f"{words}")):
        Record.from_line(json.dumps(body), "here")
