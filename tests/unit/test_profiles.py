"""Profiles: the six built-in ones, strict reading, overrides and digests."""

import dataclasses
from pathlib import Path

import pytest

from pytest_attnaccept.errors import SchemaError, UnknownNameError, UsageError
from pytest_attnaccept.limits import Limit
from pytest_attnaccept.profiles import BUILTIN_PROFILES, Profile, load_profile, parse_profile
from pytest_attnaccept.strict_yaml import load_text

MINIMAL = "schema: 1\nname: mine\nclaim: a claim\n"


def parse(text: str) -> Profile:
    return parse_profile(load_text(text, "p.yaml"))


@pytest.mark.parametrize("name", BUILTIN_PROFILES)
def test_builtin_profiles(name: str) -> None:
    profile = load_profile(name)
    assert (profile.name, bool(profile.claim), bool(profile.title)) == (name, True, True)
    assert all(limit.origin.split(":")[0] in ("policy", "derived", "measured") for limit in profile.limits.values())
    for check in ("perplexity", "needle"):
        assert (check in profile.checks) <= (check in profile.limits)
    assert {"identity", "footprint", "perplexity", "needle"} <= set(profile.checks)


def test_profiles_differ_and_only_two_require_performance() -> None:
    profiles = [load_profile(n) for n in BUILTIN_PROFILES]
    assert len({p.digest() for p in profiles}) == len(profiles)
    assert {p.name for p in profiles if p.performance} == {"serving", "release"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nclaim: c\n", "'schema' is missing"),
        ("schema: 2\nname: x\nclaim: c\n", "reads schema 1"),
        ("schema: 1\nclaim: c\n", "'name' is missing"),
        ("schema: 1\nname: x\n", "'claim' is missing"),
        (MINIMAL + "alpha: 0.5\n", "must lie in"),
        (MINIMAL + "alpha: 5\n", "must be float"),
        (MINIMAL + "alpha: 0.0\n", "must lie in"),
        (MINIMAL + "checks: {neddle: {}}\n", "Did you mean 'needle'"),
        (MINIMAL + "checks: {needle: {tiers: [1], contexts: 0}}\n", "positive (whole )?number"),
        (MINIMAL + "checks: {needle: {tiers: [1], contexts: yes}}\n", "positive (whole )?number"),
        (MINIMAL + "checks: {needle: {tiers: [1], contexts: -3}}\n", "positive (whole )?number"),
        (MINIMAL + "checks: {needle: {tiers: [1, .nan]}}\n", "positive (whole )?number"),
        (MINIMAL + "checks: {needle: {tiers: [1], context: 3}}\n", "Did you mean 'contexts'"),
        (MINIMAL + "limits: {needle: {max: 1.5, origin: 'policy: x'}}\n", "number in"),
        (MINIMAL + "limits: {needle: {max: 0.1, origin: paper}}\n", "needs origin"),
        (MINIMAL + "limits: {needle: 0.1}\n", "must be a mapping"),
        (MINIMAL + "performance: [ttfs]\n", "unknown performance check 'ttfs'"),
        (MINIMAL + "performance: ttft\n", "must be list"),
        (MINIMAL + "advice: [3]\n", "must be text"),
        (MINIMAL + "max_tokens: 1e3\n", "must be int"),
        (MINIMAL + "thresholds: {}\n", "unknown key"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_footprint_may_name_the_patterns_of_the_deployment_but_no_padded_batch() -> None:
    given = parse(MINIMAL + "checks: {footprint: {tier: 1, patterns: [one-shot, chunk-32]}}\n")
    assert given.checks["footprint"]["patterns"] == ["one-shot", "chunk-32"]
    with pytest.raises(SchemaError, match="one-shot, chunk-N, token or warm-prefix"):
        parse(MINIMAL + "checks: {footprint: {patterns: [batch-left]}}\n")


def test_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'longctx'"):
        load_profile("longctxx")
    path = tmp_path / "p.yaml"
    path.write_text(MINIMAL)
    with pytest.raises(SchemaError, match=r"does not exist, seen from .*Did you mean 'p\.yaml'\?"):
        load_profile(str(tmp_path / "q.yaml"))
    assert load_profile(str(path)).name == "mine"


@pytest.mark.parametrize("name", ["smoke", "release"])
def test_a_file_that_bears_the_name_of_a_shipped_profile_says_which_file_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / "weak.yaml"
    path.write_text(MINIMAL.replace("name: mine", f"name: {name}"))
    assert load_profile(str(path)).name == f"{name} (weak.yaml)"
    assert load_profile(name).name == name


def test_a_larger_limit_remembers_what_it_replaced() -> None:
    profile = parse(MINIMAL + "limits: {needle: {max: 0.05, origin: 'policy: x'}}\n")
    loose = profile.with_overrides(limits={"needle": Limit(max=0.1, origin="policy: y")})
    tight = profile.with_overrides(limits={"needle": Limit(max=0.01, origin="policy: y")})
    new = profile.with_overrides(limits={"kl": Limit(max=0.01, origin="policy: y")})
    assert (loose.limits["needle"].loosened_from, tight.limits["needle"].loosened_from) == (0.05, None)
    assert (new.limits["kl"].loosened_from, new.limits["needle"].max) == (None, 0.05)


def test_loosening_twice_still_shows_the_profiles_own_limit() -> None:
    profile = parse(MINIMAL + "limits: {needle: {max: 0.05, origin: 'policy: x'}}\n")
    once = profile.with_overrides(limits={"needle": Limit(max=0.1, origin="policy: suite")})
    assert once.limits["needle"].loosened_from == 0.05


def test_digest_follows_what_decides_and_not_the_words() -> None:
    profile = load_profile("smoke")
    assert dataclasses.replace(profile, claim="other", title="t", advice=("a",)).digest() == profile.digest()
    assert dataclasses.replace(profile, alpha=0.01).digest() != profile.digest()
    assert profile.with_overrides(max_tokens=9).digest() != profile.digest()
    assert profile.with_overrides(limits={"needle": Limit(max=0.5, origin="policy: x")}).digest() != profile.digest()
