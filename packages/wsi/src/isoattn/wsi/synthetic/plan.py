"""Who the slides belong to, what they are labelled, and what lies where on them.

Shape suffixes: H, W cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoattn.core.training import derive_seed
from isoattn.wsi.synthetic.layout import (
    CELL,
    MIMIC,
    TUMOUR,
    Cells,
    Island,
    draw_tissue,
    place_islands,
)
from isoattn.wsi.synthetic.options import CohortOptions
from isoattn.wsi.synthetic.records import CLASSES, Part, SlideRecord


@dataclass(frozen=True)
class Plan:
    """A slide before it is drawn.

    Args:
        number: of the slide.
        patient, site: numbers.
        record: names and label.
    """

    number: int
    patient: int
    site: int
    record: SlideRecord

    @property
    def positive(self) -> bool:
        """Whether the label is ``positive``."""
        return self.record.label == "positive"


def plan_cohort(options: CohortOptions) -> list[Plan]:
    """Patients, sites, labels and parts of all slides; nothing is drawn yet.

    Patients of each site and label are dealt out to test, val and train in turn, so that no site
    and no label is missing from a part while there are patients enough.
    """
    patients = -(-options.slides // options.slides_per_patient)
    groups = options.sites * 2
    plans: list[Plan] = []
    for number in range(options.slides):
        patient = number // options.slides_per_patient
        rank, group = divmod(patient, groups)
        site, label = group // 2, CLASSES[group % 2]
        part = _part(rank, -(-(patients - group) // groups), options)
        record = SlideRecord(f"S{number:03d}", f"P{patient:03d}", f"site{site + 1}", label, part)
        plans.append(Plan(number, patient, site, record))
    return plans


def _part(rank: int, of: int, options: CohortOptions) -> Part:
    """The part of the ``rank``-th of ``of`` patients: test first, then val."""
    test = round(of * options.test)
    val = round(of * options.val)
    if rank < test:
        return "test"
    return "val" if rank < test + val else "train"


def draw_cells(plan: Plan, options: CohortOptions) -> Cells:
    """The map of a slide.

    Raises:
        LayoutError: its islands do not fit.
    """
    rng = np.random.default_rng(derive_seed(options.seed, "layout", plan.number))
    side = options.size // CELL
    tissue = draw_tissue(side, side, options.tissue, rng)
    area = int(tissue.sum())
    low, high = np.log(options.tumour)
    tumour, other = np.exp(rng.uniform(low, high, 2))
    # So far apart that a tile, however it lies, has no pixel of two islands and their soft edges.
    gap = options.tile * 2**0.5 / CELL + 3
    if options.task == "presence":
        kind = TUMOUR if plan.positive else MIMIC
        islands = _split(kind, tumour * area, options.islands, rng)
        islands += _split(MIMIC, options.mimics * other * area, options.islands, rng)
        return place_islands(tissue, islands, rng, gap=2)
    each = max(1, round(tumour * area))
    if options.task == "co_occurrence":
        kinds = [TUMOUR, MIMIC]
        if not plan.positive:
            kinds = [kinds[plan.patient // 2 % 2]] * 2
        return place_islands(tissue, [Island(k, each) for k in kinds], rng, gap=gap)
    # Two of each, so that counting islands tells nothing either.
    islands = [Island(kind, max(1, each // 2)) for kind in (TUMOUR, MIMIC, TUMOUR, MIMIC)]
    near = {1: 0} if plan.positive else {}
    apart = 4 * options.tile / CELL
    return place_islands(tissue, islands, rng, gap=gap, near=near, reach=gap + 4, apart=apart)


def _split(kind: int, cells: float, most: int, rng: np.random.Generator) -> list[Island]:
    """An area in one to ``most`` pieces, the largest first; none for no area."""
    total = round(cells)
    if total < 1:
        return [Island(kind, 1)] if cells > 0 else []
    pieces = int(rng.integers(1, most + 1))
    shares = rng.dirichlet(np.full(pieces, 4.0))
    sizes = sorted((max(1, int(share * total)) for share in shares), reverse=True)
    sizes[0] += total - sum(sizes)
    return [Island(kind, size) for size in sizes if size > 0]
