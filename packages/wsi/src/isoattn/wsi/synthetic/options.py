"""What a synthetic cohort shall be."""

from __future__ import annotations

from dataclasses import dataclass

from isoattn.wsi.synthetic.containers import Container
from isoattn.wsi.synthetic.layout import CELL, Task


@dataclass(frozen=True)
class CohortOptions:
    """What slides to make.

    Tasks:

    * ``presence``: positive slides have tumour, negative ones have mimic of the same area in its
      place; both have further mimics.
    * ``proximity``: all slides have the same islands of tumour and of mimic; in positive ones a
      tumour and a mimic lie beside each other. What single tiles show tells nothing.
    * ``co_occurrence``: positive slides have tumour and mimic; negative ones have one of the two,
      of twice the area. The means over the tiles of both labels have the same centre, so they tell
      a linear classifier nothing.

    Args:
        slides: how many.
        task: see above.
        size: side in pixels of level 0.
        mpp: micrometres per pixel of level 0.
        tissue: share of the slide.
        tumour: least and largest share of the tissue that is tumour in a positive slide; drawn
            log-uniformly.
        islands: largest number of pieces of it.
        mimics: area of further mimics in every slide of ``presence``, as a multiple of a share
            drawn like the tumour's.
        contrast: 1: tumour differs from its mimic as gland from stroma, 0: not at all.
        shift: deviation of the stain between sites; see
            :func:`isoattn.wsi.synthetic.stain.draw_stain`.
        sites: hospitals; patients are spread evenly, and labels within each.
        slides_per_patient: all of the same label.
        test: share of patients in test, whose texture comes from a part of the source picture that
            training never sees.
        val: share of patients in validation, with the texture of training.
        tile: side in level-0 pixels of the tiles that will be cut; ``proximity`` keeps islands far
            enough apart that no tile shows both kinds.
        container: file format.
        levels: downsamples of the pyramid.
        seed: of everything.
    """

    slides: int = 48
    task: Task = "presence"
    size: int = 1024
    mpp: float = 0.5
    tissue: float = 0.6
    tumour: tuple[float, float] = (0.015, 0.04)
    islands: int = 2
    mimics: float = 1.0
    contrast: float = 1.0
    shift: float = 0.15
    sites: int = 3
    slides_per_patient: int = 2
    test: float = 0.25
    val: float = 0.2
    tile: int = 64
    container: Container = "tiff"
    levels: tuple[int, ...] = (1, 2, 4)
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = self.tumour
        if not 0 < low <= high <= 0.2:
            raise ValueError(
                f"tumour is a range within 0..0.2, such as (0.01, 0.04); got {self.tumour}"
            )
        if self.size % CELL or self.size < 256:
            raise ValueError(f"size is a multiple of {CELL} from 256 on, got {self.size}")
        if not (0.2 <= self.tissue <= 0.9 and 0 <= self.contrast <= 1 and self.shift >= 0):
            raise ValueError(
                "tissue lies in 0.2..0.9, contrast in 0..1, shift is 0 or more; got "
                f"tissue={self.tissue}, contrast={self.contrast}, shift={self.shift}"
            )
        if not (self.test >= 0 and self.val >= 0 and self.test + self.val < 1):
            raise ValueError(f"test and val leave something to train; got {self.test}, {self.val}")
        smallest = min(self.slides, self.sites, self.islands, self.slides_per_patient)
        if smallest < 1 or self.mimics < 0 or self.mpp <= 0:
            raise ValueError(
                "slides, sites, islands and slides_per_patient are 1 or more, mimics 0 or more, "
                f"mpp positive; got {self.slides}, {self.sites}, {self.islands}, "
                f"{self.slides_per_patient}, {self.mimics}, {self.mpp}"
            )
