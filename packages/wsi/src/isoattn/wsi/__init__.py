"""Whole-slide images: slides, tiles, features, bags, TransMIL."""

from isoattn.wsi.models import ABMIL, RELEASED, MaxPooling, MeanPooling, TransMIL, load_weights

__all__ = ["ABMIL", "RELEASED", "MaxPooling", "MeanPooling", "TransMIL", "load_weights"]
