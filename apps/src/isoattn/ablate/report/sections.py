"""The sections of a report that carry its argument: verdict, effects, attention use, rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isoattn.ablate.report import curves, effects
from isoattn.ablate.report.blocks import Block, Bullets, Chart, Heading, Table, Text, table
from isoattn.ablate.report.wording import (
    NONE,
    Scale,
    at_level,
    capital,
    level_text,
    p_text,
    plain_number,
    rate_text,
)

Data = Mapping[str, Any]


def front(summary: Data, scale: Scale) -> list[Block]:
    """What was asked, under which conditions, what stands in the way, and the verdict."""
    study, status = summary["study"], summary["status"]
    metric = study["metric"]
    better = "more" if metric["mode"] == "max" else "less"
    seeds = len(study["confirm_seeds"])
    facts = [
        f"{study['app']} study {study['name']}, preset {study['preset']}, hash {study['hash']}",
        f"primary metric: test {scale.name}, {better} is better, "
        f"margin {scale.margin(metric['margin'])}",
        f"{seeds} confirmation seed{'s' if seeds > 1 else ''}, baseline {study['baseline']}",
        f"{status['present']} of {status['planned']} cells",
        "registered: nothing was changed after the first cell"
        if status["registered"]
        else "changed after registration, see deviations",
    ]
    blocks: list[Block] = [Text(study["question"])] if study["question"] else []
    blocks += [Text(capital(line), "warning") for line in status["warnings"]]
    lines = [
        (f"With {level_text(level)}: " if level != "all" else "") + sentence
        for level, sentence in summary["level_verdicts"].items()
    ]
    blocks.append(Bullets(tuple(lines), "verdict"))
    blocks.append(Text(f"{summary['rates']} {capital('; '.join(facts))}.", "note"))
    return blocks


def results(summary: Data, scale: Scale) -> list[Block]:
    """Forest plot and result table."""
    blocks: list[Block] = [Heading("Effect")]
    base = summary["study"]["baseline"]
    svg = effects.effect_chart(summary, scale)
    if svg:
        blocks.append(
            Chart(
                "effect",
                svg,
                f"Paired differences to {base} with 95 % intervals",
                "Point: mean paired difference; bar: 95 % t interval; ticks: single seeds; band: "
                "the margin within which differences count as equal. An arrow marks a mean "
                "outside the panel.",
            )
        )
    blocks.append(_result_table(summary, scale))
    compared = [row for row in summary["results"] if row["role"] != "baseline"]
    reasons = [(row, reason) for row in compared for reason in row["reasons"]]
    if reasons:
        blocks.append(Bullets(grouped(reasons, len(compared)), "note"))
    return blocks


def _result_table(summary: Data, scale: Scale) -> Table:
    rows = []
    for row in summary["results"]:
        d = row["difference"] or {}
        runs = f"{row['n']}, {len(row['diverged'])} diverged" if row["diverged"] else str(row["n"])
        cells = [
            *(row["arm"], rate_text(row["rate"]), runs),
            scale.with_sd(row["mean"], row["sd"]),
            scale.estimate(d.get("mean"), d.get("low"), d.get("high")),
            *(row["verdict"], str(d["n"]) if d else NONE),
            *(p_text(row["p_sign_flip"]), p_text(row["p_holm"])),
            p_text((row["equivalence"] or {}).get("p_holm")),
            *(plain_number(row["effect"], 1), plain_number(row["fresh_seed"], 2)),
        ]
        rows.append((group_of(row), cells))
    return table(
        (
            "<arm",
            "rate",
            "runs",
            f"test {scale.unit} ± SD",
            "difference [95 % interval]",
        )
        + ("<verdict", "pairs", "p sign-flip", "p t-test", "p TOST", "d", "P(fresh)"),
        rows,
        "Mean and SD over confirmation seeds, diverged runs counted as the worst result. "
        "Difference to the baseline, paired by seed; p of t-test and TOST (equivalence within the "
        "margin) Holm-adjusted over the arms; d: mean over SD of the differences (Hedges' "
        "correction); P(fresh): probability that the arm beats the baseline on one more seed.",
    )


def attention_used(summary: Data, scale: Scale) -> list[Block]:
    """Whether the trained networks use their attention, and what mixing is worth at all."""
    rows = [row for row in summary["usage"] if row["state"] != "control"]
    blocks: list[Block] = [Heading("Is the attention used?")]
    if all(row["drop"] is None for row in rows):
        return [*blocks, Text("No run was scored with its attention replaced; not judged.", "note")]
    svg = effects.usage_chart(summary, scale)
    if svg:
        blocks.append(
            Chart(
                "attention_used",
                svg,
                "Test score as trained and with the attention replaced",
                "Same weights, the attention replaced at test time. Used: the interval of the drop "
                "lies above 0 and the mean drop exceeds the SD of the arm over seeds.",
            )
        )
    cells = []
    for row in rows:
        drop = row["drop"] or {}
        cells.append(
            (
                group_of(row),
                [
                    *(row["arm"], row["replaced_by"] or NONE),
                    *(scale.value(row["own"]), scale.value(row["replaced"])),
                    scale.estimate(drop.get("mean"), drop.get("low"), drop.get("high")),
                    *(scale.value(row["spread"]), _used(row["state"])),
                ],
            )
        )
    columns = ("<arm", "<replaced by", f"as trained, {scale.unit}", "replaced")
    blocks.append(
        table(
            (*columns, "drop [95 % interval]", "SD over seeds", "<attention"),
            cells,
        )
    )
    notes = [(row, row["reason"]) for row in rows if row["state"] != "used"]
    if notes:
        blocks.append(Bullets(grouped(notes, len(rows)), "note"))
    if summary["gauges"]:
        gauges = [
            (
                group_of(g),
                [
                    *(g["arm"], g["without"]),
                    *(scale.estimate(g["mean"], g["low"], g["high"]), str(g["n"])),
                ],
            )
            for g in summary["gauges"]
        ]
        blocks.append(
            table(
                ("<arm", "<above", "gain [95 % interval]", "pairs"),
                gauges,
                "Gauge: what an arm scores above an arm trained without any mixing, by the same "
                "pairs (positive = better). A difference between attentions matters only where "
                "this is clearly above 0.",
            )
        )
    return blocks


def learning_rates(summary: Data, scale: Scale) -> list[Block]:
    """The curve of every arm over the grid, and what was chosen."""
    searched = [choice for choice in summary["search"] if len(choice["curve"]) > 1]
    blocks: list[Block] = [Heading("Learning rates")]
    if not searched:
        rate = rate_text(summary["study"]["search"]["values"][0])
        return [*blocks, Text(f"One rate for all arms, {rate}; no search was made.")]
    svg = curves.rate_chart(summary, scale)
    if svg:
        blocks.append(
            Chart(
                "learning_rates",
                svg,
                "Validation score over the learning rate, per arm",
                "Lines: mean over the search seeds; small marks: single seeds; ring: the chosen "
                "rate; cross: diverged runs, counted as the worst result.",
            )
        )
    rows = [(group_of(choice), _choice_cells(choice, scale)) for choice in searched]
    grids = {tuple(point["rate"] for point in choice["curve"]) for choice in searched}
    grid = ", ".join(map(rate_text, sorted({rate for rates in grids for rate in rates})))
    same = "the same for every arm" if len(grids) == 1 else "NOT yet the same for every arm"
    blocks.append(
        table(
            ("<arm", "own rate", f"validation {scale.unit}", "window", "decades", "shared rate")
            + ("at the shared rate", "diverged runs", "<best lies"),
            rows,
            f"Grid: {grid}; {same}. Chosen on validation over the search seeds, ties to the "
            "smaller rate. Window: rates around it within "
            f"{scale.margin(summary['study']['metric']['margin'])} of the best. Shared rate: best "
            "on average over the arms, controls aside.",
        )
    )
    return blocks


def _choice_cells(choice: Data, scale: Scale) -> list[str]:
    low, high = choice["window"]
    edge = f"at the {choice['edge']} edge" if choice["edge"] else "inside"
    return [
        *(choice["arm"], rate_text(choice["rate"]), scale.value(choice["score"])),
        f"{rate_text(low)} to {rate_text(high)}" if low != high else rate_text(low),
        *(f"{choice['window_decades']:.1f}", rate_text(choice["shared_rate"])),
        scale.value(choice["shared_score"]),
        str(sum(len(point["diverged"]) for point in choice["curve"])),
        "anywhere: flat" if choice["flat"] else edge,
    ]


def learning_curves(summary: Data, scale: Scale) -> list[Block]:
    """Validation over epochs."""
    svg = curves.learning_chart(summary, scale)
    if not svg:
        return []
    stage = {curve["stage"] for curve in summary["curves"]}
    what = "confirmation runs" if stage == {"confirm"} else "runs so far (some are search runs)"
    return [
        Heading("Learning curves"),
        Chart(
            "learning_curves",
            svg,
            "Validation score over epochs, per arm",
            f"Mean over seeds of the {what}; band: one SD to either side.",
        ),
    ]


def factors(summary: Data, scale: Scale) -> list[Block]:
    """How the differences change with each factor."""
    if not summary["interactions"]:
        return []
    rows = [
        (
            f"{i['factor']}: {i['from']} → {i['to']}",
            [
                *(i["arm"], scale.estimate(i["mean"], i["low"], i["high"])),
                *(str(i["n"]), p_text(i["p"])),
            ],
        )
        for i in summary["interactions"]
    ]
    return [
        Heading("Factors"),
        table(
            (
                "<arm",
                "change of the difference [95 % interval]",
                "seeds",
                "p t-test",
            ),
            rows,
            f"Difference of differences: (arm − {summary['study']['baseline']}) at the second "
            "level minus the same at the first, paired by seed, averaged over other factors; p not "
            "adjusted.",
        ),
    ]


def _used(state: str) -> str:
    return {"unused": "attention unused"}.get(state, state)


def grouped(notes: Sequence[tuple[Data, str]], everywhere: int) -> tuple[str, ...]:
    """One line per distinct note, with the rows it is about; ``everywhere`` = number of rows."""
    about: dict[str, list[Data]] = {}
    for row, note in notes:
        about.setdefault(note, []).append(row)
    return tuple(
        f"{capital(note, {row['arm'] for row in rows})}: "
        f"{'all arms' if len(rows) == everywhere else places_of(rows)}."
        for note, rows in about.items()
    )


def places_of(rows: Sequence[Data]) -> str:
    """``Softmax, Linear (lpi=off); Linear (lpi=on)``."""
    arms: dict[str, list[str]] = {}
    for row in rows:
        arms.setdefault(row["level"], []).append(row["arm"])
    return "; ".join(", ".join(names) + at_level(level) for level, names in arms.items())


def group_of(row: Data) -> str:
    """Title of the row's group in a table: its level set, empty without factors."""
    return "" if row["level"] == "all" else level_text(row["level"])


def place_of(row: Data) -> str:
    """``Linear, lpi=off``."""
    return row["arm"] if row["level"] == "all" else f"{row['arm']}, {level_text(row['level'])}"
