"""What records of a stack and its members say: interaction, blame, missing singles."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_attnaccept.blame import blame
from pytest_attnaccept.completeness import GateResult, judge
from pytest_attnaccept.matrix import Plan, PlannedItem
from pytest_attnaccept.records import Metric, Record
from pytest_attnaccept.reports.matrix import markdown
from pytest_attnaccept.reports.page import write_page
from pytest_attnaccept.reports.terminal import summary_lines
from pytest_attnaccept.reports.xml import write_junit
from pytest_attnaccept.taxonomy import Verdict

V = Verdict
INF = math.inf
N = 120
TOKENS = [32] * N
UNITS = [f"doc{i}" for i in range(N)]


def item(cell: str, *members: str, check: str = "perplexity", exact: str = "", **context: object) -> PlannedItem:
    kinds = [[m, "approximate"] for m in members] + ([[exact, "exact"]] if exact else [])
    return PlannedItem(
        cell=f"a.accept.yaml::{cell}", check=check, kind="approximate", surface="model", methods=members,
        stack=" + ".join(members), reason="", profile="smoke", static="s",
        context={"members": kinds, "suite_model": "toy-gqa", "model": "toy-gqa:1", **context},
    )  # fmt: skip


def losses(mean: float, seed: int, noise: float = 0.004) -> list[float]:
    draw = random.Random(seed)
    return [32 * draw.gauss(mean, noise) for _ in range(N)]


def text(of: PlannedItem, sums: list[float], verdict: Verdict = V.PASS, **more: object) -> Record:
    mean = math.expm1(sum(sums) / sum(TOKENS))
    metric = Metric(name="perplexity", verdict=verdict.value, effect=mean, limit=0.05, p_pass=0.01, p_fail=0.9)
    kept = {"unit": "document", "units": UNITS[: len(sums)], "sums": sums, "tokens": TOKENS[: len(sums)]}
    return record(of, verdict, metric, {"losses": {"perplexity": kept}}, **more)


def record(of: PlannedItem, verdict: Verdict, metric: Metric, details: dict[str, object], **more: object) -> Record:
    fields: dict[str, object] = {
        "item": of.id, "cell": of.cell, "check": of.check, "kind": of.kind, "surface": of.surface, "stack": of.stack,
        "methods": of.methods, "profile": of.profile, "verdict": verdict, "headline": f"{verdict.value} {of.id}",
        "run_id": "r", "static": "s", "time": "1", "metrics": (metric,), "details": details,
        "fingerprint": {"baseline.weights": "w"},
    }  # fmt: skip
    return Record(**{**fields, **more})  # type: ignore[arg-type]


def judged(*pairs: tuple[PlannedItem, Record | None], profile: str = "smoke") -> GateResult:
    plan = Plan(items=tuple(i for i, _ in pairs), profile=profile)
    return judge(plan, [r for _, r in pairs if r is not None])


def pair_of(full: list[float], a: list[float], b: list[float], verdict: Verdict = V.PASS) -> GateResult:
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    return judged((stack, text(stack, full, verdict)), (one, text(one, a)), (two, text(two, b)))


def test_additive_losses_do_not_compound() -> None:
    a, b = losses(0.01, 1), losses(0.01, 2)
    found = pair_of([x + y + n for x, y, n in zip(a, b, losses(0.0, 3), strict=True)], a, b)
    (finding,) = found.findings
    assert finding.contrast is not None
    assert (finding.contrast.compounds, finding.contrast.n, finding.blame) == (False, N, "")
    assert "do not compound" in found.results[0].headline


def test_two_harmless_halves_that_hurt_together() -> None:
    a, b = losses(0.002, 1), losses(0.003, 2)
    found = pair_of([x + y + n for x, y, n in zip(a, b, losses(0.2, 3), strict=True)], a, b, V.FAIL)
    (finding,) = found.findings
    assert finding.contrast is not None
    assert finding.contrast.compounds is True
    assert "A and B hurt only together: alone A 0.2 %, B 0.3 %, all together" in found.results[0].headline
    assert found.verdict is V.FAIL


def test_a_culprit_is_named_with_its_two_numbers() -> None:
    a, b = losses(0.15, 1), losses(0.003, 2)
    found = pair_of([x + y for x, y in zip(a, b, strict=True)], a, b, V.FAIL)
    assert "A is the culprit: without it the loss is 0.3 %, alone it loses 16" in found.results[0].headline


def test_other_documents_are_undecided_and_never_harmless() -> None:
    a, b = losses(0.01, 1), losses(0.01, 2)
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    other = text(two, b)
    other.details["losses"]["perplexity"]["units"] = [f"else{i}" for i in range(N)]  # type: ignore[index]
    found = judged((stack, text(stack, a)), (one, text(one, a)), (two, other))
    assert found.findings[0].contrast is not None
    assert found.findings[0].contrast.compounds is None
    assert "different data" in found.findings[0].contrast.text


def test_a_contrast_without_width_says_why_it_decides_nothing() -> None:
    flat = [0.3] * N
    contrast = pair_of([0.6] * N, flat, flat, V.PASS).findings[0].contrast
    assert contrast is not None
    assert contrast.compounds is None
    assert "too few or too equal documents to say so" in contrast.text


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda kept: kept.update(tokens=[31] * N), "tokens per document"),
        (lambda kept: kept.update(sums=kept["sums"][:5]), "cannot be compared"),
        (lambda kept: kept.update(sums=["nan"] * N), "cannot be compared"),
        (lambda kept: kept.pop("units"), "cannot be compared"),
    ],
)
def test_losses_that_were_damaged_are_undecided(break_it, reason: str) -> None:
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    other = text(two, losses(0.01, 2))
    break_it(other.details["losses"]["perplexity"])  # type: ignore[index]
    found = judged((stack, text(stack, losses(0.02, 3))), (one, text(one, losses(0.01, 1))), (two, other))
    assert found.findings[0].contrast is not None
    assert found.findings[0].contrast.compounds is None
    assert reason in found.findings[0].contrast.text


OTHER = {"baseline.weights": "another"}


def marked(cell: str, *members: str, **context: object) -> PlannedItem:
    return item(cell, *members, suite_model=None, **context)


def test_another_baseline_is_undecided_and_no_single_of_a_release() -> None:
    stack, one, two = marked("test_ship", "A", "B"), marked("test_a", "A"), marked("test_b", "B")
    pairs = (
        (stack, text(stack, losses(0.3, 3), V.FAIL)),
        (one, text(one, losses(0.01, 1))),
        (two, text(two, losses(0.01, 2), fingerprint=OTHER)),
    )
    found = judged(*pairs)
    assert found.findings[0].contrast is not None
    assert found.findings[0].contrast.compounds is None
    assert "different baselines" in found.findings[0].contrast.text
    assert found.findings[0].blame == "who is to blame is not known: the cells have different baselines"
    pairs = (*((i, replace(r, verdict=V.PASS, metrics=())) for i, r in pairs),)
    assert judged(*pairs, profile="release").problems == ("a.accept.yaml::test_ship: singles not measured: B",)
    assert (
        judged(*pairs[:2], (two, replace(pairs[1][1], item=two.id, cell=two.cell)), profile="release").verdict is V.PASS
    )


def test_a_single_on_the_same_baseline_is_found_among_others() -> None:
    stack, one, two = marked("test_ship", "A", "B"), marked("test_a", "A"), marked("test_b", "B")
    wrong = marked("test_b_elsewhere", "B")
    a, b = losses(0.01, 1), losses(0.012, 2)
    found = judged(
        (wrong, text(wrong, losses(0.4, 5), fingerprint=OTHER)),
        (stack, text(stack, [x + y + z for x, y, z in zip(a, b, losses(0.0, 7), strict=True)])),
        (one, text(one, a)),
        (two, text(two, b)),
    )
    assert found.findings[0].singles["B"] == pytest.approx(0.012, abs=0.002)
    assert found.findings[0].contrast is not None
    assert found.findings[0].contrast.compounds is False


def test_a_column_has_one_baseline() -> None:
    """A Hub name that points to other weights since, or shards that loaded different ones, make the older cells stale."""
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    column = item("mha.only-b", "B", suite_model="toy-mha", model="toy-mha:1")
    old = [text(i, losses(0.0, 1), time="1") for i in (stack, one)]
    new = [text(i, losses(0.0, 1), time="2", fingerprint=OTHER) for i in (two, column)]
    found = judged(*zip((stack, one, two, column), [*old, *new], strict=True))
    assert [r.verdict for r in found.results] == [V.INCOMPLETE, V.INCOMPLETE, V.PASS, V.PASS]
    assert "the baseline of its column changed (baseline.weights)" in found.results[0].headline


def test_a_stack_of_recorded_logs_knows_its_missing_singles() -> None:
    stack = replace(marked("test_both", "A", "B"), surface="logs")
    found = judged((stack, text(stack, losses(0.0, 1))), profile="release")
    assert found.problems == ("a.accept.yaml::test_both: singles not measured: A, B",)


def test_a_few_documents_decide_nothing() -> None:
    a, b = losses(0.01, 1)[:10], losses(0.01, 2)[:10]
    found = pair_of([x + y for x, y in zip(a, b, strict=True)], a, b)
    assert found.findings[0].contrast is not None
    assert found.findings[0].contrast.compounds is None


def test_cells_of_another_column_are_not_members() -> None:
    a, b = losses(0.01, 1), losses(0.01, 2)
    stack, one = item("gqa.ship", "A", "B"), item("gqa.only-a", "A")
    two = item("mha.only-b", "B", suite_model="toy-mha", model="toy-mha:1")
    found = judged((stack, text(stack, a)), (one, text(one, a)), (two, text(two, b)))
    assert found.findings[0].singles["B"] is None
    assert "singles not measured: B" in found.results[0].headline


def test_exact_members_do_not_count() -> None:
    a, b = losses(0.01, 1), losses(0.01, 2)
    stack = item("gqa.ship", "A", "B", exact="prompt_lookup")
    one, two = item("gqa.only-a", "A"), item("gqa.only-b", "B", exact="flash_attention")
    full = [x + y for x, y in zip(a, b, strict=True)]
    found = judged((stack, text(stack, full)), (one, text(one, a)), (two, text(two, b)))
    assert list(found.findings[0].singles) == ["A", "B"]


def needle(of: PlannedItem, base: list[float], right: list[float], verdict: Verdict = V.PASS) -> Record:
    gone = [b - r for b, r in zip(base, right, strict=True)]
    metric = Metric(
        name="needle", verdict=verdict.value, effect=sum(gone) / len(gone), limit=0.1, p_pass=0.01, p_fail=0.9
    )
    kept = {"unit": "context", "units": UNITS[: len(gone)], "losses": gone, "baseline": base}
    return record(of, verdict, metric, {"losses": {"needle": kept}})


def shares(rate: float, seed: int, n: int = N) -> list[float]:
    draw = random.Random(seed)
    return [sum(draw.random() < rate for _ in range(4)) / 4 for _ in range(n)]


@pytest.mark.parametrize(("together", "answer"), [(0.1, True), (0.93, False)])
def test_retrieval_in_log_odds_over_the_contexts_that_all_cells_share(together: float, answer: bool) -> None:
    base = shares(0.97, 0)
    n = 20 if answer else N  # the failing stack stopped early: only its contexts are compared
    stack, one, two = (
        item(c, *m, check="needle-1x") for c, m in (("gqa.s", ("A", "B")), ("gqa.a", ("A",)), ("gqa.b", ("B",)))
    )
    found = judged(
        (stack, needle(stack, base[:n], shares(together, 3, n), V.FAIL if answer else V.PASS)),
        (one, needle(one, base, shares(0.96, 1))),
        (two, needle(two, base, shares(0.95, 2))),
    )
    contrast = found.findings[0].contrast
    assert contrast is not None
    assert (contrast.compounds, contrast.n, contrast.scale) == (answer, n, "log-odds")


def test_three_members_and_their_leave_one_outs() -> None:
    cells = {
        "ABC": 0.3, "A": 0.01, "B": 0.01, "C": 0.28, "AB": 0.02, "AC": 0.29, "BC": 0.29,
    }  # fmt: skip
    pairs = []
    for number, (name, loss) in enumerate(cells.items()):
        of = item(f"gqa.{name}", *name)
        pairs.append((of, text(of, losses(loss, number), V.FAIL if loss > 0.05 else V.PASS)))
    found = judged(*pairs)
    whole = next(f for f in found.findings if f.cell.endswith("gqa.ABC"))
    assert "C is the culprit: without it the loss is 2" in whole.blame
    missing = judged(*[p for p in pairs if p[0].cell.rpartition(".")[2] != "AB"])
    assert "not measured: the stack without C" in next(f for f in missing.findings if f.cell.endswith("ABC")).blame


def test_marks_without_singles_are_said_and_block_a_release() -> None:
    stack = item("test_both", "A", "B", suite_model=None)
    for profile, verdict in (("smoke", V.PASS), ("release", V.INCOMPLETE), ("release (ours.yaml)", V.INCOMPLETE)):
        found = judged((stack, text(stack, losses(0.0, 1))), profile=profile)
        assert found.verdict is verdict
        assert "singles not measured: A, B" in found.results[0].headline
    one = item("test_a", "A", suite_model=None)
    found = judged((stack, text(stack, losses(0.0, 1))), (one, text(one, losses(0.0, 1))), profile="release")
    assert found.problems == ("a.accept.yaml::test_both: singles not measured: B",)


def test_a_required_single_that_was_not_measured_is_incomplete() -> None:
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    found = judged((stack, text(stack, losses(0.0, 1))), (one, text(one, losses(0.0, 1))), (two, None))
    assert found.verdict is V.INCOMPLETE


def test_findings_change_no_verdict() -> None:
    a = losses(0.002, 1)
    found = pair_of([3 * x + 5 for x in a], a, a)  # compounds, and its own record says PASS
    assert found.findings[0].contrast is not None
    assert found.findings[0].contrast.compounds is True
    assert found.verdict is V.PASS


def test_a_long_headline_keeps_the_sentence_about_blame() -> None:
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    full = text(stack, losses(0.3, 3), V.FAIL, headline="FAIL " + "x" * 470)
    found = judged((stack, full), (one, text(one, losses(0.3, 1))), (two, text(two, losses(0.0, 2))))
    assert "A is the culprit" in found.results[0].headline[:480]


@pytest.mark.parametrize(
    ("full", "singles", "without", "says"),
    [
        (0.30, {"a": 0.29, "b": 0.01}, {"a": 0.01, "b": 0.29}, "a is the culprit: without it the loss is 1.0 %"),
        (0.90, {"a": 0.88, "b": 0.89}, {"a": 0.89, "b": 0.88}, "a and b are the culprits"),
        (0.12, {"a": 0.02, "b": 0.04}, {"a": 0.04, "b": 0.02}, "a and b hurt only together"),
        (0.11, {"a": 0.02, "b": 0.02, "c": 0.02}, {"a": 0.09, "b": 0.09, "c": 0.09}, "no culprit"),
        (0.30, {"a": 0.02, "b": 0.0}, {"a": 0.01, "b": 0.29}, "hurts only in company"),
        (0.30, {"a": None, "b": 0.01}, {"a": 0.01, "b": None}, "not measured: a alone, the stack without b"),
    ],
)  # fmt: skip
def test_blame(full: float, singles: dict[str, float], without: dict[str, float], says: str) -> None:
    assert says in blame(full, singles, without, 0.1)


@pytest.mark.parametrize(
    ("singles", "without", "says"),
    [
        ({"a": INF, "b": 0.01}, {"a": 0.01, "b": INF}, "a is the culprit"),
        ({"a": INF, "b": INF}, {"a": INF, "b": INF}, "a and b are the culprits"),
        ({"a": 0.01, "b": 0.01}, {"a": 0.01, "b": 0.01}, "a and b hurt only together"),
        ({"a": INF, "b": INF, "c": 0.0}, {"a": INF, "b": INF, "c": INF}, "a and b are the culprits"),
    ],
)
def test_losses_without_bound_have_culprits_too(
    singles: dict[str, float], without: dict[str, float], says: str
) -> None:
    assert blame(INF, singles, without, 0.1).startswith(says)


@pytest.mark.parametrize("field", ["effect", "ci_low", "ci_high"])
@pytest.mark.parametrize("value", [INF, -INF, math.nan])
def test_a_number_without_bound_is_shown_and_breaks_no_report(tmp_path: Path, field: str, value: float) -> None:
    """A candidate that loses 800 nats per token overflows exp(); the end of the run must still say so."""
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    full = text(stack, losses(0.3, 3), V.FAIL)
    full = replace(full, metrics=(replace(full.metrics[0], **{field: value}),))
    read = [Record.from_line(r.to_line(), "here") for r in (full, text(one, losses(0.0, 1)), text(two, losses(0.0, 2)))]
    found = judged(*zip((stack, one, two), read, strict=True))
    assert found.verdict is V.FAIL
    assert markdown(found)
    assert summary_lines(found, explicit=True, out=tmp_path, quality_only=True)
    write_page(tmp_path / "a.html", found)
    write_junit(tmp_path / "a.xml", found)


def test_blame_of_a_divergence_is_in_nats() -> None:
    said = blame(0.30, {"a": 0.29, "b": 0.01}, {"a": 0.01, "b": 0.29}, 0.1, unit="nats/token")
    assert said == "a is the culprit: without it the loss is 0.01 nats/token, alone it loses 0.29 nats/token"


def test_culprits_of_a_divergence_are_chosen_on_shared_documents() -> None:
    """The stack stopped after forty documents; on those, only A hurts."""

    def kl(of: PlannedItem, sums: list[float], verdict: Verdict = V.PASS) -> Record:
        found = text(of, sums, verdict)
        metric = replace(found.metrics[0], name="kl", unit="nats/token", effect=sum(sums) / (32 * len(sums)), limit=0.1)
        return replace(found, metrics=(metric,), details={"losses": {"kl": found.details["losses"]["perplexity"]}})

    harmful, late = [32 * 0.4] * 40, [32 * 0.001] * 40 + [32 * 0.2] * 80
    stack, one, two = (item(c, *m, check="divergence") for c, m in (("s", "AB"), ("a", "A"), ("b", "B")))
    found = judged((stack, kl(stack, harmful, V.FAIL)), (one, kl(one, harmful)), (two, kl(two, late)))
    assert found.findings[0].blame.startswith("A is the culprit")
    assert "0.4 nats/token" in found.findings[0].blame


def test_culprits_are_chosen_on_shared_data_and_told_with_the_cells_own_numbers() -> None:
    """Noise between samples of different size must not blame an innocent member."""
    noisy = {"a": 0.30, "b": 0.02}, {"a": 0.02, "b": 0.30}
    assert "a and b" in blame(0.40, *noisy, 0.1)
    text = blame(0.40, *noisy, 0.1, shared=(0.36, {"a": 0.36, "b": 0.01}, {"a": 0.01, "b": 0.36}))
    assert text.startswith("a is the culprit: without it the loss is 2.0 %, alone it loses 30.0 %")


def test_a_bystander_is_not_named_beside_a_member_that_destroys_everything() -> None:
    """B costs five points on top of A's forty: at the margin of ten that is half a margin, and still not the cause."""
    text = blame(0.45, {"a": 0.40, "b": 0.01}, {"a": 0.01, "b": 0.395}, 0.10)
    assert text.startswith("a is the culprit")
    assert blame(0.20, {"a": 0.10, "b": 0.09}, {"a": 0.09, "b": 0.10}, 0.10).startswith("a and b are the culprits")
    assert blame(0.9, {"a": 0.9, "b": 0.9}, {"a": 0.9, "b": 0.9}, 0.10).startswith("a and b are the culprits")
