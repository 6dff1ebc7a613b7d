"""Slides read at exact pixel sizes, their tissue, their tiles."""

from isoattn.wsi.slides.discover import find_slides
from isoattn.wsi.slides.errors import (
    DamagedRegion,
    DamagedSlide,
    ImplausibleMpp,
    MissingMpp,
    NoTissue,
    SlideError,
    TooFine,
    UnreadableSlide,
)
from isoattn.wsi.slides.overlay import draw_overlay, save_overlay
from isoattn.wsi.slides.reader import Region, Slide, slide_name
from isoattn.wsi.slides.resolution import MPP_RANGE, Resolution
from isoattn.wsi.slides.tiling import TileGrid, TilingOptions, tile_slide
from isoattn.wsi.slides.tissue import Tissue, TissueOptions, area_share, find_tissue

__all__ = [
    "MPP_RANGE",
    "DamagedRegion",
    "DamagedSlide",
    "ImplausibleMpp",
    "MissingMpp",
    "NoTissue",
    "Region",
    "Resolution",
    "Slide",
    "SlideError",
    "TileGrid",
    "TilingOptions",
    "Tissue",
    "TissueOptions",
    "TooFine",
    "UnreadableSlide",
    "area_share",
    "draw_overlay",
    "find_slides",
    "find_tissue",
    "save_overlay",
    "slide_name",
    "tile_slide",
]
