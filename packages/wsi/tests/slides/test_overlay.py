"""The picture of tissue and tiles."""

from pathlib import Path

import numpy as np
from PIL import Image

from isoattn.wsi.slides import (
    Slide,
    TilingOptions,
    draw_overlay,
    find_tissue,
    save_overlay,
    tile_slide,
)
from isoattn.wsi.slides.overlay import ARTEFACT, DAMAGED, TILE, TISSUE


def count(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(picture) == colour).all(-1).sum())


def test_overlay(made: Path, tmp_path: Path) -> None:
    slide = Slide(made / "good.tif")
    tissue = find_tissue(slide)
    tiles = tile_slide(slide, tissue, TilingOptions(size=128))
    plain = draw_overlay(tissue)
    assert min(plain.size) >= 900
    assert count(plain, TISSUE) > 1000 and count(plain, TILE) == count(plain, DAMAGED) == 0
    full = draw_overlay(tissue, tiles, damaged=[0])
    outline = 4 * (full.width / 8 - 3)  # of one tile, a pixel inside each edge
    assert 0.8 < count(full, TILE) / (outline * (len(tiles) - 1)) < 1.05
    assert count(full, DAMAGED) > 150 and count(full, ARTEFACT) == 0
    save_overlay(tmp_path / "deep" / "a.png", tissue, tiles)
    with Image.open(tmp_path / "deep" / "a.png") as image:
        assert image.size == full.size
