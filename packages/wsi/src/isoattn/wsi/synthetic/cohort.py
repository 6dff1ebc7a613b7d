"""A cohort of synthetic slides in files: slides, masks, labels, options."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from isoattn.core.training import derive_seed
from isoattn.wsi.features.files import whole_file
from isoattn.wsi.synthetic.containers import Container, pyramid, write_slide
from isoattn.wsi.synthetic.layout import CELL, GLASS, MIMIC, TUMOUR
from isoattn.wsi.synthetic.options import CohortOptions
from isoattn.wsi.synthetic.picture import paint
from isoattn.wsi.synthetic.plan import Plan, draw_cells, plan_cohort
from isoattn.wsi.synthetic.records import SlideRecord, read_labels, write_labels
from isoattn.wsi.synthetic.stain import draw_stain
from isoattn.wsi.synthetic.texture import Half

VERSION = 1
"""Raised when the same options give other slides than before."""


def make_slide(folder: Path, plan: Plan, options: CohortOptions) -> SlideRecord:
    """Draw one slide and write it with its mask; the same plan gives the same bytes."""
    cells = draw_cells(plan, options)
    tissue = int((cells != GLASS).sum())
    stain = draw_stain(options.seed, plan.site, plan.patient, plan.number, options.shift)
    half: Half = "right" if plan.record.split == "test" else "left"
    rng = np.random.default_rng(derive_seed(options.seed, "texture", plan.number))
    levels = pyramid(paint(cells, half, stain, options.contrast, rng), options.levels)
    file = _slide_path(folder, plan.record.slide_id, options.container)
    written = write_slide(
        file,
        levels,
        container=options.container,
        mpp=options.mpp,
        patient=plan.record.patient,
    )
    mask = folder / "masks" / f"{plan.record.slide_id}.png"
    mask.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(cells).save(mask, "PNG")
    return dataclasses.replace(
        plan.record,
        tumour_fraction=round(float((cells == TUMOUR).sum()) / tissue, 6),
        mimic_fraction=round(float((cells == MIMIC).sum()) / tissue, 6),
        file=written.relative_to(folder).as_posix(),
        mask=mask.relative_to(folder).as_posix(),
    )


def _slide_path(folder: Path, name: str, container: Container) -> Path:
    suffix = {"tiff": ".tif", "svs": ".svs", "dicom": ""}[container]
    return folder / "slides" / f"{name}{suffix}"


def make_cohort(
    folder: str | Path,
    options: CohortOptions = CohortOptions(),  # noqa: B008 - frozen
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[SlideRecord]:
    """Make a cohort: ``slides/``, ``masks/``, ``labels.csv`` and ``cohort.json``.

    A cohort that is there with the same options is left as it is.

    Args:
        folder: to write to.
        options: of the cohort.
        jobs: processes (``spawn``); 1: this one.
        progress: called with the number of slides made and of all.

    Raises:
        LayoutError: islands do not fit on slides of this size.
        ValueError: the folder holds another cohort.

    Example:
        >>> records = make_cohort("cohort", CohortOptions(slides=48), jobs=2)
    """
    folder = Path(folder)
    stored = _stored(folder, options)
    if stored is not None:
        return stored
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for record in _made(folder, plan_cohort(options), options, jobs):
        records.append(record)
        if progress is not None:
            progress(len(records), options.slides)
    write_labels(folder / "labels.csv", records)
    facts = {"version": VERSION, "cell": CELL, "options": dataclasses.asdict(options)}
    # Last, so that a cohort which was cut short is made again.
    with whole_file(folder / "cohort.json") as partial:
        partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return records


def _made(
    folder: Path, plans: Sequence[Plan], options: CohortOptions, jobs: int
) -> Iterator[SlideRecord]:
    if jobs <= 1:
        yield from (make_slide(folder, plan, options) for plan in plans)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        count = len(plans)
        yield from pool.map(make_slide, [folder] * count, plans, [options] * count, chunksize=2)


def _stored(folder: Path, options: CohortOptions) -> list[SlideRecord] | None:
    """The records of a finished cohort of these options."""
    path = folder / "cohort.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    wanted = json.loads(json.dumps(dataclasses.asdict(options)))
    if found.get("version") != VERSION or found.get("options") != wanted:
        differing = sorted(
            key for key, value in wanted.items() if found.get("options", {}).get(key) != value
        )
        raise ValueError(
            f"{folder} holds a cohort of other options ({', '.join(differing) or 'version'}). "
            "Remove it, or choose another folder."
        )
    return read_labels(folder / "labels.csv")
