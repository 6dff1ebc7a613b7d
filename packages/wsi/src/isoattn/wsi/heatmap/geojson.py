"""Scores of tiles as GeoJSON that QuPath imports (File > Import objects from file).

Coordinates are level-0 pixels, as QuPath counts them. For MRXS and other formats with a bounding
box, QuPath counts from the corner of the box: pass it as ``origin``, from OpenSlide's properties
``openslide.bounds-x`` and ``openslide.bounds-y``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isoattn.wsi.features.files import whole_file
from isoattn.wsi.heatmap.tile_scores import TileScores


def tiles_to_geojson(
    scores: TileScores,
    *,
    threshold: float | None = None,
    origin: tuple[int, int] = (0, 0),
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A FeatureCollection with one square a tile and its score as a measurement.

    Args:
        scores: of the tiles.
        threshold: tiles at or above it are classified ``high``, others ``low``; ``None``: no
            classes.
        origin: level-0 pixel that QuPath counts from.
        more: further measurements by name, one number a tile.

    Raises:
        ValueError: further measurements of another length.
    """
    extra = {name: list(map(float, values)) for name, values in (more or {}).items()}
    wrong = [name for name, values in extra.items() if len(values) != len(scores.values_N)]
    if wrong:
        raise ValueError(
            f"The measurement {wrong[0]!r} has {len(extra[wrong[0]])} values for "
            f"{len(scores.values_N)} tiles"
        )
    features = []
    for i, (corner, value) in enumerate(zip(scores.coords_N2, scores.values_N, strict=True)):
        x, y = (int(corner[axis]) - origin[axis] for axis in (0, 1))
        properties: dict[str, Any] = {
            "objectType": "tile",
            "measurements": {scores.what: float(value)} | {k: v[i] for k, v in extra.items()},
        }
        if threshold is not None:
            properties["classification"] = _class(float(value) >= threshold)
        features.append(
            {"type": "Feature", "geometry": _square(x, y, scores.side), "properties": properties}
        )
    return {"type": "FeatureCollection", "features": features}


def save_geojson(path: Path, collection: Mapping[str, Any]) -> None:
    """Write a collection; the file is whole or absent."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(collection, allow_nan=False), encoding="utf-8")


def _square(x: int, y: int, side: float) -> dict[str, Any]:
    """A closed ring, clockwise on the screen from the top left."""
    right, bottom = round(x + side, 2), round(y + side, 2)
    ring = [[x, y], [right, y], [right, bottom], [x, bottom], [x, y]]
    return {"type": "Polygon", "coordinates": [ring]}


def _class(high: bool) -> dict[str, Any]:
    return {"name": "high", "color": [200, 0, 0]} if high else {"name": "low", "color": [0, 0, 200]}
