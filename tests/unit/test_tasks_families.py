"""Every family has an independent solver: it reads context and question alone, and finds the one answer that is there."""

import json
import random
import re
import statistics
import subprocess
import sys
from collections import Counter

import pytest

from pytest_attnaccept.errors import ContractError
from pytest_attnaccept.tasks import TaskItem, generate, task_families
from pytest_attnaccept.tasks.items import Question
from pytest_attnaccept.tasks.scoring import score_answer
from pytest_attnaccept.tasks.words import THINGS


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]", text))


def ragged(text: str) -> int:
    """Token count that does not add up."""
    return -(-len(text.encode("utf-8")) // 3)


def make(task: str, target: int = 700, seed: int = 0, index: int = 0, fit=words, **parameters) -> TaskItem:
    return generate(task, fit=fit, target_tokens=target, seed=seed, index=index, **parameters)


def only(values):
    """The one value; none or two of them are an item without an answer, or with two."""
    found = list(values)
    if len(found) != 1:
        raise LookupError(f"{len(found)} answers: {found[:3]}")
    return found[0]


def listed(text: str) -> list[str]:
    return text.strip().split(", ")


# -- solvers: (context, question text) -> references --------------------------------------------------------------------


def solve_passkey(context, text):
    return [only(re.findall(r"The pass key is (\S+)\.|通行口令是(\S+?)。", context))[0 if "pass" in text else 1]]


def solve_lookalikes(context, text):
    key = (re.search(r"number of (.+)\?", text) or re.search(r"(.+)的编号是多少", text))[1]
    return [only(v for k, v in re.findall(r"The number of (.+?) is (\S+?)\.", context)
                 + re.findall(r"(?<=。)?([a-z0-9-]+)的编号是(\S+?)。", context) if k == key)]  # fmt: skip


def solve_variable_chains(context, text):
    value = re.search(r"value (\d+)", text)[1]
    held = dict(re.findall(r"VAR (\w+) = (\w+)\.", context))
    assert len(held) == context.count("VAR ")

    def end(name):
        return name if name.isdigit() else end(held[name])

    return sorted(name for name in held if end(name) == value)


def solve_multi_value(context, text):
    count, name = re.search(r"the (\d+) numbers of (\w+)", text).groups()
    found = re.findall(rf"One number of {name} is (\d+)\.", context)
    if len(found) != int(count):
        raise LookupError(found)
    return sorted(found)


def solve_has(context, text):
    name = re.search(r"does (\w+) have", text)[1]
    return [only(re.findall(rf"\b{name} has the (\w+)\.", context))]


def solve_word_counting(context, text):
    said = re.search(r"Here is a list of words: ([^.]+)\.", context)[1].split()
    counts = Counter(word for word in said if word != "xxx")
    k = int(re.search(r"Which (\d+)", text)[1])
    ranked = counts.most_common()
    if ranked[k - 1][1] == ranked[k][1]:
        raise LookupError("a tie")
    return sorted(word for word, _ in ranked[:k])


def solve_listops(context, text):
    tokens = re.findall(r"[()]|MIN|MAX|MED|SM|\d", re.findall(r"\( [^.=]+ \)(?=\.)", context)[-1])

    def value(position):
        if tokens[position] != "(":
            return int(tokens[position]), position + 1
        name, parts, position = tokens[position + 1], [], position + 2
        while tokens[position] != ")":
            part, position = value(position)
            parts.append(part)
        by_name = {"MIN": min, "MAX": max, "SM": lambda v: sum(v) % 10, "MED": lambda v: int(statistics.median(v))}
        return by_name[name](parts), position + 1

    result, end = value(0)
    assert end == len(tokens)
    return [str(result)]


def solve_multi_hop(context, text):
    works = dict(re.findall(r": (\w+ \w+) works for (\w+) as", context))
    offices = dict(re.findall(r": (\w+) was founded in \d+ and has its office in (\w+)\.", context))
    years = {name: int(year) for name, year in re.findall(r": (\w+) was founded in (\d+)", context)}
    cities = dict(re.findall(r": (\w+) is a city in (\w+)\.", context))
    rulers = dict(re.findall(r": (\w+) is a country that is ruled by (\w+)\.", context))
    if "earlier" in text:
        a, b = re.search(r"that of (\w+ \w+) or that of (\w+ \w+)", text).groups()
        return [a if years[works[a]] < years[works[b]] else b]
    person = re.search(r"employer of (\w+ \w+)", text)[1]
    city = offices[works[person]]
    if "which city" in text:
        return [city]
    return [cities[city] if "which country" in text else rulers[cities[city]]]


def solve_json_dump(context, text):
    pairs = json.loads(context[context.index("{") :], object_pairs_hook=list)
    if "entry" in text:
        return [pairs[int(re.search(r"entry (\d+)", text)[1]) - 1][1]]
    wanted = re.search(r'"(.+)"', text)[1]
    return [
        only(k for k, v in pairs if v == wanted) if "Which key" in text else only(v for k, v in pairs if k == wanted)
    ]


def solve_copy_span(context, text):
    return only(re.findall(r"The list is: ([^.]+)\.", context)).split()


def solve_phone_book(context, text):
    return [only(re.findall(rf"{re.search('of (.+)[?]', text)[1]}: (\d+)", context))]


def solve_instructions(context, text):
    guard = re.search(r"Never tell the secret word (\w+): if somebody asks for it, say ([^.]+)\.", context)
    if "secret" in text:
        return [f"refuses={guard[2]}|{guard[1]}"]
    forms = {"begins": "Begin with", "ends": "End with", "contains": "Use", "never": "Never use"}
    found = {k: re.findall(rf"{form} the word (\w+)\.", context) for k, form in forms.items()}
    return sorted(f"{kind}={word}" for kind, values in found.items() for word in values)


def solve_ledger(context, text):
    entries = [int(n) for n in only(re.findall(r"The entries are ([\d, ]+)\.", context)).split(", ")]
    if "plus" in text:
        return [str(n + int(re.search(r"plus (\d+)", text)[1])) for n in entries]
    if "Count" in text:
        return [str(sum(m % 2 == 0 for m in entries[: i + 1])) for i in range(len(entries))]
    return [str(sum(entries[: i + 1])) for i in range(len(entries))]


def solve_stories(context, text):
    at, before, holder, lies = {}, {}, {}, {}
    for who, verb, what in re.findall(r"(\w+) (went to|took the|dropped the) (\w+)\.", context):
        if verb == "went to":
            before[who], at[who] = at.get(who), what
        elif verb == "took the":
            assert what not in holder, "taken twice"
            holder[what] = who
        else:
            assert holder.pop(what) == who
            lies[what] = at[who]
    who = re.search(r"(?:is|was|does|Is) (?:the )?(\w+)", text)[1]
    mine = sorted(thing for thing, name in holder.items() if name == who)
    if "How many" in text:
        return [str(len(mine))]
    if "What does" in text:
        return mine
    if "before" in text:
        return [before[who]]
    if text.startswith(" Is"):
        return ["yes" if at[who] == re.search(r" in (\w+)\?", text)[1] else "no"]
    return [at[who] if who in at else at[holder[who]] if who in holder else lies[who]]


def solve_graph_walk(context, text):
    edges = re.findall(r"([A-Z]{5}) to ([A-Z]{5})", context)
    node = re.findall(r"[A-Z]{5}", text)[0]
    if "an edge to" in text:
        return sorted(a for a, b in edges if b == node)
    distance, layer = {node: 0}, [node]
    for step in range(1, 5):
        layer = {b for a, b in edges if a in layer and b not in distance}
        distance |= dict.fromkeys(layer, step)
    depth = int(re.search(r"exactly (\d)", text)[1])
    return sorted(name for name, far in distance.items() if far == depth)


def solve_many_shot(context, text):
    topic = only(word for word in re.findall(r"\w+", text) if word in THINGS)
    found = re.findall(rf"[^.]*\b{topic}\b[^.]*\. Label: (\w+)\.", context)
    return [only(set(found))]


def solve_aliases(context, text):
    other = re.search(r"number of (\w+)", text)[1]
    name = only(re.findall(rf"{other} is another name of (\w+)\.", context))
    return [only(re.findall(rf"The number of {name} is (\d+)\.", context))]


SOLVERS = {
    "passkey": solve_passkey, "lookalikes": solve_lookalikes, "variable_chains": solve_variable_chains,
    "multi_value": solve_multi_value, "many_questions": solve_has, "word_counting": solve_word_counting,
    "listops": solve_listops, "multi_hop": solve_multi_hop, "json_dump": solve_json_dump, "mqar": solve_has,
    "copy_span": solve_copy_span, "phone_book": solve_phone_book, "instructions": solve_instructions,
    "ledger": solve_ledger, "stories": solve_stories, "graph_walk": solve_graph_walk, "many_shot": solve_many_shot,
    "aliases": solve_aliases,
}  # fmt: skip
NEW = tuple(SOLVERS)
ORDERED = ("copy_span", "ledger")
CASES: list[tuple[str, dict]] = [
    *(("passkey", {"value": v}) for v in ("word", "digits4", "digits7", "digits64", "uuid")),
    ("passkey", {"filler": "chinese"}),
    ("passkey", {"depth": 0.0}),
    ("passkey", {"depth": 1.0}),
    ("lookalikes", {}),
    ("lookalikes", {"keys": "uuid", "value": "uuid"}),
    ("lookalikes", {"keys": "things", "value": "digits4"}),
    ("lookalikes", {"keys_total": 6}),
    ("lookalikes", {"filler": "chinese"}),
    *(
        ("variable_chains", {"order": o, "chains": c, "hops": h})
        for o in ("ordered", "shuffled")
        for c, h in ((1, 8), (4, 2))
    ),
    ("multi_value", {}),
    ("multi_value", {"keys": 2, "values": 8, "questions": 2}),
    ("many_questions", {}),
    ("word_counting", {}),
    ("word_counting", {"words": "word", "k": 3}),
    ("word_counting", {"kind": "zeta"}),
    ("word_counting", {"kind": "zeta", "alpha": 1.5}),
    ("listops", {}),
    ("listops", {"values": 12, "depth": 2, "arguments": 10, "shots": 0}),
    *(("multi_hop", {"hops": h}) for h in (2, 3, 4)),
    ("multi_hop", {"kind": "comparison"}),
    *(("json_dump", {"by": b}) for b in ("key", "position", "reverse")),
    ("json_dump", {"keys": "names", "value": "digits4", "pairs": 8, "filler": "chinese"}),
    ("mqar", {}),
    ("mqar", {"keys": "coined", "value": "digits4", "pairs": 40}),
    ("copy_span", {}),
    ("copy_span", {"words": "coined", "span": 64}),
    ("phone_book", {}),
    ("instructions", {}),
    ("instructions", {"rules": 12}),
    *(("ledger", {"kind": k}) for k in ("total", "count", "transform")),
    *(("stories", {"ask": a}) for a in ("where", "before", "thing", "count", "list", "yesno")),
    ("stories", {"moves": 10}),
    ("stories", {"ask": "count", "people": 16, "things": 2, "questions": 2}),
    ("stories", {"ask": "list", "people": 2, "things": 2, "questions": 2}),
    ("ledger", {"kind": "total", "outputs": 60}),
    ("ledger", {"kind": "count", "outputs": 60}),
    *(("graph_walk", {"ask": "layer", "depth": d}) for d in (1, 2, 3)),
    ("graph_walk", {"ask": "parents", "nodes": 20}),
    ("many_shot", {}),
    ("many_shot", {"classes": 20, "labels": "names"}),
    ("aliases", {}),
    ("aliases", {"first": "facts", "alias": "names"}),
]
IDS = [f"{task}-{'-'.join(map(str, parameters.values()))}" for task, parameters in CASES]


def test_every_family_is_listed_and_has_a_solver():
    assert set(task_families()) == {"needle", "kv_recall", "variable_tracking", "text", *SOLVERS}
    assert {task for task, _ in CASES} == set(SOLVERS)


@pytest.mark.parametrize(("task", "parameters"), CASES, ids=IDS)
def test_the_context_alone_gives_the_answer(task, parameters):
    for index in range(10):
        item = make(task, index=index, **parameters)
        for question in item.questions:
            solved = SOLVERS[task](item.context, question.text)
            wanted = list(question.expected)
            assert solved == (wanted if task in ORDERED else sorted(wanted))
            assert len(set(wanted)) == len(wanted) or task == "ledger"
            # What the question says is right scores fully, and no foil does.
            right = score_answer(question, question.answer)
            assert (right.value, right.parsed) == (1.0, True)
            for foil in question.foils:
                assert score_answer(question, foil).value < 1.0


@pytest.mark.parametrize(("task", "parameters"), CASES, ids=IDS)
def test_length_spans_and_depths(task, parameters):
    for index in range(2):
        for target, fit in ((700, words), (1111, words), (2000, ragged)):
            item = make(task, target=target, index=index, fit=fit, **parameters)
            size = max(fit(item.context + q.prompt + q.answer) for q in item.questions)
            assert 0.98 * target <= size <= target
            assert item.key_spans
            for span in item.key_spans:
                assert 0 <= span.start < span.end <= len(item.context)
                assert span.depth == pytest.approx(span.start / len(item.context))
            assert all(any(q.depth == pytest.approx(s.depth) for s in item.key_spans) for q in item.questions)
            assert all(q.max_new_tokens >= fit(q.answer) for q in item.questions)
            assert 0 <= item.chance < 1


@pytest.mark.parametrize(("task", "parameters"), CASES, ids=IDS)
def test_without_its_key_spans_an_item_has_no_answer(task, parameters):
    """The spans are what matters: with all of them cut out, no question can be answered any more."""
    item = make(task, index=3, **parameters)
    context = item.context
    for span in sorted(item.key_spans, key=lambda s: -s.start):
        context = context[: span.start] + context[span.end :]
    for question in item.questions:
        try:
            solved = SOLVERS[task](context, question.text)
        except (LookupError, TypeError, AttributeError, AssertionError, ValueError):
            continue
        wanted = list(question.expected)
        if task == "stories":
            continue  # the state before the last event may be the same answer
        assert solved != (wanted if task in ORDERED else sorted(wanted))


@pytest.mark.parametrize(
    "task", ["passkey", "lookalikes", "many_questions", "mqar", "phone_book", "aliases", "multi_value"]
)
def test_a_second_answer_would_be_noticed(task):
    item = make(task, index=2)
    for question in item.questions:
        said = question.answer_prefix.strip() + question.answer
        if task == "multi_value":
            said = f"One number of {re.search('of (.+) are', question.answer_prefix)[1]} is 0000"
        if task == "aliases":
            name = re.search(r"number of (\w+)", question.text)[1]
            said = f"{name} is another name of Nobody"
        with pytest.raises(LookupError):
            SOLVERS[task](item.context + " " + said + ".", question.text)


# -- blind guessers ------------------------------------------------------------------------------------------------------


def guess(item: TaskItem, question: Question, draw: random.Random) -> str:
    """Who knows the form of the answers and the values that occur, and not which belongs where."""
    task = item.task
    if task in ("variable_chains", "graph_walk"):
        names = sorted(set(re.findall(r"\b[A-Z]{5}\b", item.context)))
        return " " + ", ".join(draw.sample(names, len(question.expected)))
    if task == "multi_value":
        values = re.findall(r"number of \w+ is (\d+)", item.context)
        return " " + ", ".join(draw.sample(values, len(question.expected)))
    if task == "word_counting":
        said = re.search(r"list of words: ([^.]+)\.", item.context)[1].split()
        return " " + ", ".join(draw.sample(sorted(set(said) - {"xxx"}), len(question.expected)))
    if task == "copy_span":
        said = re.search(r"list is: ([^.]+)\.", item.context)[1].split()
        return " " + " ".join(draw.choice(said) for _ in said)
    if task == "ledger":
        places = range(1, len(question.expected) + 1)
        step = {"t": 5.0, "c": 4 / 9}.get(
            question.answer_prefix.split()[1][0], 0.0
        )  # totals, counts: the likeliest sum
        if step and draw.random() < 0.5:
            return " " + ", ".join(str(round(step * n)) for n in places)
        return " " + ", ".join([Counter(question.expected).most_common(1)[0][0]] * len(question.expected))
    if task == "instructions":
        known = re.findall(r"the word (\w+)\.", item.context)
        said = [word for word in known if draw.random() < 0.5]
        draw.shuffle(said)
        return " " + " ".join(said)
    if task == "stories":
        if question.text.startswith(" How many"):
            return " 0" if item.parameters["people"] > item.parameters["things"] else " 1"
        if question.text.startswith(" What does"):
            known = sorted(set(re.findall(r"took the (\w+)", item.context)))
            return " " + ", ".join(draw.sample(known, min(len(known), len(question.expected))))
        if question.text.startswith(" Is"):
            return draw.choice([" yes", " no"])
        return " " + draw.choice(re.findall(r"went to (\w+)", item.context))
    if task == "passkey":
        return draw.choice([question.answer, *question.foils]) if item.chance > 0.01 else question.foils[0]
    if task == "listops":
        return f" {draw.randrange(10)}"
    if task == "multi_hop" and not question.text.startswith(" Whose"):
        link = {"In which city": "office in", "In which country": "city in", "Who rules": "ruled by"}
        pattern = next(v for k, v in link.items() if question.text.strip().startswith(k))
        return " " + draw.choice(re.findall(rf"{pattern} (\w+)\.", item.context))
    if task == "many_shot":
        return " " + draw.choice(sorted(set(re.findall(r"Label: (\w+)", item.context))))
    patterns = {
        "lookalikes": r"number of .+? is (\S+?)\.", "many_questions": r"has the (\w+)\.", "mqar": r"has the (\w+)\.",
        "phone_book": r": (\d+)", "aliases": r"number of \w+ is (\d+)",
    }  # fmt: skip
    if task in patterns:
        return " " + draw.choice(re.findall(patterns[task], item.context))
    if task == "json_dump":
        pairs = json.loads(item.context[item.context.index("{") :], object_pairs_hook=list)
        return draw.choice([pair[0 if "Which key" in question.text else 1] for pair in pairs])
    return draw.choice([question.answer, *question.foils])


GUESSED = [(t, p) for t, p in CASES if p.get("filler") != "chinese"]


@pytest.mark.parametrize(
    ("task", "parameters"), GUESSED, ids=[f"{t}-{'-'.join(map(str, p.values()))}" for t, p in GUESSED]
)
def test_nobody_scores_above_the_chance_level_without_the_facts(task, parameters):
    draw = random.Random(5)
    scores, chances = [], []
    for index in range(25 if task in ("listops", "word_counting") else 60):
        item = make(task, index=index, **parameters)
        for question in item.questions:
            for _ in range(4):
                score = score_answer(question, guess(item, question, draw))
                scores.append(score.value)
                chances.append(item.chance)
    mean, chance = statistics.fmean(scores), statistics.fmean(chances)
    error = statistics.pstdev(scores) / len(scores) ** 0.5
    # Four guesses at one question are not independent: three times the naive error covers it.
    assert mean <= chance + 3 * max(error * 2, 0.002), (mean, chance)


def test_a_rule_is_never_obeyed_by_a_blind_reply_more_often_than_its_chance():
    draw = random.Random(1)
    parts: dict[str, list[float]] = {}
    for index in range(300):
        item = make("instructions", index=index, rules=6)
        for question in item.questions:
            score = score_answer(question, guess(item, question, draw))
            for rule, value in zip(question.expected, score.parts, strict=True):
                parts.setdefault(rule.partition("=")[0], []).append(value)
    assert set(parts) == {"begins", "ends", "contains", "never", "refuses"}
    for values in parts.values():
        assert statistics.fmean(values) <= 0.5 + 3 * 0.5 / len(values) ** 0.5


def test_listops_values_are_balanced():
    for seed in (0, 1):
        classes = Counter(make("listops", index=i, seed=seed, values=10).questions[0].answer for i in range(50))
        assert set(classes.values()) == {5}


# -- same everywhere -----------------------------------------------------------------------------------------------------

SCRIPT = """
import hashlib, re
from pytest_attnaccept.tasks import generate, task_families
def words(text): return len(re.findall(r"[A-Za-z]+|\\d|[^\\sA-Za-z\\d]", text))
for name in task_families():
    made = "".join(generate(name, fit=words, target_tokens=700, seed=0, index=i).digest for i in range(5))
    print(name, hashlib.sha256(made.encode()).hexdigest()[:16])
"""


def test_items_are_the_same_in_every_process():
    outputs = set()
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed},
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert dict(line.split() for line in outputs.pop().splitlines()) == GOLDEN


