"""Every profile, every method that the package applies: one candidate exits 0, one fails the stated check."""

from __future__ import annotations

import json

import pytest

from acceptance.cases import CASES, NEVER_GOOD, PERFORMANCE, PROFILES, WITH_BUDGET, Case, good_knobs, source_of

QUICK = ("smoke",)
GATED = [p for p in PROFILES if p not in ("serving", "release")]


def combinations(profiles, without=frozenset()):
    return [
        pytest.param(p, c, id=f"{p}-{c.method}", marks=[] if p in QUICK else [pytest.mark.full])
        for p in profiles
        for c in CASES
        if (p, c.method) not in without
    ]


def run(pytester: pytest.Pytester, profile: str, text: str):
    pytester.makepyfile(test_case=text)
    result = pytester.runpytest_inprocess(
        f"--accept-profile={profile}", "--accept-model=toy-gqa", "-p", "no:cacheprovider"
    )
    verdicts = json.loads((pytester.path / ".attnaccept" / "verdict.json").read_text(encoding="utf-8"))
    return result, {i["item"].rsplit("[", 1)[1][:-1]: i for i in verdicts["items"]}, verdicts["verdict"]


@pytest.mark.parametrize(("profile", "case"), combinations(GATED, NEVER_GOOD))
def test_a_good_candidate_exits_zero(pytester: pytest.Pytester, profile: str, case: Case) -> None:
    result, items, verdict = run(pytester, profile, source_of(case, good_knobs(case, profile)))
    assert {n: i["headline"] for n, i in items.items() if i["verdict"] != "PASS"} == {}
    assert (result.ret, verdict) == (0, "PASS")


@pytest.mark.parametrize(("profile", "case"), combinations(PROFILES))
def test_a_bad_candidate_fails_the_stated_check(pytester: pytest.Pytester, profile: str, case: Case) -> None:
    result, items, verdict = run(pytester, profile, source_of(case, case.bad, case.candidate))
    failed = [n for n, i in items.items() if i["verdict"] == "FAIL"]
    assert any(n.startswith(case.check) for n in failed), items
    assert (result.ret, verdict) == (1, "FAIL")


@pytest.mark.parametrize("profile", ["serving", pytest.param("release", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.method, marks=[] if c.method == "kv8" else [pytest.mark.full])
        for c in CASES
        if ("release", c.method) not in NEVER_GOOD
    ],
)
def test_a_profile_that_needs_performance_is_incomplete_and_names_exactly_what_is_missing(
    pytester: pytest.Pytester, profile: str, case: Case
) -> None:
    result, items, verdict = run(pytester, profile, source_of(case, good_knobs(case, profile)))
    not_green = [n for n, i in items.items() if i["verdict"] != "PASS"]
    assert {i["verdict"] for n, i in items.items() if n in PERFORMANCE} == {"INCOMPLETE"}
    if profile == "release" and case.method in WITH_BUDGET:
        # What passes at its budget here sits at a cliff: half of the budget loses most answers, and release does not ship that.
        assert items["budget-curve"]["verdict"] == "FAIL"
        assert "halving" in items["budget-curve"]["headline"]
        assert (result.ret, verdict) == (1, "FAIL")
        not_green.remove("budget-curve")
    else:
        assert (result.ret, verdict) == (1, "INCOMPLETE")
    assert tuple(not_green) == PERFORMANCE
