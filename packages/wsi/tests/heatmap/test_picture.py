"""The picture of a heat map."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from isoattn.wsi.heatmap import TileScores, save_heat_map, write_heat_map
from isoattn.wsi.heatmap.picture import SIGNED, UNSIGNED, _colours, _scaled
from isoattn.wsi.slides import Slide


def scores(values: np.ndarray) -> TileScores:
    x, y = np.meshgrid(np.arange(8) * 128, np.arange(8) * 128)
    coords = np.stack([x, y], -1).reshape(-1, 2).astype(np.int64)
    return TileScores("good", coords, values.astype(np.float32), 128.0)


@pytest.mark.parametrize("scale", ["auto", "signed", "unsigned", "rank"])
def test_a_png_in_every_scale(scale: str, made: Path, cells: np.ndarray, tmp_path: Path) -> None:
    slide = Slide(made / "good.tif")
    thumbnail = np.asarray(slide.thumbnail(128))
    values = np.random.default_rng(0).standard_normal(64)
    save_heat_map(
        tmp_path / "a" / "heat.png", thumbnail, 8.0, scores(values), scale=scale,  # type: ignore[arg-type]
        truth_HW=cells == 2, caption="AUC over tiles 0.9",
    )  # fmt: skip
    with Image.open(tmp_path / "a" / "heat.png") as image:
        picture = np.asarray(image.convert("RGB")).astype(int)
    assert min(picture.shape[:2]) > 400
    green = (picture[..., 1] > 130) & (picture[..., 0] < 60) & (picture[..., 2] < 60)
    assert green.sum() > 100  # the outline, in both panels
    half = picture.shape[1] // 2
    assert green[:, :half].any() and green[:, half:].any()


def test_limits() -> None:
    signed = scores(np.linspace(-1, 3, 64))
    colours = _colours(signed, "auto")
    assert colours["cmap"] == SIGNED and colours["vmin"] == -colours["vmax"]
    colours = _colours(scores(np.linspace(0, 1, 64)), "auto")
    assert colours["cmap"] == UNSIGNED and 0 <= colours["vmin"] < colours["vmax"] <= 1
    flat = _colours(scores(np.zeros(64)), "auto")
    assert flat["vmin"] < flat["vmax"]
    ranked, label = _scaled(scores(np.linspace(0, 1, 64) ** 20), "rank")
    assert ranked.values_N.min() == 0.5 / 64 and "share of tiles below" in label


def test_without_truth_or_scores_in_a_corner(made: Path, tmp_path: Path) -> None:
    one = TileScores("a", np.array([[0, 0]]), np.array([1.0], np.float32), 64.0)
    save_heat_map(tmp_path / "a.png", np.full((50, 100, 3), 200, np.uint8), 10.0, one)
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 400


def test_everything_in_one_folder(made: Path, cells: np.ndarray, tmp_path: Path) -> None:
    values = np.zeros((8, 8))
    values[2:4, 2:4] = 1.0  # where the tumour is
    found = write_heat_map(
        tmp_path, Slide(made / "nompp.tif"), scores(values.ravel()), truth_HW=cells == 2,
        threshold=0.5,
    )  # fmt: skip
    assert found is not None and found.auc == pytest.approx(1.0) and found.iou == 1
    assert {path.name for path in tmp_path.iterdir()} == {"good.png", "good.geojson"}
    none = write_heat_map(tmp_path, Slide(made / "good.tif"), scores(values.ravel()))
    assert none is None
