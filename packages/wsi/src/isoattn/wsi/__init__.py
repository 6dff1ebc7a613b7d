"""Whole-slide images: slides, tiles, features, bags, TransMIL."""
