"""The oracle sees what mean pooling does not."""

from pathlib import Path

import pytest

from isoattn.wsi.features import EncoderOptions, ExtractOptions, extract_slides
from isoattn.wsi.slides import TilingOptions
from isoattn.wsi.synthetic import CohortOptions, make_cohort
from isoattn.wsi.synthetic.difficulty import measure_difficulty


@pytest.mark.slow
def test_a_cohort_that_is_solvable_and_not_trivial(tmp_path: Path) -> None:
    records = make_cohort(tmp_path, CohortOptions(tumour=(0.005, 0.02)), jobs=2)
    options = ExtractOptions(
        tiling=TilingOptions(size=64), encoder=EncoderOptions("hed_statistics"), overlay=False
    )
    report = extract_slides(tmp_path / "slides", tmp_path / "hed", options, jobs=2)
    assert len(report.of("done")) == len(records)
    found = measure_difficulty(tmp_path, tmp_path / "hed", records)
    assert found.oracle > 0.8 and found.tile > 0.95
    assert found.mean_pool < found.oracle - 0.1
