"""One record -> JUnit properties: plain text and numbers, at most 25, what was not measured is left out."""

from __future__ import annotations

import math

from pytest_attnaccept.records import Record

__all__ = ["properties"]

MOST = 25


def properties(record: Record) -> list[tuple[str, object]]:
    """Return ``(name, value)`` pairs for ``item.user_properties``.

    A value that is not text or a finite number would kill an xdist session, so it is converted or left out here.
    """
    pairs: list[tuple[str, object]] = [
        ("attnaccept.schema", 1),
        ("attnaccept.run_id", record.run_id),
        ("attnaccept.cell", record.cell),
        ("attnaccept.check", record.check),
        ("attnaccept.method", "+".join(record.methods)),
        ("attnaccept.kind", record.kind),
        ("attnaccept.profile", record.profile),
        ("attnaccept.verdict", record.verdict.value),
        ("attnaccept.fingerprint", record.static),
    ]
    measured_on = (("device", "device"), ("baseline", "baseline.weights"))  # absent where nothing was measured
    pairs += [
        (f"attnaccept.{name}", record.fingerprint[key]) for name, key in measured_on if record.fingerprint.get(key)
    ]
    for metric in sorted(record.metrics, key=lambda m: m.verdict == "PASS"):  # what failed must not be cut off
        name = f"attnaccept.metric.{metric.name}"
        for suffix, value in (
            ("", metric.effect),
            (".ci_low", metric.ci_low),
            (".ci_high", metric.ci_high),
            (".n", metric.n),
            (".limit", metric.limit),
            (".unit", metric.unit or None),
            (".verdict", metric.verdict),
        ):
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                continue
            pairs.append((name + suffix, value if isinstance(value, (int, str)) else float(value)))
    return pairs[:MOST]
