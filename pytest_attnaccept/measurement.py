"""What a check measured: values and their limits, never a verdict.

A check returns one `Measured`. It holds *gates* (quantities that are compared with a limit), *facts* (reported only) and
*refusals* (reasons why no comparison may count: a no-op, a blind baseline, a feature that the contract does not declare).
`pytest_attnaccept.verdict` turns it into a verdict; keeping the two apart means that no check can pass itself.

Sign convention: every effect is a *loss*, positive = candidate worse than baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_attnaccept.taxonomy import Verdict

__all__ = ["ClusteredSums", "Fact", "Gate", "Measured", "PairedCounts", "PairedScores", "Refusal", "Threshold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A deterministic comparison: the item fails unless ``value <= limit`` (NaN fails).

    Attributes
    ----------
    where
        The worst place ("batch 1, head 3, row 4095, key 17"); part of the failure text.
    origin
        Where the limit comes from ("derived: ...", "measured: ...", "policy: ...").
    seems
        Which fault family a failure looks like, for the failure text.
    """

    name: str
    value: float
    limit: float
    unit: str = ""
    n: int = 1
    where: str = ""
    origin: str = ""
    seems: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCounts:
    """Paired right/wrong answers of baseline and candidate on the same n independent items.

    Attributes
    ----------
    losses, gains
        Items that only the baseline (only the candidate) answered right: b and c of reference statistics.
    base_correct
        Right answers of the baseline.
    chance
        Accuracy of a blind guess on this task, in [0, 1].
    alpha_pass, alpha_fail
        Nominal levels at this look when the sample was built sequentially; None: the full level.
    n_max
        Planned maximum of n; an undecided item may be enlarged up to it and no further.
    """

    name: str
    losses: int
    gains: int
    n: int
    base_correct: int
    chance: float = 0.0
    unit: str = "accuracy"
    alpha_pass: float | None = None
    alpha_fail: float | None = None
    n_max: int | None = None
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Paired bounded losses, one per independent cluster (a context, a document, an item).

    Attributes
    ----------
    losses
        ``baseline score - candidate score`` per cluster, each in [-1, 1].
    base_mean
        Mean score of the baseline in [0, 1].
    n_items
        Questions behind the clusters (report only).
    discordant
        Questions whose outcome differs (report and planning).
    """

    name: str
    losses: tuple[float, ...]
    base_mean: float
    chance: float = 0.0
    n_items: int = 0
    discordant: int = 0
    unit: str = "accuracy"
    alpha_pass: float | None = None
    alpha_fail: float | None = None
    n_max: int | None = None
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredSums:
    """A mean over tokens whose independent unit is the document.

    Attributes
    ----------
    sums
        Per document, the sum over its tokens of the loss (for NLL: candidate minus baseline, nats).
    tokens
        Per document, how many tokens were scored.
    scale
        "exp_ratio": the limit is a relative increase of exp(mean) (perplexity ratio - 1); "mean": the limit is on the mean.
    base_level
        Level of the baseline for the report (perplexity, agreement ...).
    cap
        Per-token cap of the robust mode in the unit of the mean; None: no robust mode.
    """

    name: str
    sums: tuple[float, ...]
    tokens: tuple[int, ...]
    scale: str = "exp_ratio"
    base_level: float = float("nan")
    base_limit: float | None = None
    cap: float | None = None
    unit: str = "nats/token"
    where: str = ""


Gate = Threshold | PairedCounts | PairedScores | ClusteredSums


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number or text that is reported and never gated."""

    name: str
    value: float | int | str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A reason why the item cannot pass whatever its gates say (INVALID, INCONCLUSIVE, INCOMPLETE, NOT_APPLICABLE, FAIL)."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything one item measured.

    Attributes
    ----------
    gates
        Compared with limits; an item without gates and without refusals is INVALID.
    seems
        What the candidate looks like when the item fails ("sliding window of 256").
    reproduce
        A minimal call that shows a failure, as code.
    resolution
        The known limit of the check in words ("smallest detectable key weight at this length: 3e-6").
    data_digest
        Hash of the data that was measured (texts, prompts, inputs); part of the fingerprint.
    seed
        Seed of the data.
    """

    gates: tuple[Gate, ...] = ()
    facts: tuple[Fact, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    seems: str = ""
    reproduce: str = ""
    resolution: str = ""
    data_digest: str = ""
    seed: int = 0
    details: Mapping[str, object] = field(default_factory=dict)
