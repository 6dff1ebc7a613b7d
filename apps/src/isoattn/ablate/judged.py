"""What is judged in a study, as plain values: usage, comparisons, controls, factors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from isoattn.ablate.selection import Pairing
from isoattn.ablate.statistics import Equivalence, PairedT, SignFlip

ALPHA = 0.05
"""Level of every test; an A/A difference below it is an alarm."""

Role = Literal["arm", "control", "a/a"]
Word = Literal[
    "better",
    "worse",
    "equivalent",
    "inconclusive",
    "exploratory",
    "no claim",
    "at chance",
    "at the ceiling",
    "attention unused",
    "unfinished",
    "blocked",
    "a/a passed",
    "a/a alarm",
]


@dataclass(frozen=True)
class Usage:
    """Whether the attention of a trained arm is used at all (P7).

    Args:
        state: ``used``, ``unused``, ``not judged``, or ``control`` where the question does not
            arise.
        reason: one line that says why.
        replaced_by: the attention put in its place, same weights.
        own: seed -> test metric as trained.
        replaced: seed -> test metric with the attention replaced.
        drop: what the replacement costs (positive = worse without the attention).
        spread: SD of ``own`` over the seeds.
    """

    arm: str
    level: str
    state: Literal["used", "unused", "not judged", "control"]
    reason: str
    replaced_by: str | None
    own: dict[int, float]
    replaced: dict[int, float]
    drop: PairedT | None
    spread: float


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline at one level set.

    Args:
        role: ``a/a`` for an arm that is the baseline under another name.
        pairing: what was compared.
        t: mean difference (arm minus baseline) and interval; None without a pair.
        sign_flip: exact test beside it.
        holm: Holm-adjusted p of ``t`` over the arms of the level set.
        equivalence: the two one-sided tests against the margin.
        equivalence_holm: their Holm-adjusted p.
        effect: standardised difference.
        fresh_seed: probability that the arm beats the baseline on one more seed.
        word: the verdict.
        reasons: what stands behind it or against it, one line each.
        usage: of the arm.
        baseline_usage: of the baseline.
    """

    arm: str
    level: str
    role: Role
    pairing: Pairing
    usage: Usage
    baseline_usage: Usage
    t: PairedT | None = None
    sign_flip: SignFlip | None = None
    equivalence: Equivalence | None = None
    effect: float = math.nan
    fresh_seed: float = math.nan
    holm: float = math.nan
    equivalence_holm: float = math.nan
    word: Word = "blocked"
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class SelfCheck:
    """The baseline against itself (A/A): the machinery must not find a difference.

    Args:
        kind: ``twin`` where an arm repeats the baseline, ``split`` where its runs were halved.
        t: of the differences, None with too few runs.
        largest: largest absolute difference; a twin of a deterministic run has 0.
        p: of the mean difference, Holm-adjusted over the level sets; nan where not judged.
    """

    level: str
    kind: Literal["twin", "split"]
    arm: str
    t: PairedT | None
    largest: float
    p: float

    @property
    def rejects(self) -> bool | None:
        """Whether a difference was found; None where it could not be judged."""
        return None if math.isnan(self.p) else self.p < ALPHA


@dataclass(frozen=True)
class Gauge:
    """What an arm scores above an arm that mixes nothing; positive = better."""

    arm: str
    level: str
    without: str
    t: PairedT


@dataclass(frozen=True)
class Interaction:
    """How the difference to the baseline changes from one level of a factor to another.

    ``t`` is over seeds, of (arm - baseline at ``to``) - (arm - baseline at ``start``), averaged
    over the levels of all other factors.
    """

    arm: str
    factor: str
    start: str
    to: str
    t: PairedT


@dataclass(frozen=True)
class Verdicts:
    """All that is judged in a study."""

    comparisons: tuple[Comparison, ...]
    usages: tuple[Usage, ...]
    self_checks: tuple[SelfCheck, ...]
    gauges: tuple[Gauge, ...]
    interactions: tuple[Interaction, ...]
