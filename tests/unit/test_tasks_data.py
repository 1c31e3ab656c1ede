"""Real data as task items: formats, counts, digests, and rows that must not be used in silence."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from pytest_attnaccept.errors import ContractError, EngineError, UnknownNameError
from pytest_attnaccept.tasks.blind import constant_score
from pytest_attnaccept.tasks.data.load import load_items
from pytest_attnaccept.tasks.data.longbench import TASKS
from pytest_attnaccept.tasks.data.rows import read_rows
from pytest_attnaccept.tasks.scoring import METRICS, score_answer

FOLDER = Path(os.environ.get("ATTNACCEPT_DATA") or Path(__file__).parents[3] / "shared" / "data")


def fit(text: str) -> int:
    return len(text) // 4 + 1


def load(name: str, source: object, target: int = 10_000, **more):
    return load_items(name, str(source), fit=fit, target_tokens=target, **more)


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


LINES = {
    "prompt": "Remember:\n\nline red-fox: REGISTER_CONTENT is <123>\nline old-cat: REGISTER_CONTENT is <4567>\n\nNow the record is over."
    " Tell me what is the <REGISTER_CONTENT> in line old-cat? I need the number.",
    "expected_number": 4567,
}
PAIRS = {"ordered_kv_records": [["a1", "b1"], ["a2", "b2"]], "key": "a2", "value": "b2"}
KEY = {"input": "Noise. The pass key is 123. Remember it. 123 is the pass key. Noise.", "target": "123"}
NEEDLE = {
    "input": "Text.\nOne of the special magic uuids for aa is: b1.\nOne of the special magic uuids for cc is: d1.\nWhat is the special"
    " magic uuid for cc mentioned in the provided text? The special magic uuid for cc mentioned in the provided text is",
    "outputs": ["d1"],
}
WORD = {"context": "He looked at the old menu and then took the", "continuation": "menu"}
HOTPOT = {
    "question": "Which one?", "answer": "Rush", "supporting_facts": [["One", 0], ["Two", 0]],
    "context": [["One", ["Rush is a band.", " It plays."]], ["Two", ["A drummer."]], ["Three", ["Nothing."]]],
}  # fmt: skip
HUB_HOTPOT = {
    **HOTPOT, "supporting_facts": {"title": ["One", "Two"], "sent_id": [0, 0]},
    "context": {"title": ["One", "Two", "Three"], "sentences": [["Rush is a band.", " It plays."], ["A drummer."], ["Nothing."]]},
}  # fmt: skip
MUSIQUE = {
    "question": "What?", "answer": "Stanley", "answer_aliases": ["Stan"], "answerable": True,
    "paragraphs": [
        {"title": "A", "paragraph_text": "Stanley is the seat.", "is_supporting": True},
        {"title": "B", "paragraph_text": "Other.", "is_supporting": False},
    ],
}  # fmt: skip
GOOD = [
    ("longeval_lines", LINES, " 4567", 0.5), ("kv_retrieval", PAIRS, "b2", 0.5), ("passkey_text", KEY, " 123", 1e-3),
    ("ruler_multikey", NEEDLE, " d1", 0.5), ("lambada", WORD, " menu", 0.0),
    ("lambada", {"text": "He looked at the old menu and then took the menu"}, " menu", 0.0), ("hotpotqa", HOTPOT, " Rush", 0.0),
    ("hotpotqa", HUB_HOTPOT, " Rush", 0.0), ("musique", MUSIQUE, " Stanley", 0.0),
    ("longbench.hotpotqa", {"input": "Which?", "context": "Rush plays.", "answers": ["Rush"]}, " Rush", 0.0),
    ("longbench.trec", {"input": "Question: x\nType:", "context": "c", "answers": ["City"], "all_classes": ["City", "State"]}, " City", 0.5),
    ("longbench.passage_retrieval_en", {"input": "x", "context": "Paragraph 1: a\n\nParagraph 2: b", "answers": ["Paragraph 2"]}, " Paragraph 2", 0.5),
    ("longbench.passage_retrieval_zh", {"input": "x", "context": "段落1：甲\n\n段落2：乙", "answers": ["段落2"]}, "段落2", 0.5),
    ("longbench.lcc", {"input": "", "context": "a = 1\nb = 2\n", "answers": ["c = 3"]}, "c = 3", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "answer", "chance"), GOOD, ids=[f"{g[0]}-{i}" for i, g in enumerate(GOOD)])
def test_rows_become_items(tmp_path, name, row, answer, chance):
    found = load(name, write(tmp_path / "rows.jsonl", row))
    (item,) = found.items
    (question,) = item.questions
    assert (item.task, question.answer, item.chance) == (name, answer, pytest.approx(chance))
    assert question.prompt.strip()
    assert item.parameters["row"] == 1
    right = score_answer(question, question.answer + ("\n" if name == "longbench.trec" else ""))
    assert (right.value, right.parsed) == (1.0, True)
    assert all(score_answer(question, foil).value < 1 for foil in question.foils)
    assert all(item.context[s.start : s.end] for s in item.key_spans)
    if name not in ("longbench.trec", "longbench.lcc"):
        assert item.key_spans
    # What is asked for is not given away by the question.
    assert answer.strip() not in question.prompt


BAD = [
    ("longeval_lines", {**LINES, "expected_number": 123}, "does not hold 123 exactly once"),
    ("longeval_lines", {**LINES, "prompt": "line a: REGISTER_CONTENT is <1>"}, "has no question"),
    ("longeval_lines", {"prompt": ""}, "'prompt' is missing"),
    ("kv_retrieval", {**PAIRS, "value": "b1"}, "exactly once"),
    ("kv_retrieval", {**PAIRS, "ordered_kv_records": [["a2", "b2"], ["a3", "b2"]]}, "exactly once"),
    ("kv_retrieval", {**PAIRS, "ordered_kv_records": [["a2"]]}, "not a row of this data set"),
    ("passkey_text", {**KEY, "target": "99"}, "does not say once"),
    ("ruler_multikey", {**NEEDLE, "outputs": ["zz"]}, "exactly once"),
    ("ruler_multikey", {**NEEDLE, "input": "nothing"}, "has no question"),
    ("lambada", {"context": "one", "continuation": "two"}, "no context of two words"),
    ("lambada", {"context": "one two three", "continuation": "a b"}, "is no word"),
    ("hotpotqa", {**HOTPOT, "context": HOTPOT["context"][:2]}, "only 2 documents"),
    ("hotpotqa", {**HOTPOT, "supporting_facts": [["Four", 0]]}, "supporting document is not"),
    ("hotpotqa", {**HOTPOT, "answer": "Yes Album"}, "said in no document"),
    ("musique", {**MUSIQUE, "answerable": False}, "not answerable"),
    ("musique", {**MUSIQUE, "paragraphs": "x"}, "'paragraphs' is missing"),
    # Compared as texts these would be the answers "None" and "nan", which no model gives and no difference shows.
    ("musique", {**MUSIQUE, "answer_aliases": [None]}, "holds None, which is no answer"),
    ("longbench.hotpotqa", {"input": "x", "context": "c", "answers": [float("nan")]}, "holds nan, which is no answer"),
    ("longbench.hotpotqa", {"input": "x", "context": "c", "answers": [True]}, "holds True, which is no answer"),
    ("longbench.hotpotqa", {"input": "x", "context": "c", "answers": [["Rush"]]}, "which is no answer"),
    ("longbench.hotpotqa", {"input": None, "context": "c", "answers": ["c"]}, "'input' is missing"),
    ("longbench.hotpotqa", {"input": "x", "context": "c", "answers": [" "]}, "a reference is empty"),
    ("longbench.hotpotqa", {"input": "x", "context": "c", "answers": ["The ..."]}, "scores nothing by qa_f1"),
    ("longbench.lcc", {"input": "", "context": "a\nb\n", "answers": ["# a comment"]}, "scores nothing by code"),
    ("longbench.hotpotqa", {"input": "x", "context": "c \ud800", "answers": ["c"]}, "surrogates not allowed"),
    ("ruler_multikey", {**NEEDLE, "outputs": [None]}, "holds None"),
    (
        "kv_retrieval",
        {**PAIRS, "ordered_kv_records": [["b2", "b2"], ["a1", "b1"]], "key": "b2"},
        "the question holds the answer",
    ),
    ("lambada", {"context": "one two three", "continuation": 4}, "'continuation' is missing"),
    (
        "longbench.trec",
        {"input": "x", "context": "c", "answers": ["Town"], "all_classes": ["City"]},
        "none of all_classes",
    ),
    ("longbench.hotpotqa", {"input": "x", "context": "c", "answers": []}, "'answers' is missing"),
    (
        "longbench.hotpotqa",
        {"input": "x", "context": "c", "answers": ["c"], "dataset": "musique"},
        "belongs to 'musique'",
    ),
]


@pytest.mark.parametrize(("name", "row", "reason"), BAD, ids=[f"{b[0]}-{i}" for i, b in enumerate(BAD)])
def test_a_row_that_cannot_be_used_is_named(tmp_path, name, row, reason):
    good = next(g[1] for g in GOOD if g[0] == name)
    found = load(name, write(tmp_path / "rows.jsonl", row, good))
    assert [(r.row, reason in r.reason) for r in found.rejected] == [(1, True)]
    assert [item.parameters["row"] for item in found.items] == [2]
    assert "1 of 2 rows" in found.report
    with pytest.raises(ContractError, match="no row of .* can be used"):
        load(name, write(tmp_path / "rows.jsonl", row))


def test_broken_and_repeated_rows_are_counted(tmp_path):
    found = load("kv_retrieval", write(tmp_path / "rows.jsonl", "{", PAIRS, "", PAIRS, "[1]"))
    assert [(r.row, r.reason.split(":")[0]) for r in found.rejected] == [
        (1, "not valid JSON"), (5, "not a mapping"), (4, "the same as an earlier row"),
    ]  # fmt: skip
    assert found.rows == 4
    with pytest.raises(ContractError, match="holds no readable row"):
        load("kv_retrieval", write(tmp_path / "rows.jsonl", "{", "x"))


def test_a_row_with_the_id_of_another_is_not_used(tmp_path):
    rows = [
        {"_id": name, "input": "Which?", "context": f"{word} plays.", "answers": [word]}
        for name, word in (("a", "Rush"), ("b", "Yes"), ("a", "Who"))
    ]
    found = load("longbench.hotpotqa", write(tmp_path / "rows.jsonl", *rows))
    assert [(r.row, r.reason) for r in found.rejected] == [(3, "its id 'a' is that of row 1")]
    assert len(found.items) == 2


def test_an_answer_that_the_question_names_is_half_guessed(tmp_path):
    row = {"input": "Which is older, Rush or Yes?", "context": "Rush began first, then Yes.", "answers": ["Rush"]}
    (item,) = load("longbench.hotpotqa", write(tmp_path / "rows.jsonl", row)).items
    assert item.chance == 0.5


def test_a_set_whose_answers_are_all_equal_can_be_guessed(tmp_path):
    rows = [{"input": f"Which {n}?", "context": f"Rush plays {n}.", "answers": ["Rush"]} for n in range(12)]
    found = load("longbench.hotpotqa", write(tmp_path / "rows.jsonl", *rows))
    assert constant_score(found.items) == 1.0
    assert {item.chance for item in found.items} == {0.0}  # a row does not know the others


def test_answers_that_a_tokenizer_cannot_write_are_not_asked(tmp_path):
    rows = [{**PAIRS, "value": v, "ordered_kv_records": [["a2", v], ["a3", "x"]]} for v in ("b2", "乙")]
    found = load("kv_retrieval", write(tmp_path / "rows.jsonl", *rows), writes=str.isascii)
    assert [(r.row, r.reason) for r in found.rejected] == [(2, "the tokenizer has no tokens for the answer '乙'")]


FORMS = {
    "byte order mark": (b"\xef\xbb\xbf", b"\n", "rows.jsonl"),
    "two bytes a line end": (b"", b"\r\n", "rows.jsonl"),
    "packed": (b"", b"\n", "rows.jsonl.gz"),
    "packed with a byte order mark": (b"\xef\xbb\xbf", b"\r\n", "rows.jsonl.gz"),
}


@pytest.mark.parametrize(("before", "end", "name"), FORMS.values(), ids=FORMS)
def test_marks_and_line_ends_change_nothing(tmp_path, before, end, name):
    others = [{**PAIRS, "ordered_kv_records": [["a2", "b2"], ["k", f"v{n}"]]} for n in range(3)]
    content = before + end.join(json.dumps(row).encode() for row in others) + end
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = load("kv_retrieval", tmp_path / name)
    assert (len(found.items), found.rejected) == (3, ())
    table = b"6\t( [SM 7 9 ] )" + end + b"9\t( [MAX 7 9 ] )" + end
    (tmp_path / "rows.tsv").write_bytes(before + table)
    assert [i.questions[0].answer for i in load("listops_text", tmp_path / "rows.tsv").items] == [" 6", " 9"]


CONTENTS = {
    "cut while packed": gzip.compress(json.dumps(PAIRS).encode() * 50)[:-20],
    "not packed at all": json.dumps(PAIRS).encode(),
    "empty": gzip.compress(b""),
    "two bytes a character": gzip.compress(json.dumps(PAIRS).encode("utf-16")),
    "not UTF-8": gzip.compress('{"key": "ü"}'.encode("latin-1")),
    "blank lines": gzip.compress(b"\n\r\n \n"),
    "a list that does not end": gzip.compress(b'[{"key": "a2"},'),
    "deep": gzip.compress(b"[" * 100_000),
    "a number too long to read": gzip.compress(b'{"key": ' + b"9" * 10_000 + b"}"),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_file_that_cannot_be_read_is_an_error_and_not_an_empty_set(tmp_path, content):
    (tmp_path / "rows.jsonl.gz").write_bytes(content)
    with pytest.raises(ContractError, match="data: "):
        load("kv_retrieval", tmp_path / "rows.jsonl.gz")


def test_a_file_that_was_cut_off_loses_its_last_row_by_name(tmp_path):
    rows = [json.dumps({**PAIRS, "ordered_kv_records": [["a2", "b2"], ["k", f"v{n}"]]}) for n in range(4)]
    found = load("kv_retrieval", write(tmp_path / "rows.jsonl", *rows[:3], rows[3][:20]))
    assert [(r.row, r.reason.split(":")[0]) for r in found.rejected] == [(4, "not valid JSON")]
    assert found.report.startswith("3 of 4 rows")


def test_another_kind_of_rows_is_no_row_of_this_set(tmp_path):
    for name, row in (("kv_retrieval", HOTPOT), ("hotpotqa", PAIRS), ("musique", HOTPOT), ("lambada", LINES)):
        with pytest.raises(ContractError, match="no row of .* can be used"):
            load(name, write(tmp_path / "rows.jsonl", row))


def test_a_line_of_many_megabytes_is_read(tmp_path):
    text = "x " * 2_000_000 + "Rush."
    (item,) = load(
        "longbench.hotpotqa", write(tmp_path / "rows.jsonl", {"input": "?", "context": text, "answers": ["Rush"]})
    ).items
    assert fit(item.context + item.questions[0].prompt) + 32 <= 10_000


def test_several_splits_are_no_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list([WORD])}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ContractError, match="holds the splits train; name one"):
        load("lambada", tmp_path / "saved")
    assert len(load("lambada", tmp_path / "saved" / "train").items) == 1


def test_every_form_of_a_file_gives_the_same_items(tmp_path):
    plain = write(tmp_path / "rows.jsonl", PAIRS)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps([PAIRS]), encoding="utf-8")
    wanted = load("kv_retrieval", plain).items
    assert load("kv_retrieval", packed).items == wanted
    assert load("kv_retrieval", listed).items == wanted
    assert len({load("kv_retrieval", p).digest for p in (plain, packed, listed)}) == 3


def test_datasets_reads_folders_and_tables(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([WORD])
    rows.save_to_disk(tmp_path / "saved")
    rows.to_parquet(tmp_path / "rows.parquet")
    wanted = load("lambada", write(tmp_path / "rows.jsonl", WORD)).items
    assert load("lambada", tmp_path / "saved").items == wanted
    assert load("lambada", tmp_path / "rows.parquet").items == wanted
    with pytest.raises(EngineError, match="cannot be had"):
        load("lambada", tmp_path)


def test_a_set_that_cannot_be_reached_is_incomplete(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def offline(*_, **__):
        raise ConnectionError("offline mode is enabled")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(EngineError, match="hub:EleutherAI/lambada_openai cannot be had .ConnectionError: offline mode"):
        load("lambada", "hub:EleutherAI/lambada_openai")
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: [{"text": f"{a} {k['split']} the menu"}])
    item = load("lambada", "hub:owner/name:config:validation").items[0]
    assert item.context == "('owner/name', 'config') validation"
    with pytest.raises(ContractError, match="neither a file"):
        read_rows("nowhere.jsonl")


def test_listops_labels_are_worked_out_again(tmp_path):
    file = write(
        tmp_path / "rows.tsv",
        "6\t( ( ( ( [SM 7 ) ( ( ( [MAX 2 ) 9 ) ] ) ) ] )",
        "7\t( ( ( [MIN 3 ) 4 ) ] )",
        "3\t( ( ( [LAST 1 ) 3 ) ] )",
    )
    found = load("listops_text", file)
    assert [item.questions[0].answer for item in found.items] == [" 6", " 3"]
    assert found.items[0].context.endswith("[SM 7 [MAX 2 9 ] ]")
    assert [(r.row, r.reason) for r in found.rejected] == [(2, "the label is 7, the value 3")]


def test_an_answer_continues_its_line_as_the_examples_do(tmp_path):
    """After "Type:" a space, at the start of a line nothing; code goes on with the next line."""
    file = tmp_path / "rows.jsonl"
    row = {"context": "Answer: Rush\n\nAnswer: Yes", "answers": ["Who"]}
    for text, wanted in (("Question: Which?\nAnswer:", " Who"), ("Question: Which?\nAnswer:\n", "Who")):
        (item,) = load("longbench.triviaqa", write(file, {**row, "input": text})).items
        assert item.questions[0].answer == wanted
    for text in ("x = 1", "x = 1\n"):
        row = {"context": "import a\n", "input": text, "answers": ["y = 2"]}
        (item,) = load("longbench.repobench-p", write(file, row)).items
        assert item.questions[0].prompt == "\nx = 1\n"
        assert item.questions[0].answer == "y = 2"
    (item,) = load(
        "longbench.lcc", write(file, {"context": "import a\nx = 1\n", "input": "", "answers": ["y = 2"]})
    ).items
    assert (item.context, item.questions[0].prompt) == ("import a", "\nx = 1\n")


def test_long_contexts_lose_their_middle_only_where_that_is_allowed(tmp_path):
    text = "Begin Rush. " + "x " * 4000 + " The end."
    file = write(tmp_path / "rows.jsonl", {"input": "Which?", "context": text, "answers": ["Rush"]})
    found = load("longbench.hotpotqa", file, target=500)
    (item,) = found.items
    assert found.cut == 1
    assert item.context.endswith("The end.")
    assert "Begin Rush." in item.context
    assert item.context[item.key_spans[0].start : item.key_spans[0].end] == "Rush"
    size = fit(item.context + item.questions[0].prompt) + 32
    assert 490 <= size <= 500
    with pytest.raises(ContractError, match="must not be cut"):
        load("kv_retrieval", write(tmp_path / "pairs.jsonl", PAIRS), target=10)
    with pytest.raises(ContractError, match="the question alone is longer"):
        load("longbench.hotpotqa", file, target=20)


def test_first_and_count_choose_among_usable_rows(tmp_path):
    rows = [{**PAIRS, "ordered_kv_records": [["a2", "b2"], ["k", f"v{i}"]]} for i in range(5)]
    file = write(tmp_path / "rows.jsonl", rows[0], {"key": 1}, *rows[1:])
    found = load("kv_retrieval", file, first=1, count=2)
    assert [item.parameters["row"] for item in found.items] == [3, 4]


def test_longbench_is_complete_and_every_metric_exists():
    from pytest_attnaccept.tasks.data.metrics import DATA_METRICS

    assert len(TASKS) == 21
    assert {task.metric for task in TASKS.values()} <= {*METRICS, *DATA_METRICS}
    assert sum(task.chinese for task in TASKS.values()) == 5
    with pytest.raises(UnknownNameError, match=r"Did you mean 'longbench\.musique'"):
        load("longbench.musiqe", "x")


# Files that may not be copied into this repository, with what is known about them: rows that are rejected, and why.
REAL = [
    ("longbench.multifieldqa_zh", "longbench/multifieldqa_zh.jsonl", 200, 1),
    ("longbench.passage_retrieval_zh", "longbench/passage_retrieval_zh.jsonl", 200, 0),
    ("hotpotqa", "multihop/hotpotqa_distractor_200.jsonl", 200, 1),
    ("musique", "multihop/musique_ans_200.jsonl", 200, 0),
    ("longeval_lines", "longchat/lines/200_lines.jsonl", 50, 0),
    ("longeval_lines", "longchat/lines/400_lines.jsonl", 50, 0),
    ("kv_retrieval", "lost_in_the_middle/kv-retrieval-75_keys.jsonl.gz", 500, 0),
    ("passkey_text", "passkey/passkey_examples.jsonl", 4, 0),
    ("ruler_multikey", "ruler/niah_multikey_3_4096_first100.jsonl", 100, 0),
    ("listops_text", "listops/long_ge200.tsv", 1350, 0),
    ("lambada", "lambada/lambada_openai.jsonl", 5153, 9),
]


@pytest.mark.real
@pytest.mark.parametrize(("name", "file", "rows", "rejected"), REAL, ids=[r[1] for r in REAL])
def test_real_files(name, file, rows, rejected):
    if not (FOLDER / file).is_file():
        pytest.skip(f"{file} is not in {FOLDER}; set ATTNACCEPT_DATA to the folder of the evaluation data")
    found = load(name, FOLDER / file, target=200_000)
    assert (found.rows, len(found.rejected), found.cut) == (rows, rejected, 0)
    for item in found.items[:50]:
        for question in item.questions:
            assert score_answer(question, question.answer).value == 1.0
    if name.startswith("longbench"):
        assert "LongBench v1" in found.report
