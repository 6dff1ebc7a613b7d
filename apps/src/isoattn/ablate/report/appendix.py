"""The sections of a report that let a reader check it: controls, items, cost, troubles, origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isoattn.ablate.report import curves
from isoattn.ablate.report.blocks import Block, Bullets, Chart, Heading, Listing, Text, table
from isoattn.ablate.report.sections import group_of, place_of, places_of
from isoattn.ablate.report.wording import (
    NONE,
    Scale,
    at_level,
    count_text,
    p_text,
    rate_text,
)

Data = Mapping[str, Any]


def controls(summary: Data, scale: Scale) -> list[Block]:
    """A/A and the simple baselines of the domain."""
    lines = [_self_check(check, summary, scale) for check in summary["self_checks"]]
    for baseline in summary["baselines"]:
        lines.append(_baseline_line(baseline, summary, scale))
    return [Heading("Controls"), Bullets(tuple(lines))] if lines else []


def _self_check(check: Data, summary: Data, scale: Scale) -> str:
    where = at_level(check["level"])
    base, t = summary["study"]["baseline"], check["t"]
    if check["kind"] == "twin":
        what = f"A/A{where}: {check['arm']} is {base} under another name"
    else:
        what = f"A/A{where}: no arm repeats {base}; first half of its seeds against the second"
    if t is None:
        return f"{what}: too few runs to judge."
    found = f"difference {scale.difference(t['mean'])} ({scale.interval(t['low'], t['high'])}, "
    found += f"{t['n']} pair{'' if t['n'] == 1 else 's'})"
    if check["rejects"]:
        return f"{what}: alarm, {found} excludes 0: a difference is found where none is."
    tail = (
        f"; largest single difference {scale.amount(check['largest'])}"
        if check["kind"] == "twin"
        else "; not paired by seed, so it shows gross faults only"
    )
    return f"{what}: does not reject, {found}{tail}."


def _baseline_line(baseline: Data, summary: Data, scale: Scale) -> str:
    unit = " %" if scale.percent else ""
    where = at_level(baseline["level"])
    start = f"{baseline['name']}{where}: {scale.value(baseline['value'])}{unit}"
    study = summary["study"]
    above = [row for row in baseline["beaten_by"] if row["arm"] not in study["controls"]]
    if not above:
        return f"{start}; no arm beats it: the networks are no better than this simple method."
    return f"{start}; above it: {places_of(above)}."


def items(summary: Data, scale: Scale) -> list[Block]:
    """Single test items: hierarchical bootstrap and McNemar."""
    if not summary["items"]:
        return []
    rows = []
    for item in summary["items"]:
        boot, pooled = item["bootstrap"], item["pooled"]
        per_seed = [table["p"] for table in item["mcnemar"].values()]
        small = sum(p < 0.05 for p in per_seed)
        rows.append(
            (
                group_of(item),
                [
                    *(item["arm"], scale.estimate(boot["mean"], boot["low"], boot["high"])),
                    *(str(pooled["variant_only"]), str(pooled["baseline_only"])),
                    f"{small} of {len(per_seed)}",
                    f"{p_text(min(per_seed))} to {p_text(max(per_seed))}",
                ],
            )
        )
    base = summary["study"]["baseline"]
    return [
        Heading("Single test items"),
        table(
            (
                "<arm",
                "difference [95 % bootstrap]",
                "right in the arm only",
                f"in {base} only",
            )
            + ("seeds with p < .05", "McNemar p"),
            rows,
            "Bootstrap over seeds, then items; narrow over few seeds, so no verdict rests on it. "
            "McNemar is exact and per seed; the counts are added over seeds for reading, without a "
            "p, since the seeds share their items.",
        ),
    ]


def cost(summary: Data, scale: Scale) -> list[Block]:
    """Parameters, FLOPs, time, memory; score against time; equal wall-clock."""
    blocks: list[Block] = [Heading("Cost")]
    if summary["parameters"]:
        blocks.append(_parameters(summary))
    if summary["costs"]:
        blocks.append(_cost_table(summary, scale))
        svg = curves.cost_chart(summary, scale)
        if svg:
            blocks.append(
                Chart(
                    "cost",
                    svg,
                    "Test score against the time of a training step",
                    "Bars: SD over seeds, interquartile range over repeats.",
                )
            )
    else:
        blocks.append(Text("No cost was measured.", "note"))
    timed = summary["timing"]["arms"]
    if timed:
        rows = [
            (
                group_of(row),
                [
                    *(row["arm"], f"{row['median_seconds']:.1f}", f"{row['total_seconds']:.0f}"),
                    scale.value(row["equal_time"]),
                ],
            )
            for row in timed
        ]
        blocks.append(
            table(
                ("<arm", "training, s (median)", "s (all seeds)", f"validation {scale.unit}"),
                rows,
                "Validation at equal wall-clock: at the epoch each arm had reached when the "
                "quickest arm was done. The schedule was made for all steps, so a slower arm is "
                "cut before its rate has come down.",
            )
        )
    return blocks if len(blocks) > 2 or summary["costs"] or timed else []


def _parameters(summary: Data) -> Block:
    flagged = any(row["flagged"] for row in summary["parameters"])
    rows = []
    for row in summary["parameters"]:
        percent = row["percent"]
        cells = [
            *(row["arm"], f"{row['parameters']:,}", f"{row['attention_parameters']:,}"),
            NONE if percent is None else f"{percent:+.2f} %".replace("-", "−"),
        ]
        if flagged:
            cells.append("more than 2 % apart" if row["flagged"] else "")
        rows.append((group_of(row), cells))
    columns = ("<arm", "parameters", "inside the attention", "against the baseline")
    return table((*columns, "<flag") if flagged else columns, rows)


def _cost_table(summary: Data, scale: Scale) -> Block:
    rows = []
    for c in summary["costs"]:
        name = f"{c['arm']} ({c['note']})" if c["note"] else c["arm"]
        rows.append(
            (
                group_of(c),
                [
                    *(name, count_text(c["forward_flops"]), count_text(c["attention_flops"])),
                    *(f"{c['step_ms']:.1f}", f"{c['step_ms_iqr']:.1f}", f"{c['forward_ms']:.1f}"),
                    *(f"{c['peak_mib']:.0f}", scale.value(c["score"])),
                    ", ".join(c["dominated_by"]) or NONE,
                ],
            )
        )
    batch = ", ".join(sorted({str(c["batch"]) for c in summary["costs"]}))
    return table(
        ("<arm", "FLOPs forward", "in attention", "step, ms", "IQR", "forward, ms", "peak, MiB")
        + (f"test {scale.unit}", "<dominated by"),
        rows,
        f"FLOPs of one sample, by closed forms; times for a batch of {batch}: median and "
        "interquartile range, arms interleaved. Dominated: another arm takes less time a step and "
        "scores more than the margin better.",
    )


def troubles(summary: Data) -> list[Block]:
    """Deviations, gate failures, failed, diverged and void: all listed, none dropped."""
    found = summary["troubles"]
    blocks: list[Block] = [Heading("Deviations and troubles")]
    other = found["other_rate"]
    lines = [f"Deviation: {line}" for line in summary["deviations"]]
    lines += [f"Conformance gate: {line}" for line in summary["gate_failures"]]
    lines += [f"Void pair: {place_of(v)}, seed {v['seed']}: {v['reason']}" for v in found["void"]]
    lines += [
        f"Not counted, run at another rate than the chosen one: {_where_run(c)}" for c in other
    ]
    lines += [
        f"At the {c['edge']} edge of the grid: best rate of {place_of(c)}, {rate_text(c['rate'])}"
        for c in summary["search"]
        if c["edge"]
    ]
    if lines:
        blocks.append(Bullets(tuple(lines)))
    for name, why in (
        ("failed", "Failed on every attempt; block the verdict of their arm."),
        ("diverged", "Diverged; counted as the worst result."),
    ):
        if found[name]:
            blocks.append(_cells(found[name], why))
    if len(blocks) == 1:
        text = "Nothing to report: as registered, no failed or diverged cell, no void pair."
        blocks.append(Text(text))
    return blocks


def _where_run(cell: Data) -> str:
    return f"{cell['cell']} ({place_of(cell)}, rate {rate_text(cell['rate'])}, seed {cell['seed']})"


def _cells(cells: Sequence[Data], caption: str) -> Block:
    rows = [
        (
            "",
            [
                *(c["cell"], c["stage"], rate_text(c["rate"]), str(c["seed"])),
                *(str(c["attempts"]), c["error"] or NONE),
            ],
        )
        for c in cells
    ]
    return table(("<cell", "<stage", "rate", "seed", "attempts", "<error"), rows, caption)


def origin(summary: Data, differences: str) -> list[Block]:
    """Arms, the difference between their configs, environment and how to run it again."""
    study = summary["study"]
    arms = [
        f"{arm}: {spec['class_path']}"
        + "".join(f", {key}={value}" for key, value in spec["init_args"].items())
        for arm, spec in study["arms"].items()
    ]
    blocks: list[Block] = [Heading("Arms"), Bullets(tuple(arms))]
    if differences.strip():
        blocks += [
            Text("Everything in which the resolved configs of the arms differ:"),
            Listing(differences),
        ]
    environment = dict(summary["environment"])
    command = environment.pop("command", None)
    blocks.append(Heading("Origin"))
    if environment:
        blocks.append(
            table(("<what", "<value"), [("", (k, _flat(v))) for k, v in environment.items()])
        )
    if command:
        blocks += [Text("To run it again:"), Listing(str(command))]
    same = summary["same_runs"]
    if same:
        blocks.append(Text(_same_runs(same), "note"))
    blocks.append(
        Text(
            "Every cell is in cells.csv, every number of this page in summary.json. The rules are "
            "in docs/protocol.md.",
            "note",
        )
    )
    return blocks


def _same_runs(same: Mapping[str, int]) -> str:
    """Which cells were not trained for this place of this study."""
    sentences = []
    if "" in same:
        sentences.append(
            f"{same['']} of the cells are the very run of another level, which sets nothing that "
            "touches their arm: trained once, scored at each level."
        )
    for study, count in sorted(same.items()):
        if study:
            sentences.append(
                f"{count} of the cells are the very run of a cell of the same arm in the study "
                f"{study}: trained there, scored here."
            )
    return " ".join(sentences)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
