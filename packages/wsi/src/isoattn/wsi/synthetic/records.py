"""The table of a cohort's slides."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from isoattn.wsi.features.files import whole_file
from isoattn.wsi.synthetic.layout import Cells

CLASSES = ("negative", "positive")
Part = Literal["train", "val", "test"]


@dataclass(frozen=True)
class SlideRecord:
    """One row of ``labels.csv``.

    Args:
        slide_id: name; features are stored under it.
        patient, site: names.
        label: ``negative`` or ``positive``.
        split: of the patient.
        tumour_fraction, mimic_fraction: of the tissue, as painted.
        file: of the slide, relative to the cohort.
        mask: PNG with one pixel a cell: 0 glass, 1 normal, 2 tumour, 3 mimic.
    """

    slide_id: str
    patient: str
    site: str
    label: str
    split: Part
    tumour_fraction: float = 0.0
    mimic_fraction: float = 0.0
    file: str = ""
    mask: str = ""


def write_labels(path: Path, records: Iterable[SlideRecord]) -> None:
    """Write ``labels.csv``."""
    names = [field.name for field in dataclasses.fields(SlideRecord)]
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(record) for record in records)


def read_labels(path: Path) -> list[SlideRecord]:
    """The rows of a cohort's ``labels.csv``."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    numbers = ("tumour_fraction", "mimic_fraction")
    return [
        SlideRecord(**{k: float(v) if k in numbers else v for k, v in row.items()})  # type: ignore[arg-type]
        for row in rows
    ]


def read_mask(folder: Path, record: SlideRecord) -> Cells:
    """The map of a slide's cells, whose kinds :mod:`isoattn.wsi.synthetic.layout` names."""
    with Image.open(folder / record.mask) as image:
        return np.asarray(image, dtype=np.uint8)
