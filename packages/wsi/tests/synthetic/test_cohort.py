"""Cohorts: patients, labels and areas as asked for, the same from the same seed."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from isoattn.wsi.slides import Slide
from isoattn.wsi.synthetic import (
    CELL,
    MIMIC,
    TUMOUR,
    CohortOptions,
    make_cohort,
    read_labels,
    read_mask,
)
from isoattn.wsi.synthetic.plan import draw_cells, plan_cohort

SMALL = CohortOptions(
    slides=4, size=512, tumour=(0.02, 0.04), sites=1, slides_per_patient=1, test=0.5, val=0.0
)


@settings(max_examples=40, deadline=None)
@given(
    slides=st.integers(1, 120), sites=st.integers(1, 4), per_patient=st.integers(1, 3),
    test=st.sampled_from([0.0, 0.25, 0.4]), val=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_patients_stay_together(
    slides: int, sites: int, per_patient: int, test: float, val: float
) -> None:
    options = CohortOptions(
        slides=slides, sites=sites, slides_per_patient=per_patient, test=test, val=val
    )
    records = [plan.record for plan in plan_cohort(options)]
    assert len({r.slide_id for r in records}) == slides
    for patient in {r.patient for r in records}:
        own = [r for r in records if r.patient == patient]
        assert len(own) <= per_patient
        assert len({(r.site, r.label, r.split) for r in own}) == 1


def test_each_part_has_every_site_and_label() -> None:
    records = [plan.record for plan in plan_cohort(CohortOptions(slides=60))]
    counts = Counter((r.split, r.site, r.label) for r in records)
    assert len(counts) == 3 * 3 * 2
    parts = Counter(r.split for r in records)
    assert parts == {"train": 36, "val": 12, "test": 12}
    assert Counter(r.label for r in records)["positive"] == 30


def kinds(options: CohortOptions) -> list[tuple[bool, int, int, np.ndarray]]:
    made = []
    for plan in plan_cohort(options):
        cells = draw_cells(plan, options)
        made.append((plan.positive, (cells == TUMOUR).sum(), (cells == MIMIC).sum(), cells))
    return made


def test_presence_has_tumour_within_its_range() -> None:
    options = dataclasses.replace(SMALL, slides=12, size=1024, tumour=(0.005, 0.02))
    for positive, tumour, mimic, cells in kinds(options):
        tissue = (cells > 0).sum()
        if positive:
            assert 0.0045 < tumour / tissue < 0.0205
            assert 0.0045 < mimic / tissue < 0.0205
        else:
            assert tumour == 0 and 0.0095 < mimic / tissue < 0.0405


def test_a_tumour_of_a_thousandth() -> None:
    options = dataclasses.replace(SMALL, slides=4, size=1024, tumour=(0.001, 0.001), mimics=0.0)
    for positive, tumour, mimic, cells in kinds(options):
        area = round(0.001 * (cells > 0).sum())
        assert (tumour, mimic) == ((area, 0) if positive else (0, area))


def test_proximity_shows_the_same_islands_in_both_labels() -> None:
    options = dataclasses.replace(SMALL, task="proximity", slides=8, size=1536, tumour=(0.01, 0.02))
    for positive, tumour, mimic, cells in kinds(options):
        assert tumour == mimic > 0
        gap = ndimage.distance_transform_edt(cells != TUMOUR)[cells == MIMIC].min() * CELL
        # No square tile of 64 px, however it lies on the grid, shows both kinds.
        assert gap > 64 * np.sqrt(2)
        assert (gap < 64 * 3.5) if positive else (gap > 64 * 4 - CELL)


def test_co_occurrence_has_equal_areas() -> None:
    options = dataclasses.replace(
        SMALL, task="co_occurrence", slides=12, size=1024, tumour=(0.01, 0.02)
    )
    seen = Counter()
    for positive, tumour, mimic, _ in kinds(options):
        if positive:
            assert tumour == mimic > 0
        else:
            assert (tumour == 0) != (mimic == 0)
            seen[bool(tumour)] += 1
    assert seen[True] == seen[False] == 3


def test_files(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    records = make_cohort(tmp_path, SMALL, progress=lambda done, of: calls.append((done, of)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert read_labels(tmp_path / "labels.csv") == records
    header = (tmp_path / "labels.csv").read_text().splitlines()[0]
    assert header.startswith("slide_id,patient,site,label,split,tumour_fraction")
    for record in records:
        slide = Slide(tmp_path / record.file)
        assert slide.dimensions == (512, 512) and slide.mpp == 0.5
        mask = read_mask(tmp_path, record)
        assert mask.shape == (512 // CELL,) * 2
        share = (mask == TUMOUR).sum() / (mask > 0).sum()
        assert record.tumour_fraction == pytest.approx(share, abs=1e-6)
        assert (share > 0) == (record.label == "positive")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tif")}
    assert make_cohort(tmp_path, SMALL) == records
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tif")}
    with pytest.raises(ValueError, match=r"holds a cohort of other options \(contrast, seed\)"):
        make_cohort(tmp_path, dataclasses.replace(SMALL, seed=1, contrast=0.5))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    one = dataclasses.replace(SMALL, slides=1)
    for run in ("a", "b"):
        make_cohort(tmp_path / run, one)
    make_cohort(tmp_path / "c", dataclasses.replace(one, seed=1))
    a, b, c = ((tmp_path / run / "slides" / "S000.tif").read_bytes() for run in "abc")
    assert a == b != c


@pytest.mark.parametrize("container", ["svs", "dicom"])
def test_other_containers(container: str, tmp_path: Path) -> None:
    one = dataclasses.replace(SMALL, slides=1, container=container)
    record = make_cohort(tmp_path, one)[0]
    assert Slide(tmp_path / record.file).name == "S000"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tumour": (0.0, 0.1)}, r"tumour is a range within 0..0.2, .* got \(0.0, 0.1\)"),
        ({"size": 500}, "size is a multiple of 8 from 256 on, got 500"),
        ({"contrast": 2.0}, "contrast in 0..1, .* contrast=2.0"),
        ({"test": 0.6, "val": 0.5}, "leave something to train; got 0.6, 0.5"),
        ({"slides": 0}, "are 1 or more"),
    ],
)
def test_options_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CohortOptions(**changes)  # type: ignore[arg-type]
