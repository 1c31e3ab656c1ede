"""Cells that are worst in different call patterns: who was measured, who is to blame."""

from dataclasses import replace

from test_compounding import V, item, judged, losses, text

from pytest_attnaccept.records import Record


def in_pattern(of: Record, pattern: str) -> Record:
    """Return a record whose screening found another call pattern to be the worst."""
    name = f"perplexity[{pattern}]"
    losses = {name: next(iter(of.details["losses"].values()))}
    return replace(of, metrics=(replace(of.metrics[0], name=name),), details={"losses": losses})


def test_a_member_that_is_worst_in_another_call_pattern_was_measured() -> None:
    stack, one, two = item("gqa.ship", "A", "B"), item("gqa.only-a", "A"), item("gqa.only-b", "B")
    bad, fine = losses(0.3, 1), losses(0.0, 2)
    found = judged(
        (stack, in_pattern(text(stack, bad, V.FAIL), "chunk-64")),
        (one, in_pattern(text(one, bad, V.FAIL), "chunk-64")),
        (two, text(two, fine)),
    )
    (finding,) = found.findings
    assert None not in finding.singles.values()
    assert "A is the culprit" in finding.blame
    assert "not measured" not in finding.text
    assert finding.contrast is not None
    assert "worst in different call patterns" in finding.contrast.text


def test_points_of_a_curve_are_no_call_patterns() -> None:
    stack, one, two = (
        item(c, *m, check="budget-curve") for c, *m in (("gqa.ship", "A", "B"), ("gqa.a", "A"), ("gqa.b", "B"))
    )
    point = [text(x, losses(0.1, 1), V.FAIL) for x in (stack, one, two)]
    named = [
        replace(r, metrics=(replace(r.metrics[0], name=n),))
        for r, n in zip(point, ("needle[budget 0.5]", "needle[budget 0.5]", "needle[budget 1]"), strict=True)
    ]
    (finding,) = judged(*zip((stack, one, two), named, strict=True)).findings
    assert finding.singles["B"] is None