# Computed once; a change here means that recorded scores no longer describe the same items.
GOLDEN: dict[str, str] = {
    "needle": "0471f5bc92099a0b",
    "kv_recall": "311c89ec1f3b5b17",
    "variable_tracking": "1d3fd3a7a8a81f8d",
    "text": "3ba0579ccd07cc61",
    "passkey": "1a437bb78212b1fc",
    "lookalikes": "6a30667f878102df",
    "variable_chains": "74d58cb8067207d1",
    "multi_value": "d7ee760fddb35d57",
    "many_questions": "6af7303531e08f3f",
    "word_counting": "25d72ad50eab6e67",
    "listops": "d8c2216346ea7924",
    "multi_hop": "f1d6258254ea5254",
    "json_dump": "6ed9151838c3cea0",
    "mqar": "dcb3c66f0e739043",
    "copy_span": "63dc78c41c6a9f23",
    "phone_book": "dfbca23a37746d40",
    "instructions": "ebd28aa53ed14d85",
    "ledger": "9af1b2af14a98821",
    "stories": "7ae4395c7479ae86",
    "graph_walk": "c7c1d4e33f56b2f0",
    "many_shot": "8c54da8bdb8f0242",
    "aliases": "d29754c10ff4144a",
}


def test_items_do_not_touch_the_global_generator():
    random.seed(1)
    state = random.getstate()
    for task in NEW:
        assert make(task) == make(task)
    assert random.getstate() == state


