"""Pairs of images with ground truth, and the batches that a matcher is given."""

from isoattn.matching.data.batch import Pair, PairBatch, collate

__all__ = ["Pair", "PairBatch", "collate"]
