"""Where the slides of bags lie, and where what a heat map should find is known.

Shape suffixes: H, W cells of a mask.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from isoattn.apps.base.errors import UserError
from isoattn.wsi.bags import BagTask
from isoattn.wsi.bags.synthetic import STEP, MadeBags
from isoattn.wsi.slides import UnreadableSlide, find_slides, slide_name

Mask = NDArray[np.bool_]
FINE = 8
"""Pixels of a mask to a side of a made tile."""


@dataclass(frozen=True)
class Truths:
    """Slides and masks by the name of the bag.

    Args:
        slides: files of slides.
        masks: pictures of masks.
        values: of a mask's pixels that are to be found; empty: all but 0.
        made: bags that know the types of their tiles.
    """

    slides: Mapping[str, Path] = field(default_factory=dict)
    masks: Mapping[str, Path] = field(default_factory=dict)
    values: tuple[int, ...] = ()
    made: MadeBags | None = None

    def mask(self, name: str, index: int) -> Mask | None:
        """Of the whole slide, True where something is to be found; ``None``: not known.

        Raises:
            UserError: a mask that cannot be read.
        """
        if self.made is not None:
            return _made_mask(self.made, index)
        path = self.masks.get(name)
        if path is None:
            return None
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image)
        except (OSError, UnidentifiedImageError) as error:
            raise UserError(f"The mask {path} cannot be read: {error}") from error
        if pixels.ndim == 3:
            pixels = pixels[..., :3].max(-1)
        return np.isin(pixels, self.values) if self.values else pixels > 0


def find_truths(
    task: BagTask,
    labels: str | None,
    *,
    slides: Sequence[Path] = (),
    masks: Path | None = None,
    values: Sequence[int] = (),
) -> Truths:
    """What is known of the bags of a task.

    A cohort of ``isoattn wsi synthesize`` knows its slides and masks by itself: its table of labels
    has the columns ``file`` and ``mask``, relative to the table.

    Args:
        task: of the bags.
        labels: the table of labels, where there is one.
        slides: folders of slides, or slides.
        masks: folder of masks, ID.png.
        values: see :class:`Truths`.

    Raises:
        UserError: no such folder, or none of the bags in it.
    """
    if isinstance(task.reader, MadeBags):
        return Truths(made=task.reader)
    known, known_masks = _of_table(labels)
    if slides:
        try:
            known = {slide_name(path): path for path in find_slides(slides)}
        except UnreadableSlide as error:
            raise UserError(f"--slides: {error}") from error
        _some(known, task, "--slides")
    if masks is not None:
        if not masks.is_dir():
            raise UserError(f"--masks: there is no folder {masks}.")
        known_masks = {path.stem: path for path in sorted(masks.glob("*.png"))}
        _some(known_masks, task, "--masks")
    elif known_masks and not values:
        from isoattn.wsi.synthetic import TUMOUR

        values = (TUMOUR,)
    return Truths(known, known_masks, tuple(values))


def _of_table(labels: str | None) -> tuple[dict[str, Path], dict[str, Path]]:
    """Slides and masks that a cohort's table names and that are there."""
    found: tuple[dict[str, Path], dict[str, Path]] = ({}, {})
    if labels is None or not (Path(labels).parent / "cohort.json").is_file():
        return found
    with Path(labels).open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            for column, by_name in zip(("file", "mask"), found, strict=True):
                path = Path(labels).parent / row.get(column, "")
                if path.is_file():
                    by_name[row["slide_id"]] = path
    return found


def _some(found: Mapping[str, Path], task: BagTask, option: str) -> None:
    if not found.keys() & set(task.ids):
        have = ", ".join(sorted(found)[:3]) or "nothing"
        raise UserError(
            f"{option} has none of the {len(task.ids)} bags, such as {task.ids[0]!r}; it has {have}"
        )


def _made_mask(reader: MadeBags, index: int) -> Mask:
    """A cell is True where its tile is of a type that is looked for; negative bags have none."""
    coords = reader.read(index).coords
    assert coords is not None
    cells = coords // STEP
    side = int(cells.max()) + 1
    mask = np.zeros((side, side), dtype=bool)
    if bool(reader.positive[index]):
        types = reader.tile_types(index)
        marked = cells[types > 0].numpy()
        mask[marked[:, 1], marked[:, 0]] = True
    return mask.repeat(FINE, 0).repeat(FINE, 1)  # an outline cuts the corners of single pixels
