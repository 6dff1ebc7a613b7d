"""Sections that are shown and not judged: other networks (references) and test-time swaps (P10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isoattn.ablate.report import curves, swapped
from isoattn.ablate.report.blocks import Block, Bullets, Chart, Heading, Text, table
from isoattn.ablate.report.sections import group_of
from isoattn.ablate.report.wording import (
    NONE,
    Scale,
    at_level,
    count_text,
    level_text,
    plain_number,
    rate_text,
)

Data = Mapping[str, Any]


def references(summary: Data, scale: Scale) -> list[Block]:
    """Every reference with its score, difference, rate, size and cost; nothing without any."""
    rows = summary["references"]
    if not rows:
        return []
    base = summary["study"]["baseline"]
    blocks: list[Block] = [
        Heading("Beside, not judged"),
        table(
            ("<another network", "rate", "runs", f"test {scale.unit} ± SD")
            + ("difference [95 % interval]", "pairs", "parameters", "FLOPs forward")
            + ("step, ms", "training, s (median)"),
            [(group_of(row), _reference_cells(row, scale)) for row in rows],
            f"Beside, not judged: another network. Each had the grid, the seeds and the number of "
            f"test scores of an arm, and is paired with {base} by seed where the batches agree. "
            "It changes more than the attention, so no verdict and no adjusted p rests on it.",
        ),
        Bullets(tuple(dict.fromkeys(line for row in rows for line in _notes(row))), "note"),
    ]
    svg = curves.rate_chart(_as_arms(summary), scale)
    if svg:
        blocks.append(
            Chart(
                "reference_rates",
                svg,
                f"Validation score over the learning rate, references and {base}",
                "Lines: mean over the search seeds; small marks: single seeds; ring: the chosen "
                "rate; cross: diverged runs. A grid grows on its own where the best rate of a "
                "reference lies at its edge.",
            )
        )
    return blocks


def swaps(summary: Data, scale: Scale) -> list[Block]:
    """Weights trained with one attention, evaluated with another; nothing without swaps."""
    rows = summary["swaps"]
    if not rows:
        return []
    blocks: list[Block] = [Heading("Swapped at test time"), Text(swap_sentence(summary, scale))]
    svg = swapped.swap_chart(summary, scale)
    if svg:
        blocks.append(
            Chart(
                "swapped",
                svg,
                "Test score of each trained arm with each attention put in its place",
                "Rows: trained with; columns: evaluated with. Numbers: mean over seeds, below it "
                "the difference to the same weights as trained; orange loses, blue gains.",
            )
        )
    columns = summary["study"]["swaps"]
    blocks.append(
        table(
            ("<trained with", f"as trained, {scale.unit}", *(f"with {arm}" for arm in columns)),
            [(group, _swap_cells(mine, columns, scale)) for group, mine in _by_arm(rows)],
            "Same weights, the attention of another arm in every layer, fresh where it has "
            "parameters of its own. Mean over seeds and, in brackets, the difference to the "
            "unswapped network with its 95 % t interval over seeds.",
        )
    )
    blocks += _tuned(summary, scale)
    if notes := [note for row in rows for note in _unscored(row)]:
        blocks.append(Bullets(tuple(notes), "note"))
    return blocks


def _tuned(summary: Data, scale: Scale) -> list[Block]:
    """The same swaps after a little further training; nothing where the study asks for none."""
    rows = [row["tuned"] for row in summary["swaps"] if "tuned" in row]
    how = summary["study"].get("fine_tune")
    if not rows or not how:
        return []
    columns = summary["study"]["swaps"]
    options = ", ".join(f"{key}={value}" for key, value in how["overrides"].items())
    return [
        table(
            ("<trained with", f"trained on with its own, {scale.unit}")
            + tuple(f"trained on with {arm}" for arm in columns),
            [(group, _swap_cells(mine, columns, scale)) for group, mine in _by_arm(rows)],
            f"The same, each trained on from the same weights ({options}) at {how['rate']:g} of "
            "the arm's own rate; in brackets the difference to training on with its own attention "
            "for as long.",
        )
    ]


def swap_sentence(summary: Data, scale: Scale) -> str:
    """What became of the trained arms under other attentions, controls among them left out."""
    study = summary["study"]
    sign = 1 if study["metric"]["mode"] == "max" else -1
    rows = [row for row in summary["swaps"] if row["difference"] is not None]
    rows = [row for row in rows if row["trained"] not in study["controls"]]
    if not rows:
        return "No trained arm was scored with another attention in place."
    ends = [
        sorted((sign * d["low"], sign * d["high"])) if d["low"] is not None else (-1, 1)
        for d in (row["difference"] for row in rows)
    ]
    lose, gain = sum(high < 0 for _, high in ends), sum(low > 0 for low, _ in ends)
    worst = min(rows, key=lambda row: sign * row["difference"]["mean"])
    d = worst["difference"]
    where = "" if worst["level"] == "all" else f" at {level_text(worst['level'])}"
    interval = f", {scale.interval(d['low'], d['high'])}" if d["low"] is not None else ""
    return (
        f"Same weights, another attention at test time: of {len(rows)} swaps {lose} lose, {gain} "
        f"gain and {len(rows) - lose - gain} are open (no interval clear of 0); the worst is "
        f"{worst['evaluated']} in place of {worst['trained']}{where} "
        f"({scale.difference(d['mean'])}{interval})."
    )


def _reference_cells(row: Data, scale: Scale) -> list[str]:
    d, cost = row["difference"] or {}, row["costs"]
    return [
        *(row["arm"], rate_text(row["rate"]), _runs(row)),
        scale.with_sd(row["mean"], row["sd"]),
        scale.estimate(d.get("mean"), d.get("low"), d.get("high")),
        str(d["n"]) if d else NONE,
        *(_count(row["parameters"]), count_text(cost["forward_flops"])),
        *(plain_number(cost["step_ms"], 1), plain_number(cost["median_seconds"], 1)),
    ]


def _runs(row: Data) -> str:
    parts = [str(row["n"])]
    parts += [f"{len(row[what])} {what}" for what in ("diverged", "failed") if row[what]]
    return ", ".join(parts)


def _count(number: int | None) -> str:
    return NONE if number is None else f"{number:,}"


def _notes(row: Data) -> Iterator[str]:
    """What a reference is, how its rate was found, and what went wrong with it."""
    options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
    yield f"{row['arm']}: {options}."
    here = at_level(row["level"])
    if row["run_at"] != row["level"]:
        yield f"{row['arm']}{here}: run at {level_text(row['run_at'])}, which it stands for."
    search = row["search"]
    if search["edge"]:
        yield f"{row['arm']}{here}: best rate at the {search['edge']} edge of its grid."
    for cell in row["failed"]:
        yield f"Failed on every attempt: {cell['cell']} ({cell['stage']}): {cell['error']}"
    for seed, reason in row["void"].items():
        yield f"No pair: {row['arm']}{here}, seed {seed}: {reason}."


def _as_arms(summary: Data) -> dict[str, Any]:
    """The summary as the rate chart reads it, with the references beside the baseline alone."""
    study = summary["study"]
    own = {(row["arm"], row["run_at"]): row["search"] for row in summary["references"]}
    levels = {level for _, level in own}
    base = [
        choice
        for choice in summary["search"]
        if choice["arm"] == study["baseline"] and choice["level"] in levels
    ]
    names = (study["baseline"], *study["references"])
    return {
        "study": {**study, "arms": dict.fromkeys(names), "controls": []},
        "search": [*base, *own.values()],
    }


def _by_arm(rows: list[Data]) -> list[tuple[str, list[Data]]]:
    """(group title, the swaps of one trained arm), in the order of the study."""
    found: dict[tuple[str, str], list[Data]] = {}
    for row in rows:
        found.setdefault((row["level"], row["trained"]), []).append(row)
    return [(group_of(mine[0]), mine) for mine in found.values()]


def _swap_cells(rows: list[Data], columns: list[str], scale: Scale) -> list[str]:
    by_name = {row["evaluated"]: row for row in rows}
    own = next((row["own"] for row in rows if row["own"] is not None), None)
    cells = [rows[0]["trained"], scale.value(own)]
    for column in columns:
        row = by_name.get(column)
        d = row["difference"] if row is not None else None
        if row is None or d is None:
            cells.append(NONE)
        else:
            change = scale.estimate(d["mean"], d["low"], d["high"])
            cells.append(f"{scale.value(row['swapped'])} ({change})")
    return cells


def _unscored(row: Data) -> Iterator[str]:
    if row["unscored"]:
        where = at_level(row["level"])
        seeds = ", ".join(map(str, row["unscored"]))
        word = "seed" if len(row["unscored"]) == 1 else "seeds"
        yield (
            f"{row['trained']} evaluated with {row['evaluated']}{where}: no finite score at {word} "
            f"{seeds}; a run whose best checkpoint was not kept cannot be scored with a swap that "
            "the study named later."
        )
