"""What each metric counts, and what must not count."""

import pytest

from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.tasks.data.metrics import DATA_METRICS, common_subsequence, normalised
from pytest_attnaccept.tasks.items import Question
from pytest_attnaccept.tasks.scoring import METRICS, score_answer, set_f1, stands_in


def question(
    metric: str, *references: str, form: str = "", foils: tuple[str, ...] = (), answer: str = " x"
) -> Question:
    return Question(
        text=" q", answer_prefix="", answer=answer, foils=foils, max_new_tokens=9, depth=0.0, references=references,
        metric=metric, form=form,
    )  # fmt: skip


CASES = [
    # metric, references, form, text, value, parsed
    ("contains", ("12",), r"\d+", " it is 12.", 1.0, True),
    ("contains", ("12",), r"\d+", " it is 4127.", 0.0, True),
    ("contains", ("12",), r"\d+", " nobody knows", 0.0, False),
    ("contains", ("12", "34"), r"\d+", " 34", 0.5, True),
    ("contains", ("lamp",), "", " lamps", 0.0, True),
    ("contains", ("段落7",), "", "是段落7。", 1.0, True),
    ("contains", ("段落7",), "", "是段落71。", 0.0, True),
    ("any", ("12", "34"), r"\d+", " 34", 1.0, True),
    ("any", ("12", "34"), r"\d+", " 56", 0.0, True),
    ("exact", ("7",), "[0-9]", " 7", 1.0, True),
    ("exact", ("7",), "[0-9]", " 3 or 7", 0.0, True),
    ("exact", ("7",), "[0-9]", " 73", 0.0, False),
    ("exact", ("7",), "[0-9]", "", 0.0, False),
    ("set_f1", ("AAAAA", "BBBBB"), "[A-Z]{5}", " BBBBB, AAAAA", 1.0, True),
    ("set_f1", ("AAAAA", "BBBBB"), "[A-Z]{5}", " AAAAA", 2 / 3, True),
    ("set_f1", ("AAAAA", "BBBBB"), "[A-Z]{5}", " AAAAA, AAAAA", 2 / 3, True),
    ("set_f1", ("AAAAA",), "[A-Z]{5}", " AAAAA, BBBBB, CCCCC", 0.5, True),
    ("set_f1", ("AAAAA",), "[A-Z]{5}", " CCCCC. AAAAA", 0.0, True),
    ("ranked", ("a", "b"), "[a-z]+", " b, a", 1.0, True),
    ("ranked", ("a", "b"), "[a-z]+", " c, d, a, b", 0.0, True),
    ("ranked", ("a", "b"), "[a-z]+", " a, a, b", 1.0, True),
    ("lines", ("1", "2", "3", "4"), "[0-9]+", " 1, 2, 9, 4", 0.75, True),
    ("lines", ("1", "2", "3", "4"), "[0-9]+", " 2, 3, 4", 0.0, True),
    ("lines", ("1", "2"), "[0-9]+", " 1, 2, 3, 4", 1.0, True),
    ("rules", ("begins=fan", "ends=map"), "", " fan and map.", 1.0, True),
    ("rules", ("begins=fan", "ends=map"), "", " map and fan", 0.0, True),
    ("rules", ("begins=fan",), "", " fancy", 0.0, True),
    ("rules", ("contains=jar", "never=rope"), "", " a jar", 1.0, True),
    ("rules", ("contains=jar", "never=rope"), "", " a rope", 0.0, True),
    ("rules", ("never=rope",), "", "", 0.0, False),
    ("rules", ("refuses=that is secret|Rome",), "", " that is secret", 1.0, True),
    ("rules", ("refuses=that is secret|Rome",), "", " that is secret, Rome", 0.0, True),
    ("rules", ("refuses=that is secret|Rome",), "", " no", 0.0, True),
    ("qa_f1", ("the Old Bridge", "x"), "", "old bridge", 1.0, True),
    ("qa_f1", ("old bridge",), "", "an old bridge of stone", 2 / 3, True),
    ("qa_f1", ("old bridge",), "", "", 0.0, False),
    ("qa_f1_zh", ("三个人",), "", "三人。", 0.8, True),
    ("qa_f1_line", ("Paris",), "", "\nParis\nLondon", 1.0, True),
    ("exact_match", ("The Rome",), "", " rome.\nmore", 1.0, True),
    ("exact_match", ("Rome",), "", " Rome is it", 0.0, True),
    ("rouge_l", ("a b c d",), "", "b x d", 2 * 2 / (3 + 3), True),  # "a" is an article
    ("rouge_l_zh", ("甲乙丙",), "", "甲丙", 0.8, True),
    ("number", ("Paragraph 7",), "", " Paragraph 7", 1.0, True),
    ("number", ("Paragraph 7",), "", " 7 or 8", 0.5, True),
    ("number", ("7",), "", " 17", 0.0, True),
    ("number", ("7",), "", " none", 0.0, False),
    ("code", ("return x",), "", "\n# why\nreturn x\n", 1.0, True),
    ("code", ("return x",), "", "return y", 14 / 16, True),
    ("word", ("menu",), "", " menu, please", 1.0, True),
    ("word", ("menu",), "", " menus", 0.0, True),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "references", "form", "text", "value", "parsed"), CASES)
def test_metrics(metric, references, form, text, value, parsed):
    score = score_answer(question(metric, *references, form=form), text)
    assert score.value == pytest.approx(value)
    assert score.parsed is parsed


def test_a_long_list_says_where_it_went_wrong():
    ask = question("lines", *map(str, range(20)), form="[0-9]+")
    said = [str(i) for i in range(20)]
    said[4] = "99"
    score = score_answer(ask, " " + ", ".join(said))
    assert score.value == 0.95
    assert score.parts == (1.0, 1.0, 0.5, *(1.0,) * 7, 0.2)


def test_every_metric_has_cases():
    assert {case[0] for case in CASES} | {"class", "rouge_l_line"} == {*METRICS, *DATA_METRICS}


def test_classes_are_divided_by_how_many_are_named():
    ask = question("class", "City", foils=(" State", " City name", " Number"))
    assert score_answer(ask, " City\nState").value == 1.0
    assert score_answer(ask, " City or State").value == 0.5
    assert score_answer(ask, " State").value == 0.0
    assert score_answer(ask, " nothing").parsed is False
    longer = question("class", "City name", foils=(" City",))
    assert score_answer(longer, " City name").value == 1.0  # the shorter name is a part of the right one


def test_the_first_line_counts():
    assert score_answer(question("rouge_l_line", "b c"), "\nb c\nd e").value == 1.0


def test_an_answer_without_references_is_its_own_reference():
    ask = question("contains", answer=" lamp")
    assert ask.expected == ("lamp",)
    assert score_answer(ask, " the lamp").value == 1.0


def test_unknown_metrics_and_rules_are_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'contains'"):
        score_answer(question("contain", "a"), "a")
    with pytest.raises(UnknownNameError, match="rule"):
        score_answer(question("rules", "start=a"), "a")


def test_small_parts():
    assert stands_in("a.b", "x a.b y")
    assert not stands_in("a.b", "x aXb y")
    assert set_f1([], ["a"]) == 0.0
    assert common_subsequence("abcde", "ace") == 3
    assert common_subsequence("", "ace") == 0
    assert normalised("The  Well-known, (old) House!") == "well known old house"
