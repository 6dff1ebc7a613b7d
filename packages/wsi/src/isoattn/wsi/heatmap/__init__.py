"""Heat maps: scores of tiles as pictures, as objects for QuPath, and against the ground truth."""

from isoattn.wsi.heatmap.evidence import Evidence, tile_evidence
from isoattn.wsi.heatmap.geojson import save_geojson, tiles_to_geojson
from isoattn.wsi.heatmap.picture import Scale, save_heat_map
from isoattn.wsi.heatmap.tile_scores import TileScores, score_map
from isoattn.wsi.heatmap.truth import TruthScores, compare_with_truth
from isoattn.wsi.heatmap.write import write_heat_map

__all__ = [
    "Evidence",
    "Scale",
    "TileScores",
    "TruthScores",
    "compare_with_truth",
    "save_geojson",
    "save_heat_map",
    "score_map",
    "tile_evidence",
    "tiles_to_geojson",
    "write_heat_map",
]
