"""Numbers and sentences as a reader meets them: percent, points, intervals, one verdict a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isoattn.ablate.statistics import SignFlip
from isoattn.ablate.study import ALL_LEVELS, Metric, Study
from isoattn.ablate.verdict import ALPHA, Comparison

FRACTIONS = ("accuracy", "acc", "precision", "recall", "f1", "auc", "auroc", "ap", "map", "top1")
"""Metrics between 0 and 1, by a word of their name: shown as percent, differences in points."""
NONE = "–"


@dataclass(frozen=True)
class Scale:
    """How values of one metric are printed.

    Args:
        name: of the metric.
        percent: as percent, differences in points; else plain numbers.
        decimals: one more than the margin needs; of percents one or two.
    """

    name: str
    percent: bool
    decimals: int

    @classmethod
    def of(cls, metric: Metric) -> Scale:
        """The scale of a metric, from its name and its margin."""
        words = metric.name.lower().replace("@", "_").replace("-", "_").split("_")
        percent = any(word in FRACTIONS for word in words)
        step = metric.margin * (100 if percent else 1)
        decimals = 1 - math.floor(math.log10(step) + 1e-9) if step > 0 else 4
        return cls(metric.name, percent, min(max(decimals, 1), 2 if percent else 6))

    @property
    def unit(self) -> str:
        """Unit of an axis of values."""
        return f"{self.name} (%)" if self.percent else self.name

    @property
    def difference_unit(self) -> str:
        """Unit of an axis of differences."""
        return f"{self.name} (points)" if self.percent else self.name

    def scaled(self, value: float) -> float:
        """A value or difference in the printed unit."""
        return value * 100 if self.percent else value

    def value(self, value: float | None) -> str:
        """``93.4``, without the unit (column heads carry it)."""
        if value is None or not math.isfinite(value):
            return NONE
        return plain_number(self.scaled(value), self.decimals)

    def signed(self, value: float | None) -> str:
        """``+1.2`` or ``−10.1``."""
        text = self.value(value)
        return f"+{text}" if text[0].isdigit() and float(text) > 0 else text

    def difference(self, value: float) -> str:
        """``+1.2 points``, ``−0.031 in loss``."""
        return self.signed(value) + (" points" if self.percent else f" in {self.name}")

    def amount(self, value: float) -> str:
        """A difference without sign: ``10.1 points``, ``0.031 in loss``."""
        return self.difference(abs(value)).lstrip("+")

    def margin(self, margin: float) -> str:
        """``±1 point``."""
        if not self.percent:
            return f"±{margin:g} in {self.name}"
        return f"±{100 * margin:g} point{'' if math.isclose(margin, 0.01) else 's'}"

    def interval(self, low: float | None, high: float | None) -> str:
        """``−12.0 to −8.2``."""
        if low is None or high is None or not math.isfinite(high - low):
            return NONE
        return f"{self.signed(low)} to {self.signed(high)}"

    def estimate(self, mean: float | None, low: float | None, high: float | None) -> str:
        """``−9.9 [−10.3, −9.4]``; without interval where there is none."""
        if mean is None or low is None or high is None:
            return self.signed(mean)
        return f"{self.signed(mean)} [{self.signed(low)}, {self.signed(high)}]"

    def with_sd(self, mean: float | None, sd: float | None) -> str:
        """``91.8 ± 0.9``."""
        return self.value(mean) if sd is None else f"{self.value(mean)} ± {self.value(sd)}"


def p_text(p: float | None) -> str:
    """``.0312``, ``.25``, ``< .0001``."""
    if p is None or math.isnan(p):
        return NONE
    if p < 0.0001:
        return "< .0001"
    text = f"{p:.2f}" if p >= 0.1 else f"{p:.4f}".rstrip("0")
    return text[1:] if text.startswith("0") else text


def p_clause(p: float) -> str:
    """``p = .0312`` or ``p < .0001``."""
    text = p_text(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def plain_number(value: float | None, decimals: int) -> str:
    """``−1.1``; a rounded zero has no sign."""
    if value is None:
        return NONE
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def count_text(count: int | None) -> str:
    """``4.43 M``."""
    if count is None:
        return NONE
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def rate_text(rate: float | None) -> str:
    """``3e-3``."""
    if rate is None:
        return NONE
    mantissa, exponent = f"{rate:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}".replace("e0", "")


def at_level(level: str) -> str:
    """`` (lpi=off)`` behind a name; nothing where it is of every level."""
    return "" if level == ALL_LEVELS else f" ({level_text(level)})"


def level_text(level: str) -> str:
    """``lpi=off, pos=on``; ``all`` stays as it is."""
    return level.replace(",", ", ")


def comparison_clause(study: Study, row: Comparison) -> str:
    """The verdict on one arm in one clause; negative and open results have the same form."""
    scale, base, arm = Scale.of(study.metric), study.baseline, row.arm
    if row.t is None or row.sign_flip is None or row.equivalence is None:
        if row.word == "unfinished":
            return f"{arm} against {base} is unfinished: no pair yet"
        return f"no verdict on {arm} against {base}: {'; '.join(row.reasons)}"
    seeds = f"{row.t.n} paired seed{'s' if row.t.n > 1 else ''}"
    if row.pairing.diverged:
        seeds += f", {len(row.pairing.diverged)} with a diverged run"
    difference = scale.difference(row.t.mean)
    interval = f"95 % interval {scale.interval(row.t.low, row.t.high)}, " if row.t.n > 1 else ""
    evidence = f"difference {difference} ({interval}{seeds})"
    if row.word in ("better", "worse"):
        flip = -1 if row.t.mean < 0 else 1
        low, high = sorted((flip * row.t.low, flip * row.t.high))
        inside = f"95 % interval {scale.value(low)} to {scale.value(high)}, {seeds}, "
        inside += f"{_sign_flip(row.sign_flip, row.t.n)}, {p_clause(row.holm)} t-test after Holm"
        return f"{arm} is {row.word} than {base} by {scale.amount(row.t.mean)} ({inside})"
    if row.word == "equivalent":
        e = row.equivalence
        inside = (
            f"difference {difference}, 90 % interval {scale.interval(e.low, e.high)}, {seeds}, "
        )
        inside += f"TOST {p_clause(row.equivalence_holm)} after Holm"
        return f"{arm} and {base} are equivalent within {scale.margin(e.margin)} ({inside})"
    if row.word == "inconclusive":
        inside = f"{interval}{seeds}, {_sign_flip(row.sign_flip, row.t.n)}"
        why = f"neither clear of 0 nor within {scale.margin(row.equivalence.margin)}"
        if row.equivalence_holm < ALPHA:
            why = "equivalence is not claimed over diverged runs"
        return f"{arm} against {base} is inconclusive: difference {difference} ({inside}), {why}"
    if row.word == "a/a alarm":
        return f"A/A alarm: {arm}, the baseline again, differs: {evidence}"
    if row.word == "a/a passed":
        return f"A/A: {arm}, the baseline again, does not differ ({difference}, {seeds})"
    words = {
        "no claim": f"{arm} against {base}: no claim, {evidence}",
        "exploratory": f"{arm} against {base} is exploratory: {evidence}",
        "at chance": f"{arm} and {base} are at chance: no verdict, {evidence}",
        "at the ceiling": f"{arm} and {base} are at the ceiling: no verdict, {evidence}",
        "attention unused": f"attention unused in {arm} and {base}: no verdict, {evidence}",
        "unfinished": f"{arm} against {base} is unfinished: so far {evidence}",
    }
    return words.get(row.word, f"no verdict on {arm} against {base}: {'; '.join(row.reasons)}")


def level_sentence(study: Study, rows: Sequence[Comparison]) -> str:
    """All arms of one level set: those in question first, then the controls."""
    parts = [comparison_clause(study, row) for row in rows if row.role == "arm"]
    controls = [_control_clause(study, row) for row in rows if row.role == "control"]
    controls += [comparison_clause(study, row) for row in rows if row.role == "a/a"]
    text = "; ".join(parts)
    if controls:
        text += (". Controls: " if parts else "Controls: ") + "; ".join(controls)
    return capital(text, study.arms) + "."


def _control_clause(study: Study, row: Comparison) -> str:
    """Controls in few words; their numbers are in the table."""
    if row.t is None:
        return f"{row.arm} {row.word}"
    scale = Scale.of(study.metric)
    if row.word in ("better", "worse"):
        return f"{row.arm} is {row.word} by {scale.amount(row.t.mean)}"
    return f"{row.arm} {row.word} ({scale.difference(row.t.mean)})"


def study_sentence(study: Study, rows: Sequence[Comparison]) -> str:
    """The verdict of the whole study: title, what was found, and at which learning rate."""
    by_level: dict[str, list[Comparison]] = {}
    for row in rows:
        by_level.setdefault(row.level, []).append(row)
    start = "" if study.claim else f"{capital(study.preset)}: no claim. "
    parts = [
        (f"With {level_text(level)}: " if level != "all" else "") + level_sentence(study, group)
        for level, group in by_level.items()
    ]
    return f"{study.title.rstrip('. ')}. {start}{' '.join(parts)} {rate_sentence(study)}"


def rate_sentence(study: Study) -> str:
    """How the learning rates came about."""
    if len(study.search.values) > 1:
        return "Each arm ran at its own learning rate, chosen on validation from the same grid."
    return f"All arms ran at the learning rate {rate_text(study.search.values[0])}; none was tuned."


def _sign_flip(test: SignFlip, pairs: int) -> str:
    text = f"{p_clause(test.p)} sign-flip"
    if test.smallest <= ALPHA:
        return text
    several = f"{pairs} pair{'' if pairs == 1 else 's'}"
    if test.p == test.smallest:
        return f"{text} (the least {several} can reach)"
    return f"{text} ({several} cannot go below {p_text(test.smallest)})"


def capital(text: str, names: Iterable[str] = ()) -> str:
    """With a capital first; one of ``names`` at the beginning stays as it is spelt."""
    return text if text.startswith(tuple(names)) else text[:1].upper() + text[1:]
