"""Synthetic slides: real pyramids with ground truth, made from a picture that needs no download."""

from isoattn.wsi.synthetic.cohort import make_cohort
from isoattn.wsi.synthetic.containers import pyramid, write_slide
from isoattn.wsi.synthetic.layout import CELL, GLASS, MIMIC, NORMAL, TUMOUR, LayoutError
from isoattn.wsi.synthetic.options import CohortOptions
from isoattn.wsi.synthetic.records import SlideRecord, read_labels, read_mask

__all__ = [
    "CELL",
    "GLASS",
    "MIMIC",
    "NORMAL",
    "TUMOUR",
    "CohortOptions",
    "LayoutError",
    "SlideRecord",
    "make_cohort",
    "pyramid",
    "read_labels",
    "read_mask",
    "write_slide",
]
