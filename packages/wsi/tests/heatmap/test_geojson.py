"""Objects for QuPath."""

import json
from pathlib import Path

import numpy as np
import pytest

from isoattn.wsi.heatmap import TileScores, save_geojson, tiles_to_geojson

SCORES = TileScores(
    "a", np.array([[100, 200], [356, 200]]), np.array([0.5, -0.25], np.float32), 256.0, "attention"
)


def test_squares_in_level_0_pixels(tmp_path: Path) -> None:
    save_geojson(tmp_path / "a.geojson", tiles_to_geojson(SCORES, more={"share": [1.0, 0.0]}))
    read = json.loads((tmp_path / "a.geojson").read_text())
    assert read["type"] == "FeatureCollection" and len(read["features"]) == 2
    first = read["features"][0]
    ring = first["geometry"]["coordinates"][0]
    assert ring == [[100, 200], [356, 200], [356, 456], [100, 456], [100, 200]]
    assert first["geometry"]["type"] == "Polygon" and first["type"] == "Feature"
    assert first["properties"]["objectType"] == "tile"
    assert first["properties"]["measurements"] == {"attention": 0.5, "share": 1.0}
    assert "classification" not in first["properties"]


def test_classes_at_a_threshold_and_another_origin() -> None:
    made = tiles_to_geojson(SCORES, threshold=0.0, origin=(100, 150))
    names = [f["properties"]["classification"]["name"] for f in made["features"]]
    assert names == ["high", "low"]
    assert made["features"][1]["geometry"]["coordinates"][0][0] == [256, 50]


def test_measurements_of_another_length() -> None:
    with pytest.raises(ValueError, match="measurement 'share' has 1 values for 2 tiles"):
        tiles_to_geojson(SCORES, more={"share": [1.0]})
