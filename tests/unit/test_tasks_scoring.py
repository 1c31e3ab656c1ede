"""What each metric counts, and what must not count."""

import random
from dataclasses import replace

import pytest

from pytest_attnaccept.errors import UnknownNameError
from pytest_attnaccept.tasks.blind import constant_score
from pytest_attnaccept.tasks.data.metrics import DATA_METRICS, common_subsequence, normalised
from pytest_attnaccept.tasks.items import Question, TaskItem, make_item
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
    assert normalised("The  Well-known, (old) House!") == "wellknown old house"


# -- against an independent computation of what the benchmarks define, on generated texts --------------------------------

WORDS = (
    "the", "a", "an", "Rome", "rome,", "ROME.", "well-known", "well", "known", "it's", "its", "2000-2001", "x_y", "(old)",
    "old", "No.", "7", "Paragraph", "Ünal", "théâtre",
)  # fmt: skip


def tokens_of(text: str) -> list[str]:
    """SQuAD's normalisation in its order: lower case, punctuation dropped, articles blanked, spaces joined."""
    kept = "".join(c for c in text.lower() if not 33 <= ord(c) < 127 or c.isalnum())
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def f1_of(found: list[str], wanted: list[str]) -> float:
    left, same = list(wanted), 0
    for token in found:
        if token in left:
            left.remove(token)
            same += 1
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def longest(a, b) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def texts(draw: random.Random) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(9)))


def test_token_f1_is_that_of_squad():
    draw = random.Random(0)
    for _ in range(600):
        text, references = texts(draw), [texts(draw) or "x" for _ in range(draw.randrange(1, 4))]
        wanted = max(f1_of(tokens_of(text), tokens_of(r)) for r in references)
        assert score_answer(question("qa_f1", *references), text).value == pytest.approx(wanted), (text, references)
        line = max(f1_of(tokens_of(text.split("\n")[0]), tokens_of(r)) for r in references)
        assert score_answer(question("qa_f1_line", *references), f"\n\n{text}\nmore").value == pytest.approx(line)


def test_rouge_and_code_similarity_are_common_subsequences():
    draw = random.Random(1)
    for _ in range(300):
        text, reference = texts(draw), texts(draw) or "x"
        a, b = tokens_of(text), tokens_of(reference)
        wanted = 2 * longest(a, b) / (len(a) + len(b)) if longest(a, b) else 0.0
        assert score_answer(question("rouge_l", reference), text).value == pytest.approx(wanted)
        a, b = ("".join(draw.choice("ab =x(") for _ in range(draw.randrange(1, 25))) for _ in range(2))
        # The similarity of LongBench's code tasks: one minus the edits (a replacement is two) over both lengths.
        edits = len(a) + len(b) - 2 * longest(a, b)
        found = score_answer(question("code", b), f"\n# why\n{a}\n{b}").value
        assert found == pytest.approx(1 - edits / (len(a) + len(b)))


def test_classes_paragraphs_and_counts_are_those_of_longbench():
    draw = random.Random(2)
    names = ["City", "City name", "State", "Other", "Other number", "Date"]
    for _ in range(400):
        right = draw.choice(names)
        text = " ".join(draw.choice([*names, "is", "the"]) for _ in range(draw.randrange(6)))
        said = [n for n in names if n in text and (n == right or n not in right)]
        wanted = 1 / len(said) if right in said else 0.0
        ask = question("class", right, foils=tuple(f" {n}" for n in names if n != right))
        assert score_answer(ask, f"\n{text or '-'}\nState City Other").value == wanted, (right, text)
        numbers = [str(draw.randrange(12)) for _ in range(draw.randrange(5))]
        number = str(draw.randrange(12))
        wanted = numbers.count(number) / len(numbers) if numbers else 0.0
        for reference in (number, f"Paragraph {number}", f"段落{number}"):
            assert score_answer(question("number", reference), " or ".join(numbers)).value == wanted


def test_the_best_of_several_classes_and_numbers_counts():
    ask = question("class", "City", "State", foils=(" State", " Date"))
    assert score_answer(ask, " State").value == 1.0
    assert score_answer(ask, " State or City").value == 0.5
    assert score_answer(question("number", "7", "8"), " 8").value == 1.0


@pytest.mark.parametrize("word", ["don't", "well-known", "o'clock", "rock-n'-roll"])
def test_a_last_word_may_have_marks_inside(word):
    assert score_answer(question("word", word), f" {word}, he said").value == 1.0
    assert score_answer(question("word", word.split("-")[0].split("'")[0]), f" {word}").value == 0.0


# -- who gives the same answer every time --------------------------------------------------------------------------------


def item(number: int, *questions: Question) -> TaskItem:
    return make_item(
        task="t", context=f"context {number}", questions=questions, key_spans=(), chance=0.0, parameters={}
    )


def asked(answer: str, label: str = "") -> Question:
    return replace(question("exact", form="[a-z]+", answer=f" {answer}"), references=(), label=label)


def test_a_constant_answer_is_worth_what_it_is_right_elsewhere():
    assert constant_score([item(n, asked("yes")) for n in range(10)]) == 1.0
    assert constant_score([item(n, asked("yes" if n < 7 else "no")) for n in range(10)]) == pytest.approx(6 / 9)
    # Ten different answers: none of them is right anywhere else, although each is right once.
    assert constant_score([item(n, asked("abcdefghij"[n])) for n in range(10)]) == 0.0
    # Said twice about one context is no second success.
    assert constant_score([item(n, asked("abcdefghij"[n]), asked("abcdefghij"[n])) for n in range(10)]) == 0.0
    assert constant_score([]) == constant_score([item(0, asked("yes"))]) == 0.0


def test_a_constant_answer_may_differ_between_kinds_of_questions():
    mixed = [item(n, asked("yes", "first"), asked("abcdefghij"[n], "second")) for n in range(10)]
    assert constant_score(mixed) == pytest.approx(0.5)
    assert constant_score(mixed, generated=False) == pytest.approx(0.5)


def test_a_constant_text_scores_by_the_metric_of_the_question():
    rows = [
        replace(question("qa_f1", f"the old bridge number{n}"), answer=f" the old bridge number{n}") for n in range(8)
    ]
    found = [item(n, row) for n, row in enumerate(rows)]
    assert constant_score(found) == pytest.approx(2 / 3)
    assert constant_score(found, generated=False) == 0.0
