"""Features of tiles: encoders, extraction, files."""

from isoattn.wsi.features.build import OFFLINE, EncoderOptions, build_encoder
from isoattn.wsi.features.config import ExtractOptions
from isoattn.wsi.features.encoder import Encoder, EncoderError
from isoattn.wsi.features.extract import SlideOutcome, extract_slide
from isoattn.wsi.features.folder import ExtractReport, extract_slides, read_mpp_table
from isoattn.wsi.features.formats import (
    FeatureFileError,
    SlideFeatures,
    read_features,
    write_clam,
)
from isoattn.wsi.features.presets import PRESETS, Preset
from isoattn.wsi.features.tile_dataset import TileDataset, tile_loader

__all__ = [
    "OFFLINE",
    "PRESETS",
    "Encoder",
    "EncoderError",
    "EncoderOptions",
    "ExtractOptions",
    "ExtractReport",
    "FeatureFileError",
    "Preset",
    "SlideFeatures",
    "SlideOutcome",
    "TileDataset",
    "build_encoder",
    "extract_slide",
    "extract_slides",
    "read_features",
    "read_mpp_table",
    "tile_loader",
    "write_clam",
]
