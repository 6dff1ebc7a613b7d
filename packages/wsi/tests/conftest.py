"""Slides of every kind, good and damaged: real files where they lie beside the repository, and the
same kinds made by our generator."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile

from isoattn.wsi.synthetic.containers import pyramid, write_slide
from isoattn.wsi.synthetic.layout import CELL, MIMIC, NORMAL, TUMOUR
from isoattn.wsi.synthetic.picture import paint
from isoattn.wsi.synthetic.stain import draw_stain

REAL = Path(__file__).parents[4] / "shared" / "data" / "wsi"
SIDE = 1024
DAMAGED_TILE = 5
"""Of 4 x 4: row 1, column 1, origin (256, 256)."""
EMPTY_TILES = (0, 5)


@pytest.fixture
def real() -> Path:
    if not REAL.is_dir():
        pytest.skip("the real slides are not beside the repository")
    return REAL


@pytest.fixture(scope="session")
def cells() -> np.ndarray:
    """A disk of tissue with a square of tumour and one of mimic, 128 x 128 cells."""
    side = SIDE // CELL
    y, x = np.mgrid[0:side, 0:side]
    disk = np.hypot(y - 56, x - 60) < 50
    made = np.where(disk, NORMAL, 0).astype(np.uint8)
    made[32:64, 32:64] = TUMOUR
    made[68:88, 68:88] = MIMIC
    return made


@pytest.fixture(scope="session")
def pixels(cells: np.ndarray) -> np.ndarray:
    """The picture of these cells."""
    return paint(cells, "left", draw_stain(0, 0, 0, 0, 0.0), 1.0, np.random.default_rng(0))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, pixels: np.ndarray) -> Path:
    """A folder of slides that all show the same picture, and of damaged ones."""
    folder = tmp_path_factory.mktemp("made")
    levels = pyramid(pixels, (1, 2, 4))
    write_slide(folder / "good.tif", levels)
    write_slide(folder / "good.svs", levels, container="svs")
    write_slide(folder / "series", levels, container="dicom", patient="P1")
    write_slide(folder / "nompp.tif", levels[:1], mpp=None)
    write_slide(folder / "steps.tif", pyramid(pixels, (1, 4, 16)), mpp=0.25)
    shutil.copy(folder / "good.tif", folder / "corrupt.tif")
    _spoil_tile(folder / "corrupt.tif", DAMAGED_TILE)
    write_slide(folder / "sparse.tif", levels[:1])
    _empty_tiles(folder / "sparse.tif", EMPTY_TILES)
    whole = (folder / "good.svs").read_bytes()
    (folder / "trunc.svs").write_bytes(whole[: len(whole) // 2])
    return folder


def _spoil_tile(path: Path, tile: int) -> None:
    """Overwrite the JPEG data of a tile of level 0 from its 301st byte on."""
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        start, length = page.dataoffsets[tile], page.databytecounts[tile]
    with path.open("r+b") as file:
        file.seek(start + 300)
        file.write(b"\xff\x11" * ((length - 300) // 2))


def _empty_tiles(path: Path, tiles: tuple[int, ...]) -> None:
    """Set the byte count of some tiles of level 0 to 0, which means that they were not scanned."""
    with tifffile.TiffFile(path, mode="r+b") as file:
        for name in ("TileOffsets", "TileByteCounts"):
            tag = file.pages[0].tags[name]
            tag.overwrite([0 if i in tiles else v for i, v in enumerate(tag.value)])


@pytest.fixture(params=["real", "made"])
def slide_file(request: pytest.FixtureRequest, made: Path) -> Callable[[str], Path]:
    """``slide_file("corrupt")``: the real file, then the made one; skips where there is none."""

    def find(kind: str) -> Path:
        if request.param == "made":
            return made / MADE[kind]
        if not REAL.is_dir():
            pytest.skip("the real slides are not beside the repository")
        return REAL / SHARED[kind]

    return find


MADE = {
    "tiff": "good.tif",
    "svs": "good.svs",
    "dicom": "series/0.dcm",
    "nompp": "nompp.tif",
    "corrupt": "corrupt.tif",
    "trunc": "trunc.svs",
}
SHARED = {
    "tiff": "t2048.tif",
    "svs": "t2048.svs",
    "dicom": "dcm/0.dcm",
    "nompp": "f_nompp.tif",
    "corrupt": "f_corrupt.tif",
    "trunc": "f_trunc.svs",
}