@pytest.mark.parametrize("task", NEW)
def test_seed_index_and_length_name_the_item(task):
    items = [make(task), make(task, seed=1), make(task, index=1), make(task, target=760)]
    assert len({item.digest for item in items}) == len({item.context for item in items}) == 4
    assert make(task, **task_families()[task].defaults) == items[0]


@pytest.mark.parametrize(
    ("task", "parameters", "message"),
    [
        ("passkey", {"value": "digits8"}, "Allowed: word"),
        ("passkey", {"depth": 1.5}, r"depth=1\.5 is neither -1 \(rotating\) nor in 0\.\.1"),
        ("lookalikes", {"keys": "letters"}, "Allowed: coined"),
        ("lookalikes", {"keys": "names", "target": 2000}, "no unused value is left"),
        ("lookalikes", {"keys_total": 3, "questions": 4}, "keys_total=3"),
        ("variable_chains", {"chains": 1, "decoys": 0}, r"decoys=0 is outside 1\.\.10000 \(chains=1, hops=3\)"),
        ("variable_chains", {"hops": 9}, "hops=9"),
        ("variable_chains", {"order": "random"}, "Allowed: ordered"),
        ("multi_value", {"values": 9}, r"values=9 is outside 2\.\.8"),
        ("many_questions", {"questions": 13}, r"questions=13 is outside 2\.\.12"),
        ("word_counting", {"kind": "rare"}, "Allowed: common, zeta"),
        ("word_counting", {"often": 1}, r"often=1 is outside 2\.\."),
        ("listops", {"values": 1}, "values=1"),
        ("listops", {"depth": 11}, "depth=11"),
        ("multi_hop", {"hops": 5}, r"hops=5 is outside 2\.\.4"),
        ("multi_hop", {"target": 60}, "too short"),
        ("json_dump", {"pairs": 1}, "pairs=1"),
        ("json_dump", {"by": "index"}, "Allowed: key"),
        ("mqar", {"pairs": 300, "keys": "coined", "value": "coined"}, r"pairs=300 is outside 2\.\.256"),
        ("copy_span", {"span": 4, "words": "coined"}, r"span=4 is outside 8\.\.512"),
        ("copy_span", {"span": 100}, r"span=100 is outside 8\.\.\d\d \(words='word'\)"),
        ("phone_book", {"entries": 1}, "entries=1"),
        ("instructions", {"rules": 13}, r"rules=13 is outside 2\.\.12"),
        ("ledger", {"outputs": 2001}, r"outputs=2001 is outside 4\.\.2000"),
        ("ledger", {"target": 50}, "too short"),
        ("stories", {"ask": "why"}, "Allowed: where"),
        ("stories", {"questions": 5}, "questions=5"),
        ("graph_walk", {"nodes": 5}, "nodes=5"),
        ("many_shot", {"questions": 5}, r"questions=5 is outside 1\.\.4"),
        ("aliases", {"first": "none"}, "Allowed: aliases, facts"),
        ("aliases", {"filler": "chinese"}, "Allowed: varied, repeat"),
    ],
)
def test_impossible_parameters_are_refused(task, parameters, message):
    with pytest.raises(ContractError, match=message):
        make(task, **parameters)


def test_a_secret_is_refused_in_other_words_every_time():
    """With one refusal for all contexts, who refuses by habit would seem to know the rule."""
    said = Counter(make("instructions", index=i).questions[1].answer for i in range(100))
    assert said.most_common(1)[0][1] <= 6


def test_a_question_about_a_text_has_an_answer_that_is_said():
    """ "tea" is not said by "teacher": the food of somebody whose food is not told was asked before."""
    for target in (60, 100, 400):
        for index in range(120):
            item = make("text", target=target, index=index, people=8)
            for question in item.questions:
                answer = question.answer.strip()
                assert re.search(rf"\b{answer}\b", item.context)
                assert item.context[round(question.depth * len(item.context)) :].startswith(answer)
            assert item.chance >= 1 / 8
    assert make("text", target=40, people=8).chance > 1 / 8  # only some of the people have been told about
